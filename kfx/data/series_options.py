"""Options of data sets of series: windows of the past as points, what follows as targets, and a split in time."""

from __future__ import annotations

import abc
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kfx.config.choices import PERIODS
from kfx.config.fields import Several, flag, number, ranged, word
from kfx.config.option import Settings, option
from kfx.config.parts import ConfigView, KernelPart
from kfx.data.gaps import CUBIC, LEFT_OUT, LINE
from kfx.data.members import INCREMENT, NEXT, SEEN, is_calendar, is_member, periods_of, recorded, seen_by
from kfx.data.options import DatasetOption
from kfx.data.own_options import own_targets
from kfx.data.row_file_options import FILES_OF_ROWS, FromFile, RowFile, changes, path_of
from kfx.outcomes import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from kfx.data.choice import Choice, Offered
    from kfx.data.dataset import Dataset
    from kfx.data.windows import Trajectory, Windows
    from kfx.numerics.regularization import Regularization


def _steps(default: int | None, least: int, null: str | None, meaning: str) -> int | None:
    return number(default, f"whole >= {least}", meaning, null=null)


@dataclass
class SeriesData(DatasetOption, abc.ABC):
    """Series, cut into windows. A subclass reads or makes them."""

    is_own = True
    is_series = True
    implied = {  # noqa: RUF012
        **DatasetOption.implied,
        "season": None,
        "differences": [],
        "logarithm": False,
        "missing": LEFT_OUT,
        "calendar": [],
        "members": 1,
        "others": [],
        "deviations": None,
    }

    n_train: int | None = _steps(
        None, 2, "all before the test steps", "number of first steps of each series to train on"
    )
    n_test: int | None = _steps(None, 1, "a fifth of each series", "number of steps after them to test on")
    preprocess: list[str] = ranged(
        [], "an empty list", lambda v: v == [], "none: coordinates are standardized by the training series"
    )
    targets: str = own_targets()
    lags: int | None = _steps(None, 1, "the best in a backtest on the training series", "number of values in a window")
    stride: int = number(1, "whole >= 1", "number of steps from one value in a window to the next")
    horizon: int = number(1, "whole >= 1", "number of steps from the last value of a window to its target")
    target: str | None = word(
        (INCREMENT, NEXT),
        "target of a window; increment: the change until then; next: the value",
        null="the better in that backtest, of a series with noise, else increment",
    )
    season: int | None = _steps(
        None, 1, "that of the calendar, as 12 of months, or of the autocorrelation", "number of steps of a season"
    )
    differences: list[int] | None = ranged(
        None,
        "a list of whole numbers >= 1",
        lambda v: all(type(n) is int and n >= 1 for n in v),
        "numbers of steps over which windows see differences, as [12], or [12, 1] for differences of those; []: values",
        null="the best in that backtest of [], [1] and a season, of a series with noise, else []",
    )
    logarithm: bool | None = flag(
        None,
        "whether windows see logarithms",
        null="the better in that backtest, of a positive series with noise, else false",
    )
    missing: str | None = word(
        (LEFT_OUT, LINE, CUBIC),
        "missing values of a window; left_out: the window is left out; line: on the line between their neighbours; "
        "cubic: on the cubic through two known values on each side; gaps of more than 20 steps are always left out",
        null="the better in that backtest of left_out and, of a series with noise, line, else cubic",
    )
    members: int | None = _steps(
        None, 1, "10 of a series with noise, else 1", "number of the best settings of which a forecast is the median"
    )
    others: Several = ranged(
        None,
        "a list of settings with lags, target, differences, logarithm, length, regularization and scale",
        lambda v: isinstance(v, list) and all(map(is_member, v)),
        "settings beside the run's own of which a forecast is the median",
        null="what that backtest finds",
    )
    deviations: Several = ranged(
        None,
        "deviations by step",
        lambda v: isinstance(v, dict) and set(v) == {*("steps", "values", "relative", "blocks", "most"), *_ERRORS},
        "deviations of forecasts by step, from errors of that backtest, and the error by which settings are chosen",
        null="what that backtest finds",
    )
    calendar: Several = ranged(
        None,
        f"a list of {', '.join(PERIODS)}, of series with dates, and of periods > 0 in units of the time",
        is_calendar,
        "the target's place in these is a feature too",
        null="the better in that backtest of [] and the season of the calendar or of dataset.season, of a series with "
        "noise whose times are dates or years, else []",
    )
    elapsed: bool = flag(False, "the times from a window's values to its target are features too, for irregular series")
    noise: float = number(
        0.0, ">= 0", "standard deviation of noise added to the training series, in units of each coordinate's own"
    )

    @abc.abstractmethod
    def trajectories(self) -> tuple[Sequence[Trajectory], Sequence[str], float | None]:
        """The series, the names of their coordinates, and the largest Lyapunov exponent, or None."""

    def has_times(self) -> bool:
        """Whether other values of the series come with their times."""
        return False

    def may_be_irregular(self) -> bool:
        """Whether uneven steps of time are taken although the times are no features."""
        return False

    def split(self, rng: np.random.Generator | None = None) -> tuple[tuple[Trajectory, ...], tuple[Trajectory, ...]]:
        """The training series, with noise if `rng` is given, and the test series."""
        from kfx.data.series import require_regular, split, with_noise

        whole = self.trajectories()[0]
        if not (self.elapsed or self.may_be_irregular()):
            require_regular(whole)
        train, test = split(whole, self.n_train, self.n_test, _FRACTION)
        return (tuple(with_noise(train, self.noise, rng)) if self.noise and rng is not None else train), test

    def windows(self) -> Windows:
        """The windows as configured."""
        from kfx.data.differences import Differences
        from kfx.data.windows import Windows

        assert self.lags is not None
        own = self.lags, self.stride, self.horizon, self.target != NEXT, self.elapsed
        differences = Differences(bool(self.logarithm), tuple(self.differences or ()))
        periods, missing = periods_of(self.calendar or ()), self.missing or LEFT_OUT
        return Windows(*own, differences=differences, periods=periods, missing=missing)

    def other_settings(self) -> list[tuple[Windows, float | None, Regularization]]:
        """The windows, the kernel's length and λ of each setting beside the run's own."""
        from kfx.numerics.regularization import Regularization

        found = []
        for each in self.others or ():
            value = Regularization(each["regularization"], each["scale"])
            found.append((self._windows_of(each), each["length"], value))
        return found

    def _windows_of(self, member: Settings) -> Windows:
        return replace(self, **seen_by(member)).windows()

    def build(self, rng: np.random.Generator) -> Dataset:
        from kfx.data.series import as_dataset

        train, test = self.split(rng)
        _, coordinates, exponent = self.trajectories()
        return as_dataset(self.name, self.windows(), train, test, coordinates, exponent)

    def available(self) -> int:
        windows = self.windows()
        return sum(len(windows.cut(each)[0]) for each in self.split()[0])

    def size(self) -> int:
        found = self.available()
        if found < 2:
            raise DataError(
                f"dataset.lags={self.lags}: the training series hold {found} windows of {self.windows().reach} steps "
                "and their target; at least 2 are needed"
            )
        return found

    def test_size(self) -> int:
        from kfx.data.series import require_windows

        return require_windows(self.windows(), self.split()[1])

    def feature_count(self) -> int:
        assert self.lags is not None
        return self.lags * (len(self.trajectories()[1]) + self.elapsed) + 2 * len(self.calendar or ())

    def check(self, config: ConfigView) -> None:
        super().check(config)
        self._require_possible(config)
        if self.lags is not None:
            _usable([self.windows()], config, *self.split())
        if self.others is not None and self.deviations is None:  # not from the choice
            self._check_others(self.others, config)

    def _require_possible(self, config: ConfigView) -> None:
        """ConfigError for what no choice can mend."""
        for calendar in (self.calendar, *(each.get("calendar") for each in self.others or ())):
            self._require_times(calendar or ())
        if self.elapsed and (self.differences or self.logarithm):
            raise ConfigError("dataset.elapsed=true: windows of an irregular series see values; leave out differences")
        if config.device.dtype == "float32":
            raise ConfigError(f"device.dtype=float32: forecasts of dataset={self.name} need float64")

    def _require_times(self, calendar: Sequence[str | float]) -> None:
        """ConfigError for a place in time of a series that does not say when it is."""
        if (named := [each for each in calendar if isinstance(each, str)]) and not self.trajectories()[0][0].dates:
            raise ConfigError(f"dataset.calendar=[{','.join(named)}]: needs dates; name their column in dataset.time")
        if calendar and not self.has_times():
            said = "other values of the series may begin at any place; name the column of its times in dataset.time"
            raise ConfigError(f"dataset.calendar=[{calendar[0]}]: {said}")

    def _check_others(self, others: Sequence[Settings], config: ConfigView) -> None:
        """ConfigError for settings beside the run's own that the series or the kernel cannot have."""
        if (self.members or 1) > len(others) + 1:
            raise ConfigError(
                f"dataset.members={self.members}: nothing is chosen where dataset.lags and the kernel are given, and "
                f"dataset.others has {len(others)}; leave it out, or leave dataset.lags out"
            )
        train = self.split()[0]
        for i, each in enumerate(others):
            try:
                windows = self._windows_of(each).fitted(train)
                if self.elapsed and (windows.differences.steps or windows.differences.logarithm):
                    raise DataError("windows of an irregular series see values")
                if sum(len(windows.cut(one)[0]) for one in train if len(one) > windows.reach) < 2:
                    raise DataError(f"the training series hold no two windows of {windows.reach} steps")
                if each["length"] is not None and not hasattr(config.kernel.standing_for(config), "length"):
                    raise DataError(f"kernel={config.kernel.name} has no length")
            except (ValueError, DataError) as error:
                raise ConfigError(f"dataset.others: {i + 1}: {error}") from error

    # ---- what a backtest chooses

    def settled(self, config: ConfigView) -> Settings:
        changes = super().settled(config)
        kernel = cast(KernelPart, config.kernel.standing_for(config))
        wants_length = kernel.length_is_free()
        if self.lags is not None and not wants_length:
            usual = {"target": INCREMENT, "differences": [], "logarithm": False, "missing": LEFT_OUT}
            usual |= {"calendar": [], "others": []}
            return changes | {key: value for key, value in usual.items() if getattr(self, key) is None}
        self._require_possible(config)  # before a choice, which takes a while
        from kfx.data.choice import MEMBERS
        from kfx.data.deviations import Deviations
        from kfx.numerics.process import exclusively

        with exclusively():  # threads of LAPACK wait for one another where another process has a core
            choice = self._choice = self._chosen(config, kernel, wants_length)
        members = self.members or (MEMBERS if choice.test.is_rolling else 1)
        own, *others = choice.settings[:members]
        changes |= {key: value for key, value in recorded(own).items() if key in SEEN and getattr(self, key) is None}
        errors = dict(zip(_ERRORS, (own.error, choice.error_of_values, choice.steps), strict=True))
        deviations = Deviations.of(choice, members).as_record() | errors
        return changes | {"others": [recorded(each) for each in others], "deviations": deviations}

    def in_words(self) -> str:
        stride = f" of stride {self.stride}" if self.stride > 1 else ""
        seen = self.windows().differences
        of = f", {seen}" if seen.steps or seen.logarithm else ""
        of += ", with the place in the season" * bool(self.calendar)
        of += "" if self.missing in (None, LEFT_OUT) else f", missing values on a {self.missing}"
        others = f"; the forecast is the median with {len(self.others)} other settings" if self.others else ""
        return f"{self.lags} lag{'s' if self.lags != 1 else ''}{stride}{of}{others}"

    def judged_steps(self, asked: int | None) -> int | None:
        """The number of steps of the forecasts within the series by which kernels are compared; `asked`, those of the
        evaluation, where there was no choice."""
        return asked if self.deviations is None else int(self.deviations["judged_steps"])

    def backtest_in_words(self) -> str:
        """The error of the chosen setting, and that of the best one without differences and logarithms."""
        if self.deviations is None:
            return ""
        best, plain = self.deviations["error"], self.deviations["error_of_values"]
        beside = "" if plain is None or plain == best else f"; of values as they are {plain:.3g}"
        return f"error {best:.3g} standard deviations{beside}"

    def usual_length(self) -> float | None:
        choice: Choice | None = getattr(self, "_choice", None)
        return None if choice is None else choice.best.length

    def _chosen(self, config: ConfigView, kernel: KernelPart, wants_length: bool) -> Choice:
        from kfx.data import choice as by_forecasts
        from kfx.numerics.regularization import Regularization
        from kfx.numerics.streams import Streams

        train, test = self.split(Streams(config.seed)["data"])  # with the noise that `build` adds
        windows = _usable(self._offered().windows(train, test), config, train, test)
        node = config.regularization
        candidates = None if node.value is None else [Regularization(float(node.value), node.scale)]
        steps = config.evaluation.forecast_steps()
        digest = hashlib.sha256(b"".join(each.values.tobytes() + each.time.tobytes() for each in train)).hexdigest()
        key = repr((windows, kernel, candidates, steps, digest))
        if key not in _choices:  # the jobs of a sweep often share it
            of = by_forecasts.kernel_with_length(kernel)
            asked = by_forecasts.Asked(windows, of, wants_length, candidates, steps)
            _choices[key] = by_forecasts.choose(train, asked)
        return _choices[key]

    def _offered(self) -> Offered:
        from kfx.data.choice import Offered
        from kfx.data.seasons import says_when

        differences = None if self.differences is None else tuple(self.differences)
        is_increment = None if self.target is None else self.target == INCREMENT
        own = self.lags, self.stride, self.horizon, is_increment, self.elapsed
        is_free = self.calendar is None and self.has_times() and says_when(self.trajectories()[0][0])
        periods = None if is_free else periods_of(self.calendar or ())
        return Offered(*own, differences, self.logarithm, self.season, periods, self.missing)


_ERRORS: tuple[str, ...] = ("error", "error_of_values", "judged_steps")


def _usable(
    offered: Sequence[Windows], config: ConfigView, train: Sequence[Trajectory], test: Sequence[Trajectory]
) -> list[Windows]:
    """The windows that are whole before a forecast of the evaluation and, of several, somewhere in the test series;
    DataError if none is."""
    from kfx.data.series import require_windows
    from kfx.data.windows import SeriesParts

    evaluation = config.evaluation.standing_for(config)
    starts, horizon = getattr(evaluation, "starts", None), config.evaluation.forecast_steps()
    offered[0].fitted(train)  # which says what is wrong with the series
    found: list[Windows] = []
    problems: list[DataError] = []
    for windows in offered:
        try:
            if starts is not None:
                SeriesParts(windows, tuple(train), tuple(test), ()).origins(starts, horizon)
            if len({each.lags for each in offered}) > 1:
                require_windows(windows, test)
            found.append(windows)
        except DataError as error:
            problems.append(error)
    if not found:
        raise problems[0]  # that of the smallest window
    return found


_FRACTION = 0.2
_choices: dict[str, Choice] = {}
_IMPLIED = {"decimal": ".", "encoding": "utf-8", "date_format": None}


@option("dataset", "series", "Your own series: CSV, TSV or Parquet, a row for each step; also several in one table")
class OwnSeriesOption(RowFile, FromFile, SeriesData):
    implied = {**SeriesData.implied, **RowFile.implied_by_rows, **_IMPLIED}  # noqa: RUF012

    path: str | None = path_of(FILES_OF_ROWS)
    columns: list[str] = ranged(
        [],
        "a list of different columns",
        lambda v: all(isinstance(name, str) for name in v) and len(set(v)) == len(v),
        "columns that hold the coordinates; []: all",
    )
    time: Several = ranged(
        None,
        "a column, a list of the columns year and quarter, or year, month, day and hour, or null for steps of 1",
        lambda v: v is None or isinstance(v, str) or (isinstance(v, list) and all(isinstance(name, str) for name in v)),
        "column of rising numbers or dates",
    )
    series: str | None = ranged(
        None, "a column", lambda v: isinstance(v, str), "column that names the series of each row", null="one series"
    )
    date_format: str | None = ranged(
        None,
        "codes such as %d.%m.%Y, ISO8601, ISO8601+00:00 for several offsets from UTC, or null for the one reading that "
        "all dates have",
        lambda v: v is None or "%" in v or v in ("ISO8601", "ISO8601+00:00"),
        "how the dates of time are written: the codes of strftime, and %q for a quarter",
        settle=lambda own, _: (dates := own.trajectories()[0][0].dates) and dates.format,
    )

    def has_times(self) -> bool:
        return self.time is not None

    def trajectories(self) -> tuple[Sequence[Trajectory], Sequence[str], float | None]:
        found, names = self.series_of(self.file())
        return found, names, None

    def series_of(self, path: Path, columns: Sequence[str] | None = None) -> tuple[Sequence[Trajectory], Sequence[str]]:
        """The series of a file with the columns of the run's, and the names of their coordinates."""
        from kfx.data.series_file import Rows, read

        time = [] if self.time is None else self.time if isinstance(self.time, list) else [self.time]
        coordinates = tuple(self.columns) if columns is None else tuple(columns)
        return read(changes(path), Rows(coordinates, tuple(time), self.series, self.date_format, self.form()))
