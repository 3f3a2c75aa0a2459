"""Objectives given by their value alone; autograd computes the cotangent."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import Objective
from kfx.objectives.problem import Gram, pose
from kfx.outcomes import Event, NumericalError


def by_autograd(
    value: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
) -> Objective:
    """Make an objective from a torch function `value(a, y, sample_size)` that returns a scalar.

    a: A = Θ + λI, (N, N), float64, the sample's points first. y: (N, outputs), float64. The gradient includes λ's
    dependence on Θ, as for every objective. A LinAlgError of torch within `value` becomes a NumericalError.
    """

    @wraps(value)
    def function(
        gram: Gram,
        y: Array,
        sample_size: int,
        regularization: float | Regularization = 1e-4,
        cotangent: bool = True,
    ) -> tuple[float, Array | None]:
        problem = pose(gram, y, sample_size, regularization)
        with torch.enable_grad():
            a = problem.theta.clone()
            a.diagonal().add_(problem.effective)
            a.requires_grad_(cotangent)
            try:
                result = value(a, problem.y, sample_size)
            except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined, unused-ignore]
                raise NumericalError(Event.NOT_POSITIVE_DEFINITE, " ".join(str(error).split())) from error
            if not cotangent:
                return float(result), None
            (to_a,) = torch.autograd.grad(result, a)
        return float(result.detach()), problem.cotangent(to_a.detach())

    return Objective(function)
