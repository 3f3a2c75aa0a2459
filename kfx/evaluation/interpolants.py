"""Solved kernel ridge regression: K(x, points) α with its variance, from all points or through centres."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from kfx.numerics.arrays import in_numpy
from kfx.numerics.linear_algebra import solve_lower
from kfx.numerics.regression import inverse_diagonal, left_out_scale, spread_over, unexplained


class Interpolant(abc.ABC):
    """The prediction K(x, points) α.

    points: mapped, (k, …). alpha: α, (k, outputs). effective: λ.
    """

    points: torch.Tensor
    alpha: torch.Tensor
    effective: float

    @abc.abstractmethod
    def half(self, cross: torch.Tensor) -> torch.Tensor:
        """Return H, (k, m), where HᵀH is what the data take from the prior covariance. cross: K(x, points), (m, k)."""

    @abc.abstractmethod
    def scale(self) -> torch.Tensor:
        """Return the factor of the covariance, (outputs,), with which predictions of points that are left out have the
        predicted variance."""

    @abc.abstractmethod
    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the targets of at most 2000 training points, (j, outputs), and their predictions from points without
        them, (j, outputs)."""

    def variance(self, cross: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
        """Return the posterior variance, (m,), ≥ 0, for a kernel of scale 1.

        cross: as for `half`. prior: K(x, x), (m,).
        """
        return unexplained(prior, cross, self.half)

    def deviation(self, cross: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation of observed targets, (m, outputs). cross, prior: as for `variance`."""
        return ((self.variance(cross, prior) + self.effective)[:, None] * self.scale()).sqrt()


class Exact(Interpolant):
    """From all interpolation points: (K + λI) α = Y.

    targets: Y, (k, outputs). factor: computes L, (k, k), K + λI = LLᵀ, when it is first needed.
    """

    def __init__(
        self,
        points: torch.Tensor,
        alpha: torch.Tensor,
        effective: float,
        targets: torch.Tensor,
        factor: Callable[[], torch.Tensor],
    ) -> None:
        self.points, self.alpha, self.effective, self._targets = points, alpha, effective, targets
        self._compute = factor
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_kept": []}  # computed anew when needed

    def _factor_and_scale(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._kept:
            factor = self._compute()
            self._kept.append((factor, left_out_scale(factor, self.alpha)))
        return self._kept[0]

    def half(self, cross: torch.Tensor) -> torch.Tensor:
        factor = self._factor_and_scale()[0]
        return solve_lower(factor, cross.to(factor).mT)

    def scale(self) -> torch.Tensor:
        return self._factor_and_scale()[1]

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        factor = self._factor_and_scale()[0]
        some = spread_over(factor)
        targets = self._targets[some].to(self.alpha)
        errors = self.alpha[some] / inverse_diagonal(factor, some)[:, None]
        return in_numpy(targets), in_numpy(targets - errors)


_ARRAYS = ("points", "alpha", "root", "reduction", "of_scale", "targets", "predictions")


@dataclass(frozen=True)
class ThroughCentres(Interpolant):
    """From M centres (`kfx.numerics.nystrom`); the variance is that of DTC.

    root: L, (M, M), K(Z, Z) = LLᵀ. reduction: R, (M, M), H = RᵀL⁻¹K(Z, x). of_scale: (outputs,). targets,
    predictions: of points without their fold, (j, outputs).
    """

    points: torch.Tensor
    alpha: torch.Tensor
    effective: float
    root: torch.Tensor
    reduction: torch.Tensor
    of_scale: torch.Tensor
    targets: torch.Tensor
    predictions: torch.Tensor

    def half(self, cross: torch.Tensor) -> torch.Tensor:
        return self.reduction.mT @ solve_lower(self.root, cross.to(self.root).mT)

    def scale(self) -> torch.Tensor:
        return self.of_scale

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        return in_numpy(self.targets), in_numpy(self.predictions)

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
        return cls(effective=float(arrays["effective"]), **tensors)
