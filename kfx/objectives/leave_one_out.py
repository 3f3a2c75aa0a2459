"""The leave-one-out error of kernel ridge regression."""

from __future__ import annotations

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import objective
from kfx.objectives.problem import Gram, Problem, pose


@objective("", "Rasmussen & Williams 2006, eq. 5.12")
def loo(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
) -> tuple[float, Array | None]:
    """Mean over points and outputs of e², e_i = (A⁻¹Y)_i / (A⁻¹)_ii, the error at x_i of the regression on all others.

    Closed form (Rasmussen & Williams 2006, eq. 5.12). The sample is ignored. Arguments, results and errors as for
    `rho`.
    """
    problem = pose(gram, y, sample_size, regularization)
    inverse, own, error = _left_out(problem)
    value = float(error.square().mean())
    if not cotangent:
        return value, None
    # dŶ = −A⁻¹ dA Ŷ and d(A⁻¹)_ii = −(A⁻¹ dA A⁻¹)_ii.
    to_y_hat = error / own * (2 / error.numel())
    to_own = -(to_y_hat * error).sum(dim=1)
    to_a = -(inverse @ to_y_hat) @ problem.y_hat.mT - (inverse * to_own) @ inverse
    return value, problem.cotangent(to_a)


def errors(gram: Gram, y: Array, regularization: float | Regularization = 1e-4) -> torch.Tensor:
    """e of each point and output, (N, outputs): its target less what the regression on all others predicts."""
    return _left_out(pose(gram, y, 1, regularization))[2]


def _left_out(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A⁻¹, its diagonal as a column, and e."""
    inverse = torch.cholesky_inverse(problem.factor)
    own = inverse.diagonal()[:, None]
    return inverse, own, problem.y_hat / own
