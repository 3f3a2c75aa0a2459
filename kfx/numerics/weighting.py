"""Weights of points: a point of weight w has the noise λ / w.

With S = diag √w, A = Θ + λS⁻² has A⁻¹ = S (SΘS + λI)⁻¹ S. So the regression with weights is the plain one of SΘS, SY:
its coefficients are S⁻¹α, its residuals and its errors at points that are left out √w times those of Y, its quadratic
forms, as YᵀA⁻¹Y, the same. This is where weights enter every objective and every solver.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from kfx.numerics.arrays import Array, as_kind
from kfx.numerics.outer_products import OuterProducts
from kfx.numerics.regularization import Regularization


@dataclass(frozen=True)
class WeightedRegularization(Regularization):
    """λ as a function of SΘS, the matrix that its methods take in place of Θ.

    Its unit is that of Θ with every point counted w times: Σ w_i Θ_ii / Σ w_i, less wᵀΘw / (Σ w_i)² with `centered`. So
    whole weights are repeated points to λ too. roots: √w, (n,), float64.
    """

    roots: torch.Tensor = field(kw_only=True, repr=False, compare=False)

    @property
    def _total(self) -> float:
        return float(self.roots.square().sum())

    def at(self, points: torch.Tensor | slice) -> WeightedRegularization:
        return replace(self, roots=self.roots[points])

    def unit(self, gram: Array) -> float:
        if self.scale == "absolute":
            return 1.0
        scaled = as_kind(gram, self.roots)
        every = float(self.roots @ (scaled @ self.roots)) if self.scale == "centered" else 0.0
        return self._unit(self._total, float(scaled.diagonal().sum()), every)

    def pull(self, cotangent: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # objectives have tensors here
        if self.scale == "absolute":
            return cotangent
        slope = self.value * float(cotangent.diagonal().sum()) / self._total
        cotangent.diagonal().add_(slope)
        if self.scale == "centered":
            cotangent -= (slope / self._total) * torch.outer(self.roots, self.roots)
        return cotangent

    def pull_of_outer_products(self, cotangent: OuterProducts) -> OuterProducts:
        if self.scale == "absolute":
            return cotangent
        slope = self.value * cotangent.trace() / self._total
        everywhere = -slope / self._total if self.scale == "centered" else 0.0
        return cotangent.shifted(slope, everywhere, as_kind(self.roots, cotangent.vectors)[:, None])

    def _passed(self, n: int) -> float:
        return super()._passed(n) * n / self._total


def weighted(
    gram: torch.Tensor, y: torch.Tensor, regularization: Regularization, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, Regularization]:
    """Return the plain problem of a weighted one: SΘS, (n, n), SY, (n, outputs), and λ as a function of the former.

    gram: Θ, (n, n). y: Y, (n, outputs). weights: w, (n,), float64, > 0; with None all three are returned as they are.
    """
    if weights is None:
        return gram, y, regularization
    roots = weights.sqrt()
    return scaled(gram, roots), y.to(torch.float64) * roots[:, None], of_scaled(regularization, roots)


def of_scaled(regularization: Regularization, roots: torch.Tensor) -> WeightedRegularization:
    """Return λ as a function of SΘS. roots: √w, (n,)."""
    return WeightedRegularization(regularization.value, regularization.scale, roots=roots)


def scaled(matrix: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
    """Return SMS, (n, n), in M's dtype, by whose round-off factorisations add jitter. matrix: M, (n, n). roots: √w,
    (n,)."""
    return (matrix * torch.outer(roots, roots)).to(matrix.dtype)
