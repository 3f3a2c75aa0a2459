"""Missing values of a series that lie between known ones."""

from __future__ import annotations

import numpy as np

LEFT_OUT, LINE, SPLINE = "left_out", "line", "spline"
_LONGEST = 20
"""Steps of a gap: a longer one stays, since nothing tells what was in it."""


def filled(values: np.ndarray, time: np.ndarray, how: str) -> np.ndarray:
    """The values with those in gaps of at most 20 steps on the line between their neighbours, or on the cubic spline
    through all known values. What is missing at the ends stays so. values: (T, coordinates). time: (T,)."""
    from scipy.interpolate import CubicSpline

    if how == LEFT_OUT or np.isfinite(values).all():
        return values
    found = values.copy()
    for own in found.T:
        known = np.flatnonzero(np.isfinite(own))
        before = np.searchsorted(known, np.arange(len(own)), side="right")  # the number of known values up to each
        between = np.isnan(own) & (before > 0) & (before < len(known))
        between[between] = np.diff(known)[before[between] - 1] <= _LONGEST + 1
        if between.any():
            curve = CubicSpline(time[known], own[known]) if how == SPLINE else None
            at = time[between]
            own[between] = np.interp(at, time[known], own[known]) if curve is None else curve(at)
    return found
