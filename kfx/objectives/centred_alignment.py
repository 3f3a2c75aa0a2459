"""Centred alignment of a kernel with the targets."""

from __future__ import annotations

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import objective
from kfx.objectives.problem import Gram, pose
from kfx.outcomes import Event, NumericalError


@objective("1 − alignment", "Cortes, Mohri & Rostamizadeh 2012, definition 4")
def alignment(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
) -> tuple[float, Array | None]:
    """One minus the centred alignment ⟨HΘH, YYᵀ⟩ / (‖HΘH‖ ‖HYYᵀH‖) in Frobenius norms, H = I − 11ᵀ/N, in [0, 1].

    It is 0 where the centred kernel is a multiple of the targets' own (Cortes, Mohri & Rostamizadeh 2012, definition
    4). The sample and λ are ignored, and nothing is solved.
    gram: (N, N). y: (N,) or (N, outputs). G: (N, N). NumericalError where the kernel or the targets are constant,
    ValueError for weights.
    Other arguments: see `Objective`.
    """
    problem = pose(gram, y, sample_size, regularization)
    if problem.roots is not None:  # means over points would not be those of SΘS
        raise ValueError("weights: alignment takes none; use nll, loo, rho_prediction or rho")
    targets, theta = problem.y - problem.y.mean(dim=0), problem.theta
    centred = theta - theta.mean(dim=0) - theta.mean(dim=1, keepdim=True) + theta.mean()
    common = float((targets * (centred @ targets)).sum())
    size, of_targets = float(centred.norm()), float((targets.mT @ targets).norm())
    if not size * of_targets > 0:
        raise NumericalError(Event.DIVERGED, "the kernel or the targets are constant, so the alignment is 0/0")
    value = common / size / of_targets
    if not cotangent:
        return 1 - value, None
    to_theta = (value / size**2) * centred - (targets @ targets.mT) / (size * of_targets)
    return 1 - value, problem.cotangent(torch.zeros_like(theta), to_theta)
