"""Windows of a series: delay vectors as points, what follows them as targets, and forecasts step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from kfx.data.calendar_steps import DAY, Step, sizes
from kfx.data.differences import Differences
from kfx.data.files import warn_once
from kfx.data.gaps import LEFT_OUT, filled
from kfx.data.times import Dates
from kfx.numerics.round_off import is_constant
from kfx.outcomes import DataError

Predict = Callable[[np.ndarray], np.ndarray]
"""Maps points, (m, features), to predictions of their targets in units of the coordinates' scale, (m, coordinates)."""


_MOST = 1e140
"""The largest size of numbers whose squares, and those of their inverses, are numbers too."""


@dataclass(frozen=True)
class Trajectory:
    """A series in the order of time. time: (T,), rising. values: (T, coordinates).

    name: of a series among several. dates: where the times are dates, which `time` counts in days since 1970.
    """

    time: np.ndarray
    values: np.ndarray
    name: str = ""
    dates: Dates | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> Trajectory:
        dates = None if self.dates is None else self.dates[part]
        return replace(self, time=self.time[part], values=self.values[part], dates=dates)

    @property
    def at(self) -> np.ndarray:
        """The times, (T,): dates, or numbers."""
        return self.time if self.dates is None else self.dates.at

    def ahead(self, step: Step | None, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The next `count` times after the last, as `time` and as `at` have them, (count,) each. step: None for the
        mean one."""
        if step is None:
            mean = float(sizes(self.at).mean()) if len(self) > 1 else 1.0
            step = Step("" if self.dates is None else "days", mean)
        at = step.onwards(self.at, count)
        return (at if self.dates is None else self.time[-1] + (at - self.at[-1]) / DAY), at

    def written(self) -> list[str] | list[float]:
        """The times as people know them, (T,): dates as their file writes them, or numbers."""
        return self.time.tolist() if self.dates is None else self.dates.written()


@dataclass(frozen=True)
class Windows:
    """How points and targets are cut from series.

    The point of time t holds z(t), z(t − s), …, z(t − (lags − 1) s) of each coordinate, where z = (v − mean) / scale,
    v are the series' `differences`, by default its values, and s is the stride in steps of the series. Its target is z
    at `horizon` steps after t, or with `is_increment` the change of z until then (Takens 1981, for the embedding).
    elapsed: a point also holds the time from each of its lags to its target, in units of `unit`. periods: it also holds
    sine and cosine of the target's place in each of these periods of time, as 365.2425 days.
    missing: where values before the last one of a window are taken from if they are missing (`kfx.data.gaps`).
    mean, scale: (coordinates,).
    """

    lags: int
    stride: int = 1
    horizon: int = 1
    is_increment: bool = True
    elapsed: bool = False
    mean: np.ndarray = field(default_factory=lambda: np.zeros(1))
    scale: np.ndarray = field(default_factory=lambda: np.ones(1))
    unit: float = 1.0
    differences: Differences = field(default_factory=Differences)
    periods: tuple[float, ...] = ()
    missing: str = LEFT_OUT

    @property
    def reach(self) -> int:
        """The number of steps from the first value that a window needs to its target."""
        return self.differences.lost + self.seen

    @property
    def seen(self) -> int:
        """The number of steps from the first difference of a window to its target."""
        return (self.lags - 1) * self.stride + self.horizon

    def fitted(self, trajectories: Sequence[Trajectory]) -> Windows:
        """The same windows with mean, scale and unit of time from training series; DataError for a constant one, or
        one without logarithms."""
        values = np.concatenate([each.values for each in trajectories])
        if self.differences.logarithm and (values <= 0).any():
            raise DataError("the series holds a value that is not positive, which has no logarithm")
        size = np.nan_to_num(np.abs(values)).max(axis=0)
        if (extreme := (size > _MOST) | ((size > 0) & (size < 1 / _MOST))).any():
            i = int(extreme.argmax())
            raise DataError(f"coordinate {i} of the series has numbers up to {size[i]:.0e}; give it in other units")
        values = np.concatenate([self.differences.of(each.values) for each in trajectories])
        if (empty := np.isnan(values).all(axis=0)).any():
            raise DataError(f"coordinate {int(empty.argmax())} of the series holds no value; leave it out")
        mean, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        if (constant := is_constant(values)).any():
            raise DataError(f"coordinate {int(constant.argmax())} of the series is constant; leave it out")
        steps = np.concatenate([np.diff(each.time) for each in trajectories])
        return replace(self, mean=mean, scale=scale, unit=float(steps.mean()))

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """z, (…, T − differences.lost, coordinates), of values, (…, T, coordinates)."""
        return (self.differences.of(values) - self.mean) / self.scale

    def cut(self, trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The points, (n, features), their targets, (n, coordinates), and the positions of the targets in the series,
        (n,). Windows with a missing value that is not filled are left out, those that are filled from later values,
        as from the target, and those whose target is missing."""
        values, needed = filled(trajectory.values, trajectory.time, self.missing)
        z, lost = self.scaled(values), self.differences.lost
        known, reach = np.isfinite(trajectory.values).all(axis=1)[lost:], self.reach - self.horizon
        ends = np.arange(self.seen - self.horizon, len(z) - self.horizon)
        x = self._points(z[None], trajectory.time[None, lost:], ends)[0]
        after = z[ends + self.horizon]
        y = after - z[ends] if self.is_increment else after
        whole = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1) & known[ends + self.horizon]
        if len(ends):
            of_windows = sliding_window_view(needed, reach + 1).max(axis=1)[ends + lost - reach]
            whole &= of_windows <= ends + lost
        return x[whole], y[whole], (ends + self.horizon + lost)[whole]

    def _points(self, z: np.ndarray, time: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The points whose last values are at `ends`, (m, len(ends), features). z: (m, T, coordinates). time: (m,
        T)."""
        places = ends[:, None] - self.stride * np.arange(self.lags)
        x = z[:, places].reshape(len(z), len(ends), self.lags * z.shape[2])
        parts, of_target = [x], time[:, ends + self.horizon][:, :, None]
        if self.elapsed:
            parts.append((of_target - time[:, places]) / self.unit)
        if self.periods:
            place = 2 * np.pi * of_target / np.array(self.periods)
            parts += [np.sin(place), np.cos(place)]
        return np.concatenate(parts, axis=2) if len(parts) > 1 else x

    def names(self, coordinates: Sequence[str]) -> tuple[str, ...]:
        """The names of a point's features, as x(t-2)."""
        back = [f"t-{k * self.stride}" if k else "t" for k in range(self.lags)]
        values = [f"{name}({at})" for at in back for name in coordinates]
        places = (f"{of}({period:g})" for of in ("sine", "cosine") for period in self.periods)
        return (*values, *(f"elapsed({at})" for at in back if self.elapsed), *places)

    def forecast(self, predict: Predict, history: np.ndarray, time: np.ndarray, steps: int) -> np.ndarray:
        """Forecast `steps` values, each from those before it: (m, steps, coordinates) in the units of the series.

        history: the last `reach` values before each of m origins, (m, reach, coordinates). time: (m, reach + steps), of
        the history and of the forecast, used with `elapsed`.
        """
        m, _, coordinates = history.shape
        seen, time = self.seen, time[:, self.differences.lost :]
        z = np.empty((m, seen + steps, coordinates))
        z[:, :seen] = self.scaled(history)
        for now in range(seen, seen + steps):
            end = now - self.horizon
            after = predict(self._points(z, time, np.array([end]))[:, 0])
            z[:, now] = after + z[:, end] if self.is_increment else after
        return self.differences.undone(z[:, seen:] * self.scale + self.mean, history)

    def history(self, predict: Predict, values: np.ndarray, time: np.ndarray) -> np.ndarray:
        """The last `reach` values, (reach, coordinates), each that is missing and not filled as forecast.

        values: (T, coordinates). time: (T,) or more. DataError if no whole window lies before the first missing one.
        """
        reach, count = self.reach, len(values)
        if count < reach:
            raise DataError(f"a forecast goes on from {reach} values; got {count}")
        if self.differences.logarithm and (values[-reach:] <= 0).any():  # a value without one is as one that is missing
            warn_once(
                "values that are not positive have no logarithm", ", and forecasts stand for them, as for missing ones"
            )
        if self.differences.logarithm:
            values = np.where(values > 0, values, np.nan)
        values = filled(values, time[:count], self.missing)[0]
        if not (whole := whole_runs(values, reach)).any():
            what = "positive values" if self.differences.logarithm else "values"
            raise DataError(f"no {reach} {what} after one another are there, which a forecast goes on from; fill some")
        start = int(np.flatnonzero(whole)[-1]) + reach
        values = values.copy()
        for at in range(start, count):
            past = slice(at - reach, at)
            found = self.forecast(predict, values[None, past], time[None, at - reach : at + 1], 1)[0, 0]
            values[at] = np.where(np.isfinite(values[at]), values[at], found)
        return values[-reach:]

    def ready(self, series: Trajectory) -> np.ndarray:
        """Whether a forecast can go on after the first 0, 1, … T values, (T + 1,): the last one is known, and the
        `reach` last ones are, or are filled."""
        values = filled(series.values, series.time, self.missing)[0]
        found = np.zeros(len(values) + 1, dtype=bool)
        found[self.reach :] = whole_runs(values, self.reach)
        found[1:] &= np.isfinite(series.values).all(axis=1)
        return found

    def late(self, values: np.ndarray) -> int:
        """The number of last values, (T, coordinates), for which forecasts stand, since they are missing or have no
        logarithm."""
        known = np.isfinite(values).all(axis=1) & (not self.differences.logarithm or (values > 0).all(axis=1))
        return int(known[::-1].argmax()) if known.any() else len(values)

    def backwards(self, to_forecasts: np.ndarray, forecasts: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Return the derivatives with respect to the predictions of `forecast`, (m, steps, coordinates), given those
        with respect to the forecasts, and the forecasts, in the same shape.

        slopes: of each prediction by its point, (m, steps, coordinates, features).
        """
        m, steps, coordinates = to_forecasts.shape
        seen, back = self.seen, self.stride * np.arange(self.lags)
        to_z = np.zeros((m, seen + steps, coordinates))
        to_z[:, seen:] = self.differences.pulled(to_forecasts, forecasts) * self.scale
        values = slopes[..., : self.lags * coordinates].reshape(m, steps, coordinates, self.lags, coordinates)
        for now in range(seen + steps - 1, seen - 1, -1):
            end = now - self.horizon
            if self.is_increment:
                to_z[:, end] += to_z[:, now]
            to_z[:, end - back] += np.einsum("mc,mckd->mkd", to_z[:, now], values[:, now - seen])
        return to_z[:, seen:]


@dataclass(frozen=True)
class SeriesParts:
    """The series behind a data set: training series, and the series that go on from their ends, for each trajectory.

    exponent: the largest Lyapunov exponent, per unit of time, or None. coordinates: their names.
    """

    windows: Windows
    train: tuple[Trajectory, ...]
    test: tuple[Trajectory, ...]
    coordinates: tuple[str, ...]
    exponent: float | None = None

    @property
    def spread(self) -> np.ndarray:
        """The standard deviation of the training series' values, (coordinates,)."""
        return np.asarray(np.nanstd(np.concatenate([each.values for each in self.train]), axis=0))

    def origins(self, starts: int, horizon: int | None) -> tuple[list[tuple[int, int]], int]:
        """(trajectory, first step of the forecast, counted from the start of its training series) of at most `starts`
        forecasts, the first of each trajectory at the end of its training series, and the number of steps of each.

        horizon: None for as many steps as the longest test series has, or half of them with several starts. DataError
        if no forecast fits, or none has a whole window before it.
        """
        reach, longest = self.windows.reach, max(map(len, self.test))
        horizon = horizon or (longest if starts == 1 else max(longest // 2, 1))
        most = [
            len(test) - horizon if len(train) >= reach else -1
            for train, test in zip(self.train, self.test, strict=True)
        ]
        fitting = [i for i, last in enumerate(most) if last >= 0]
        if horizon <= longest and max(map(len, self.train)) < reach:
            raise DataError(
                f"no forecast can start: the training series of {max(map(len, self.train))} steps hold no window of "
                f"{reach} steps; take fewer dataset.lags, or more steps"
            )
        if not fitting:
            raise DataError(
                f"evaluation.horizon={horizon}: only {longest} steps follow the training series; ask for fewer"
            )
        if len(fitting) < len(most):
            said = "; it asks for more steps than their test series have, evaluation.horizon for fewer"
            warn_once(f"evaluation: {len(most) - len(fitting)} of {len(most)} series are not forecast", said)
        each = max(starts // len(fitting), 1)
        found = [(i, at) for i in fitting for at in sorted({*np.linspace(0, most[i], each).astype(int).tolist()})]
        placed = [(i, len(self.train[i]) + at) for i, at in found[:starts]]
        good = [
            (i, at)
            for i, at in placed
            if self.windows.ready(self.whole(i)[:at]).any()
            and np.isfinite(self.whole(i).values[at : at + horizon]).any()
        ]
        if not good:
            raise DataError(
                f"no forecast can start: no {reach} values after one another before an origin are there, or none after "
                "it; fill some, or take fewer dataset.lags"
            )
        return good, horizon

    def whole(self, i: int) -> Trajectory:
        """A training series and what follows it."""
        train, test = self.train[i], self.test[i]
        time, values = (np.concatenate([getattr(each, key) for each in (train, test)]) for key in ("time", "values"))
        if train.dates is None or test.dates is None:
            return replace(train, time=time, values=values)
        dates = replace(train.dates, at=np.concatenate([train.dates.at, test.dates.at]))
        return replace(train, time=time, values=values, dates=dates)


def whole_runs(values: np.ndarray, length: int) -> np.ndarray:
    """Whether the `length` values from each step on are all there, (max(T − length + 1, 0),). values: (T,
    coordinates)."""
    there = np.concatenate([[0], np.isfinite(values).all(axis=1).cumsum()])
    return np.asarray(there[length:] - there[: max(len(there) - length, 0)] == length)


def smape(forecast: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The symmetric mean absolute percentage error, 200 · mean |a − b| / (|a| + |b|), over steps and coordinates.

    A forecast that is not finite counts 200; steps whose truth is missing are left out. forecast, truth: (…, steps,
    coordinates).
    """
    total = np.abs(forecast) + np.abs(truth)
    with np.errstate(all="ignore"):
        share = np.where(total > 0, np.abs(forecast - truth) / total, 0.0)
    share = np.where(np.isfinite(forecast), np.nan_to_num(share, nan=1.0, posinf=1.0), 1.0)
    known = np.broadcast_to(np.isfinite(truth), share.shape)
    return np.asarray(200 * np.where(known, share, 0.0).sum(axis=(-2, -1)) / known.sum(axis=(-2, -1)))
