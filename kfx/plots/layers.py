"""A deep kernel machine during its fit: likelihood, regularizer of each layer, and ρ of each layer's kernel."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kfx.evaluation.follower import OF_LAYERS, OF_OTHERS, columns
from kfx.plots.style import COLOURS, DATA, FAINT, count_along, figure, running, set_title
from kfx.record.reading import Run, read_table

_PENALTY, _EXPECTED, _EXPLAINED = "diagnostic.penalty.", "diagnostic.expected_log_likelihood", ".explained"


def layers(run: Run) -> Figure | None:
    """How well the batches are explained, and what each layer pays for its distance from the prior; with ρ of each
    layer's kernel where the run followed it."""
    trace = run.trace
    if _EXPECTED not in trace or len(trace) < 2:
        return None
    followed = _followed(run)
    picture, axes = figure(columns=2 if followed.empty else 3, width=4.8)
    _draw_likelihood(axes[0], trace)
    _draw_penalties(axes[1], trace)
    if not followed.empty:
        _draw_rho(axes[2], followed)
    for panel in axes:
        count_along(panel, "iteration")
        panel.margins(y=0.08)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=8, frameon=False)
    set_title(axes[0], run)
    return picture


def _followed(run: Run) -> pd.DataFrame:
    file, counted = OF_OTHERS
    path = run.directory / file
    if not path.is_file():
        return pd.DataFrame()
    table = read_table(path, columns(counted))
    return table[table["metric"].str.startswith(OF_LAYERS) & (table["part"] == 0)]


def _draw_likelihood(panel: Axes, trace: pd.DataFrame) -> None:
    values = trace[_EXPECTED].to_numpy(dtype=float)
    panel.plot(trace["iteration"], values, color=FAINT, linewidth=0.6)
    mean = running(values, max(len(values) // 50, 1))[0]
    panel.plot(trace["iteration"], mean, color=COLOURS[0], linewidth=1.5, label="expected, a batch")
    panel.set(ylabel="log-likelihood a point")


def _draw_penalties(panel: Axes, trace: pd.DataFrame) -> None:
    names = [str(name) for name in trace if str(name).startswith(_PENALTY)]
    for name, colour in zip(names, _by_depth(len(names)), strict=True):
        panel.plot(trace["iteration"], trace[name], color=colour, linewidth=1.0, label=_at_ends(name, names))
    panel.plot(trace["iteration"], trace["diagnostic.kl"], color=DATA, linewidth=1.3, label="KL of the outputs")
    positive = trace[[*names, "diagnostic.kl"]].to_numpy(dtype=float)
    panel.set(ylabel="regularizer, ν KL(G ‖ K)")
    if (positive > 0).any():
        panel.set_yscale("log")
        panel.set_ylim(bottom=max(float(positive[positive > 0].min()), float(positive.max()) * 1e-6))


def _draw_rho(panel: Axes, followed: pd.DataFrame) -> None:
    names = [name for name in dict.fromkeys(followed["metric"]) if not name.endswith(_EXPLAINED)]
    for name, colour in zip(names, _by_depth(len(names)), strict=True):
        for metric, style in ((name, "-"), (name + _EXPLAINED, "--")):
            own = followed[followed["metric"] == metric]
            label = _at_ends(name, names) if style == "-" else None
            panel.plot(own["iteration"], own["value"], style, color=colour, linewidth=1.3, label=label)
    if followed["metric"].str.endswith(_EXPLAINED).any():
        panel.plot([], [], "--", color=DATA, label="what inducing points explain")
    panel.set(ylabel="ρ of the layer's kernel", ylim=(0, 1))


def _by_depth(count: int) -> np.ndarray:
    return colormaps["viridis"](np.linspace(0.0, 0.9, count))


def _at_ends(name: str, names: list[str]) -> str | None:
    """The names of the first and the last layer, for a legend; colours vary from one to the other."""
    shown = name.removeprefix(_PENALTY).removeprefix(OF_LAYERS).replace(".block", "").replace("_", " ")
    return shown if name in (names[0], names[-1]) else None
