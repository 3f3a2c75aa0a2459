"""Where criteria are among the best, and what they lose on collections of data sets."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kfx.plots.style import COLOURS, MARKERS, figure, headline, legend


def shares_of_best(shares: pd.DataFrame) -> Figure:
    """A panel for each way to λ, a row for each criterion, a column for each part of the settings; ρ's row has a frame.

    shares: of the settings in which a criterion is among the best, a row for each way to λ and part.
    """
    ways = [way for way in _TITLES if way in set(shares.index.get_level_values("lambda"))]
    picture, axes = figure(rows=len(ways), width=11, height=3.9)
    for panel, way in zip(axes, ways, strict=True):
        own = shares[shares.index.get_level_values("lambda") == way].droplevel("lambda").T
        values = 100 * own.to_numpy(dtype=float)
        panel.imshow(values, aspect="auto", cmap="YlGnBu", vmin=0, vmax=100)
        for i, j in np.ndindex(values.shape):
            text = "-" if np.isnan(values[i, j]) else f"{values[i, j]:.0f}"
            panel.text(
                j, i, text, ha="center", va="center", fontsize=7, color="white" if values[i, j] > 60 else "black"
            )
        for i in [i for i, name in enumerate(own.index) if name == "rho"]:
            panel.add_patch(
                Rectangle((-0.5, i - 0.5), values.shape[1], 1, fill=False, edgecolor=COLOURS[1], linewidth=2)
            )
        panel.grid(visible=False)
        panel.set_yticks(range(len(own)), [str(name) for name in own.index], fontsize=8)
        names = [str(name) for name in own] if panel is axes[-1] else []
        panel.set_xticks(range(own.shape[1] if names else 0), names, rotation=50, ha="right", fontsize=8)
        headline(panel, f"{_TITLES[way]}: % of settings in which a criterion is among the best")
    return picture


def by_collection(regrets: pd.DataFrame) -> Figure:
    """A panel for each way to λ: mean regret of each criterion over the sets of each collection, ± 2 standard errors.

    regrets: a column for each criterion, a row for each way to λ, data set and draw, as levels of its index.
    """
    means = regrets.groupby(level=["lambda", "collection", "truth"], sort=False).mean()
    way_of, collection_of = (means.index.get_level_values(level) for level in ("lambda", "collection"))
    ways = [way for way in _TITLES if way in set(way_of)]
    picture, axes = figure(columns=len(ways), width=4.2, height=4.2)
    for panel, way in zip(axes, ways, strict=True):
        for i, name in enumerate(dict.fromkeys(collection_of)):
            own = 100 * means[(way_of == way) & (collection_of == name)]
            at = np.arange(own.shape[1]) + 0.2 * (i - 1)
            panel.errorbar(own.mean(), at, xerr=2 * own.sem(), fmt=MARKERS[i], color=COLOURS[i], label=str(name))
        panel.set_yticks(range(means.shape[1]), [str(name) for name in means] if panel is axes[0] else [])
        panel.set_ylim(means.shape[1] - 0.5, -0.5)
        panel.set_xlabel("mean regret × 100")
        headline(panel, _TITLES[way])
    legend(picture, axes[0])
    return picture


_TITLES = {"tiny": "λ tiny", "leave_one_out": "λ by leave-one-out", "trained": "λ trained"}
