"""Forecasts of series with a kernel on windows of the past."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from kfx.config.choices import PERIODS
from kfx.config.option import Option
from kfx.config.plugins import Portable
from kfx.data.calendar_steps import Step, step_of
from kfx.data.choice import MEMBERS, Asked, Choice, Offered, choose, judged, kernel_with_length
from kfx.data.deviations import Deviations
from kfx.data.gaps import CUBIC, LEFT_OUT, LINE
from kfx.data.members import is_calendar, periods_of
from kfx.data.seasons import says_when
from kfx.data.series import uneven
from kfx.data.times import zone_of
from kfx.data.windows import Trajectory, smape
from kfx.estimators.parameters import Chosen
from kfx.estimators.regressor import KernelFlowRegressor
from kfx.estimators.series import has_times, has_zones, is_flat, names_of, step_of_times, trajectories
from kfx.estimators.settings import kernel_option
from kfx.evaluation.ensemble import Member, onwards, solved
from kfx.kernels.base import Kernel
from kfx.numerics.process import exclusively
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import Function, Objective
from kfx.outcomes import ConfigError, DataError


class KernelFlowForecaster(Portable, BaseEstimator):
    """Kernel ridge regression from windows of a series to what follows them, step by step.

    By default forecasts within the series choose what the windows see, the number of lags, the length of the kernel and
    λ, and the forecast is the median of those of the ten best settings. The kernel is not trained further: ρ of the
    next step says little about a forecast of many.

    Parameters
    ----------
    kernel : str, mapping or Kernel
        As of `KernelFlowRegressor`; without a length the backtest chooses one.
    lags : int or "auto"
        The number of values in a window; "auto": the best in the backtest of 2, 4, 8, 15, 30, 60 and 100, for several
        coordinates of 1, 2, 4, 8, 15 and 30, and of one and two seasons.
    stride, horizon : int
        Steps between the values of a window, and from its last value to its target.
    target : str
        "increment", the change until the target, "next", its value, or "auto", the better in the backtest.
    season : int or "auto"
        The steps of a season, 1 for none; "auto": that of the calendar, as 12 of months, or of the autocorrelation.
    differences : sequence of int or "auto"
        Windows see the differences over so many steps, as (12,), or (12, 1) for the differences over a step of those;
        () for the values; "auto": the best in the backtest of values and differences over a step and a season. A series
        without noise is left as it is.
    logarithm : bool or "auto"
        Windows see logarithms; "auto": the better in the backtest, of a positive series.
    missing : str
        As `dataset.missing`: windows with missing values are "left_out", or these lie on a "line" or a "cubic";
        "auto": the better in the backtest.
    calendar : sequence of str or float, or "auto"
        Of "year", "week" and "day", of series with dates, and of periods in units of the time: the target's place in
        these is a feature too; "auto": the better in the backtest of none and the season that the calendar or `season`
        says, of a series with noise.
    members : int
        The number of settings of which a forecast is the median.
    steps : int or None
        The number of steps of a forecast in the backtest; None for a fifth of the series, at most 200.
    regularization : float or None
        λ, in units of the kernel's mean variance; None for the best in the backtest.
    panel : str
        Of several series: "shared", one choice and one kernel for all, or "own", one for each.
    objective, optimizer, sampler : str, mapping or object
        How the chosen kernel is trained further, as of `KernelFlowRegressor`; by default not at all. The trained kernel
        is kept if its backtest has the smaller error.
    random_state : int
        The seed of that training.

    Attributes
    ----------
    choice_ : Choice
        All settings in the order of their errors in the backtest.
    windows_ : Windows
        The windows of the best setting, with the mean and the scale of each coordinate.
    kernel_ : Kernel
        Its kernel.
    regularization_ : float
        Its λ, in units of the kernel's mean variance.
    backtest_error_ : float
        The error of its forecasts in the backtest, in standard deviations of the series: the geometric mean of the mean
        errors of the first h steps, over h and over blocks.
    forecasters_ : list of KernelFlowForecaster
        With panel="own" one for each series, and none of the above.
    """

    def __init__(
        self,
        kernel: Chosen | Kernel = "rbf",
        *,
        lags: int | str = "auto",
        stride: int = 1,
        horizon: int = 1,
        target: str = "auto",
        season: int | str = "auto",
        differences: Sequence[int] | str = "auto",
        logarithm: bool | str = "auto",
        missing: str = "auto",
        calendar: Sequence[str | float] | str = "auto",
        members: int = MEMBERS,
        panel: str = "shared",
        steps: int | None = None,
        regularization: float | None = None,
        objective: Chosen | Objective | Function = "auto",
        optimizer: Chosen | Option | None = None,
        sampler: Chosen | Option = "fixed",
        random_state: int = 0,
    ) -> None:
        self.kernel = kernel
        self.lags = lags
        self.stride = stride
        self.horizon = horizon
        self.target = target
        self.season = season
        self.differences = differences
        self.logarithm = logarithm
        self.missing = missing
        self.calendar = calendar
        self.members = members
        self.panel = panel
        self.steps = steps
        self.regularization = regularization
        self.objective = objective
        self.optimizer = optimizer
        self.sampler = sampler
        self.random_state = random_state

    def fit(self, series: object, y: None = None) -> Self:
        """Learn from a series, (T,) or (T, coordinates), a DataFrame, or a list of them.

        A frame's column called time, date, datetime, timestamp or ds, or its index of dates, holds the times, which
        have one step; the rows of an array are the steps. Missing values are NaN.
        DataError for series that are constant or shorter than a window, and for uneven times, ConfigError for wrong
        settings.
        """
        for name in [each for each in vars(self) if each.endswith("_")]:
            delattr(self, name)  # nothing is left of an earlier fit if this one fails
        train, self._names = trajectories(series), names_of(series)
        self._check()
        for one in train:
            self._require_dates(one)
        self._is_flat, self._last = is_flat(series), train[-1]
        if self.panel == "own":
            each = series if isinstance(series, (list, tuple)) and len(train) > 1 else [series]
            self.forecasters_ = [clone(self).set_params(panel="shared").fit(own) for own in each]
        else:
            self._step, self._has_zones = step_of_times(series, train), has_zones(series)
            self._learn(train)
        self.n_features_in_ = train[0].values.shape[1]
        return self

    def _learn(self, train: Sequence[Trajectory]) -> None:
        choice = self._choice(train)
        choice, kernel = self._trained(choice, train, self._kernel_of(choice.best.length))
        best, without = choice.best, choice.without_places()

        def solved_of(some: Choice) -> tuple[Choice, list[Member]]:
            members = []
            for each in some.settings[: self.members]:
                own = kernel if each is best else self._kernel_of(each.length)
                members.append(solved(each.windows, own, each.regularization, train))
            return some, members

        with exclusively():
            self._found = solved_of(choice)
            self._without = self._found if without is choice else None if without is None else solved_of(without)
        self.choice_, self.windows_, self.kernel_ = choice, self._found[1][0].windows, kernel
        self.backtest_error_, self.regularization_ = best.error, best.regularization.value

    def predict(
        self, steps: int = 1, *, series: object = None, return_std: bool = False, interval: float | None = None
    ) -> Any:
        """Forecast the next `steps` values, (steps,) or (steps, coordinates), each from those before it.

        series: what the forecast goes on from, (T,) or (T, coordinates), at least as long as a window; None for the
        last series of the fit. Missing values are filled, or forecast first where the series ends with them. Without
        times, with months that have another day, without the time zone of the fit, or with times that are no dates or
        years, it does not say where in the season it is, and settings that see that take no part.
        return_std: also the deviations of the errors, in the same shape. interval: also where each value lies with this
        probability, low and high. Both come from the errors of forecasts within the series, each by the settings that
        are best elsewhere, as many steps after the last known value.
        With panel="own" and no series a list with the answer for each series; with one, the last forecaster goes on
        from it.
        """
        check_is_fitted(self, "n_features_in_")
        if not _is_count(steps):
            raise ValueError(f"steps={steps!r}: expected a whole number >= 1")
        if interval is not None and not 0 < interval < 1:
            raise ValueError(f"interval={interval!r}: expected None, or a number > 0 and < 1")
        if hasattr(self, "forecasters_"):
            of = self.forecasters_ if series is None else self.forecasters_[-1:]
            each = [one.predict(steps, series=series, return_std=return_std, interval=interval) for one in of]
            return each if series is None else each[0]
        last = self._last if series is None else self._continued(series)
        choice, members = self._found if series is None or self._knows_place(series, last) else self._without_places()
        step = self._step if self._step is not None and self._step.fits(last.at) else step_of([last.at])
        with exclusively():
            found = onwards(members, last, last.ahead(step, int(steps))[0])
        answers = [found]
        if return_std or interval is not None:
            deviations, late = Deviations.of(choice, len(members)), members[0].windows.late(last.values)
            answers += [deviations.around(found, late)] if return_std else []
            answers += list(deviations.interval(found, interval, late)) if interval is not None else []
        answers = [each[:, 0] for each in answers] if self._is_flat else answers
        return tuple(answers) if len(answers) > 1 else answers[0]

    def score(self, series: object, y: None = None) -> float:
        """Minus the sMAPE of a forecast of `series`, which goes on where the last series of the fit ends; DataError if
        its times do not."""
        check_is_fitted(self, "n_features_in_")
        if hasattr(self, "forecasters_"):
            return float(self.forecasters_[-1].score(series))
        given = self._continued(series)
        step = self._step if has_times(series) else None
        if step is not None and not step.fits(np.concatenate([self._last.at, given.at])):
            first, last = given.written()[0], self._last.written()[-1]
            raise DataError(f"the series begins at {first}; expected the step after {last}, where the fit ends")
        if np.isnan(given.values).all():
            raise DataError("series holds no value to compare with")
        found = np.asarray(self.predict(len(given))).reshape(given.values.shape)
        return -float(smape(found, given.values))

    def _check(self) -> None:
        """ConfigError for a wrong setting."""
        missing = (LEFT_OUT, LINE, CUBIC, "auto")
        words = {"target": ("increment", "next", "auto"), "panel": ("shared", "own"), "missing": missing}
        for name, accepted in words.items():
            if getattr(self, name) not in accepted:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}: expected {', '.join(accepted[:-1])} or {accepted[-1]}"
                )
        nulls = {"lags": "auto", "season": "auto", "steps": None, "stride": "", "horizon": "", "members": ""}
        for name, null in nulls.items():
            value = getattr(self, name)
            if not _is_count(value) and (null == "" or value != null):
                other = "" if null == "" else f"{null}, or "
                raise ConfigError(f"{name}={value!r}: expected {other}a whole number >= 1")
        given = self.calendar
        if not (_is_auto(given) or (np.iterable(given) and not isinstance(given, str) and is_calendar(list(given)))):
            names = ", ".join(PERIODS)
            raise ConfigError(f"calendar={given!r}: expected auto, or a list out of {names} and numbers > 0")
        if self.logarithm not in (True, False, "auto"):
            raise ConfigError(f"logarithm={self.logarithm!r}: expected True, False or auto")
        given = self.differences
        if not (_is_auto(given) or (np.iterable(given) and not isinstance(given, str) and all(map(_is_count, given)))):
            raise ConfigError(f"differences={self.differences!r}: expected auto, or a list of whole numbers >= 1")
        if self.regularization is not None and not (
            isinstance(self.regularization, numbers.Real) and 0 <= float(self.regularization) < np.inf
        ):
            raise ConfigError(f"regularization={self.regularization!r}: expected None, or a number >= 0")

    def _choice(self, train: Sequence[Trajectory]) -> Choice:
        given: dict[str, Any] = {
            name: None if getattr(self, name) == "auto" else getattr(self, name)
            for name in ("lags", "season", "logarithm", "missing")
        }
        given["is_increment"] = None if self.target == "auto" else self.target == "increment"
        given["differences"] = None if _is_auto(self.differences) else tuple(map(int, self.differences))
        given["periods"] = periods_of(() if _is_auto(self.calendar) else self.calendar)
        if _is_auto(self.calendar) and (len(train) == 1 or self._step is not None):  # several may begin at any place
            given["periods"] = None
        offered = Offered(stride=self.stride, horizon=self.horizon, **given).windows(train)
        has_length = not isinstance(self.kernel, Kernel) and kernel_option(self.kernel).length_is_free()
        with exclusively():
            return choose(train, Asked(offered, self._kernel_of, has_length, self._candidates(), self.steps))

    def _candidates(self) -> list[Regularization] | None:
        return None if self.regularization is None else [Regularization(float(self.regularization), "centered")]

    def _kernel_of(self, length: float | None) -> Any:
        return (
            self.kernel if isinstance(self.kernel, Kernel) else kernel_with_length(kernel_option(self.kernel))(length)
        )

    def _trained(self, choice: Choice, train: Sequence[Trajectory], kernel: Any) -> tuple[Choice, Any]:
        """The choice and its kernel, or those with the trained one at its own λ if its backtest has the smaller
        error."""
        if self.optimizer is None:
            return choice, kernel
        best = choice.best
        cut = [best.windows.cut(each)[:2] for each in train if len(each) > best.windows.reach]
        x, y = (np.concatenate(kind) for kind in zip(*cut, strict=True))
        model = KernelFlowRegressor(
            kernel,
            objective=self.objective,
            optimizer=self.optimizer,
            sampler=self.sampler,
            regularization={"value": best.regularization.value, "scale": "centered", "selection": "fixed"},
            targets="as_given",
            random_state=self.random_state,
        ).fit(x, y)
        with exclusively():
            found = judged(model.kernel_, choice, train, self._candidates())
        if not found.error < best.error:
            return choice, kernel
        return replace(choice, settings=(found, *choice.settings[1:])), model.kernel_

    _names: Sequence[str] = ()  # of the coordinates, of a frame
    _step: Step | None = None  # of its times

    def _continued(self, series: object) -> Trajectory:
        several, names = trajectories(series, self._last.dates), names_of(series)
        if names and self._names and names != self._names:
            raise ValueError(f"the series has the columns {', '.join(names)}; the fit had {', '.join(self._names)}")
        if len(several) > 1:
            raise ValueError(f"series holds {len(several)} series; expected one, (T,) or (T, coordinates)")
        given = several[0]
        if given.values.shape[1] != self.n_features_in_:
            raise ValueError(f"series has {given.values.shape[1]} coordinates; the fit had {self.n_features_in_}")
        self._require_dates(given)
        if self._step is not None and has_times(series) and not self._step.fits(given.at):
            steps = uneven([given])[0] if len(given) > 1 else "other times"
            raise DataError(f"the series has {steps}; expected those of the fit, {self._step}")
        return given

    def _knows_place(self, series: object, found: Trajectory) -> bool:
        """Whether other values of a series have times that go with those of the fit, by one clock."""
        if self._step is None or not has_times(series) or not self._step.is_placed_as(found.at, self._last.at):
            return False
        zones = [zone_of(dates.format) != "" for dates in (found.dates, self._last.dates) if dates is not None]
        is_known = says_when(self._last) or not _is_auto(self.calendar)
        return is_known and len(set(zones)) < 2 and has_zones(series) == self._has_zones

    def _without_places(self) -> tuple[Choice, list[Member]]:
        if self._without is None:
            raise DataError(
                f"calendar={self.calendar!r}: the series does not say where in it it is; give a frame with a column "
                "time, as in the fit, here too"
            )
        return self._without

    def _require_dates(self, series: Trajectory) -> None:
        has_names = not _is_auto(self.calendar) and any(isinstance(each, str) for each in self.calendar)
        if has_names and series.dates is None:
            raise DataError(f"calendar={self.calendar!r}: the series has no dates; give a frame with a column time")


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == "auto"


def _is_count(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1
