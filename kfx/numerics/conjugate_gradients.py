"""Solve (Θ + λI) α = Y by preconditioned conjugate gradients, for one λ, without factoring Θ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from kfx.numerics.linear_algebra import cholesky, solve_lower, solve_upper
from kfx.numerics.pivoted_cholesky import randomly_pivoted
from kfx.outcomes import Event, NumericalError

_MOST_PRODUCTS = 2000
_MOST_LANDMARKS = 3000
_CANDIDATES = 5
"""Points for each column, among which columns are chosen where not all of Θ is at hand."""

Product = Callable[[torch.Tensor], torch.Tensor]
"""The product v ↦ Θ v, for v of shape (n, outputs)."""
Block = Callable[[np.ndarray, np.ndarray], torch.Tensor]
Columns = Callable[[np.ndarray], torch.Tensor]
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


class Preconditioner(Protocol):
    """Something near Θ + λI that is easy to solve with."""

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """Return P⁻¹ v, (n, outputs), for v, (n, outputs)."""


class LowRank:
    """The preconditioner P = B Bᵀ + μI ≈ Θ + λI. μ is λ plus the mean over the diagonal of Θ − B Bᵀ.

    root: B, (n, m). diagonal: of Θ, (n,). regularization: λ.
    """

    def __init__(self, root: torch.Tensor, diagonal: torch.Tensor, regularization: float) -> None:
        self._root = root
        missed = (diagonal - root.square().sum(dim=1)).clamp_(min=0.0)
        step = torch.finfo(torch.float32).eps * float(diagonal.mean())
        self.shift = regularization + float(missed.mean()) + step
        self._small = cholesky(root.mT @ root, self.shift)

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """Return P⁻¹ v, (n, outputs), for v, (n, outputs): (v − B (μI + BᵀB)⁻¹ Bᵀ v) / μ."""
        inner = solve_upper(self._small, solve_lower(self._small, self._root.mT @ v))
        return (v - self._root @ inner) / self.shift


def solve(
    product: Product,
    block: Block,
    columns: Columns | None,
    diagonal: torch.Tensor,
    y: torch.Tensor,
    regularization: float,
    tolerance: float,
    memory: int,
    *,
    start: torch.Tensor | None = None,
    watch: Watch = lambda iteration, residual, alpha: None,
) -> Solved:
    """Return α, (n, outputs), with (Θ + λI) α = Y, preconditioned by columns of Θ that randomly pivoted Cholesky
    chooses (Díaz et al. 2023).

    product: v ↦ Θ v. block: returns Θ at rows i and columns j, (len(i), len(j)). columns: returns the columns of Θ, (n,
    m), at increasing indices, (m,), where `block` is too slow for them; points are then chosen among some alone.
    diagonal: of Θ, (n,). y: Y, (n, outputs), float64. regularization: λ. tolerance: the largest ‖residual‖ / ‖Y‖ of an
    output. memory: bytes; the columns take at most a quarter. start, watch and errors as for `conjugate_gradients`.
    """
    n, rng = len(y), np.random.default_rng(0)
    count = max(min(n // 4, memory // (4 * 8 * n), _MOST_LANDMARKS), 1)
    some = np.arange(n) if columns is None else np.sort(rng.permutation(n)[: _CANDIDATES * count])
    of_some = diagonal[torch.from_numpy(some)]
    chosen, root = randomly_pivoted(
        lambda at: block(some, some[at]), lambda at: block(some[at], some[at]), of_some, count, rng
    )
    if columns is not None:
        points = np.sort(some[chosen])
        root = _root(columns(points), torch.from_numpy(points))
    preconditioner = LowRank(root, diagonal.to(torch.float64), regularization)
    return conjugate_gradients(
        product, y, regularization, preconditioner, tolerance, _MOST_PRODUCTS, start=start, watch=watch
    )


def _root(columns: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return B, (n, m), with B Bᵀ = C W⁻¹ Cᵀ (Williams & Seeger 2001). columns: C, (n, m). points: the rows W of C."""
    inner = columns[points]
    inner = (inner + inner.mT) / 2
    step = torch.finfo(torch.float32).eps * float(inner.diagonal().sum())
    return solve_lower(cholesky(inner, step), columns.mT).mT


def conjugate_gradients(
    product: Product,
    y: torch.Tensor,
    regularization: float | torch.Tensor,
    preconditioner: Preconditioner | None,
    tolerance: float,
    most: int,
    *,
    start: torch.Tensor | None = None,
    watch: Watch = lambda iteration, residual, alpha: None,
) -> Solved:
    """Return α, (n, outputs), with ‖Y − (Θ + λI) α‖ ≤ tolerance · ‖Y‖ for each output.

    All outputs share each product with Θ. Where the residual that the steps update meets the tolerance and the true
    one does not, the method restarts from the α reached.
    product: v ↦ Θ v. y: Y, (n, outputs), float64. regularization: λ, one for all outputs or (outputs,). start: initial
    α, (n, outputs); None for zero. watch: called after each step. Raises NumericalError where `most` steps do not
    suffice.
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
