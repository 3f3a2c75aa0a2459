"""The figure of long-term statistics: attractors and spectra."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from kfx.evaluation.attractors import spectrum
from kfx.evaluation.rollout import COLUMNS
from kfx.numerics.point_sets import delay_of
from kfx.plots.style import DATA, FAINT, TRAINED, figure, literal
from kfx.record.reading import Run, read_table

_LOOKS = {"truth": (FAINT, DATA, "-"), "forecast": (TRAINED, TRAINED, "--")}
"""Colours of points and of spectra, and the line of spectra."""


def long_term(run: Run) -> Figure | None:
    """The attractor of the truth, that of free runs by the trained kernel, and the spectra of the first coordinate.

    The plane is of the first and the last coordinate, or of x(t) and x some steps before.
    """
    rows = read_table(run.directory / "attractor.csv", COLUMNS)
    if rows.empty:
        return None
    own = rows[rows["kernel"] == rows["kernel"].iloc[-1]]
    runs = [part for _, part in own.groupby("origin")]
    names = [name.removeprefix("truth.") for name in rows.columns if name.startswith("truth.")]
    back = delay_of(runs[0][f"truth.{names[0]}"].to_numpy(), len(runs[0]))
    picture, panels = figure(columns=3, width=4.4, height=3.9)
    side_by_side(panels[:2], own, names, back)
    for kind, (_, colour, line) in _LOOKS.items():
        power = spectrum(np.stack([part[[f"{kind}.{names[0]}"]].to_numpy() for part in runs]))[1:, 0]
        frequencies = np.arange(1, len(power) + 1) / len(runs[0])
        panels[2].plot(frequencies, power, line, color=colour, linewidth=1.3, label=kind)
    panels[2].set(xlabel="cycles a step", ylabel=f"share of the power of {literal(names[0])}", title="spectrum")
    panels[2].set(xscale="log", yscale="log")
    panels[2].xaxis.set_minor_formatter(NullFormatter())  # on a short axis they would overlap
    panels[2].legend()
    return picture


def side_by_side(panels: Sequence[Axes], rows: pd.DataFrame, names: Sequence[str], back: int) -> None:
    """Draw the truth and the forecasts of each origin in a plane each, with the limits of the truth.

    rows: of one kernel. names: of the coordinates; of one, x(t) and x `back` steps before.
    """
    plain = len(names) > 1
    for axes, (kind, (colour, _, _)) in zip(panels, _LOOKS.items(), strict=True):
        for _, part in rows.groupby("origin"):
            x = part[f"{kind}.{names[0]}"].to_numpy()
            x, y = (x, part[f"{kind}.{names[-1]}"].to_numpy()) if plain else (x[back:], x[:-back])
            axes.plot(x, y, color=colour, linewidth=0.9)
        axes.set(xlabel=literal(names[0]) if plain else f"{literal(names[0])}(t)", title=kind)
    panels[0].set_ylabel(literal(names[-1]) if plain else f"{literal(names[0])}(t − {back})")
    panels[1].set(xlim=panels[0].get_xlim(), ylim=panels[0].get_ylim())
