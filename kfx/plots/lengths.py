"""The figure of the lengths that a kernel learned, one for each feature."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from kfx.plots.style import COLOURS, FAINT, INITIAL, figure, finish, literal
from kfx.record.fitted import lengths_of_features
from kfx.record.reading import Run

_MOST_BARS = 40


def of_features(run: Run) -> Figure | None:
    """The length of each feature: along one with a short length the kernel varies fast, and a feature with a long
    one hardly matters.

    Bars, the shortest on top; of several folds the geometric mean, with the range over folds.
    """
    if (found := lengths_of_features(run.directory, run.metrics)) is None:
        return None
    names, before, each = found
    mean, start = (np.exp(np.log(lengths).mean(axis=0)) for lengths in (each, before))
    order = np.argsort(mean)[:_MOST_BARS][::-1]
    picture, (axes,) = figure(height=max(2.4, 0.24 * len(order) + 1.2))
    low = 0.8 * min(mean[order].min(), start[order].min(), each.min(axis=0)[order].min())
    rows = np.arange(len(order))
    axes.barh(rows, mean[order] - low, left=low, color=COLOURS[0], height=0.7, label="trained")
    axes.plot(start[order], rows, "|", color=INITIAL, markersize=10, markeredgewidth=2.2, label="initial")
    if len(each) > 1:
        axes.hlines(rows, each.min(axis=0)[order], each.max(axis=0)[order], color=FAINT, label="range over folds")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(rows, [literal(names[i]) for i in order])
    more = f" (the {len(order)} shortest of {len(mean)})" if len(order) < len(mean) else ""
    axes.set(xlabel=f"length ℓ of the feature{more}", xlim=(low, None))
    return finish(picture, axes, run)
