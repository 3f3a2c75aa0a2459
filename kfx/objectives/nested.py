"""ρ of several nested samples of a batch, from one Cholesky factor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kfx.numerics.arrays import Array, as_kind, numpy_if_small
from kfx.numerics.linear_algebra import solve_lower, solve_upper
from kfx.numerics.outer_products import OuterProducts
from kfx.numerics.regularization import Regularization
from kfx.objectives.problem import Gram, pose
from kfx.outcomes import Event, NumericalError

_LEAST = 1e-140


@np.errstate(all="ignore")  # overflow raises NumericalError instead of a warning
def nested_rho(
    gram: Gram,
    y: Array,
    sample_sizes: Sequence[int],
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
) -> tuple[list[float], OuterProducts | None]:
    """Return ρ of several nested samples from one factor, and the cotangent G of Θ for the first sample.

    gram: Θ, (N_f, N_f). y: (N_f,) or (N_f, outputs). sample_sizes: N_c of each sample, its points the first N_c of
    the batch. regularization: λ; a plain number is absolute. G is (N_f, N_f) as a sum of outer products, None with
    `cotangent=False`. Equations and errors as for `relative_error.rho`.
    """
    problem = pose(gram, y, sample_sizes[0], regularization)
    factor = numpy_if_small(problem.factor)
    values, result = rho_of_factor(factor, as_kind(problem.y, factor), sample_sizes, cotangent)
    return values, None if result is None else problem.regularization.pull_of_outer_products(result)


def rho_of_factor(
    factor: Any, y: Any, sample_sizes: Sequence[int], cotangent: bool = True
) -> tuple[list[float], OuterProducts | None]:
    """Return ρ of nested samples from L, and the cotangent of A = LLᵀ for the first one; see `relative_error.rho`.

    factor: L, (N_f, N_f), float64, NumPy or torch. y: (N_f, outputs), float64, of the same kind.
    Raises NumericalError where Y is zero.
    """
    w, vectors = _solved(factor, y, sample_sizes[0], cotangent)
    if not _LEAST < _energy(w) < 1 / _LEAST:  # its square would over- or underflow; ρ does not depend on Y's scale
        scale = 2.0 ** -math.frexp(float(abs(w).max()))[1]
        w, vectors = w * scale, vectors * scale
    values: list[float] = []
    for size in reversed(sample_sizes):
        kept, lost = _energy(w[:size]), _energy(w[size:])
        total = kept + lost  # so that round-off cannot lift ρ above 1
        if not total > 0:
            raise NumericalError(Event.DIVERGED, "every target of the batch is zero, so rho is 0/0")
        values.insert(0, lost / total)
    if not cotangent:
        return values, None
    outputs = w.shape[1]
    # G = −((1 − ρ) ŶŶᵀ − ẐẐᵀ) / ‖w‖², with ‖w‖² = total and 1 − ρ = kept / total
    weights = as_kind([-kept / total**2] * outputs + [1 / total] * outputs, vectors)
    return values, OuterProducts(vectors, weights)


def _solved(factor: Any, y: Any, sample_size: int, cotangent: bool) -> tuple[Any, Any]:
    """Return w, and Ŷ and Ẑ side by side where the cotangent needs them."""
    if isinstance(factor, np.ndarray):
        from kfx.numerics import small_loops

        found = np.empty(y.shape), np.empty((len(y), 2 * y.shape[1]))
        small_loops.solve_nested(np.ascontiguousarray(factor.T), np.ascontiguousarray(y), sample_size, *found)
        return found
    w = solve_lower(factor, y)
    if not cotangent:
        return w, w
    z_hat = solve_upper(factor[:sample_size, :sample_size], w[:sample_size])
    below = z_hat.new_zeros(len(w) - sample_size, w.shape[1])
    return w, torch.cat([solve_upper(factor, w), torch.cat([z_hat, below])], dim=1)


def _energy(w: Any) -> float:
    """‖w‖²."""
    return float(np.vdot(w, w)) if isinstance(w, np.ndarray) else float(w.square().sum())
