"""The negative log marginal likelihood of a Gaussian process."""

from __future__ import annotations

import math

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import objective
from kfx.objectives.problem import Gram, pose
from kfx.outcomes import Event, NumericalError

SCALES = ("one", "profiled")


@objective("−log p(Y)", "Rasmussen & Williams 2006, eq. 2.30")
def nll(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
    scale: str = "one",
) -> tuple[float, Array | None]:
    """Negative log marginal likelihood of a Gaussian process with noise variance λ.

    −log p(Y) = ½ tr YᵀA⁻¹Y / s + (outputs/2)(log det A + N log 2πs), A = Θ + λI, for independent outputs
    (Rasmussen & Williams 2006, eq. 2.30).

    gram: (N, N). y: (N,) or (N, outputs). G: (N, N). The sample is ignored.
    scale: `one`, s = 1; `profiled`, the s that minimises the value, tr YᵀA⁻¹Y / (N outputs), so that the kernel's
    scale does not matter. Other arguments, results and errors as for `rho`.
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    problem = pose(gram, y, sample_size, regularization)
    n, outputs = problem.y.shape
    energy = float((problem.y * problem.y_hat).sum())
    if scale == "profiled" and not energy > 0:
        raise NumericalError(Event.DIVERGED, "every target of the batch is zero, so the profiled scale is zero")
    s = energy / (n * outputs) if scale == "profiled" else 1.0
    log_determinant = 2 * float(problem.factor.diagonal().log().sum())
    value = 0.5 * energy / s + 0.5 * outputs * (log_determinant + n * math.log(2 * math.pi * s))
    if not cotangent:
        return value, None
    inverse = torch.cholesky_inverse(problem.factor)  # the gradient of log det A
    return value, problem.cotangent(0.5 * outputs * inverse - (0.5 / s) * (problem.y_hat @ problem.y_hat.mT))
