"""What the forecasts of a backtest are judged by: a number, and its derivative with respect to the forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kfx.data.backtest import LEAST_ERROR, Backtest, geometric_smape, mean_error
from kfx.data.windows import smape
from kfx.numerics.point_sets import delay_of, in_state_space, modified_hausdorff, modified_hausdorff_and_slope, to_runs


@dataclass(frozen=True)
class Score:
    """errors: of several sets of forecasts, (blocks, sets, steps, coordinates), one number for each set, (sets,).

    slope: of one set, (blocks, steps, coordinates), that number and its derivative with respect to the forecasts.
    """

    errors: Callable[[np.ndarray, Backtest], np.ndarray]
    slope: Callable[[np.ndarray, Backtest], tuple[float, np.ndarray]]


def _smape_slope(forecasts: np.ndarray, test: Backtest) -> tuple[float, np.ndarray]:
    errors = smape(forecasts, test.truth)
    to_errors = (error := float(mean_error(errors))) + LEAST_ERROR
    shares = to_errors / len(errors) / (errors + LEAST_ERROR)
    return error, _slope(forecasts, test.truth) * shares[:, None, None]


def _slope(forecasts: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """∂smape/∂forecast, (…, steps, coordinates), as the arguments; 0 where the truth is missing."""
    known = np.isfinite(truth)
    total = np.abs(forecasts) + np.abs(truth)
    with np.errstate(all="ignore"):
        share = np.sign(forecasts - truth) / total - np.abs(forecasts - truth) * np.sign(forecasts) / total**2
    share = np.where(known & (total > 0), share, 0.0)
    return np.asarray(200 * share / known.sum(axis=(-2, -1), keepdims=True))


def _hausdorff_errors(forecasts: np.ndarray, test: Backtest) -> np.ndarray:
    truth, delay = _attractor(test)
    found = (test.windows.scaled(forecasts[:, i]) for i in range(forecasts.shape[1]))
    points = [in_state_space(runs, delay).reshape(-1, truth.shape[1]) for runs in found]
    return np.array([modified_hausdorff(each, truth) if np.isfinite(each).all() else math.inf for each in points])


def _hausdorff_slope(forecasts: np.ndarray, test: Backtest) -> tuple[float, np.ndarray]:
    truth, delay = _attractor(test)
    points = in_state_space(test.windows.scaled(forecasts), delay)
    error, slope = modified_hausdorff_and_slope(points.reshape(-1, truth.shape[1]), truth)
    return error, to_runs(slope.reshape(points.shape), forecasts.shape[1], delay) / test.windows.scale


def _attractor(test: Backtest) -> tuple[np.ndarray, int]:
    """The points of all blocks in state space, (n, d), in units of the coordinates' scale, and the delay of one
    coordinate's values; points with a missing value are left out."""
    runs = test.windows.scaled(test.truth)
    first = runs[0, :, 0]
    delay = delay_of(first[np.isfinite(first)], runs.shape[1])
    points = in_state_space(runs, delay)
    points = points.reshape(-1, points.shape[2])
    return points[np.isfinite(points).all(axis=1)], delay


SMAPE = Score(geometric_smape, _smape_slope)
"""The geometric mean over blocks of the forecasts' sMAPE."""
HAUSDORFF = Score(_hausdorff_errors, _hausdorff_slope)
"""The modified Hausdorff distance of the points of all blocks' forecasts from those of the blocks, without regard to
when they are there."""
