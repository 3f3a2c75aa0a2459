"""Missing values of a series that lie between known ones."""

from __future__ import annotations

import numpy as np

LEFT_OUT, LINE, CUBIC = "left_out", "line", "cubic"
_SIDE = {LINE: 1, CUBIC: 2}
"""The number of known values on each side through which the curve goes."""
_LONGEST = 20
"""Steps of a gap: a longer one stays, since nothing tells what was in it."""


def filled(values: np.ndarray, time: np.ndarray, how: str) -> tuple[np.ndarray, np.ndarray]:
    """The values with those in gaps of at most 20 steps on the polynomial through one or two known values on each side,
    and the place of the last value that each step needs, (T,).

    What is missing at the ends stays so. Where fewer values are known on a side, the polynomial has fewer. values: (T,
    coordinates). time: (T,).
    """
    needed = np.arange(len(values))
    if how == LEFT_OUT or np.isfinite(values).all():
        return values, needed
    found = values.copy()
    for own in found.T:
        known, absent = (np.flatnonzero(each) for each in (np.isfinite(own), np.isnan(own)))
        for at, count in zip(absent, np.searchsorted(known, absent), strict=True):  # count: the known values before it
            if 0 < count < len(known) and known[count] - known[count - 1] <= _LONGEST + 1:
                through = known[max(count - _SIDE[how], 0) : count + _SIDE[how]]
                own[at] = _polynomial(time[through], own[through], time[at])
                needed[at] = max(needed[at], through[-1])
    return found, needed


def _polynomial(x: np.ndarray, y: np.ndarray, at: float) -> float:
    """The value at a place of the polynomial through points, by Lagrange's formula."""
    apart = x[:, None] - x
    np.fill_diagonal(apart, 1.0)
    factors = np.where(np.eye(len(x), dtype=bool), 1.0, at - x)
    return float(y @ (factors / apart).prod(axis=1))
