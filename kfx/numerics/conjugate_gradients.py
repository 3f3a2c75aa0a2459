"""Solve (Θ + λI) α = Y by preconditioned conjugate gradients, for one λ, without factoring Θ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kfx.numerics.linear_algebra import cholesky, solve_lower, solve_upper
from kfx.outcomes import Event, NumericalError

_MOST_PRODUCTS = 2000
_MOST_LANDMARKS = 3000

Product = Callable[[torch.Tensor], torch.Tensor]
"""The product v ↦ Θ v, for v of shape (n, outputs)."""
Watch = Callable[[int, float, torch.Tensor], None]
"""Called after each step with its number, the largest relative residual, and α, (n, outputs)."""


@dataclass(frozen=True)
class Solved:
    """The solution of a system.

    alpha: (n, outputs). residual: the largest ‖Y − (Θ + λI) α‖ / ‖Y‖ over the outputs, recomputed at the end.
    iterations: steps taken.
    """

    alpha: torch.Tensor
    residual: float
    iterations: int


class Nystrom:
    """The Nyström preconditioner P = C W⁻¹ Cᵀ + μI ≈ Θ + λI (Williams & Seeger 2001).

    C are the columns of Θ at m points, W the rows of C at these points. μ is λ plus the mean over the diagonal of
    Θ − C W⁻¹ Cᵀ.
    columns: C, (n, m). points: their indices, (m,). diagonal: of Θ, (n,). regularization: λ.
    """

    def __init__(
        self, columns: torch.Tensor, points: torch.Tensor, diagonal: torch.Tensor, regularization: float
    ) -> None:
        inner = columns[points]
        inner = (inner + inner.mT) / 2
        step = torch.finfo(torch.float32).eps * float(inner.diagonal().sum())
        self._root = solve_lower(cholesky(inner, step), columns.mT).mT  # B, with B Bᵀ = C W⁻¹ Cᵀ
        missed = (diagonal - self._root.square().sum(dim=1)).clamp_(min=0.0)
        self.shift = regularization + float(missed.mean()) + step / len(points)
        small = self._root.mT @ self._root
        self._small = cholesky(small, self.shift)

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """Return P⁻¹ v, (n, outputs), for v, (n, outputs): (v − B (μI + BᵀB)⁻¹ Bᵀ v) / μ."""
        inner = solve_upper(self._small, solve_lower(self._small, self._root.mT @ v))
        return (v - self._root @ inner) / self.shift


def solve(
    product: Product,
    columns: Callable[[np.ndarray], torch.Tensor],
    diagonal: torch.Tensor,
    y: torch.Tensor,
    regularization: float,
    tolerance: float,
    memory: int,
    *,
    start: torch.Tensor | None = None,
    watch: Watch = lambda iteration, residual, alpha: None,
) -> Solved:
    """Return α, (n, outputs), with (Θ + λI) α = Y, preconditioned by `Nystrom` with evenly spaced points.

    product: v ↦ Θ v. columns: returns the columns of Θ, (n, m), at increasing indices, (m,). diagonal: of Θ, (n,).
    y: Y, (n, outputs), float64. regularization: λ. tolerance: the largest ‖residual‖ / ‖Y‖ of an output. memory: bytes;
    the columns take at most a quarter. start, watch and errors as for `conjugate_gradients`.
    """
    n = len(y)
    count = max(min(n // 4, memory // (4 * 8 * n), _MOST_LANDMARKS), 1)
    points = np.unique(np.linspace(0, n - 1, count).astype(np.int64))
    preconditioner = Nystrom(columns(points), torch.from_numpy(points), diagonal, regularization)
    return conjugate_gradients(
        product, y, regularization, preconditioner, tolerance, _MOST_PRODUCTS, start=start, watch=watch
    )


def conjugate_gradients(
    product: Product,
    y: torch.Tensor,
    regularization: float,
    preconditioner: Nystrom | None,
    tolerance: float,
    most: int,
    *,
    start: torch.Tensor | None = None,
    watch: Watch = lambda iteration, residual, alpha: None,
) -> Solved:
    """Return α, (n, outputs), with ‖Y − (Θ + λI) α‖ ≤ tolerance · ‖Y‖ for each output.

    All outputs share each product with Θ. Where the residual that the steps update meets the tolerance and the true
    one does not, the method restarts from the α reached.
    product: v ↦ Θ v. y: Y, (n, outputs), float64. regularization: λ. start: initial α, (n, outputs); None for zero.
    watch: called after each step. Raises NumericalError where `most` steps do not suffice.
    """
    norms = y.norm(dim=0).clamp(min=torch.finfo(y.dtype).tiny)
    alpha = torch.zeros_like(y) if start is None else start.clone()
    iteration = 0
    while True:
        r = y - product(alpha) - regularization * alpha
        residual = float((r.norm(dim=0) / norms).max())
        if residual <= tolerance:
            return Solved(alpha, residual, iteration)
        if not math.isfinite(residual) or iteration >= most:
            raise NumericalError(
                Event.NOT_POSITIVE_DEFINITE,
                f"conjugate gradients reached a residual of {residual:.1e} in {iteration} steps, not {tolerance:.1e}; "
                "raise regularization.value, or evaluation.tolerance, or use evaluation.solver=cholesky",
            )
        z = preconditioner.solve(r) if preconditioner else r
        p, rz = z.clone(), (r * z).sum(dim=0)
        while residual > tolerance and iteration < most:
            iteration += 1
            image = product(p) + regularization * p
            step = _ratio(rz, (p * image).sum(dim=0))  # 0 for an output that is solved
            alpha += step * p
            r -= step * image
            z = preconditioner.solve(r) if preconditioner else r
            before, rz = rz, (r * z).sum(dim=0)
            p = z + _ratio(rz, before) * p
            residual = float((r.norm(dim=0) / norms).max())
            watch(iteration, residual, alpha)


def _ratio(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(b != 0, a / torch.where(b != 0, b, 1.0), 0.0)
