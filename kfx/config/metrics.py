"""Metrics of an evaluation: which values of each are better, and those that are functions of predictions."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kfx.config.parts import Built
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import numpy as np

Better = str | float | None
"""Which values are better: `larger` ones, `smaller` ones, those near a number, or None where none are."""
Measure = Callable[["np.ndarray", Built], float]
"""(prediction (m, outputs), data set) → value."""


@dataclass(frozen=True)
class Metric:
    """Which values of a metric are better; `measure` is None where it needs more than predictions and data."""

    better: Better
    measure: Measure | None = None


_LARGER = (
    *("accuracy", "head_accuracy", "head_log_likelihood", "head_train_accuracy", "head_train_log_likelihood"),
    *("r2", "valid_time", "valid_lyapunov_times"),
)
_SMALLER = (
    *("mse", "rmse", "mae", "train_mse", "train_mae", "energy_error", "rho"),
    *("nlpd", "nlpd_of_vector", "crps", "log_loss", "brier", "calibration_error"),
    *("head_calibration_error", "head_train_calibration_error"),
    *("smape", "nrmse", "persistence_nrmse", "cumulative_error", "left_range"),
    *("residual", "iterations", "unexplained", "lost", "jitter"),
    *("hausdorff", "modified_hausdorff", "state_space_divergence", "spectral_distance"),
)
METRICS: dict[str, Metric] = {
    **dict.fromkeys(_LARGER, Metric("larger")),
    **dict.fromkeys(_SMALLER, Metric("smaller")),
    **dict.fromkeys(("coverage_95", "forecast_coverage_95"), Metric(0.95)),
    **dict.fromkeys(
        ("effective_regularization", "mean_posterior_variance", "centres", "lyapunov_exponent"), Metric(None)
    ),
}
"""All metrics by name; `effective_regularization.0` is one of `effective_regularization`."""


def is_better(value: object) -> bool:
    """Whether a value says which values of a metric are better."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return abs(value) < 1e308
    return value is None or value in ("larger", "smaller")


def metric(name: str, better: Better) -> Callable[[Measure], Measure]:
    """Register a function of the prediction, (m, outputs), and the data set as a metric of every evaluation on test
    points. better: `larger`, `smaller`, the number that it should be near, or None. ConfigError for another value and
    for a name that is taken."""

    def register(measure: Measure) -> Measure:
        if not name.isidentifier() or not is_better(better):
            raise ConfigError(
                f"metric {name}: expected a name of letters, digits and _, and better: larger, smaller, "
                f"a number or None; got {better}"
            )
        if name in METRICS:
            raise ConfigError(f"metric {name}: is there already; rename it")
        METRICS[name] = Metric(better, measure)
        return measure

    return register


def measured_by_plugins(prediction: np.ndarray, data: Built) -> dict[str, float]:
    """The metrics by `metric`. prediction: (m, outputs), in the units of the targets. ConfigError for no number."""
    found: dict[str, float] = {}
    for name, each in METRICS.items():
        if each.measure is not None:
            own = replace(data, y_test=data.y_test.copy(), y_train=data.y_train.copy())
            value = each.measure(prediction.copy(), own)  # which may compute in place
            try:
                found[name] = float(value)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"metric {name}: expected a number, got {reprlib.repr(value)}") from error
    return found


def better_of(names: Collection[str]) -> dict[str, Better]:
    """Which values of each of these metrics are better."""
    return {name: known_better(name, {}) for name in names}


def main_metric(names: Collection[str]) -> str:
    """The metric that is shown where none is asked for."""
    return "accuracy" if "accuracy" in names else "mse"


def known_better(name: str, recorded: Mapping[str, Better]) -> Better:
    """Which values of a metric are better, by kfx or else by the record that has it."""
    known = METRICS.get(name.partition(".")[0])
    stated = known.better if known is not None else recorded.get(name)
    return stated if is_better(stated) else None
