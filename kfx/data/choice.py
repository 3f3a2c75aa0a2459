"""What the windows of a series see, their length, the kernel's length and λ, chosen by forecasts within the series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from kfx.config.choices import BACKTESTED
from kfx.data.backtest import BLOCKS, Backtest, Gram, mean_error, median_distance
from kfx.data.differences import Differences
from kfx.data.gaps import CUBIC, LEFT_OUT, LINE
from kfx.data.noise import has_noise
from kfx.data.seasons import period_of, season_of, season_of_calendar
from kfx.data.windows import Trajectory, Windows
from kfx.numerics.regularization import Regularization
from kfx.outcomes import DataError

LAGS, LAGS_OF_SEVERAL = (2, 4, 8, 15, 30, 60, 100), (1, 2, 4, 8, 15, 30)
"""Numbers of lags to choose from, of a series with one coordinate and of one with several."""
LAGS_OF_PLACES = (1, 2, 4)
"""Those of windows that also see the target's place in the season."""
FACTORS, FACTORS_OF_NOISE = (0.25, 0.5, 1.0, 2.0, 4.0), (1.0, 2.0, 4.0)
"""Lengths to choose from, in units of the median distance of two windows."""
VALUES, VALUES_OF_NOISE = BACKTESTED, (1e-6, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Values of λ to choose from, in units of the kernel's mean variance."""
MEMBERS = 10
"""The number of the best settings of which a forecast is the median."""
_ORIGINS, _LONG = 10, 400
"""Rolling origins, of a series of at most so many steps; `BLOCKS` of a longer one."""
_CLEARLY, _LEAST_STEPS = 0.6, 8
"""A forecast whose mean error so far is below this share of that of the series' mean sees something."""
FAR = 2.0
"""With noise a setting is refused if a forecast is farther from the middle of the series' range than this many times
half of it."""


@dataclass(frozen=True)
class Setting:
    """Windows, fitted to the series, the length of a kernel, None for one without, and λ.

    error: the geometric mean over blocks of `errors`, (blocks,), those of `forecasts`, (blocks, steps, coordinates).
    """

    windows: Windows
    length: float | None
    regularization: Regularization
    error: float
    errors: np.ndarray
    forecasts: np.ndarray


@dataclass(frozen=True)
class Choice:
    """Settings in the order of their errors, the best first.

    test: a backtest with some of their windows; all have its blocks. steps: the number of first steps that are judged.
    """

    settings: tuple[Setting, ...]
    test: Backtest
    steps: int

    @property
    def best(self) -> Setting:
        return self.settings[0]

    @property
    def error_of_values(self) -> float | None:
        """The least error of windows without differences and logarithms, None without such windows."""
        errors = (each.error for each in self.settings if each.windows.differences == Differences())
        return min(errors, default=None)

    def without_places(self) -> Choice | None:
        """The settings that do not see the place in a season: itself if all do not; None if all do."""
        rest = tuple(each for each in self.settings if not each.windows.periods)
        return self if len(rest) == len(self.settings) else replace(self, settings=rest) if rest else None

    def residuals(self, of_logarithms: bool, count: int) -> np.ndarray:
        """Truth − forecast of each block, or of their logarithms, (blocks, steps, coordinates), by the median of the
        `count` settings that are best on the other blocks: the errors of those that are best on this one too would be
        too small."""
        errors = np.stack([each.errors for each in self.settings])
        truth, found = self.test.truth, []
        blocks = len(truth)
        for block in range(blocks):
            others = errors[:, np.arange(blocks) != block] if blocks > 1 else errors
            best = np.argsort(mean_error(others.T, self.test.least), kind="stable")[:count]
            forecasts = np.stack([self.settings[i].forecasts[block] for i in best])
            found.append(np.median(forecasts, axis=0))
        if of_logarithms:
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.asarray(np.log(truth) - np.log(np.stack(found)))
        return truth - np.stack(found)


@dataclass(frozen=True)
class Asked:
    """What a choice is made of: windows, and a kernel for each length, None for a kernel without one.

    candidates: for λ; None for the usual ones. steps: of a block, see `Backtest.of`. noisy: None for what `has_noise`
    finds.
    """

    windows: Sequence[Windows]
    kernel_of: Callable[[float | None], Gram]
    has_length: bool
    candidates: Sequence[Regularization] | None = None
    steps: int | None = None
    noisy: bool | None = None


def choose(train: Sequence[Trajectory], asked: Asked) -> Choice:
    """Order windows with each of some lengths and values of λ by the errors of their forecasts.

    Blocks of a series without noise are forecast from what is before and after them, those of one with noise from
    rolling origins, and the lengths and λ are those for noise. DataError if no windows fit the series.
    """
    some, noisy = asked.windows[0], asked.noisy
    noisy = has_noise(train, some.stride, some.elapsed) if noisy is None else noisy
    tests = _tests(train, asked.windows, asked.steps, rolling=noisy)
    candidates = asked.candidates or _candidates(noisy)
    found: list[tuple[Windows, float | None, Regularization, np.ndarray]] = []
    for test in tests:
        unit = median_distance(test.x)
        for factor in (FACTORS_OF_NOISE if noisy else FACTORS) if asked.has_length else (math.nan,):
            length = unit * factor if asked.has_length else None
            forecasts = test.tried(asked.kernel_of(length), candidates)
            each = ((test.windows, length, value, forecasts[:, i]) for i, value in enumerate(candidates))
            found += [one for one in each if not np.isnan(one[3]).all()]
    steps = steps_that_tell([one[3] for one in found], tests[0])
    settings = [_setting(*one, steps, tests[0]) for one in found]
    if not settings:
        raise DataError("no λ of those asked for gives a forecast; take larger ones")
    middle, reach = (tests[0].high + tests[0].low) / 2, FAR * (tests[0].high - tests[0].low) / 2
    near = [each for each in settings if not noisy or (np.abs(each.forecasts - middle) <= reach).all()]
    return Choice(tuple(sorted(near or settings, key=lambda each: each.error)), tests[0], steps)


def _candidates(noisy: bool) -> list[Regularization]:
    return [Regularization(value, "centered") for value in (VALUES_OF_NOISE if noisy else VALUES)]


def judged(
    kernel: Gram, choice: Choice, train: Sequence[Trajectory], candidates: Sequence[Regularization] | None
) -> Setting:
    """A kernel with the best windows of a choice and the best λ, by forecasts of the same blocks. candidates: for λ;
    None for the usual ones."""
    test, windows = choice.test, choice.best.windows
    steps, rolling = test.truth.shape[1], test.is_rolling
    own = Backtest.of(windows, train, steps, times=test.begins, rolling=rolling)
    values = candidates or _candidates(rolling)
    forecasts = own.tried(kernel, values)
    each = (_setting(windows, None, value, forecasts[:, i], choice.steps, test) for i, value in enumerate(values))
    return min(each, key=lambda setting: setting.error)


def backtest_of(windows: Windows, train: Sequence[Trajectory], steps: int | None) -> Backtest:
    """The backtest by which a kernel on these windows is judged, as `choose` judges several. steps: see
    `Backtest.of`."""
    noisy = has_noise(train, windows.stride, windows.elapsed)
    return _tests(train, [windows], steps, rolling=noisy)[0]


def _tests(
    train: Sequence[Trajectory], offered: Sequence[Windows], steps: int | None, *, rolling: bool
) -> list[Backtest]:
    """A backtest with each of the windows that fit the series, all of the same blocks; DataError if none does."""
    problem: DataError | None = None
    fitting: list[Windows] = []
    blocks = _ORIGINS if rolling and max(map(len, train)) <= _LONG else BLOCKS
    for windows in offered:
        try:
            Backtest.of(windows, train, steps, blocks, rolling=rolling)
            fitting.append(windows)
        except DataError as error:
            problem = problem or error  # that of the smallest window
    most: list[Backtest] = []
    for longest in sorted({_whole(windows) for windows in fitting}, reverse=True):
        some = [windows for windows in fitting if _whole(windows) <= longest]
        ways = {
            windows.missing: windows for windows in sorted(some, key=lambda each: each.reach)
        }  # the longest of each
        alike = list(ways.values())
        try:
            found = [Backtest.of(each, train, steps, blocks, alike=alike, rolling=rolling) for each in some]
        except DataError:
            continue  # no block has so many whole values before it
        if not most or len(found[0].kept) > len(most[0].kept):
            most = found
        if len(most[0].kept) >= min(blocks, BLOCKS):
            break
    if not most:
        raise problem or DataError("no windows are offered")
    return most


def _whole(windows: Windows) -> int:
    """The number of values before a forecast that have to be known."""
    return windows.reach if windows.missing == LEFT_OUT else 1


def steps_that_tell(forecasts: Sequence[np.ndarray], test: Backtest) -> int:
    """The number of first steps by whose errors settings are judged: up to which some setting is clearly better than
    the mean of the series, and at least 8. Later errors are as large for all. forecasts: (blocks, steps,
    coordinates)."""
    steps = test.truth.shape[1]
    if not forecasts:
        return steps
    mean = np.broadcast_to(test.mean, test.truth.shape)
    best = np.min([test.so_far(each).mean(axis=0) for each in forecasts], axis=0)
    tells = best < _CLEARLY * test.so_far(mean).mean(axis=0)
    return min(max(int(np.flatnonzero(tells)[-1]) + 1 if tells.any() else 0, _LEAST_STEPS), steps)


def _setting(
    windows: Windows, length: float | None, value: Regularization, forecasts: np.ndarray, steps: int, test: Backtest
) -> Setting:
    errors = test.of_blocks(forecasts[:, :steps])
    return Setting(windows, length, value, float(mean_error(errors, test.least)), errors, forecasts)


@dataclass(frozen=True)
class Offered:
    """The windows to choose from; None for what is to be chosen.

    season: the steps of a season, 1 for none; None for `season_of` the longest series. periods: of `Windows`.
    """

    lags: int | None = None
    stride: int = 1
    horizon: int = 1
    is_increment: bool | None = None
    elapsed: bool = False
    differences: tuple[int, ...] | None = None
    logarithm: bool | None = None
    season: int | None = None
    periods: tuple[float, ...] | None = None
    missing: str | None = None

    def windows(self, train: Sequence[Trajectory], test: Sequence[Trajectory] = ()) -> list[Windows]:
        """Of each number of lags those of the values first, then, of series with noise, of the differences over a step
        and a season, and of the same of the logarithms, if the series are positive; of series with gaps each also with
        these filled. A few values, and their changes, are also offered with the target's place in a season that the
        calendar or `season` says: so few do not see it themselves."""
        Windows(1).fitted(train)  # which says what is wrong with the series
        noisy = has_noise(train, self.stride, self.elapsed)
        longest = max(train, key=len)
        season = (self.season or season_of(longest)) if noisy else 1
        is_known = season > 1 and (self.season or season_of_calendar(longest)) > 1  # an autocorrelation may drift
        period = period_of(longest, season) if is_known and not self.elapsed and self.periods is None else None
        lags = self._lags(train, test, season)
        few = [own for own in LAGS_OF_PLACES if own <= max(lags)] if self.lags is None else lags
        found = []
        for logarithm, steps in product(self._logarithms(train, noisy), self._steps(season, noisy)):
            usual = (False,) if steps == (1,) else (True, False) if noisy else (True,)  # no change of changes
            for is_increment in usual if self.is_increment is None else (self.is_increment,):
                form = self.stride, self.horizon, is_increment, self.elapsed
                differences = Differences(logarithm, steps)
                seen = [(own, self.periods or ()) for own in lags]
                seen += [(own, (period,)) for own in few] if period is not None and season not in steps else []
                found += [
                    Windows(own, *form, differences=differences, periods=periods, missing=missing)
                    for (own, periods), missing in product(seen, self._missing(train, noisy))
                ]
        return found

    def _missing(self, train: Sequence[Trajectory], noisy: bool) -> tuple[str, ...]:
        if self.missing is not None:
            return (self.missing,)
        has_gaps = any(np.isnan(each.values).any() for each in train)
        return (LEFT_OUT, LINE if noisy else CUBIC) if has_gaps else (LEFT_OUT,)

    def _logarithms(self, train: Sequence[Trajectory], noisy: bool) -> tuple[bool, ...]:
        if self.logarithm is not None:
            return (self.logarithm,)
        is_positive = noisy and not self.elapsed and not any((each.values <= 0).any() for each in train)
        return (False, True) if is_positive else (False,)

    def _steps(self, season: int, noisy: bool) -> list[tuple[int, ...]]:
        if self.differences is not None:
            return [self.differences]
        if self.elapsed or not noisy:
            return [()]
        return [(), (1,), *([(season,)] if season > 1 else [])]

    def _lags(self, train: Sequence[Trajectory], test: Sequence[Trajectory], season: int) -> list[int]:
        """Windows of less than a quarter of the longest training series, of which at least one lies in the longest test
        series, if there are any."""
        if self.lags is not None:
            return [self.lags]
        of_season = {season, 2 * season} if season > 1 else set()
        usual = LAGS if train[0].values.shape[1] == 1 else LAGS_OF_SEVERAL
        others = {lags for lags in usual if all(max(lags / own, own / lags) >= 1.5 for own in of_season)}
        most = max(map(len, train)) / 4
        if test:
            most = min(most, max(map(len, test)) - self.horizon + self.stride)
        return [lags for lags in sorted(others | of_season) if lags * self.stride < most] or [1]


def kernel_with_length(kernel: Any) -> Callable[[float | None], Gram]:
    """The function that builds the kernel of an option with a length; with None as it is."""

    def of(length: float | None) -> Gram:
        made = copy(kernel)
        if length is not None:
            setattr(made, made.length, length)
        built: Gram = made.build(None)
        return built

    return of
