"""What the forecasts of a backtest are judged by: a number, and its derivative with respect to the forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kfx.data.backtest import MOST_ERROR, Backtest, mean_error
from kfx.numerics.point_sets import delay_of, in_state_space, modified_hausdorff, modified_hausdorff_and_slope, to_runs


@dataclass(frozen=True)
class Score:
    """errors: of several sets of forecasts, (blocks, sets, steps, coordinates), one number for each set, (sets,).

    slope: of one set, (blocks, steps, coordinates), that number and its derivative with respect to the forecasts.
    """

    errors: Callable[[np.ndarray, Backtest], np.ndarray]
    slope: Callable[[np.ndarray, Backtest], tuple[float, np.ndarray]]


def _errors(forecasts: np.ndarray, test: Backtest) -> np.ndarray:
    return mean_error(test.of_blocks(forecasts), test.least)


def _slope(forecasts: np.ndarray, test: Backtest) -> tuple[float, np.ndarray]:
    so_far = test.so_far(forecasts)
    mean = float(mean_error(so_far.ravel(), test.least))
    shares = (mean + test.least) / so_far.size / (so_far + test.least)
    return mean, _to_forecasts(forecasts, test, shares)


def _to_forecasts(forecasts: np.ndarray, test: Backtest, to_errors: np.ndarray) -> np.ndarray:
    """The derivatives with respect to forecasts, (blocks, steps, coordinates), given those with respect to
    `so_far`, (blocks, steps); 0 where the truth is missing, or the error counts as the largest."""
    known = np.isfinite(test.truth)
    count = np.maximum(known.sum(axis=2).cumsum(axis=1), 1)
    later = np.cumsum((to_errors / count)[:, ::-1], axis=1)[:, ::-1, None]  # of all h from a step on
    difference = (forecasts - np.where(known, test.truth, forecasts)) / test.spread
    slope = np.where(np.abs(difference) < MOST_ERROR, np.sign(difference), 0.0) / test.spread
    return np.asarray(later * slope)


def _hausdorff_errors(forecasts: np.ndarray, test: Backtest) -> np.ndarray:
    truth, delay = _attractor(test)
    found = (forecasts[:, i] / test.spread for i in range(forecasts.shape[1]))
    points = [in_state_space(runs, delay).reshape(-1, truth.shape[1]) for runs in found]
    return np.array([modified_hausdorff(each, truth) if np.isfinite(each).all() else math.inf for each in points])


def _hausdorff_slope(forecasts: np.ndarray, test: Backtest) -> tuple[float, np.ndarray]:
    truth, delay = _attractor(test)
    points = in_state_space(forecasts / test.spread, delay)
    error, slope = modified_hausdorff_and_slope(points.reshape(-1, truth.shape[1]), truth)
    return error, to_runs(slope.reshape(points.shape), forecasts.shape[1], delay) / test.spread


def _attractor(test: Backtest) -> tuple[np.ndarray, int]:
    """The points of all blocks in state space, (n, d), in standard deviations, and the delay of one
    coordinate's values; points with a missing value are left out."""
    runs = test.truth / test.spread
    first = runs[0, :, 0]
    delay = delay_of(first[np.isfinite(first)], runs.shape[1])
    points = in_state_space(runs, delay)
    points = points.reshape(-1, points.shape[2])
    return points[np.isfinite(points).all(axis=1)], delay


ERROR = Score(_errors, _slope)
"""The errors of `Backtest.errors`."""
HAUSDORFF = Score(_hausdorff_errors, _hausdorff_slope)
"""The modified Hausdorff distance of the points of all blocks' forecasts from those of the blocks, without regard to
when they are there."""
