"""Rows that are copies of others, as joins and exports leave them.

A point whose copy stays is not left out: λ, deviations and intervals would be too small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kfx.data.files import warn_once

if TYPE_CHECKING:
    from kfx.data.own import Points

_AGREE = 0.9
"""Share of the features that several rows have whose rows have one target."""
_FEW, _MANY = 20, 100
"""A column that takes fewer than 20 values holds grades, one of 100 is real-valued, and one of half as many as there
are different rows. Counted as 1 / Σp², with the shares p of different rows."""
_MOST = 1 / 3
"""Where so large a share of different rows has copies, something has copied them, though their targets are classes."""


def counted(how: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which rows count, (n,), by `dataset.copies`: each, or of rows that are equal in features and targets the first.

    how: `once`, `each`, or `auto`, which takes equal rows for copies where they are hardly chance: where rows with
    equal features have equal targets in nine of ten cases, and targets are real-valued, or a feature is and a third of
    different rows have copies. Otherwise codes and grades may have met, and each counts. x: (n, …); NaN equals NaN. y:
    (n, outputs).
    """
    every = np.ones(len(x), dtype=bool)
    if how == "each" or (how == "auto" and x.ndim != 2):
        return every
    features = _first(x.reshape(len(x), -1))
    rows = _first(np.column_stack([features, y]))
    counts = rows == np.arange(len(x))
    if counts.all() or how == "once":
        return counts
    repeated = np.bincount(features, minlength=len(x)) > 1
    agree = np.bincount(features[counts], minlength=len(x))[repeated] == 1
    if agree.mean() < _AGREE:
        return every
    many = max(_FEW, min(_MANY, counts.sum() / 2))
    if _values(y[counts]) >= many:
        return counts
    has_copies = np.bincount(rows, minlength=len(x))[counts] > 1
    is_real = has_copies.mean() >= _MOST and max(map(_values, x[counts].T)) >= many
    return counts if is_real else every


def _values(column: np.ndarray) -> float:
    """The number of values that a column takes, (n,) or of rows, (n, columns), 1 / Σp² with their shares p."""
    shares = np.unique(_first(column.reshape(len(column), -1)), return_counts=True)[1] / len(column)
    return float(1 / np.square(shares).sum())


def _first(rows: np.ndarray) -> np.ndarray:
    """The number of the first row that equals each, (n,). rows: (n, columns)."""
    rows = np.ascontiguousarray(np.where(np.isnan(rows), np.nan, rows + 0.0))  # one NaN, and no -0.0
    _, first, inverse = np.unique(
        rows.view(f"V{rows.itemsize * rows.shape[1]}"), return_index=True, return_inverse=True
    )
    return first[inverse.reshape(len(rows))]


def counting(how: str, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None, where: str, key: str) -> np.ndarray:
    """Which training points count, (n,), as `counted`, or each with weights that differ; a line says once how many are
    copies.

    weights: >= 0, (n,), or None. where: begins the line. key: what counts each.
    """
    differ = weights is not None and bool(np.ptp(weights[weights > 0]))
    counts = np.ones(len(x), dtype=bool) if differ else counted(how, x, y)
    if not counts.all():
        found = f"{where}{int((~counts).sum())} of {len(counts)} rows are copies of others in features and targets"
        warn_once(found, f", and count once; {key} counts each")
    return counts


def without(points: Points, how: str, where: str) -> Points:
    """The points with copies among training points as `dataset.copies` says. where: begins the line that says so."""
    trains = np.ones(len(points.x), dtype=bool) if points.is_test is None else ~points.is_test
    own = points.x[trains], points.targets.y[trains]
    counts = np.ones(len(trains), dtype=bool)
    weights = None if points.weights is None else points.weights[trains]
    counts[trains] = counting(how, *own, weights, f"{where}: ", "dataset.copies=each")
    return points if counts.all() else points.but(counts, points.weights)
