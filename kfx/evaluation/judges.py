"""What a solved regression is judged by: each judge names its metrics, and measures them on one interpolant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch

from kfx.config.metrics import METRICS, measured_by_plugins
from kfx.data.dataset import Dataset, predicted_labels
from kfx.evaluation.interpolants import Calibrated, Covariances, Interpolant
from kfx.evaluation.systems import OfAllPoints, System
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import in_numpy
from kfx.numerics.means import weighted_mean
from kfx.numerics.regularization import Regularization
from kfx.outcomes import Event, NumericalError


class Tensors(NamedTuple):
    """The points (n, …) and targets (n, outputs) that kernels are fitted to, and the points (m, …) to predict.

    Points are in the run's dtype, targets in float64; all are on its device.
    """

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor


Found = tuple[dict[str, float], dict[str, np.ndarray]]
"""Metrics and arrays by name."""


@dataclass(frozen=True)
class Subject:
    """A kernel with its data, and the system of its interpolation points.

    head: indices of these among the training points, (n,). clip: the lowest and the highest prediction.
    """

    kernel: Kernel
    data: Dataset
    tensors: Tensors
    head: torch.Tensor
    system: System
    clip: tuple[float, float] | None


@dataclass(frozen=True)
class Case:
    """What judges see: an interpolant of the first `size` points and its prediction, (m, outputs), at the test points,
    in the units of the targets."""

    of: Subject
    size: int
    regularization: Regularization
    interpolant: Interpolant
    prediction: np.ndarray


class Judge(Protocol):
    """Measures some metrics of a case."""

    def names(self, data: Dataset) -> Sequence[str]:
        """The names of its metrics on this data."""

    def __call__(self, case: Case) -> Found:
        """Measure them. NumericalError where the arithmetic fails."""


def predicted(interpolant: Interpolant, at: Covariances, data: Dataset, clip: tuple[float, float] | None) -> np.ndarray:
    """The prediction, (m, outputs), in the units of the targets, limited to the range `clip`: with transformed targets
    the mean of their distribution. NumericalError where the solver gives none."""
    if data.warp is None:
        return in_units(interpolant.mean(at), data, clip)
    if not isinstance(interpolant, Calibrated):
        raise NumericalError(Event.EVALUATION_FAILED, "transformed targets need a Gram matrix in memory, or nystrom")
    found = data.moments(*map(in_numpy, interpolant.mean_and_deviation(at)))[0]
    return found if clip is None else found.clip(*clip)


def in_units(prediction: torch.Tensor, data: Dataset, clip: tuple[float, float] | None) -> np.ndarray:
    """The prediction, (m, outputs), in the units of the targets, limited to the range `clip`; with transformed targets
    the median."""
    found = data.in_units(in_numpy(prediction))
    return found if clip is None else found.clip(*clip)


@dataclass(frozen=True)
class Errors:
    """MSE and MAE on the test points, with classes the accuracy in [0, 1]; weighted means if the points have weights.

    Of several targets also the MSE of each, as `mse.0`. If the data have an energy norm, also the squared error in that
    norm over that of the targets.
    """

    def names(self, data: Dataset) -> Sequence[str]:
        accuracy, each = ["accuracy"] if data.labels_test is not None else [], map("mse.{}".format, _each(data))
        return [*accuracy, "mse", "mae", *(["energy_error"] if data.energy is not None else []), *each]

    def __call__(self, case: Case) -> Found:
        found = errors(case.prediction, case.of.data)
        if not all(map(math.isfinite, found.values())):
            raise NumericalError(Event.DIVERGED, "an error leaves the range of float64")
        return found, {}


def errors(prediction: np.ndarray, data: Dataset) -> dict[str, float]:
    """The metrics of `Errors`. prediction: (m, outputs)."""
    found = _errors(prediction, data.y_test, weights=data.weights_test)
    for i in _each(data):
        found[f"mse.{i}"] = _errors(prediction[:, i], data.y_test[:, i], weights=data.weights_test)["mse"]
    if data.energy is not None:
        error, y = prediction - data.y_test, data.y_test
        found["energy_error"] = float(np.sum(error * (data.energy @ error)) / np.sum(y * (data.energy @ y)))
    if data.labels_test is not None:
        return {"accuracy": data.mean_over_test(predicted_labels(prediction) == data.labels_test), **found}
    return found


def _each(data: Dataset) -> Sequence[int]:
    """The targets that have errors of their own: up to twenty values, which are neither classes nor coordinates."""
    count = data.y_test.shape[1]
    return range(count) if data.labels_test is None and data.series is None and 1 < count <= 20 else ()


def _errors(
    prediction: np.ndarray, y: np.ndarray, prefix: str = "", weights: np.ndarray | None = None
) -> dict[str, float]:
    error = prediction - y
    with np.errstate(over="ignore"):  # an infinite error is reported as a failure
        squares, sizes = (weighted_mean(each, weights) for each in (error**2, np.abs(error)))
    return {f"{prefix}mse": squares, f"{prefix}mae": sizes}


@dataclass(frozen=True)
class OfPlugins:
    """The metrics that plugins add."""

    def names(self, data: Dataset) -> Sequence[str]:
        return [name for name, each in METRICS.items() if each.measure is not None]

    def __call__(self, case: Case) -> Found:
        return measured_by_plugins(case.prediction, case.of.data), {}


@dataclass(frozen=True)
class Rho:
    """The relative distance, in the RKHS norm, of the interpolant to that of all points of the system.

    known: the energies of all points, for each λ.
    """

    known: dict[Regularization, torch.Tensor] = field(default_factory=dict)

    def names(self, data: Dataset) -> Sequence[str]:
        return ["rho"]

    def __call__(self, case: Case) -> Found:
        if (energies := self.known.get(case.regularization)) is None:
            system = case.of.system
            assert isinstance(system, OfAllPoints)  # evaluation.rho needs solver=cholesky
            energies = system.energies(case.regularization, case.of.tensors[1][case.of.head])
            self.known[case.regularization] = energies
        return {"rho": float(energies[case.size :].sum() / energies.sum())}, {}


@dataclass(frozen=True)
class TrainingErrors:
    """Errors on the training points."""

    def names(self, data: Dataset) -> Sequence[str]:
        return ["train_mse", "train_mae"]

    def __call__(self, case: Case) -> Found:
        data, fitted = case.of.data, case.of.system.fitted(case.interpolant, case.of.tensors[0], case.of.head)
        return _errors(in_units(fitted, data, case.of.clip), data.y_train, "train_", data.weights_train), {}


@dataclass(frozen=True)
class PosteriorVariance:
    """The posterior variance at the test points, in squared units of the targets, for a kernel of scale 1."""

    def names(self, data: Dataset) -> Sequence[str]:
        return ["mean_posterior_variance"]

    def __call__(self, case: Case) -> Found:
        unit = float(np.mean(np.square(case.of.data.target_scale)))  # the mean over outputs
        variance = unit * in_numpy(case.interpolant.variance(case.of.system.test))
        return {"mean_posterior_variance": case.of.data.mean_over_test(variance)}, {"variance": variance}


@dataclass(frozen=True)
class Calibration:
    """How well deviations or probabilities fit (`kfx.evaluation.calibrated`); none for a Gram matrix on disk."""

    ends: bool = False

    def names(self, data: Dataset) -> Sequence[str]:
        from kfx.evaluation import calibrated

        return calibrated.names(data)

    def __call__(self, case: Case) -> Found:
        from kfx.evaluation import calibrated

        arrays = calibrated.distribution(case.interpolant, case.of.system.test, case.of.data, self.ends)
        return calibrated.metrics(arrays, case.prediction, case.of.data), arrays
