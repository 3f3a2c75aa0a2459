"""Forecasts of series that run free: each value is predicted from those predicted before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kfx.data.dataset import Dataset
from kfx.data.windows import Predict, SeriesParts, smape

_FAR = 10.0
"""A forecast has left the range where it is farther from that of the training series than this many of its widths."""


@dataclass(frozen=True)
class Rollout:
    """Forecasts from several origins.

    starts: their number. horizon: steps of each, or None for as many as the test series have, or half of that for
    several starts. threshold: the error at which the valid time ends.
    """

    starts: int
    horizon: int | None
    threshold: float

    def origins(self, series: SeriesParts) -> tuple[list[tuple[int, int]], int]:
        """(trajectory, first step) of each forecast, and the number of steps of each."""
        return series.origins(self.starts, self.horizon)

    def __call__(self, of_targets: Predict, data: Dataset) -> tuple[dict[str, float], np.ndarray]:
        """The metrics of the forecasts, and the forecasts, (origins, steps, coordinates); NaN from where one has left
        the range.

        of_targets: maps points, (m, features), to predictions of `data.targets`, (m, coordinates).
        """
        series = data.series
        assert series is not None
        origins, steps = self.origins(series)
        windows = series.windows
        histories, times, truths = [], [], []
        for trajectory, at in origins:
            whole = series.whole(trajectory)[at - windows.reach : at + steps]
            histories.append(whole.values[: windows.reach])
            truths.append(whole.values[windows.reach :])
            times.append(whole.time)
        forecasts = windows.forecast(
            lambda x: data.in_units(of_targets(x)) / windows.scale, np.stack(histories), np.stack(times), steps
        )
        values = np.concatenate([each.values for each in series.train])
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        far = _FAR * (high - low)
        outside = ~((forecasts > low - far) & (forecasts < high + far)).all(axis=2)
        forecasts[np.maximum.accumulate(outside, axis=1)] = math.nan
        return self._metrics(forecasts, np.stack(truths), np.stack(times)[:, windows.reach - 1 :], series), forecasts

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
        error = np.sqrt(np.mean(np.square((forecasts - truth) / series.windows.scale), axis=2))
        error = np.where(np.isnan(error), 2.0, error)
        is_wrong = known & (error > self.threshold)
        first = np.where(is_wrong.any(axis=1), is_wrong.argmax(axis=1), error.shape[1])
        valid = time[np.arange(len(time)), first] - time[:, 0]
        largest = np.maximum.accumulate(np.where(known, error, 0.0), axis=1)
        found = {
            "smape": float(smape(forecasts, truth).mean()),
            "r2": explained(forecasts, truth, series.windows.scale),
            "nrmse": float(np.sqrt(np.mean(error**2, axis=1, where=known)).mean()),
            "cumulative_error": float(largest.mean()),
            "valid_time": float(np.median(valid)),
            "left_range": float(np.isnan(forecasts).any(axis=(1, 2)).mean()),
        }
        if series.exponent:
            found["valid_lyapunov_times"] = found["valid_time"] * series.exponent
        return found


def explained(forecasts: np.ndarray, truth: np.ndarray, scale: np.ndarray) -> float:
    """The share of the truth's variance about each coordinate's mean that the forecasts explain, R², over all steps."""
    known = np.isfinite(truth).all(axis=2)
    error, there = ((forecasts - truth) / scale)[known], (truth / scale)[known]
    squares = np.where(np.isnan(error), 2.0, error) ** 2  # a forecast that has left the range has an error of 2
    spread = np.square(there - there.mean(axis=0)).sum()
    return float(1 - squares.sum() / spread) if spread > 0 else math.nan


def names(data: Dataset) -> list[str]:
    """The names of the metrics of forecasts."""
    lyapunov = ["valid_lyapunov_times"] if data.series is not None and data.series.exponent else []
    return ["smape", "r2", "nrmse", "cumulative_error", "valid_time", "left_range", *lyapunov]


COLUMNS = ("kernel", "origin", "series", "step", "time")
"""Of `forecasts.csv`, before the truth and the forecast of each coordinate."""


def rows(kernel: str, forecasts: np.ndarray, rollout: Rollout, series: SeriesParts) -> list[dict[str, object]]:
    """Rows of `forecasts.csv`. forecasts: (origins, steps, coordinates)."""
    found: list[dict[str, object]] = []
    origins, steps = rollout.origins(series)
    for number, (trajectory, at) in enumerate(origins):
        whole = series.whole(trajectory)[at : at + steps]
        times = whole.written()
        for step in range(steps):
            row: dict[str, object] = {"kernel": kernel, "origin": number, "series": whole.name or trajectory}
            row |= {"step": step + 1, "time": times[step]}
            for i, name in enumerate(series.coordinates):
                value = float(forecasts[number, step, i])
                row[f"truth.{name}"] = float(whole.values[step, i])
                row[f"forecast.{name}"] = value
            found.append(row)
    return found
