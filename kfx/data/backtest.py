"""Backtests: forecasts inside a training series, from a kernel that saw only what lies before them.

The error of the next step says little about a forecast of many: on Mackey-Glass ρ of one step fell from 0.23 to 0.18,
and the error of forecasts grew 80-fold. So lags, lengths and λ are chosen by forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kfx.data.windows import Predict, Trajectory, Windows, smape
from kfx.numerics.arrays import as_tensor
from kfx.numerics.regularization import Regularization
from kfx.outcomes import DataError

SHARE = 0.7
"""The share of a series on which backtests fit."""
ORIGINS = 3
LAGS, FACTORS = (4, 8, 15, 30, 60, 100), (0.5, 1.0, 2.0, 4.0, 8.0)
"""Numbers of lags, and lengths in units of the median distance of two windows, from which `choose` takes the best."""
_MOST_POINTS, _MOST_STEPS = 2000, 200


class Gram(Protocol):
    """A kernel: its Gram matrices, and the function x ↦ K(x, y) for fixed points y."""

    def gram(self, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        """Return K(x, y), (n, m), or K(x, x), (n, n)."""

    def against(self, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return x ↦ K(x, y)."""


@dataclass(frozen=True)
class Backtest:
    """The training part and the forecasts of a backtest.

    x, y: points, (n, features), and targets, (n, coordinates). history: (origins, reach, coordinates). time: (origins,
    reach + steps). truth: (origins, steps, coordinates).
    """

    windows: Windows
    x: np.ndarray
    y: np.ndarray
    history: np.ndarray
    time: np.ndarray
    truth: np.ndarray

    @classmethod
    def of(
        cls, windows: Windows, train: Sequence[Trajectory], steps: int | None = None, origins: int = ORIGINS
    ) -> Backtest:
        """Fit on the first 70 % of each series, and forecast from several origins in the rest of the longest.

        steps: of a forecast, at most the rest of the series; None for at most 200. DataError if a series is too short.
        """
        longest = max(train, key=len)
        first = max(int(SHARE * len(longest)), windows.reach + 2)
        steps = min(steps or _MOST_STEPS, len(longest) - first)
        if steps < 1:
            raise DataError(
                f"the longest series has {len(longest)} steps, too few for windows of {windows.reach}; take fewer lags"
            )
        fitted = windows.fitted([each[: int(SHARE * len(each)) if each is not longest else first] for each in train])
        parts = [
            fitted.cut(each[: first if each is longest else int(SHARE * len(each))])[:2]
            for each in train
            if len(each) > windows.reach / SHARE
        ]
        x, y = (np.concatenate(kind)[-_MOST_POINTS:] for kind in zip(*parts, strict=True))
        starts = sorted({*np.linspace(first, len(longest) - steps, origins).astype(int).tolist()})
        starts = [at for at in starts if np.isfinite(longest.values[at - windows.reach : at]).all()]
        if not len(x) > 1 or not starts:
            raise DataError(f"no window of {windows.reach} steps is whole; take fewer lags, or fill missing values")
        cut = [longest[at - windows.reach : at + steps] for at in starts]
        history = np.stack([each.values[: windows.reach] for each in cut])
        truth = np.stack([each.values[windows.reach :] for each in cut])
        return cls(fitted, x, y, history, np.stack([each.time for each in cut]), truth)

    def errors(self, kernel: Gram, candidates: Sequence[Regularization]) -> np.ndarray:
        """The mean sMAPE of the forecasts with each λ; infinite where Θ + λI is not positive definite.

        One eigendecomposition serves all values of λ, and all forecasts go on together.
        """
        gram = np.asarray(kernel.gram(self.x), dtype=np.float64)
        values, vectors = np.linalg.eigh(gram)
        rotated = vectors.T @ self.y
        lambdas = np.array([each.of(as_tensor(gram)) for each in candidates])
        found = np.full(len(lambdas), math.inf)
        good = np.flatnonzero(values[0] + lambdas > 1e-15 * values[-1])
        if not len(good):
            return found
        solved = np.stack([vectors @ (rotated / (values.clip(0) + lambdas[i])[:, None]) for i in good])
        coefficients = np.repeat(solved, len(self.history), axis=0)
        predict = predictor(kernel, self.x, coefficients)
        history, time = (np.tile(each, (len(good), *(1,) * (each.ndim - 1))) for each in (self.history, self.time))
        forecasts = self.windows.forecast(predict, history, time, self.truth.shape[1])
        each = smape(forecasts, np.tile(self.truth, (len(good), 1, 1)))
        found[good] = each.reshape(len(good), -1).mean(axis=1)
        return found


_FARTHEST = 1e6


def predictor(kernel: Gram, x: np.ndarray, coefficients: np.ndarray) -> Predict:
    """The prediction from interpolation points x, (n, features), for each of m forecasts with its own coefficients,
    (m, n, coordinates), or with one set for all, (n, coordinates)."""
    cross = kernel.against(x)

    def predict(points: np.ndarray) -> np.ndarray:
        # a forecast that has left every range stays there
        rows = cross(np.nan_to_num(points, nan=_FARTHEST).clip(-_FARTHEST, _FARTHEST))
        return rows @ coefficients if coefficients.ndim == 2 else np.einsum("mn,mnc->mc", rows, coefficients)

    return predict


@dataclass(frozen=True)
class Choice:
    """The windows and the length, None for a kernel without one, with the smallest error of a backtest, and λ."""

    windows: Windows
    length: float | None
    regularization: Regularization
    error: float


def usual_lags(train: Sequence[Trajectory], stride: int) -> list[int]:
    """The numbers of lags to choose from, with windows of less than a quarter of the shortest series."""
    shortest = min(map(len, train))
    return [lags for lags in LAGS if lags * stride < shortest / 4] or [1]


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
    best, problem = None, DataError("no windows are offered")
    for windows in offered:
        try:
            test = Backtest.of(windows, train, steps)
        except DataError as error:
            problem = error
            continue
        unit = _median_distance(test.x)
        for length in [unit * factor for factor in FACTORS] if has_length else [None]:
            errors = test.errors(kernel_of(length), candidates)
            i = int(errors.argmin())
            if best is None or errors[i] < best.error:
                best = Choice(windows, length, candidates[i], float(errors[i]))
    if best is None:
        raise problem
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
    from scipy.spatial.distance import pdist

    return float(np.median(pdist(x[np.linspace(0, len(x) - 1, min(len(x), 300)).astype(int)])))
