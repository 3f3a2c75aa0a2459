"""Deviations and intervals of forecasts by step, from the errors of forecasts within the series."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kfx.data.backtest import Backtest
from kfx.data.choice import Choice
from kfx.files import Document


@dataclass(frozen=True)
class Deviations:
    """The deviations of forecasts at some steps, between which they are interpolated.

    Split conformal prediction takes a quantile of such errors; since there are few, it is Student's, with one degree of
    freedom fewer than there are blocks.
    steps: (k,), from 1, rising. values: (k, coordinates), not falling with the step; of the errors of logarithms if
    `is_relative`. blocks: (k,), the number of forecasts within the series that do not overlap up to the step, at least
    5. most: the largest deviation of a series without noise, (coordinates,), None of one with noise.
    """

    steps: tuple[int, ...]
    values: np.ndarray
    is_relative: bool
    blocks: tuple[int, ...]
    most: np.ndarray | None = None

    @classmethod
    def of(cls, choice: Choice, members: int) -> Deviations:
        """Those of the median forecast of so many settings; relative where the best one sees logarithms."""
        from scipy.optimize import isotonic_regression

        is_relative = choice.best.windows.differences.logarithm
        found = choice.residuals(is_relative, members)
        known = np.isfinite(found)
        squares, counts = (np.where(known, found, 0.0) ** 2).sum(axis=0), known.sum(axis=0)
        count = int(2 * np.log2(len(squares))) + 1
        steps = sorted({*np.geomspace(1, len(squares), count).round().astype(int).tolist()})
        near = [slice(math.ceil(step / 1.25) - 1, int(1.25 * step)) for step in steps]
        sums, numbers = (np.stack([each[part].sum(axis=0) for part in near]) for each in (squares, counts))
        numbers = np.maximum(numbers, 1e-9)  # of steps without truth
        if choice.test.is_rolling:
            pairs = zip((sums / numbers).T, numbers.T, strict=True)
            means = np.stack([isotonic_regression(mean, weights=number).x for mean, number in pairs], axis=1)
        else:  # errors of chaos differ by orders of magnitude between blocks
            means = np.maximum.accumulate(sums / numbers, axis=0)
        first = means[(means > 0).argmax(axis=0), np.arange(means.shape[1])]  # where first steps have no truth
        values = np.sqrt(np.where(means > 0, means, first))
        most = None if choice.test.is_rolling else np.sqrt(2) * choice.test.spread  # of two points of an attractor
        return cls(tuple(steps), values, is_relative, tuple(_independent(choice.test, step) for step in steps), most)

    @classmethod
    def recorded(cls, found: Document) -> Deviations:
        """Those of `as_record`."""
        most = None if found["most"] is None else np.array(found["most"])
        steps, blocks = tuple(found["steps"]), found["blocks"]
        each = (blocks,) * len(steps) if isinstance(blocks, int) else tuple(blocks)  # one number in older records
        return cls(steps, np.array(found["values"]), found["relative"], each, most)

    def as_record(self) -> Document:
        """As a config has them."""
        found = {"steps": list(self.steps), "relative": self.is_relative, "blocks": list(self.blocks)}
        found["values"] = [[float(f"{value:.6g}") for value in row] for row in self.values]
        return found | {"most": None if self.most is None else self.most.tolist()}

    def around(self, forecast: np.ndarray, late: np.ndarray | int = 0) -> np.ndarray:
        """The deviation of each step of a forecast, (…, steps, coordinates), in its units.

        late: the number of missing values before it, which were forecast first, (…,).
        """
        return self._at(forecast.shape[-2], late) * (np.abs(forecast) if self.is_relative else np.ones_like(forecast))

    def interval(
        self, forecast: np.ndarray, level: float = 0.95, late: np.ndarray | int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where each value lies with probability `level`, low and high, (…, steps, coordinates). late: as of
        `around`."""
        from scipy.special import stdtrit

        steps = forecast.shape[-2]
        width = self._at(steps, late) * stdtrit(self._blocks_at(steps, late) - 1, (1 + level) / 2)
        if self.is_relative:
            size = np.abs(forecast)  # a median with values as they are may be negative
            return forecast + size * np.expm1(-width), forecast + size * np.expm1(width)
        return forecast - width, forecast + width

    def _at(self, steps: int, late: np.ndarray | int) -> np.ndarray:
        """Of late + 1, late + 2, … steps after the last known value, (…, steps, coordinates). Beyond `self.steps` those
        of a series with noise grow with the power of the last three quarters, at most 1, and those of a trajectory
        exponentially, as errors of chaos do."""
        known, asked = np.array(self.steps), _steps_after(steps, late)
        logs = np.log(np.maximum(self.values, 1e-300))
        inside = np.stack([np.interp(np.log(asked), np.log(known), own) for own in logs.T], axis=-1)
        scale: Callable[[np.ndarray], np.ndarray] = np.log if self.most is None else np.asarray
        earlier = int(np.searchsorted(known, known[-1] / 4))
        span = float(scale(known[-1:])[0] - scale(known[earlier : earlier + 1])[0])
        slope = (logs[-1] - logs[earlier]).clip(0) / span if span > 0 else np.full(logs.shape[1], 0.5)
        slope = slope.clip(0, 1) if self.most is None else slope.max()  # one exponent for all coordinates
        beyond = (scale(asked) - scale(known[-1:])[0]).clip(0)[..., None] * slope
        found = np.exp((inside + beyond).clip(None, 700)) * np.sqrt(1 + 1 / self._blocks_at(steps, late))
        return np.asarray(found if self.most is None else np.minimum(found, self.most))

    def _blocks_at(self, steps: int, late: np.ndarray | int) -> np.ndarray:
        """The number of blocks at the same steps as `_at`, (…, steps, 1)."""
        return np.interp(_steps_after(steps, late), self.steps, self.blocks)[..., None]


def _steps_after(steps: int, late: np.ndarray | int) -> np.ndarray:
    """late + 1, late + 2, …, (…, steps)."""
    return np.asarray(late)[..., None] + np.arange(1, steps + 1)


def _independent(test: Backtest, step: int) -> int:
    """About how many blocks do not overlap in their first steps, of those there are."""
    apart = (test.begins[-1] - test.begins[0]) / test.windows.unit / step
    return int(max(min(len(test.begins), round(apart) + 1), 5))
