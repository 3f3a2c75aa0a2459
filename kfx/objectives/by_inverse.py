"""ρ by explicit inverses in the kernel's own precision, as in published codes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import Objective, objective
from kfx.objectives.problem import Gram, pose
from kfx.outcomes import Event, NumericalError


class RelativeErrorByInverse(Objective):
    """ρ by explicit inverses for every sample, since a Cholesky factor would remove the errors of published runs."""

    def measure(
        self,
        gram: Factored,
        y: torch.Tensor,
        sample_sizes: Sequence[int],
        regularization: Regularization,
        cotangent: bool,
    ) -> tuple[float, list[float], Array | None]:
        ratios = [self(gram, y, size, regularization, False)[0] for size in sample_sizes]
        value, to_gram = self(gram, y, sample_sizes[0], regularization, cotangent)
        return value, ratios, to_gram


@objective("ρ", "Owhadi & Yoo 2019, eq. 3.6", is_ratio=True, kind=RelativeErrorByInverse)
def rho_by_inverse(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
) -> tuple[float, Array | None]:
    """ρ = 1 − Y_cᵀ A_c⁻¹ Y_c / Yᵀ A⁻¹ Y with the inverses formed in Θ's dtype (Owhadi & Yoo 2019, eq. 3.6).

    In float32, or with a small λ, round-off may carry ρ out of [0, 1]; Khalid 2022, §3.5.4, has rules for this case.
    gram: (N_f, N_f). y: (N_f,) or (N_f, outputs). G: (N_f, N_f). Other arguments and results as for `rho`.
    Raises NumericalError where an inverse does not exist or is not finite, or the denominator is zero.
    """
    problem = pose(gram, y, sample_size, regularization)
    own = problem.factored.gram
    matrix = own + problem.effective * torch.eye(len(own), dtype=own.dtype, device=own.device)
    targets = problem.y.to(own.dtype)
    whole, part = _inverse(matrix), _inverse(matrix[:sample_size, :sample_size])
    y_hat, z_hat = whole @ targets, torch.zeros_like(targets)
    z_hat[:sample_size] = part @ targets[:sample_size]
    total, kept = float((targets * y_hat).sum()), float((targets * z_hat).sum())
    if total == 0:
        raise NumericalError(Event.DIVERGED, "the norm of the batch's interpolant is zero, so rho is 0/0")
    value = 1 - kept / total
    if not cotangent:
        return value, None
    y_hat, z_hat = y_hat.to(torch.float64), z_hat.to(torch.float64)
    result = (z_hat @ z_hat.mT - (1 - value) * (y_hat @ y_hat.mT)) / total
    return value, problem.in_kind(problem.regularization.pull(result))


def _inverse(matrix: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor
    found, info = torch.linalg.inv_ex(matrix)
    if int(info) != 0 or not bool(torch.isfinite(found).all()):
        raise NumericalError(Event.NOT_POSITIVE_DEFINITE, f"a matrix of {len(matrix)} points has no inverse")
    return found
