"""Backtests: forecasts of blocks of a training series, by a kernel that has not seen the block.

The error of the next step says little about a forecast of many: on Mackey-Glass ρ of one step fell from 0.23 to 0.18,
and the error of forecasts grew 80-fold. So lags, lengths and λ are chosen by forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kfx.data.windows import Predict, Trajectory, Windows, smape
from kfx.numerics.arrays import as_tensor
from kfx.numerics.regularization import Regularization
from kfx.outcomes import DataError

BLOCKS = 5
"""Number of forecasts of a backtest."""
LAGS, LAGS_OF_SEVERAL = (2, 8, 15, 30, 60, 100), (1, 2, 4, 8, 15, 30)
"""Numbers of lags to choose from, of a series with one coordinate and of one with several."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Lengths to choose from, in units of the median distance of two windows."""
_MOST_STEPS, _MOST_POINTS = 200, 2000
LEAST_ERROR = 0.1
"""A sMAPE that is added to errors before their geometric mean, so that one lucky forecast does not decide."""


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
    """Forecasts of blocks of a series from all windows that do not touch them, also those after them.

    x, y: points, (n, features), and targets, (n, coordinates). kept: (blocks, n), the windows outside each block.
    history: (blocks, reach, coordinates). time: (blocks, reach + steps). truth: (blocks, steps, coordinates).
    """

    windows: Windows
    x: np.ndarray
    y: np.ndarray
    kept: np.ndarray
    history: np.ndarray
    time: np.ndarray
    truth: np.ndarray

    @classmethod
    def of(
        cls, windows: Windows, train: Sequence[Trajectory], steps: int | None = None, blocks: int = BLOCKS
    ) -> Backtest:
        """Spread the blocks over the longest series.

        steps: of a block; None for a fifth of the series, at most 200. Of a series with more than 2000 steps the last
        2000 are used. DataError if a series is too short.
        """
        series = [each[-_MOST_POINTS:] for each in train]
        longest = max(range(len(series)), key=lambda i: len(series[i]))
        whole, reach = series[longest], windows.reach
        steps = min(steps or _MOST_STEPS, len(whole) // 5)
        first = max(reach, int(0.15 * len(whole)))
        if steps < 1 or first + steps > len(whole) or len(whole) < 2 * reach + steps + 2:
            raise DataError(
                f"the longest series has {len(whole)} steps, too few for windows of {reach}; take fewer lags"
            )
        fitted = windows.fitted(series)
        cut = [fitted.cut(each) for each in series]
        x, y = (np.concatenate(kind)[-_MOST_POINTS:] for kind in list(zip(*cut, strict=True))[:2])
        # where a window of another series ends does not matter
        ends = np.concatenate([each[2] if i == longest else np.full(len(each[2]), -1) for i, each in enumerate(cut)])
        ends = ends[-_MOST_POINTS:]
        starts = sorted({*np.linspace(first, len(whole) - steps, blocks).astype(int).tolist()})
        parts = [(at, whole[at - reach : at + steps]) for at in starts]
        parts = [
            (at, part)
            for at, part in parts
            if np.isfinite(part.values[:reach]).all() and np.isfinite(part.values[reach:]).any()
        ]
        if not len(x) > 1 or not parts:
            raise DataError(f"no window of {reach} steps is whole; take fewer lags, or fill missing values")
        kept = np.stack([(ends < at) | (ends - reach >= at + steps) for at, _ in parts])
        history = np.stack([part.values[:reach] for _, part in parts])
        truth = np.stack([part.values[reach:] for _, part in parts])
        return cls(fitted, x, y, kept, history, np.stack([part.time for _, part in parts]), truth)

    def errors(
        self,
        kernels: Gram | Sequence[Gram],
        candidates: Sequence[Regularization],
        of: Callable[[np.ndarray, Backtest], np.ndarray] | None = None,
    ) -> np.ndarray:
        """The geometric mean over blocks of the forecasts' sMAPE with each λ; infinite where Θ + λI is not positive
        definite.

        of: another number for each set of forecasts, (blocks, sets, steps, coordinates).
        kernels: one for all coordinates, or one for each. For each block one eigendecomposition of each kernel serves
        all values of λ, and all forecasts go on together.
        """
        solved = np.zeros((len(self.kept), len(candidates), *self.y.shape))
        good = np.ones(len(candidates), dtype=bool)
        for kernel, columns in self._columns(kernels):
            gram = np.asarray(kernel.gram(self.x), dtype=np.float64)
            lambdas = np.array([each.of(as_tensor(gram)) for each in candidates])
            for block, own in enumerate(map(np.flatnonzero, self.kept)):
                values, vectors = np.linalg.eigh(gram[np.ix_(own, own)])
                rotated = vectors.T @ self.y[own, columns]
                good &= values[0] + lambdas > _LEAST * values[-1]
                for i in np.flatnonzero(good):
                    solved[block, i, own, columns] = vectors @ (rotated / (values.clip(0) + lambdas[i])[:, None])
        found = np.full(len(candidates), math.inf)
        if good.any():
            found[good] = (of or geometric_smape)(self.forecasts(kernels, solved[:, good]), self)
        return found

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
        predict = side_by_side([predictor(kernel, self.x, flat[..., at]) for kernel, at in self._columns(kernels)])
        history, time = (np.repeat(each, sets, axis=0) for each in (self.history, self.time))
        with np.errstate(all="ignore"):
            found = self.windows.forecast(predict, history, time, self.truth.shape[1])
        return found.reshape(blocks, sets, *found.shape[1:])


def geometric_smape(forecasts: np.ndarray, test: Backtest) -> np.ndarray:
    """The geometric mean over blocks of the sMAPE of forecasts, (blocks, sets, steps, coordinates): (sets,)."""
    return mean_error(smape(forecasts, test.truth[:, None]))


def mean_error(errors: np.ndarray) -> np.ndarray:
    """The geometric mean over blocks. errors: sMAPE, (blocks, …)."""
    return np.exp(np.log(errors + LEAST_ERROR).mean(axis=0)) - LEAST_ERROR


_LEAST = 1e-15
"""The smallest reciprocal condition number with which eigenvalues have meaning."""
_FARTHEST = 1e6


def predictor(kernel: Gram, x: np.ndarray, coefficients: np.ndarray) -> Predict:
    """The prediction from interpolation points x, (n, features), for each of m forecasts with its own coefficients,
    (m, n, coordinates), or with one set for all, (n, coordinates)."""
    cross = kernel.against(x) if isinstance(kernel, Against) else lambda points: kernel.gram(points, x)

    def predict(points: np.ndarray) -> np.ndarray:
        # a forecast that has left every range stays there
        rows = cross(np.nan_to_num(points, nan=_FARTHEST).clip(-_FARTHEST, _FARTHEST))
        return rows @ coefficients if coefficients.ndim == 2 else np.einsum("mn,mnc->mc", rows, coefficients)

    return predict


def side_by_side(predicts: Sequence[Predict]) -> Predict:
    """The prediction of all coordinates by functions that predict some of them each."""
    return lambda x: np.concatenate([predict(x) for predict in predicts], axis=1)


@dataclass(frozen=True)
class Choice:
    """The windows and the length, None for a kernel without one, with the smallest error of a backtest, and λ."""

    windows: Windows
    length: float | None
    regularization: Regularization
    error: float


def usual_lags(
    train: Sequence[Trajectory], test: Sequence[Trajectory] = (), stride: int = 1, horizon: int = 1
) -> list[int]:
    """The numbers of lags to choose from: windows of less than a quarter of the longest training series, of which at
    least one lies in the longest test series, if there are any."""
    offered = LAGS if train[0].values.shape[1] == 1 else LAGS_OF_SEVERAL
    most = max(map(len, train)) / 4
    if test:
        most = min(most, max(map(len, test)) - horizon + stride)
    return [lags for lags in offered if lags * stride < most] or [1]


def choose(
    train: Sequence[Trajectory],
    offered: Sequence[Windows],
    kernel_of: Callable[[float | None], Gram],
    has_length: bool,
    candidates: Sequence[Regularization],
    steps: int | None = None,
) -> Choice:
    """Return the best of the windows, of lengths in units of the median distance of two points (`FACTORS`), and of the
    candidates for λ.

    kernel_of: makes the kernel with a length. DataError if no windows fit the series.
    """
    best: Choice | None = None
    problem: DataError | None = None
    for windows in offered:
        try:
            test = Backtest.of(windows, train, steps)
        except DataError as error:
            problem = problem or error  # that of the smallest window
            continue
        unit = _median_distance(test.x)
        for length in [unit * factor for factor in FACTORS] if has_length else [None]:
            errors = test.errors(kernel_of(length), candidates)
            i = int(errors.argmin())
            if best is None or errors[i] < best.error:
                best = Choice(windows, length, candidates[i], float(errors[i]))
    if best is None:
        raise problem or DataError("no windows are offered")
    return best


def kernel_with_length(kernel: Any) -> Callable[[float | None], Gram]:
    """The function that builds the kernel of an option with a length; with None as it is."""

    def of(length: float | None) -> Gram:
        made = copy(kernel)
        if length is not None:
            setattr(made, made.length, length)
        built: Gram = made.build(None)
        return built

    return of


def _median_distance(x: np.ndarray) -> float:
    """The median distance of two points; of those that differ where most are equal, as in series that are mostly 0."""
    from scipy.spatial.distance import pdist

    distances = pdist(x[np.linspace(0, len(x) - 1, min(len(x), 300)).astype(int)])
    return float(np.median(distances) or np.median(distances[distances > 0])) if distances.any() else 1.0
