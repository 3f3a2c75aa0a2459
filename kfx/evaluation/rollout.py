"""Forecasts of series that run free: each value is predicted from those predicted before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kfx.data.backtest import Predictor
from kfx.data.dataset import Dataset
from kfx.data.deviations import Deviations
from kfx.data.windows import Predict, SeriesParts, smape
from kfx.evaluation import attractors
from kfx.evaluation.ensemble import Other, forecast, with_others
from kfx.evaluation.judges import Case, Found
from kfx.numerics.arrays import in_numpy

PERSISTENCE = "persistence_nrmse"
"""The nrmse of a forecast that stays at the last known value."""
_GONE = 2.0
"""The error of a forecast that has left the range, in deviations of the series."""
_FAR = 10.0
"""A forecast has left the range where it is farther from that of the training series than this many of its widths."""


@dataclass(frozen=True)
class Rollout:
    """Forecasts from several origins.

    starts: their number. horizon: steps of each, or None for as many as the test series have, or half of that for
    several starts. threshold: the error at which the valid time ends. attractor_steps: of the forecasts from which
    long-term statistics come; None for none. others: a forecast is the median of theirs and the kernel's own.
    deviations: of the forecasts' errors.
    """

    starts: int
    horizon: int | None
    threshold: float
    attractor_steps: int | None = None
    others: Sequence[Other] = ()
    deviations: Deviations | None = None

    def origins(self, series: SeriesParts) -> tuple[list[tuple[int, int]], int]:
        """(trajectory, first step) of each forecast, and the number of steps of each."""
        return series.origins(self.starts, self.horizon)

    @property
    def of_attractors(self) -> Rollout:
        """The forecasts from which long-term statistics come."""
        return replace(self, horizon=self.attractor_steps, attractor_steps=None, others=(), deviations=None)

    def __call__(self, of_targets: Predict, data: Dataset) -> Found:
        """The metrics, and the forecasts, (origins, steps, coordinates); NaN from where one has left the range.

        of_targets: maps points, (m, features), to predictions of `data.targets`, (m, coordinates).
        """
        series = data.series
        assert series is not None
        windows = series.windows

        def predict(x: np.ndarray) -> np.ndarray:
            return data.in_units(of_targets(x)) / windows.scale

        origins, steps = self.origins(series)
        wholes = [(series.whole(trajectory), at) for trajectory, at in origins]
        known, truths = (
            [whole.values[:at] for whole, at in wholes],
            [whole.values[at : at + steps] for whole, at in wholes],
        )
        times = [whole.time[: at + steps] for whole, at in wholes]
        members = with_others(windows, predict, self.others, series.train)
        forecasts = forecast(members, known, times, steps)
        forecasts[_outside(forecasts, series)] = math.nan
        truth = np.stack(truths)
        found = self._metrics(forecasts, truth, np.stack([time[-steps - 1 :] for time in times]), series)
        last = np.stack([_last_value(values) for values in known])[:, None]
        stays = _errors(np.broadcast_to(last, truth.shape), truth, series.spread)
        gone = np.isnan(forecasts).any(axis=2)  # where a forecast that has left the range counts with 2, too
        found[PERSISTENCE] = _nrmse(np.where(gone, np.minimum(stays, _GONE), stays), truth)
        if self.attractor_steps is None:
            return found, {"forecast": forecasts}
        long_term, runs = self.of_attractors._long_term(predict, series)
        return found | long_term, {"forecast": forecasts, "attractor": runs}

    def _around(self, predict: Predict, series: SeriesParts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each forecast the values before it, (origins, reach, coordinates), missing ones forecast, the times of
        these and of the forecast, (origins, reach + steps), and the true values, (origins, steps, coordinates)."""
        (origins, steps), windows = self.origins(series), series.windows
        wholes = [(series.whole(trajectory), at) for trajectory, at in origins]
        return (
            np.stack([windows.history(predict, whole.values[:at], whole.time[:at]) for whole, at in wholes]),
            np.stack([whole.time[at - windows.reach : at + steps] for whole, at in wholes]),
            np.stack([whole.values[at : at + steps] for whole, at in wholes]),
        )

    def _long_term(self, predict: Predict, series: SeriesParts) -> tuple[dict[str, float], np.ndarray]:
        """Statistics of these forecasts as of free runs, beside the test series of their trajectories, and the
        forecasts.

        A forecast that has left the range stays at the edge where it did, and has no Lyapunov exponent.
        """
        histories, times, truths = self._around(predict, series)
        runs, exponents = attractors.free_runs(
            series.windows, predict, histories, times, truths.shape[1], series.spread
        )
        outside, (low, high) = _outside(runs, series), _range(series)
        for run, left in zip(runs, outside, strict=True):
            if left.any():
                run[left] = np.nan_to_num(run[left.argmax()], nan=np.inf).clip(low, high)
        used = sorted({trajectory for trajectory, _ in self.origins(series)[0]})
        unit = series.spread
        found = attractors.statistics([series.test[i].values / unit for i in used], truths / unit, runs / unit)
        exponents[outside.any(axis=1)] = math.nan
        return found | {"lyapunov_exponent": float(exponents.mean())}, runs

    def _metrics(
        self, forecasts: np.ndarray, truth: np.ndarray, time: np.ndarray, series: SeriesParts
    ) -> dict[str, float]:
        """Means over the forecasts; of valid times the median.

        r2: over all steps and coordinates, see `explained`. nrmse: root mean squared error in units of the training
        series' standard deviations. cumulative_error: the mean over steps of the largest error so far (Schötz et
        al. 2026). A forecast that has left the range counts with an error of 2 from there on; steps whose truth is
        missing are left out. time: (origins, 1 + steps), from the last known value on.
        """
        known = np.isfinite(truth).all(axis=2)
        spread = series.spread
        error = _errors(forecasts, truth, spread)
        is_wrong = known & (error > self.threshold)
        first = np.where(is_wrong.any(axis=1), is_wrong.argmax(axis=1), error.shape[1])
        valid = time[np.arange(len(time)), first] - time[:, 0]
        largest = np.maximum.accumulate(np.where(known, error, 0.0), axis=1)
        found = {
            "smape": float(smape(forecasts, truth).mean()),
            "r2": explained(forecasts, truth, spread),
            "nrmse": _nrmse(error, truth),
            "cumulative_error": float(largest.mean()),
            "valid_time": float(np.median(valid)),
            "left_range": float(np.isnan(forecasts).any(axis=(1, 2)).mean()),
        }
        if self.deviations is not None:
            low, high = self.deviations.interval(forecasts, late=_late(self.origins(series)[0], series))
            inside = (truth >= low) & (truth <= high)
            found["forecast_coverage_95"] = float(inside[np.isfinite(truth)].mean())
        if series.exponent:
            found["valid_lyapunov_times"] = found["valid_time"] * series.exponent
        return found


def _last_value(values: np.ndarray) -> np.ndarray:
    """The last known value of each coordinate, (coordinates,), of values (T, coordinates); NaN where none is known."""
    at = np.isfinite(values)[::-1].argmax(axis=0)
    return np.asarray(np.take_along_axis(values[::-1], at[None], axis=0)[0])


def _errors(forecasts: np.ndarray, truth: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The root mean square over coordinates of each step's errors in their units, (origins, steps); 2 where a forecast
    has left the range, or the truth is missing."""
    error = np.sqrt(np.mean(np.square((forecasts - truth) / spread), axis=2))
    return np.where(np.isnan(error), _GONE, error)


def _nrmse(error: np.ndarray, truth: np.ndarray) -> float:
    """The mean over forecasts of the root mean square of the errors of steps whose truth is known; NaN without any."""
    known = np.isfinite(truth).all(axis=2)
    there = known.any(axis=1)
    return float(np.sqrt(np.mean(error[there] ** 2, axis=1, where=known[there])).mean()) if there.any() else math.nan


def _late(origins: Sequence[tuple[int, int]], series: SeriesParts) -> np.ndarray:
    """The number of missing values before each origin, (origins,)."""
    return np.array([series.windows.late(series.whole(i).values[:at]) for i, at in origins])


def _range(series: SeriesParts) -> tuple[np.ndarray, np.ndarray]:
    """The range of forecasts, (coordinates,) each."""
    values = np.concatenate([each.values for each in series.train])
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    far = _FAR * (high - low)
    return low - far, high + far


def _outside(forecasts: np.ndarray, series: SeriesParts) -> np.ndarray:
    """Whether forecasts, (origins, steps, coordinates), have left the range, (origins, steps)."""
    low, high = _range(series)
    outside = ~((forecasts > low) & (forecasts < high)).all(axis=2)
    return np.asarray(np.maximum.accumulate(outside, axis=1))


def explained(forecasts: np.ndarray, truth: np.ndarray, scale: np.ndarray) -> float:
    """The share of the truth's variance about each coordinate's mean that the forecasts explain, R², over all steps."""
    known = np.isfinite(truth).all(axis=2)
    error, there = ((forecasts - truth) / scale)[known], (truth / scale)[known]
    squares = np.where(np.isnan(error), _GONE, error) ** 2
    spread = np.square(there - there.mean(axis=0)).sum()
    return float(1 - squares.sum() / spread) if spread > 0 else math.nan


@dataclass(frozen=True)
class Forecasts:
    """The judge of forecasts of the test series."""

    rollout: Rollout

    def names(self, data: Dataset) -> Sequence[str]:
        coverage = [] if self.rollout.deviations is None else ["forecast_coverage_95"]
        lyapunov = ["valid_lyapunov_times"] if data.series is not None and data.series.exponent else []
        further = [*coverage, *lyapunov, *([] if self.rollout.attractor_steps is None else attractors.NAMES)]
        return ["smape", "r2", "nrmse", "cumulative_error", "valid_time", "left_range", *further, PERSISTENCE]

    def __call__(self, case: Case) -> Found:
        points = in_numpy(case.of.tensors[0][case.of.head[: case.size]])
        return self.rollout(Predictor(case.of.kernel, points, in_numpy(case.interpolant.alpha)), case.of.data)


SPREAD = "training_deviation"
"""Of `metrics.json`: the standard deviation of each coordinate of the training series."""
COLUMNS = ("kernel", "origin", "series", "step", "time")
"""Of `forecasts.csv`, before the columns of each coordinate."""


def kinds(rollout: Rollout) -> list[str]:
    """The columns of each coordinate in `forecasts.csv`; low and high are the ends of the interval of 95 %."""
    return ["truth", "forecast", *(("low", "high") if rollout.deviations is not None else ())]


def rows(kernel: str, forecasts: np.ndarray, rollout: Rollout, series: SeriesParts) -> list[dict[str, object]]:
    """Rows of `forecasts.csv`. forecasts: (origins, steps, coordinates)."""
    found: list[dict[str, object]] = []
    origins, steps = rollout.origins(series)
    late = _late(origins, series)
    ends = () if rollout.deviations is None else rollout.deviations.interval(forecasts, late=late)
    for number, (trajectory, at) in enumerate(origins):
        whole = series.whole(trajectory)[at : at + steps]
        times, values = whole.written(), [whole.values, forecasts[number], *(end[number] for end in ends)]
        for step in range(steps):
            row: dict[str, object] = {"kernel": kernel, "origin": number, "series": whole.name or trajectory}
            row |= {"step": step + 1, "time": times[step]}
            for i, name in enumerate(series.coordinates):
                row |= {f"{kind}.{name}": float(own[step, i]) for kind, own in zip(kinds(rollout), values, strict=True)}
            found.append(row)
    return found
