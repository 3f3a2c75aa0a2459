"""Whether a series has noise: whether its next step follows from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from kfx.data.backtest import Backtest, median_distance
from kfx.data.gaps import CUBIC, LEFT_OUT
from kfx.data.windows import Trajectory, Windows
from kfx.outcomes import DataError

_LITTLE = 1e-3
"""Of a trajectory: the share of the variance of its changes that the forecast of the next step leaves unexplained."""
_LEAST_STEPS = 60
_LAGS, _LENGTHS, _SHIFTS = (2, 8, 30), (1.0, 4.0), (1e-10, 1e-7, 1e-4)


def has_noise(train: Sequence[Trajectory], stride: int = 1, elapsed: bool = False) -> bool:
    """Whether no Gaussian kernel on some lags predicts the next step of blocks of a series, from what is before and
    after them, up to a thousandth of the variance of its changes, with gaps left out or filled. Of a series of fewer
    than 60 steps that says nothing: it counts as one with noise."""
    coordinates = train[0].values.shape[1]
    if max(map(len, train)) < _LEAST_STEPS:
        return True
    return _has_noise(
        tuple((each.time.tobytes(), each.values.tobytes()) for each in train), coordinates, stride, elapsed
    )


@lru_cache(maxsize=8)
def _has_noise(series: Sequence[tuple[bytes, bytes]], coordinates: int, stride: int, elapsed: bool) -> bool:
    arrays = [(np.frombuffer(time), np.frombuffer(values).reshape(-1, coordinates)) for time, values in series]
    train = [Trajectory(time, values) for time, values in arrays]
    ways = (LEFT_OUT, CUBIC) if any(np.isnan(each.values).any() for each in train) else (LEFT_OUT,)
    for lags, missing in product(dict.fromkeys(max(lags // coordinates, 1) for lags in _LAGS), ways):
        try:
            test = Backtest.of(Windows(lags, stride, elapsed=elapsed, missing=missing), train)
        except DataError:
            continue
        squares = cdist(test.x, test.x, "sqeuclidean")
        for length in _LENGTHS:
            gram = np.exp(squares / (-2 * (length * median_distance(test.x)) ** 2))
            if any(_unexplained(gram, shift, test) < _LITTLE for shift in _SHIFTS):
                return False
    return True


def _unexplained(gram: np.ndarray, shift: float, test: Backtest) -> float:
    """The share of the variance of the targets of blocks that their predictions leave; 1 where that fails. gram: Θ,
    (n, n). shift: λ, in units of the kernel's mean variance."""
    left, unit, variance = [], shift * (1 - gram.mean()), test.y.var(axis=0).mean()
    if not variance > 0:  # the series changes only before its first whole window
        return 1.0
    for kept in test.kept:
        own, out = np.flatnonzero(kept), np.flatnonzero(~kept)
        system = gram[np.ix_(own, own)]
        system.flat[:: len(own) + 1] += unit
        try:
            factor = cho_factor(system, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1.0
        left.append(test.y[out] - gram[np.ix_(out, own)] @ cho_solve(factor, test.y[own], check_finite=False))
    return float(np.square(np.concatenate(left)).mean() / variance)
