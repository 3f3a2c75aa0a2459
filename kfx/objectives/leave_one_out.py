"""The leave-one-out error of kernel ridge regression."""

from __future__ import annotations

from typing import Any

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.regularization import Regularization
from kfx.objectives.problem import Gram, pose, under_own_settings


@under_own_settings
def loo(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
) -> tuple[float, Any]:
    """Mean over points and outputs of e², e_i = (A⁻¹Y)_i / (A⁻¹)_ii, the error at x_i of the regression on all others.

    Closed form (Rasmussen & Williams 2006, eq. 5.12). The sample is ignored. Arguments, results and errors as for
    `rho`.
    """
    problem = pose(gram, y, sample_size, regularization)
    inverse = torch.cholesky_inverse(problem.factor)
    own = inverse.diagonal()[:, None]
    error = problem.y_hat / own
    value = float(error.square().mean())
    if not cotangent:
        return value, None
    # dŶ = −A⁻¹ dA Ŷ and d(A⁻¹)_ii = −(A⁻¹ dA A⁻¹)_ii.
    to_y_hat = error / own * (2 / error.numel())
    to_own = -(to_y_hat * error).sum(dim=1)
    to_a = -(inverse @ to_y_hat) @ problem.y_hat.mT - (inverse * to_own) @ inverse
    return value, problem.cotangent(to_a)
