"""The figure of how well predicted probabilities or intervals fit what was observed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri

from kfx.plots.style import DATA, FAINT, OF_KERNELS, figure, finish
from kfx.record.reading import Run, read_table

_BINS = 10


def reliability(run: Run) -> Figure | None:
    """Whether probabilities, or intervals of predicted values, hold as often as they say: on the diagonal they do.

    The share of right predictions against their probability, or of targets within intervals against the intervals'.
    """
    rows = read_table(run.directory / "predictions.csv", ("kernel", "repeat"))
    chances = [name for name in rows.columns if name.startswith("probability.")]
    deviations = [name for name in rows.columns if name.startswith("deviation")]
    if rows.empty or not (chances or deviations):
        return None
    picture, (axes,) = figure(width=5.2, height=4.6)
    axes.plot([0, 1], [0, 1], color=DATA, linewidth=0.9, linestyle=":", label="calibrated")
    for kernel, (colour, marker, line) in OF_KERNELS.items():
        own = rows[rows["kernel"] == kernel]
        if own.empty:
            continue
        x, y = _of_classes(own, chances, axes) if chances else _of_values(own, deviations)
        axes.plot(x, y, line, color=colour, marker=marker, markersize=5, label=kernel)
    what = "probability of the predicted class", "share of right predictions"
    of_values = "probability of the central interval", "share of targets within it"
    axes.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
    axes.set(xlabel=(what if chances else of_values)[0], ylabel=(what if chances else of_values)[1])
    return finish(picture, axes, run)


def _of_classes(rows: pd.DataFrame, names: list[str], axes: Axes) -> tuple[np.ndarray, np.ndarray]:
    """Mean probability and share of right predictions in each range that holds points; bars show the points' shares."""
    chances = rows[names].to_numpy()
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == rows["class"].to_numpy()
    place = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    weights = _weights(rows)
    counts = np.bincount(place, weights=weights, minlength=_BINS)
    held = counts > 0
    if set(rows["kernel"]) == {"trained"}:
        edges = np.arange(_BINS) / _BINS
        axes.bar(edges, counts / counts.sum(), 1 / _BINS, align="edge", color=FAINT, label="share of points")
    sums = (np.bincount(place, weights=values * weights, minlength=_BINS) for values in (confidence, right))
    mean, share = (total[held] / counts[held] for total in sums)
    return mean, share


def _of_values(rows: pd.DataFrame, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of central intervals, and the shares of targets within them, over all outputs that vary."""
    levels = np.append(np.arange(1, _BINS) / _BINS, [0.95, 0.99])
    if "normal_score" in rows:  # the distribution of transformed targets is not normal
        names, rows = ["deviation"], rows.assign(target=rows["normal_score"], prediction=0.0, deviation=1.0)
    names = [name for name in names if (rows[name] > 0).any()] or names
    sizes = [
        np.abs(rows[name.replace("deviation", "target")] - rows[name.replace("deviation", "prediction")]) / rows[name]
        for name in names
    ]
    within = np.concatenate(sizes)[:, None] <= ndtri((1 + levels) / 2)
    weights = np.tile(_weights(rows), len(names))
    return levels, np.average(within, axis=0, weights=weights)


def _weights(rows: pd.DataFrame) -> np.ndarray:
    """The weights of test points, (rows,)."""
    return rows["weight"].to_numpy() if "weight" in rows else np.ones(len(rows))
