"""Pictures of a comparison of many runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kfx.outcomes import ConfigError
from kfx.plots.style import COLOURS, MARKERS, above_noise, figure, headline, legend, literal


def check_name(option: str, path: Path) -> None:
    """ConfigError for a file name that does not end in a picture format."""
    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if path.suffix[1:] not in known:
        raise ConfigError(f"{option} {path}: expected a name that ends in {', '.join(f'.{name}' for name in known)}")


def by_row(frame: pd.DataFrame, by: Sequence[str], metric: str, of: str) -> Figure:
    """The metric of each row with its standard deviation, or standard error, over seeds. of: `sd` or `se`."""
    drawn, (axes,) = figure(height=1.2 + 0.42 * len(frame))
    places = np.arange(len(frame))[::-1]
    spread = frame[f"{metric}_{of}"].fillna(0.0)
    axes.errorbar(frame[metric], places, xerr=spread, fmt="o", color=COLOURS[0], capsize=3)
    axes.set_yticks(places, [_named(row[key] for key in by) for row in frame.to_dict("records")])
    axes.set(xlabel=f"{metric} (mean ± {of} over seeds)", ylim=(-0.6, len(frame) - 0.4))
    if metric.endswith("accuracy"):
        axes.set_xlim(max(axes.get_xlim()[0], 0.0), min(axes.get_xlim()[1], 1.0))
    headline(axes, literal(frame.attrs["title"]).replace("N_I", "$N_I$"))
    return drawn


def curve(frame: pd.DataFrame, by: Sequence[str], metric: str, of: str) -> Figure:
    """The metric, or for an accuracy the error, against the number of interpolation points, with its deviation.

    The axis of the metric is logarithmic if none of its values is below 0. of: `sd` or `se`.
    """
    is_accuracy = metric.endswith("accuracy")
    by = [key for key in by if key != "n_interpolation"] or ["n"]
    drawn, (axes,) = figure(height=4.2)
    every = frame.assign(shown=1 - frame[metric] if is_accuracy else frame[metric])
    is_logarithmic = bool((every["shown"] > 0).any() and not (every["shown"] < 0).any())
    groups: Any = every.astype(dict.fromkeys(by, str)).groupby(list(by), sort=False)
    for i, (names, rows) in enumerate(groups):
        rows = rows.sort_values("n_interpolation")
        axes.errorbar(
            rows["n_interpolation"],
            above_noise(rows["shown"]) if is_logarithmic else rows["shown"],
            yerr=rows[f"{metric}_{of}"].fillna(0.0),
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            capsize=3,
            label=_named(names),
        )
    axes.set(
        xlabel="interpolation points $N_I$",
        ylabel=f"{f'1 − {metric}' if is_accuracy else metric} (mean ± {of})",
        xscale="log",
        yscale="log" if is_logarithmic else "linear",
    )
    sizes = sorted(frame["n_interpolation"].unique())
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    headline(axes, literal(frame.attrs["title"]))
    legend(drawn, axes)
    return drawn


def _named(values: Iterable[object]) -> str:
    return " · ".join(literal(str(value)) for value in values)
