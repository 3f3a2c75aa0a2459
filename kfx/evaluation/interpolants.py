"""Solved kernel ridge regression, f = K(·, X) α: its mean and its variance, from all points or through centres."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.numerics.arrays import in_numpy
from kfx.numerics.linear_algebra import Factored, solve_lower
from kfx.numerics.regression import ROWS, inverse_diagonal, left_out_scale, spread_over
from kfx.numerics.weighting import scaled


@dataclass
class Covariances(abc.ABC):
    """Covariances of m points x* with the interpolation points X, K(x*, X), some rows at a time.

    kernel: computes them. x: x*, (m, …).
    """

    kernel: Kernel
    x: torch.Tensor

    def prior(self) -> Iterator[torch.Tensor]:
        """Yield K(x*, x*) of each point, (rows,), float64, in any blocks."""
        yield self.kernel.diagonal(self.x).to(torch.float64, copy=True)

    @abc.abstractmethod
    def blocks(self, size: int) -> Iterator[torch.Tensor]:
        """Yield K(x*, X), (rows, size), for the first `size` interpolation points, until all x* had their turn."""

    def times(self, alpha: torch.Tensor) -> torch.Tensor:
        """K(x*, X) α, (m, outputs), float64. alpha: α, (k, outputs), of the first k interpolation points."""
        return torch.cat([products(cross, alpha) for cross in self.blocks(len(alpha))])


def products(rows: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """K(x*, X) α, (m, outputs), in float64, computed for some rows at a time. rows: K(x*, X), (m, k). alpha: α, (k,
    outputs)."""
    return torch.cat([block.to(torch.float64) @ alpha for block in rows.split(ROWS)])


@dataclass
class Kept(Covariances):
    """Covariances in memory. cross: K(x*, X), (m, n)."""

    cross: torch.Tensor

    def blocks(self, size: int) -> Iterator[torch.Tensor]:
        yield from self.cross[:, :size].split(ROWS)


@dataclass
class Computed(Covariances):
    """Covariances that are computed when they are needed. points: X, mapped, (n, …)."""

    points: torch.Tensor
    rows: int = ROWS

    def prior(self) -> Iterator[torch.Tensor]:
        return (
            self.kernel.diagonal(block).to(torch.float64, copy=True) for block in self.x.split(max(self.rows, ROWS))
        )

    def blocks(self, size: int) -> Iterator[torch.Tensor]:
        mapped, compare = self.kernel.feature_map_and_kernel()
        return (compare.gram(mapped(block), self.points[:size]) for block in self.x.split(self.rows))


class Interpolant(abc.ABC):
    """The prediction f = K(·, X) α with the effective λ, and the variance of the Gaussian process.

    alpha: α, (k, outputs). report: what the solver says of the solution, by metric.
    """

    alpha: torch.Tensor
    effective: float
    report: Mapping[str, float]

    @abc.abstractmethod
    def half(self, cross: torch.Tensor) -> torch.Tensor:
        """Return H, (k, m), where HᵀH is what the data take from the prior covariance at m points x*.

        cross: K(x*, X), (m, k).
        """

    def mean(self, at: Covariances) -> torch.Tensor:
        """Return f at x*, (m, outputs), float64."""
        return at.times(self.alpha)

    def variance(self, at: Covariances) -> torch.Tensor:
        """Return the posterior variance of f at x*, (m,), ≥ 0, for a kernel of scale 1.

        It is K(x*, x*) − K(x*, X)(K + λI)⁻¹K(X, x*) (Rasmussen & Williams 2006, eq. 2.26).
        """
        return self._mean_and_variance(at, False)[1]

    def _mean_and_variance(self, at: Covariances, mean: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The variance, and with `mean` also f, in blocks."""
        left, means, done = torch.cat(list(at.prior())), [], 0
        for cross in at.blocks(len(self.alpha)):
            if mean:
                means.append(products(cross, self.alpha))
            own, done = left[done : done + len(cross)], done + len(cross)
            own -= self.half(cross).square().sum(dim=0)  # in place: small arrays between large ones keep their memory
        assert done == len(left)
        return means, left.clamp_(min=0.0)


class Calibrated(Interpolant):
    """An interpolant whose points can be left out, which sets the scale of deviations."""

    @abc.abstractmethod
    def scale(self) -> torch.Tensor:
        """Return the factor of the covariance, (outputs,), with which predictions of points that are left out have the
        predicted variance."""

    @abc.abstractmethod
    def left_out(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the targets of at most 2000 training points, (j, outputs), their predictions from points without
        them, (j, outputs), and their weights, (j,), or None."""

    def deviation(self, at: Covariances) -> torch.Tensor:
        """Return the standard deviation of targets observed at x*, (m, outputs)."""
        return self._deviation(self.variance(at))

    def mean_and_deviation(self, at: Covariances) -> tuple[torch.Tensor, torch.Tensor]:
        """Return f at x* and the deviation of targets observed there, (m, outputs) each, from one pass."""
        mean, variance = self._mean_and_variance(at, True)
        return torch.cat(mean), self._deviation(variance)

    def _deviation(self, variance: torch.Tensor) -> torch.Tensor:
        return ((variance + self.effective)[:, None] * self.scale()).sqrt()


class Exact(Calibrated):
    """From all interpolation points: (K + λI) α = Y; with weights w = s² of the points (SKS + λI) S⁻¹α = SY.

    points: X, mapped, (k, …). solution: α, or S⁻¹α, (k, outputs). targets: Y, or SY, (k, outputs), float64. kernel: K,
    of mapped points. gram: K(X, X), or SKS; None to compute it when the variance needs it. roots: s, (k,), or None.
    diagonal: (A⁻¹)_ii of the points of `spread_over`, and kept: the function y ↦ L⁻¹y, which overwrites
    y, of A = LLᵀ = K + λI, both where they are known already.
    """

    def __init__(
        self,
        points: torch.Tensor,
        solution: torch.Tensor,
        effective: float,
        targets: torch.Tensor,
        kernel: Kernel,
        gram: Factored | None = None,
        report: Mapping[str, float] | None = None,
        roots: torch.Tensor | None = None,
        diagonal: torch.Tensor | None = None,
        kept: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.points, self.effective, self.report = points, effective, report or {}
        self.alpha = solution if roots is None else solution * roots[:, None]
        self._solution, self._targets, self._kernel, self._gram, self._roots = solution, targets, kernel, gram, roots
        self._diagonal, self._kept = diagonal, kept

    def alone(self) -> Exact:
        """Return it without its Gram matrix, which may be large, and without a file."""
        own = self.points, self._solution, self.effective, self._targets, self._kernel
        return Exact(*own, report=self.report, roots=self._roots, diagonal=self._diagonal)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a file, from which the same solution is made with these points and targets."""
        named = {"alpha": self._solution, "inverse_diagonal": self._inverse_diagonal}
        return {name: in_numpy(each) for name, each in named.items()} | {"effective": np.array(self.effective)}

    def __getstate__(self) -> dict[str, object]:
        return vars(self.alone())

    @cached_property
    def factor(self) -> torch.Tensor:
        """L, (k, k), of K + λI, or of SKS + λI. NumericalError if there is none."""
        if self._gram is not None:
            return self._gram.factor(self.effective)
        gram = self._kernel.gram(self.points)
        return Factored(gram if self._roots is None else scaled(gram, self._roots)).factor(self.effective)

    @property
    def _inverse_diagonal(self) -> torch.Tensor:
        if self._diagonal is None:
            self._diagonal = inverse_diagonal(self.factor)
        return self._diagonal

    def half(self, cross: torch.Tensor) -> torch.Tensor:
        if self._kept is not None:
            return self._kept(cross.mT.to(torch.float64).clone(memory_format=torch.contiguous_format))
        own = cross.to(self.factor)
        return solve_lower(self.factor, (own if self._roots is None else own * self._roots).mT)

    def scale(self) -> torch.Tensor:
        return left_out_scale(self._solution, self._inverse_diagonal)

    def left_out(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        some = spread_over(self.alpha)
        targets = self._targets[some].to(self.alpha)
        errors = self._solution[some] / self._inverse_diagonal[:, None]
        if self._roots is None:
            return in_numpy(targets), in_numpy(targets - errors), None
        roots = self._roots[some, None]
        return in_numpy(targets / roots), in_numpy((targets - errors) / roots), in_numpy(roots[:, 0].square())


_ARRAYS = ("points", "alpha", "root", "reduction", "of_scale", "targets", "predictions")


@dataclass(frozen=True)
class ThroughCentres(Calibrated):
    """From M centres (`kfx.numerics.nystrom`); the variance is that of DTC.

    points: Z, mapped, (M, …). root: L, (M, M), K(Z, Z) = LLᵀ. reduction: R, (M, M), H = RᵀL⁻¹K(Z, x). of_scale:
    (outputs,). targets, predictions: of points without their fold, (j, outputs).
    """

    points: torch.Tensor
    alpha: torch.Tensor
    effective: float
    root: torch.Tensor
    reduction: torch.Tensor
    of_scale: torch.Tensor
    targets: torch.Tensor
    predictions: torch.Tensor
    report: Mapping[str, float] = field(default_factory=dict)

    def half(self, cross: torch.Tensor) -> torch.Tensor:
        return self.reduction.mT @ solve_lower(self.root, cross.to(self.root).mT)

    def scale(self) -> torch.Tensor:
        return self.of_scale

    def left_out(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return in_numpy(self.targets), in_numpy(self.predictions), None

    def of_two_classes(self) -> ThroughCentres:
        """Return the solution with a column for each class, from that for targets ±1 in one column; the difference of
        the columns has the same prediction."""
        alpha, targets, predictions = (
            torch.cat([-own, own], dim=1) / 2 for own in (self.alpha, self.targets, self.predictions)
        )
        scale = self.of_scale.repeat(2) / 4
        return replace(self, alpha=alpha, targets=targets, predictions=predictions, of_scale=scale)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a file that `from_arrays` reads."""
        return {name: in_numpy(getattr(self, name)) for name in _ARRAYS} | {"effective": np.array(self.effective)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], device: torch.device) -> ThroughCentres:
        """KeyError where an array is missing."""
        tensors = {name: torch.from_numpy(arrays[name]).to(device) for name in _ARRAYS}
        return cls(effective=float(arrays["effective"]), report={}, **tensors)
