"""A kernel with its solved regression, which predicts at new points: what runs, estimators and `kfx predict` hold."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from kfx.data.dataset import Dataset
from kfx.evaluation.interpolants import Computed, Exact, ThroughCentres
from kfx.evaluation.systems import InMemory
from kfx.kernels.base import Kernel
from kfx.numerics import calibration, threads
from kfx.numerics.arrays import in_numpy
from kfx.numerics.process import exclusively
from kfx.numerics.regularization import Regularization

_ENTRIES = 250_000
"""Entries of a Gram matrix that are computed at a time for a mean: as many as a cache holds."""


@dataclass(frozen=True)
class Arithmetic:
    """Where and how predictions are computed. threads: of torch and of the engine."""

    dtype: torch.dtype
    device: torch.device
    threads: tuple[int, int]
    allow_tf32: bool

    def block(self) -> AbstractContextManager[None]:
        """A block that computes with this precision and these threads."""
        return exclusively(*self.threads, allow_tf32=self.allow_tf32)

    def tensor(self, x: np.ndarray) -> torch.Tensor:
        """Points x, (n, …), in this precision on this device."""
        return torch.as_tensor(x, dtype=self.dtype, device=self.device)


def without_points(data: Dataset) -> Dataset:
    """What takes predictions to the units of the targets: the data set without its points."""
    nothing = {name: getattr(data, name)[:0] for name in ("x_train", "y_train", "x_test", "y_test")}
    return replace(
        data, **nothing, labels_train=None, labels_test=None, series=None, weights_train=None, weights_test=None
    )


class _Predicts(abc.ABC):
    """Predictions at points x, (n, …). units: see `without_points`."""

    units: Dataset

    @property
    @abc.abstractmethod
    def parts(self) -> Sequence[Predictor]:
        """The predictor of each kernel: itself, or one for each output or component."""

    @abc.abstractmethod
    def as_learned(self, x: np.ndarray, deviation: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
        """As a call, of the targets that the kernel learned, standardized or components."""

    @abc.abstractmethod
    def draws(self, x: np.ndarray, count: int, rng: np.random.RandomState, prior: bool) -> np.ndarray:
        """Draws of the targets as learned from the Gaussian process, (count, n, outputs), without noise; with `prior`
        from that which has seen no data."""

    def __call__(self, x: np.ndarray, deviation: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
        """The prediction, (n, outputs), and with `deviation` the standard deviation of a target observed there, in the
        units of the targets."""
        mean, spread = self.as_learned(x, deviation or self.units.warp is not None)
        if spread is None:
            return self.units.in_units(mean), None
        mean, spread = self.units.moments(mean, spread)
        return mean, spread if deviation else None

    def interval(self, x: np.ndarray, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """The ends, (n, outputs) each, of the interval that holds a target observed there with this probability."""
        mean, spread = self.as_learned(x, True)
        assert spread is not None
        return self.units.interval(mean, spread, coverage)


@dataclass(frozen=True)
class Predictor(_Predicts):
    """Predictions of one kernel, whose settings are fixed."""

    kernel: Kernel
    interpolant: Exact | ThroughCentres
    units: Dataset
    arithmetic: Arithmetic

    @classmethod
    def solved(
        cls,
        kernel: Kernel,
        x: np.ndarray,
        y: np.ndarray,
        regularization: Regularization,
        units: Dataset,
        arithmetic: Arithmetic,
        weights: np.ndarray | None = None,
    ) -> Predictor:
        """Interpolate targets y, (n, outputs), as learned, at points x, (n, …). weights: of the points, (n,), or None.
        NumericalError if that fails."""
        with arithmetic.block():
            system = InMemory(kernel, arithmetic.tensor(x), weights=weights)
            interpolant = system.interpolant(regularization, torch.as_tensor(y, device=arithmetic.device))
        return cls(kernel, interpolant.alone(), units, arithmetic)

    @property
    def parts(self) -> Sequence[Predictor]:
        return [self]

    def as_learned(self, x: np.ndarray, deviation: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
        own, count = self.interpolant, len(self.interpolant.points)
        with self.arithmetic.block():
            compare, points = self.kernel.feature_map_and_kernel()[1], self.arithmetic.tensor(x)
            of_a_row = compare.multiplications(points[:1], own.points) + deviation * count**2
            with threads.as_many_as_worth(len(x) * of_a_row):
                if not deviation:
                    at = Computed(self.kernel, points, own.points, max(_ENTRIES // count, 1))
                    return in_numpy(own.mean(at)), None
                mean, spread = own.mean_and_deviation(Computed(self.kernel, points, own.points))
                return in_numpy(mean), in_numpy(spread)

    def covariance(self, x: np.ndarray, prior: bool = False) -> np.ndarray:
        """The covariance of the latent function, (n, n), for a kernel of scale 1: K(x, x) − K(x, X) A⁻¹ K(X, x), or
        with `prior` K(x, x)."""
        with self.arithmetic.block():
            mapped, compare = self.kernel.feature_map_and_kernel()
            points = mapped(self.arithmetic.tensor(x))
            covariance: np.ndarray = in_numpy(compare.gram(points)).astype(np.float64)
            if prior:
                return covariance
            half = in_numpy(self.interpolant.half(compare.gram(points, self.interpolant.points)))
        covariance -= half.T @ half
        return covariance

    def variance_and_columns(self, x: np.ndarray) -> tuple[np.ndarray, Callable[[int], np.ndarray]]:
        """The variance of the latent function, (n,), for a kernel of scale 1, and a function that returns a column of
        its `covariance`, (n,), which is not computed whole."""
        with self.arithmetic.block():
            mapped, compare = self.kernel.feature_map_and_kernel()
            points = mapped(whole := self.arithmetic.tensor(x))
            half = in_numpy(self.interpolant.half(compare.gram(points, self.interpolant.points)))
            prior = in_numpy(self.kernel.diagonal(whole)).astype(np.float64)

        def column(number: int) -> np.ndarray:
            with self.arithmetic.block():
                own = in_numpy(compare.gram(points, points[number : number + 1]))[:, 0].astype(np.float64)
            found: np.ndarray = own - half[:, number] @ half
            return found

        return prior - np.square(half).sum(axis=0), column

    def draws(self, x: np.ndarray, count: int, rng: np.random.RandomState, prior: bool) -> np.ndarray:
        mean = np.zeros((len(x), len(self.scale))) if prior else self.as_learned(x)[0]
        values, vectors = np.linalg.eigh(self.covariance(x, prior))
        root = vectors * np.sqrt(np.maximum(values, 0.0))  # rounding makes zero eigenvalues slightly negative
        normal = rng.standard_normal((len(self.scale), len(x), count))
        found: np.ndarray = mean + np.moveaxis(root @ normal, (0, 1, 2), (2, 1, 0)) * (
            np.sqrt(self.scale) * self.units.inflation
        )
        return found

    @cached_property
    def scale(self) -> np.ndarray:
        """The factor of the kernel for the targets as learned, (outputs,), with which errors at points that are left
        out have the predicted variance."""
        with self.arithmetic.block():
            return in_numpy(self.interpolant.scale())

    @cached_property
    def _sharpness(self) -> float:
        with self.arithmetic.block():
            targets, predicted, weights = self.interpolant.left_out()
        return calibration.sharpness(predicted, targets.argmax(axis=1), weights)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """The probabilities of classes, (n, classes), given their predicted targets, (n, classes): softmax(a · scores),
        with the factor a that fits best the classes of points that are left out."""
        return calibration.probabilities(scores, self._sharpness)


@dataclass(frozen=True)
class Separate(_Predicts):
    """Predictions with a kernel for each output or component. each: that of every one."""

    each: Sequence[Predictor]
    units: Dataset

    @property
    def parts(self) -> Sequence[Predictor]:
        return self.each

    def as_learned(self, x: np.ndarray, deviation: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
        found = [part(x, deviation) for part in self.each]
        mean, spreads = np.concatenate([own for own, _ in found], axis=1), [own for _, own in found if own is not None]
        return mean, np.concatenate(spreads, axis=1) if spreads else None

    def draws(self, x: np.ndarray, count: int, rng: np.random.RandomState, prior: bool) -> np.ndarray:
        return np.concatenate([part.draws(x, count, rng, prior) for part in self.each], axis=2)
