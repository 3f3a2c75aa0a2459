"""Forecasts of series with a kernel on windows of the past."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from kfx.config.choices import BACKTESTED
from kfx.config.option import Option
from kfx.config.plugins import Portable
from kfx.data.backtest import Backtest, Choice, choose, kernel_with_length, predictor, usual_lags
from kfx.data.windows import Trajectory, Windows, smape
from kfx.estimators.parameters import Chosen
from kfx.estimators.regressor import KernelFlowRegressor
from kfx.estimators.settings import kernel_option
from kfx.evaluation.systems import InMemory
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import as_tensor, in_numpy
from kfx.numerics.process import exclusively
from kfx.numerics.regression import coefficients
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import Function, Objective
from kfx.outcomes import ConfigError, DataError

_BLOCKS = 20
"""Forecasts within the series from which deviations come."""


class KernelFlowForecaster(Portable, BaseEstimator):
    """Kernel ridge regression from windows of a series to what follows them, step by step.

    By default forecasts within the series choose the number of lags, the length of the kernel and λ, and the kernel is
    not trained further: ρ of the next step says little about a forecast of many.

    Parameters
    ----------
    kernel : str, mapping or Kernel
        As of `KernelFlowRegressor`; without a length the backtest chooses one.
    lags : int or "auto"
        The number of values in a window; "auto": the best in the backtest of 2, 8, 15, 30, 60 and 100, and for several
        coordinates of 1, 2, 4, 8, 15 and 30.
    stride, horizon : int
        Steps between the values of a window, and from its last value to its target.
    target : str
        "increment", the change until the target, or "next", its value.
    steps : int or None
        The number of steps of a forecast in the backtest; None for a fifth of the series, at most 200.
    regularization : float or None
        λ, in units of the kernel's mean variance; None for the best in the backtest.
    objective, optimizer, sampler : str, mapping or object
        How the chosen kernel is trained further, as of `KernelFlowRegressor`; by default not at all. The trained kernel
        is kept if its backtest has the smaller error.
    random_state : int
        The seed of that training.

    Attributes
    ----------
    windows_ : Windows
        The windows, with the mean and the scale of each coordinate.
    kernel_ : Kernel
    regularization_ : float
        λ, in units of the kernel's mean variance.
    backtest_error_ : float
        The geometric mean of the sMAPE of the backtest's forecasts.
    """

    def __init__(
        self,
        kernel: Chosen | Kernel = "rbf",
        *,
        lags: int | str = "auto",
        stride: int = 1,
        horizon: int = 1,
        target: str = "increment",
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
        self.steps = steps
        self.regularization = regularization
        self.objective = objective
        self.optimizer = optimizer
        self.sampler = sampler
        self.random_state = random_state

    def fit(self, series: Any, y: None = None) -> Self:
        """Learn from a series, (T,) or (T, coordinates), a DataFrame, or a list of them.

        Missing values are NaN: windows that hold one are left out. DataError for series that are constant or shorter
        than a window, ConfigError for wrong settings.
        """
        train, self._names = _trajectories(series), _names_of(series)
        choice = self._choice(train)
        windows = choice.windows.fitted(train)
        cut = [windows.cut(each)[:2] for each in train if len(each) > windows.reach]
        x, targets = (np.concatenate(kind) for kind in zip(*cut, strict=True))
        kernel, choice = self._trained(choice, train, x, targets)
        with exclusively():
            solved = InMemory(kernel, as_tensor(x)).interpolant(choice.regularization, as_tensor(targets))
        self.windows_, self.kernel_, self.backtest_error_ = windows, kernel, choice.error
        self.regularization_ = choice.regularization.value
        self._points, self._coefficients = x, in_numpy(solved.alpha)
        self.n_features_in_ = train[0].values.shape[1]
        self._train, self._last = train, train[-1]
        self._is_flat = np.ndim(_first(series)) == 1
        self._deviations: np.ndarray | None = None
        return self

    def predict(self, steps: int = 1, *, series: Any = None, return_std: bool = False) -> Any:
        """Forecast the next `steps` values, (steps,) or (steps, coordinates), each from those before it.

        series: what the forecast goes on from, (T,) or (T, coordinates), at least as long as a window; None for the
        last series of the fit. return_std: also the root mean squared error of forecasts of as many steps within the
        series of the fit, in the same shape.
        """
        check_is_fitted(self, "windows_")
        if not _is_count(steps):
            raise ValueError(f"steps={steps!r}: expected a whole number >= 1")
        last = self._last if series is None else self._continued(series)
        windows = self.windows_
        if len(last) < windows.reach:
            raise DataError(f"a forecast goes on from {windows.reach} values; got {len(last)}")
        if not np.isfinite(last.values[-windows.reach :]).all():
            raise DataError(
                f"a forecast goes on from {windows.reach} values, and of the last {windows.reach} one is missing"
            )
        step = float(last.time[-1] - last.time[-2]) if len(last) > 1 else 1.0
        time = np.concatenate([last.time[-windows.reach :], last.time[-1] + step * np.arange(1, steps + 1)])
        with exclusively():
            predict = predictor(self.kernel_, self._points, self._coefficients)
            found = windows.forecast(predict, last.values[None, -windows.reach :], time[None], int(steps))[0]
        found = found[:, 0] if self._is_flat else found
        return (found, self._deviation(int(steps))) if return_std else found

    def score(self, series: Any, y: None = None) -> float:
        """Minus the sMAPE of a forecast of `series`, which goes on where the last series of the fit ends."""
        truth = self._continued(series).values
        if np.isnan(truth).all():
            raise DataError("series holds no value to compare with")
        forecast = np.asarray(self.predict(len(truth))).reshape(truth.shape)
        return -float(smape(forecast, truth))

    def _choice(self, train: Sequence[Trajectory]) -> Choice:
        if self.target not in ("increment", "next"):
            raise ConfigError(f"target={self.target!r}: expected increment or next")
        for name, null in (("lags", "auto"), ("stride", None), ("horizon", None), ("steps", None)):
            value = getattr(self, name)
            if not _is_count(value) and not (value == null and name in ("lags", "steps")):
                other = f"{null}, or " if name in ("lags", "steps") else ""
                raise ConfigError(f"{name}={value!r}: expected {other}a whole number >= 1")
        if self.regularization is not None and not (
            isinstance(self.regularization, numbers.Real) and 0 <= float(self.regularization) < np.inf
        ):
            raise ConfigError(f"regularization={self.regularization!r}: expected None, or a number >= 0")
        lags = usual_lags(train, stride=self.stride) if self.lags == "auto" else [self.lags]
        offered = [Windows(int(n), self.stride, self.horizon, self.target == "increment") for n in lags]
        last = train[-1].values
        whole = [windows for windows in offered if np.isfinite(last[-windows.reach :]).all()]
        if not whole:
            reach = offered[0].reach
            raise DataError(
                f"of the last {reach} values of the series, a window, one is missing; cut off the end, or fill it"
            )
        offered = whole
        if isinstance(self.kernel, Kernel):
            own = self.kernel
            return self._chosen(train, offered, lambda length: own, False)
        option = kernel_option(self.kernel)
        return self._chosen(train, offered, kernel_with_length(option), option.length_is_free())

    def _chosen(self, train: Sequence[Trajectory], offered: Sequence[Windows], of: Any, has_length: bool) -> Choice:
        values = BACKTESTED if self.regularization is None else [self.regularization]
        candidates = [Regularization(float(value), "centered") for value in values]
        with exclusively():
            return choose(train, offered, of, has_length, candidates, self.steps)

    def _trained(
        self, choice: Choice, train: Sequence[Trajectory], x: np.ndarray, y: np.ndarray
    ) -> tuple[Kernel, Choice]:
        """The chosen kernel, or the trained one with its own λ if its backtest has the smaller error."""
        kernel: Any = self.kernel
        if not isinstance(kernel, Kernel):
            kernel = kernel_with_length(kernel_option(kernel))(choice.length)
        if self.optimizer is None:
            return kernel, choice
        model = KernelFlowRegressor(
            kernel,
            objective=self.objective,
            optimizer=self.optimizer,
            sampler=self.sampler,
            regularization={"value": choice.regularization.value, "scale": "centered", "selection": "fixed"},
            targets="as_given",
            random_state=self.random_state,
        ).fit(x, y)
        trained = self._chosen(train, [choice.windows], lambda length: model.kernel_, False)
        return (model.kernel_, trained) if trained.error < choice.error else (kernel, choice)

    def _deviation(self, steps: int) -> np.ndarray:
        """The root mean squared error of forecasts within the series, (steps,) or (steps, coordinates); beyond the
        steps that the backtest has, the largest."""
        if self._deviations is None:
            test = Backtest.of(self.windows_, self._train, self.steps, _BLOCKS)
            with exclusively():
                gram, y = as_tensor(self.kernel_.gram(test.x)), as_tensor(test.y)
                shift = Regularization(self.regularization_, "centered").of(gram)
                solved = np.zeros((len(test.kept), 1, *test.y.shape))
                for block, own in enumerate(map(np.flatnonzero, test.kept)):
                    solved[block, 0, own] = in_numpy(coefficients(gram[own][:, own], y[own], shift))
                forecasts = test.forecasts(self.kernel_, solved)[:, 0]
            self._deviations = np.sqrt(np.nanmean((forecasts - test.truth) ** 2, axis=0))
        found = self._deviations
        more = np.maximum(found.max(axis=0, keepdims=True), 0).repeat(max(steps - len(found), 0), axis=0)
        found = np.concatenate([found, more])[:steps]
        return found[:, 0] if self._is_flat else found

    _names: Sequence[str] = ()  # of the coordinates, of a frame

    def _continued(self, series: Any) -> Trajectory:
        several, names = _trajectories(series), _names_of(series)
        if names and self._names and names != self._names:
            raise ValueError(f"the series has the columns {', '.join(names)}; the fit had {', '.join(self._names)}")
        if len(several) > 1:
            raise ValueError(f"series holds {len(several)} series; expected one, (T,) or (T, coordinates)")
        given = several[0]
        if given.values.shape[1] != self.n_features_in_:
            raise ValueError(f"series has {given.values.shape[1]} coordinates; the fit had {self.n_features_in_}")
        return given


def _is_count(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def _first(series: Any) -> Any:
    return series[0] if isinstance(series, (list, tuple)) and np.ndim(series[0]) else series


def _names_of(series: Any) -> list[str]:
    """The columns of a frame, or of the first of several; none of arrays."""
    first = series[0] if isinstance(series, (list, tuple)) and len(series) > 0 else series
    return [str(name) for name in getattr(first, "columns", ())]


def _trajectories(series: Any) -> list[Trajectory]:
    """The series with times 0, 1, 2, …"""
    several = isinstance(series, (list, tuple)) and len(series) > 0 and np.ndim(series[0]) > 0
    found = []
    for each in series if several else [series]:
        try:
            values = np.ma.filled(np.ma.array(each, dtype=np.float64, copy=True), np.nan)
        except (TypeError, ValueError) as error:
            raise ValueError(f"a series holds what is no number: {error}") from error
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or not values.size:
            raise ValueError(f"a series has shape {values.shape}; expected (T,) or (T, coordinates)")
        if np.isinf(values).any():
            raise ValueError("a series holds a value that is infinite")
        found.append(Trajectory(np.arange(len(values), dtype=float), values))
    if len({each.values.shape[1] for each in found}) > 1:
        raise ValueError("the series have different numbers of coordinates")
    return found
