"""The negative log marginal likelihood of a Gaussian process."""

from __future__ import annotations

import math

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.linear_algebra import solve_lower
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import objective
from kfx.objectives.problem import Gram, pose
from kfx.outcomes import Event, NumericalError

FORMS, SCALES = ("batch", "held_out"), ("one", "profiled")


@objective("−log p(Y)", "Rasmussen & Williams 2006, eq. 2.30")
def nll(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
    scale: str = "one",
    form: str = "batch",
) -> tuple[float, Array | None]:
    """Negative log marginal likelihood of a Gaussian process with noise variance λ.

    −log p(Y) = ½ tr YᵀA⁻¹Y / s + (outputs/2)(log det A + N log 2πs), A = Θ + λI, for independent outputs
    (Rasmussen & Williams 2006, eq. 2.30).

    gram: (N, N). y: (N,) or (N, outputs). G: (N, N).
    form: `batch`, −log p(Y), which ignores the sample; `held_out`, −log p(Y_h | Y_c) = −log p(Y) + log p(Y_c) of the
    points outside the sample given the sample (Lotfi et al. 2022, eq. 3).
    scale: `one`, s = 1; `profiled`, the s that minimises the value, so that the kernel's scale does not matter:
    tr YᵀA⁻¹Y / (N outputs), with `held_out` without the sample's part. Other arguments and errors: see
    `Objective`.
    """
    require_scale(scale)
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    problem = pose(gram, y, sample_size, regularization)
    first, outputs = sample_size if form == "held_out" else 0, problem.y.shape[1]
    count = len(problem.y) - first
    # the sample's points are first in L, so the rest of L⁻¹Y and of diag L belong to the held-out points
    energy = float(solve_lower(problem.factor, problem.y)[first:].square().sum())
    if scale == "profiled" and not energy > 0:
        raise NumericalError(Event.DIVERGED, "every target of the batch is zero, so the profiled scale is zero")
    s = energy / (count * outputs) if scale == "profiled" else 1.0
    log_determinant = 2 * float(problem.factor.diagonal()[first:].log().sum())
    value = 0.5 * energy / s + 0.5 * outputs * (log_determinant + count * math.log(2 * math.pi * s))
    value -= outputs * problem.log_roots(first)
    if not cotangent:
        return value, None
    to_a = _slope(problem.factor, problem.y_hat, s)
    if first:
        to_a[:first, :first] -= _slope(problem.sample_factor, problem.solve_sample(problem.y[:first]), s)
    return value, problem.cotangent(to_a)


def require_scale(scale: str) -> None:
    """Raise ValueError unless `scale` is one of SCALES."""
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")


def _slope(factor: torch.Tensor, y_hat: torch.Tensor, s: float) -> torch.Tensor:
    """The gradient of −log p(Y) with respect to A, (N, N). factor: L with A = LLᵀ. y_hat: A⁻¹Y, (N, outputs)."""
    return 0.5 * y_hat.shape[1] * torch.cholesky_inverse(factor) - (0.5 / s) * (y_hat @ y_hat.mT)
