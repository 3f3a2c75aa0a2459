"""The regularization λ, its scale, and the gradient through its dependence on Θ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch

from kfx.config.choices import SCALES
from kfx.numerics.arrays import Array, diagonal, numpy_if_small, total
from kfx.numerics.outer_products import OuterProducts


@dataclass(frozen=True)
class Regularization:
    """λ = value × the scale of the Gram matrix Θ of N points.

    value: ≥ 0.
    scale: `absolute`       1, as in the experiments of the papers. An optimizer can then change the effective
                            regularization through the kernel's scale, and ρ rewards a larger one.
           `mean_diagonal`  tr Θ / N.
           `centered`       tr Θ / N − 1ᵀΘ1 / N²: the mean variance of the kernel's functions about their mean,
                            which a constant added to the kernel does not change.
    """

    value: float = 1e-4
    scale: str = "centered"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise ValueError(f"regularization value must be a finite number >= 0, got {self.value!r}")
        if self.scale not in SCALES:
            raise ValueError(f"regularization scale must be one of {', '.join(SCALES)}, got {self.scale!r}")

    def at(self, points: torch.Tensor | slice) -> Regularization:
        """Return λ for some of the points: itself, but for points with weights. points: their places."""
        return self

    def of(self, gram: Array) -> float:
        """Return the effective λ for a Gram matrix Θ, (n, n)."""
        return self.value if self.scale == "absolute" else self.value * self.unit(gram)

    def unit(self, gram: Array) -> float:
        """Return λ per unit of `value`, the scale of a Gram matrix Θ, (n, n)."""
        if self.scale == "absolute":
            return 1.0
        matrix = numpy_if_small(gram) if isinstance(gram, torch.Tensor) else gram
        return self._unit(len(gram), total(diagonal(matrix)), total(matrix) if self.scale == "centered" else 0.0)

    def of_sums(self, n: int, trace: float, every: float) -> float:
        """Return the effective λ for a Gram matrix of n points. trace: tr Θ. every: 1ᵀΘ1."""
        return self.value if self.scale == "absolute" else self.value * self._unit(n, trace, every)

    def _unit(self, n: float, trace: float, every: float) -> float:
        return trace / n if self.scale == "mean_diagonal" else max(trace / n - every / n**2, 0.0)

    @overload
    def pull(self, cotangent: np.ndarray) -> np.ndarray: ...
    @overload
    def pull(self, cotangent: torch.Tensor) -> torch.Tensor: ...
    def pull(self, cotangent: Array) -> Array:
        """Return the cotangent of Θ, G + tr G · ∂λ/∂Θ, (n, n), given that of A = Θ + λ(Θ)I. cotangent: G, (n, n),
        overwritten with the result."""
        if self.scale == "absolute":
            return cotangent
        n, own = len(cotangent), diagonal(cotangent)
        slope = self.value * total(own) / n
        own += slope
        if self.scale == "centered":
            cotangent -= slope / n
        return cotangent

    def pull_of_outer_products(self, cotangent: OuterProducts) -> OuterProducts:
        """Return the cotangent of Θ as `pull` does, given that of A, (n, n), as a sum of outer products."""
        if self.scale == "absolute":
            return cotangent
        n = cotangent.shape[0]
        slope = self.value * cotangent.trace() / n
        return cotangent.shifted(slope, -slope / n if self.scale == "centered" else 0.0)

    def slope(self, cotangent: torch.Tensor, gram: torch.Tensor) -> float:
        """Return the derivative with respect to `value` of a function of A = Θ + λI alone.

        cotangent: that of Θ, (n, n), as `pull` returns it. gram: Θ, (n, n). The trace of Θ's cotangent is the trace of
        A's cotangent times a factor that depends on the scale alone, so the latter need not be kept.
        """
        return self.unit(gram) * float(cotangent.diagonal().sum()) / (1.0 + self.value * self._passed(len(gram)))

    def _passed(self, n: int) -> float:
        """The trace of ∂λ/∂Θ for `value` 1. n: the number of points."""
        return {"absolute": 0.0, "mean_diagonal": 1.0, "centered": 1.0 - 1.0 / n}[self.scale]


def as_regularization(value: float | Regularization) -> Regularization:
    """Return a `Regularization`; a plain number is an absolute λ."""
    return value if isinstance(value, Regularization) else Regularization(float(value), "absolute")
