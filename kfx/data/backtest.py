"""Backtests: forecasts of blocks of a training series, by a kernel that has not seen the block.

The error of the next step says little about a forecast of many: on Mackey-Glass ρ of one step fell from 0.23 to 0.18,
and the error of forecasts grew 80-fold. So lags, lengths and λ are chosen by forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf

from kfx.data.gaps import filled
from kfx.data.windows import Predict, Trajectory, Windows
from kfx.numerics.arrays import as_tensor
from kfx.numerics.regularization import Regularization
from kfx.outcomes import DataError

BLOCKS = 5
"""Number of forecasts of a backtest."""
_MOST_STEPS, _MOST_STEPS_WITH_NOISE = 200, 50
_MOST_POINTS, _MOST_POINTS_WITH_NOISE = 2000, 800
_LEAST_ERROR = 1e-3
"""In standard deviations of a series: errors of that size say nothing, or those of its mean change where it has
noise."""
MOST_ERROR = 2.5
"""Standard deviations that a larger error, or a forecast that is not finite, counts as."""


class Gram(Protocol):
    """A kernel: its Gram matrices."""

    def gram(self, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        """Return K(x, y), (n, m), or K(x, x), (n, n)."""


@runtime_checkable
class Against(Protocol):
    """A kernel that prepares K(x, y) for many calls with the same points y."""

    def against(self, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return x ↦ K(x, y)."""


@dataclass(frozen=True)
class Backtest:
    """Forecasts of blocks of a series from the windows, of all series, that do not touch the time of the block: all, or
    those before it.

    x, y: points, (n, features), and targets, (n, coordinates). kept: (blocks, n), the windows that each block is
    forecast from. history: (blocks, reach, coordinates). time: (blocks, reach + steps). truth: (blocks, steps,
    coordinates). low, high: of the series' values, (coordinates,), and spread: their standard deviation.
    """

    windows: Windows
    x: np.ndarray
    y: np.ndarray
    kept: np.ndarray
    history: np.ndarray
    time: np.ndarray
    truth: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    least: float
    is_rolling: bool

    @classmethod
    def of(
        cls,
        windows: Windows,
        train: Sequence[Trajectory],
        steps: int | None = None,
        blocks: int = BLOCKS,
        *,
        alike: Sequence[Windows] = (),
        rolling: bool = False,
        times: np.ndarray | None = None,
    ) -> Backtest:
        """Spread the blocks over the longest series.

        steps: of a block, at most a fifth of the series; None for at most 200, or 50 with `rolling`. alike: other
        windows that start from the same blocks. rolling: a block is forecast from what is before it alone, and lies in
        the last half. times: those with which the blocks begin. Of a longer series the last 2000 steps are used, or
        with `rolling` 800. DataError if a series is too short.
        """
        most_steps, most = (_MOST_STEPS_WITH_NOISE, _MOST_POINTS_WITH_NOISE) if rolling else (_MOST_STEPS, _MOST_POINTS)
        series = [each[-most:] for each in train]
        longest = max(range(len(series)), key=lambda i: len(series[i]))
        whole, reach = series[longest], windows.reach
        steps = min(steps or most_steps, len(whole) // 5)
        every = (windows, *alike)
        first = max(*(each.reach for each in every), int((0.5 if rolling else 0.15) * len(whole)))
        if steps < 1 or first + steps > len(whole) or len(whole) < 2 * reach + steps + 2:
            raise DataError(
                f"the longest series has {len(whole)} steps, too few for windows of {reach}; give a longer one, "
                "or take fewer lags"
            )
        fitted = windows.fitted(series)
        order = [*(i for i in range(len(series)) if i != longest), longest]  # the last points are kept: its own first
        cut = [(*fitted.cut(series[i]), series[i].time) for i in order]
        x, y = (np.concatenate([each[kind] for each in cut])[-most:] for kind in (0, 1))
        # other series may have the same causes at the same time
        begins, ends = (np.concatenate([at[e - back] for _, _, e, at in cut])[-most:] for back in (reach, 0))
        if rolling:
            rising = np.argsort(ends, kind="stable")
            x, y, begins, ends = x[rising], y[rising], begins[rising], ends[rising]
        places = np.arange(first, len(whole) - steps + 1)
        begun = np.isfinite(whole.values[places]).any(axis=1)  # most of a block's weight is on its first steps
        good = places[np.all([each.ready(whole)[places] for each in every], axis=0) & begun]
        starts = good[sorted({*np.linspace(0, len(good) - 1, blocks).astype(int).tolist()})] if len(good) else good
        starts = starts if times is None else np.searchsorted(whole.time, times)
        if not len(x) > 1 or not len(starts):
            raise DataError(f"no window of {reach} steps is whole; take fewer lags, or fill missing values")
        last = whole.time[starts + steps - 1]
        kept = (ends < whole.time[starts, None]) | (False if rolling else begins > last[:, None])
        if kept.sum(axis=1).min() < 2:
            raise DataError(f"fewer than two windows of {reach} steps lie before a block; give a longer series")
        history = np.stack(
            [filled(whole.values[:at], whole.time[:at], windows.missing)[0][at - reach :] for at in starts]
        )
        time = np.stack([whole.time[at - reach : at + steps] for at in starts])
        truth = np.stack([whole.values[at : at + steps] for at in starts])
        values = np.concatenate([each.values for each in series])
        low, high, mean, spread = (of(values, axis=0) for of in (np.nanmin, np.nanmax, np.nanmean, np.nanstd))
        change = np.concatenate([np.abs(np.diff(each.values, axis=0)) for each in series])
        least = float((np.nanmean(change, axis=0) / spread).mean()) if rolling else _LEAST_ERROR
        return cls(fitted, x, y, kept, history, time, truth, low, high, mean, spread, least, rolling)

    @property
    def begins(self) -> np.ndarray:
        """The times with which the blocks begin, (blocks,)."""
        return self.time[:, self.windows.reach]

    def errors(
        self,
        kernels: Gram | Sequence[Gram],
        candidates: Sequence[Regularization],
        of: Callable[[np.ndarray, Backtest], np.ndarray] | None = None,
    ) -> np.ndarray:
        """The geometric mean over blocks of the errors of forecasts with each λ, (candidates,), in standard deviations
        of the series; infinite where Θ + λI is not positive definite.

        of: another number for each set of forecasts, (blocks, sets, steps, coordinates).
        """
        found = self.tried(kernels, candidates)
        errors = mean_error(self.of_blocks(found), self.least) if of is None else of(found, self)
        return np.where(np.isnan(found).all(axis=(0, 2, 3)), math.inf, errors)

    def so_far(self, forecasts: np.ndarray) -> np.ndarray:
        """The mean absolute error of the first h steps of forecasts, for each h, (blocks, …, steps).

        forecasts: (blocks, …, steps, coordinates). Errors above `MOST_ERROR` count as it; steps whose truth is missing
        are left out.
        """
        truth = self.truth[:, : forecasts.shape[-2]]
        truth = truth.reshape(len(truth), *[1] * (forecasts.ndim - 3), *truth.shape[1:])
        with np.errstate(all="ignore"):
            found = np.fmin(np.abs(forecasts - truth) / self.spread, MOST_ERROR)  # which NaN becomes too
        known = np.isfinite(truth)
        count = np.maximum(known.sum(axis=-1).cumsum(axis=-1), 1)
        return np.asarray(np.where(known, found, 0.0).sum(axis=-1).cumsum(axis=-1) / count)

    def of_blocks(self, forecasts: np.ndarray) -> np.ndarray:
        """The geometric mean over h of `so_far`, (blocks, …): early steps weigh more, since the errors of late ones are
        as large for any forecast of a series with noise."""
        return mean_error(np.moveaxis(self.so_far(forecasts), -1, 0), self.least)

    def tried(self, kernels: Gram | Sequence[Gram], candidates: Sequence[Regularization]) -> np.ndarray:
        """The forecasts of the blocks with each λ, (blocks, candidates, steps, coordinates); NaN where Θ + λI is not
        positive definite.

        kernels: one for all coordinates, or one for each. All forecasts go on together.
        """
        solved = np.zeros((len(self.kept), len(candidates), *self.y.shape))
        good = np.ones(len(candidates), dtype=bool)
        for kernel, columns in self._columns(kernels):
            gram = np.asarray(kernel.gram(self.x), dtype=np.float64)
            lambdas = np.array([each.of(as_tensor(gram)) for each in candidates])
            solve = self._rolling if self.is_rolling else self._in_blocks
            good &= solve(gram, lambdas, self.y[:, columns], solved[..., columns])
        found = np.full((len(self.kept), len(candidates), *self.truth.shape[1:]), math.nan)
        if good.any():
            found[:, good] = self.forecasts(kernels, solved[:, good])
        return found

    def _in_blocks(self, gram: np.ndarray, lambdas: np.ndarray, y: np.ndarray, solved: np.ndarray) -> np.ndarray:
        """Whether the systems with each λ are positive definite; their solutions, (blocks, candidates, n, coordinates),
        are written into `solved`. For each block one eigendecomposition serves all values of λ."""
        good = np.ones(len(lambdas), dtype=bool)
        for block, own in enumerate(map(np.flatnonzero, self.kept)):
            values, vectors = np.linalg.eigh(gram[np.ix_(own, own)])
            rotated = vectors.T @ y[own]
            good &= values[0] + lambdas > _LEAST * values[-1]
            for i in np.flatnonzero(good):
                solved[block, i, own] = vectors @ (rotated / (values.clip(0) + lambdas[i])[:, None])
        return good

    def _rolling(self, gram: np.ndarray, lambdas: np.ndarray, y: np.ndarray, solved: np.ndarray) -> np.ndarray:
        """The same where each block has the points of the one before it, and more: with each λ the leading part of one
        Cholesky factor serves each block."""
        good, counts = np.ones(len(lambdas), dtype=bool), self.kept.sum(axis=1)
        most = counts.max()
        for i, shift in enumerate(lambdas):
            system = gram[:most, :most].copy(order="F")
            system.flat[:: most + 1] += shift
            factor, failed = dpotrf(system, lower=True, overwrite_a=True)
            good[i] = failed == 0
            if good[i]:
                half = solve_triangular(factor, y[:most], lower=True, check_finite=False)
                for block, own in enumerate(counts):
                    part = factor[:own, :own], half[:own]
                    solved[block, i, :own] = solve_triangular(*part, lower=True, trans="T", check_finite=False)
        return good

    def _columns(self, kernels: Gram | Sequence[Gram]) -> list[tuple[Gram, slice]]:
        """Each kernel with the coordinates that it forecasts."""
        if not isinstance(kernels, Sequence):
            return [(kernels, slice(None))]
        return [(kernel, slice(c, c + 1)) for c, kernel in enumerate(kernels)]

    def forecasts(self, kernels: Gram | Sequence[Gram], coefficients: np.ndarray) -> np.ndarray:
        """The forecasts of each block, (blocks, sets, steps, coordinates), with several sets of coefficients, (blocks,
        sets, n, coordinates)."""
        blocks, sets = coefficients.shape[:2]
        flat = coefficients.reshape(-1, *self.y.shape)
        predict = side_by_side([Predictor(kernel, self.x, flat[..., at]) for kernel, at in self._columns(kernels)])
        history, time = (np.repeat(each, sets, axis=0) for each in (self.history, self.time))
        with np.errstate(all="ignore"):
            found = self.windows.forecast(predict, history, time, self.truth.shape[1])
        return found.reshape(blocks, sets, *found.shape[1:])


def mean_error(errors: np.ndarray, least: float) -> np.ndarray:
    """The geometric mean over the first axis. errors: (n, …). least: added first, so that one lucky forecast does not
    decide."""
    return np.asarray(np.exp(np.log(errors + least).mean(axis=0)) - least)


_LEAST = 1e-15
"""The smallest reciprocal condition number with which eigenvalues have meaning."""
_FARTHEST = 1e6


@dataclass(frozen=True)
class Predictor:
    """The prediction from interpolation points x, (n, features), for each of m forecasts with its own coefficients,
    (m, n, coordinates), or with one set for all, (n, coordinates)."""

    kernel: Gram
    x: np.ndarray
    coefficients: np.ndarray

    @cached_property
    def _cross(self) -> Callable[[np.ndarray], np.ndarray]:
        if isinstance(self.kernel, Against):
            return self.kernel.against(self.x)
        return lambda points: self.kernel.gram(points, self.x)

    def __call__(self, points: np.ndarray) -> np.ndarray:
        # a forecast that has left every range stays there
        rows = self._cross(np.nan_to_num(points, nan=_FARTHEST).clip(-_FARTHEST, _FARTHEST))
        if self.coefficients.ndim == 2:
            return rows @ self.coefficients
        return np.asarray(np.einsum("mn,mnc->mc", rows, self.coefficients))

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_cross"}


def side_by_side(predicts: Sequence[Predict]) -> Predict:
    """The prediction of all coordinates by functions that predict some of them each."""
    return lambda x: np.concatenate([predict(x) for predict in predicts], axis=1)


def median_distance(x: np.ndarray) -> float:
    """The median distance of two points; of those that differ where most are equal, as in series that are mostly 0."""
    from scipy.spatial.distance import pdist

    distances = pdist(x[np.linspace(0, len(x) - 1, min(len(x), 300)).astype(int)])
    return float(np.median(distances) or np.median(distances[distances > 0])) if distances.any() else 1.0
