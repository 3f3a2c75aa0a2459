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
    form: str = "batch",
) -> tuple[float, Array | None]:
    """Leave-one-out error: the mean of e² over points and outputs, and its gradient.

    e_i = (A⁻¹Y)_i / (A⁻¹)_ii, A = Θ + λI, is the error at x_i of the regression on all other points (Rasmussen &
    Williams 2006, eq. 5.12). The sample is ignored, but with form=`held_out` the mean is over the points outside of it
    alone, each left out of the whole batch (the loss of KernelFlows.jl, ρ_RMSE).
    gram: (N, N). y: (N,) or (N, outputs). G: (N, N). Other arguments and errors: see `Objective`.
    """
    problem = pose(gram, y, sample_size, regularization)
    inverse, own, error = _left_out(problem)
    if form == "held_out":
        counted = torch.arange(len(error), device=error.device) >= sample_size
        error, share = error * counted[:, None], len(error) / (len(error) - sample_size)
    else:
        share = 1.0
    value = share * float(error.square().mean())
    if not cotangent:
        return value, None
    # dŶ = −A⁻¹ dA Ŷ and d(A⁻¹)_ii = −(A⁻¹ dA A⁻¹)_ii.
    to_y_hat = error / own * (2 * share / error.numel())
    to_own = -(to_y_hat * error).sum(dim=1)
    to_a = -(inverse @ to_y_hat) @ problem.y_hat.mT - (inverse * to_own) @ inverse
    return value, problem.cotangent(to_a)


def errors(gram: Gram, y: Array, regularization: float | Regularization = 1e-4) -> torch.Tensor:
    """Return e, (N, outputs): each target minus its prediction by the regression on all other points.

    gram: (N, N). y: (N,) or (N, outputs). regularization: λ. Errors as for `rho`.
    """
    return _left_out(pose(gram, y, 1, regularization))[2]


def _left_out(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return A⁻¹, (N, N), its diagonal, (N, 1), and e, (N, outputs)."""
    inverse = torch.cholesky_inverse(problem.factor)
    own = inverse.diagonal()[:, None]
    return inverse, own, problem.y_hat / own
