"""The figure of how much a kernel depends on each feature, by the lengths that it learned."""

from __future__ import annotations

import textwrap

import numpy as np
from matplotlib.figure import Figure

from kfx.kernels.names import OF_FEATURES, lengths_of
from kfx.plots.style import COLOURS, DATA, FAINT, INITIAL, Drawn, figure, headline, legend, literal, title
from kfx.record.fitted import lengths_of_features
from kfx.record.reading import Run
from kfx.record.verdict import discarded

_MOST_BARS = 40
_LETTERS = 28
"""Letters of a feature's name in one line."""


def of_features(run: Run) -> Figure | None:
    """How much the kernel depends on each feature: the relevance 1/ℓ, ℓ its length, with the one that matters most on
    top.

    Along a feature with a short length the kernel varies fast, and one with a long length hardly matters: ℓ stands at
    each bar. Of several folds the geometric mean, with the range over folds. Lengths that training reached and that
    were not kept are hollow bars; those that reach beyond the axis, which follows the kept ones, have their ℓ there.
    """
    if (found := lengths_of_features(run.directory, run.metrics)) is None:
        return None
    names, before, each = found
    reached = _reached(run, names) if any(discarded(run.metrics)) else None
    mean, start = (np.exp(-np.log(lengths).mean(axis=0)) for lengths in (each, before))
    order = np.argsort(-(mean if reached is None or np.ptp(mean) else reached), kind="stable")[:_MOST_BARS][::-1]
    labels = [textwrap.fill(literal(names[i]), _LETTERS) for i in order]
    lines = sum(label.count("\n") + 1 for label in labels)
    picture, (axes,) = figure(height=max(2.4, (0.24 if reached is None else 0.34) * lines + 1.5))
    rows = np.arange(len(order))
    kept, height, up = ("trained", 0.7, 0.0) if reached is None else ("kept", 0.4, 0.2)
    axes.barh(rows + up, mean[order], color=COLOURS[0], height=height, label=kept)
    marks = start[order]
    axes.plot(marks, rows + up, "|", color=INITIAL, markersize=10, markeredgewidth=2.2, label="initial", zorder=4)
    ends = mean[order]
    if len(each) > 1:
        low, ends = 1 / each.max(axis=0)[order], 1 / each.min(axis=0)[order]
        axes.hlines(rows + up, low, ends, color=FAINT, label=f"range over {run.unit}s")
    limit = 1.15 * max(ends.max(), marks.max())
    box: Drawn = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    place: Drawn = {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": DATA, "bbox": box}
    beside = np.where((marks > ends) & (marks < ends + 0.2 * limit), marks, ends)  # a mark is not under a number
    for row, end, value in zip(rows + up, beside, mean[order], strict=True):
        axes.annotate(f"ℓ {1 / value:.3g}", (end, row), xytext=(6, 0), **place)
    if reached is not None:
        hollow: Drawn = {"facecolor": "none", "edgecolor": INITIAL, "linestyle": "--"}
        left = discarded(run.metrics)
        of = "" if all(left) else f" in {sum(left)} of {len(left)} {run.unit}s"
        axes.barh(rows - up, reached[order], height=height, label=f"discarded{of}: where training ended", **hollow)
        for row, value in zip(rows - up, reached[order], strict=True):
            if value > limit:
                axes.annotate(f"ℓ {1 / value:.3g} →", (limit, row), xytext=(-4, 0), ha="right", **place)
    axes.set_yticks(rows, labels)
    more = f" (the {len(order)} largest of {len(mean)})" if len(order) < len(mean) else ""
    axes.set(xlabel=f"relevance 1/ℓ (ℓ: length){more}", xlim=(0, limit))
    headline(picture, title(run))
    legend(picture, axes)
    return picture


def _reached(run: Run, names: list[str]) -> np.ndarray | None:
    """The relevance 1/ℓ at the last iterations of the fits that were discarded, (features,), their geometric mean; None
    where the trace has no lengths because they are many."""
    by = run.trace["diagnostic.fold"] if "diagnostic.fold" in run.trace else np.zeros(len(run.trace))
    last, found = run.trace.groupby(by).last(), {}
    for parameter in OF_FEATURES:
        columns = [f"parameter.{parameter}.{name}" for name in names]
        if set(columns) <= set(last):
            found[parameter] = last[columns].to_numpy()
    lengths = lengths_of(found)
    return (
        None
        if lengths is None
        else np.exp(-np.log(lengths[np.array(discarded(run.metrics))[: len(lengths)]]).mean(axis=0))
    )
