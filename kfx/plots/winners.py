"""Which criterion loses least in each setting of the map of criteria."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from kfx.plots.style import COLOURS, FAINT, figure, headline

_OTHER = "rho"
_CLEAR = 0.05


def winners(regrets: pd.DataFrame) -> Figure:
    """A panel for each way to λ, a row for each truth and model, a column for each noise, dimension and size.

    regrets: a column for each criterion, a row for each setting, way to λ and draw, as levels of its index. The colour
    is that of the criterion of the least mean over draws: full where it is better than the second by a paired t-test at
    5 %, pale where it is not, grey where several choose the same kernels. Cells of ρ have a frame.
    """
    ways = list(dict.fromkeys(regrets.index.get_level_values("lambda")))
    picture, axes = figure(columns=len(ways), width=5.4, height=4.6)
    names = [str(name) for name in regrets]
    seen: set[str] = set()
    for panel, way in zip(axes, ways, strict=True):
        seen |= _draw(
            panel,
            regrets[regrets.index.get_level_values("lambda") == way].droplevel("lambda").dropna(axis=1, how="all"),
            names,
        )
        headline(panel, f"λ {way.replace('_', '-') if way != 'leave_one_out' else 'by leave-one-out'}")
    shown = [name for name in names if name in seen]
    handles = [Patch(color=COLOURS[names.index(name) % len(COLOURS)], label=name) for name in shown]
    handles += [Patch(color=FAINT, label="several alike")]
    picture.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=9, frameon=False)
    return picture


def _draw(panel: Axes, own: pd.DataFrame, names: list[str]) -> set[str]:
    """Fill a panel; return the criteria that have a cell."""
    rows = list(dict.fromkeys((truth, model) for truth, model, *_ in own.index))
    columns = sorted({(noise, n, d) for _, _, d, n, noise, _ in own.index})
    colours = np.ones((len(rows), len(columns), 3))
    seen = set()
    for (truth, model, d, n, noise), values in own.groupby(level=["truth", "model", "d", "n", "noise"]):
        i, j = rows.index((truth, model)), columns.index((noise, n, d))
        name, strength = _winner(values)
        colours[i, j] = 1 - strength * (
            1 - np.array(to_rgb(FAINT if not name else COLOURS[names.index(name) % len(COLOURS)]))
        )
        seen.add(name)
        if name == _OTHER:
            panel.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=1.5))
    panel.imshow(colours, aspect="auto", interpolation="nearest")
    panel.grid(visible=False)
    panel.set_yticks(range(len(rows)), [f"{truth} / {model}" for truth, model in rows], fontsize=7)
    panel.set_xticks(range(len(columns)), [f"{n}, {d}" for _, n, d in columns], rotation=90, fontsize=6)
    noises = sorted({noise for noise, _, _ in columns})
    for noise in noises:
        at = [j for j, column in enumerate(columns) if column[0] == noise]
        panel.axvline(at[-1] + 0.5, color="white", linewidth=3)
        panel.text(float(np.mean(at)), -0.8, f"noise {noise:g}", ha="center", va="bottom", fontsize=8)
    panel.set_xlabel("N, d")
    return seen - {""}


def _winner(values: pd.DataFrame) -> tuple[str, float]:
    """The criterion of the least mean over draws, empty for several alike, and the strength of its colour."""
    from scipy.stats import ttest_rel

    means = values.mean().sort_values()
    first, second = means.index[:2]
    difference = values[second] - values[first]
    if np.allclose(difference, 0):
        return "", 1.0
    is_clear = difference.std() > 0 and ttest_rel(values[second], values[first]).pvalue < _CLEAR
    return str(first), 1.0 if is_clear else 0.4
