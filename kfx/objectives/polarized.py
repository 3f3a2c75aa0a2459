"""ρ without the assumption that the batch interpolates exactly."""

from __future__ import annotations

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import objective
from kfx.objectives.problem import Gram, pose
from kfx.outcomes import Event, NumericalError


@objective("polarized ρ", is_ratio=True)
def rho_polarized(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
) -> tuple[float, Array | None]:
    """‖v_f − v_s‖² / ‖v_f‖² between regularized interpolants v_f = Σ ŷ_i K(x_i, ·) and v_s = Σ ẑ_i K(x_i, ·).

    The coefficients Ŷ = A⁻¹Y and Ẑ = (A_c⁻¹Y_c, 0) contain λ, the inner products do not: with D = Ŷ − Ẑ the value is
    tr DᵀΘD / tr ŶᵀΘŶ ≥ 0. It may exceed 1. For λ = 0 it equals ρ. No paper defines it; it comes from public code
    after Darcy 2020, which expands the norm as ‖v_f‖² + ‖v_s‖² − 2⟨v_f, v_s⟩.
    gram: (N_f, N_f). y: (N_f,) or (N_f, outputs). G: (N_f, N_f). Other arguments and errors: see `Objective`.
    """
    problem = pose(gram, y, sample_size, regularization)
    n, theta, y_hat = sample_size, problem.theta, problem.y_hat
    z_hat = torch.zeros_like(y_hat)
    z_hat[:n] = problem.solve_sample(problem.y[:n])
    difference = y_hat - z_hat
    lost, kept = theta @ difference, theta @ y_hat
    numerator, denominator = float((difference * lost).sum()), float((y_hat * kept).sum())
    if not denominator > 0:
        raise NumericalError(Event.DIVERGED, "the batch's interpolant is zero, so rho_polarized is 0/0")
    value = numerator / denominator
    if not cotangent:
        return value, None
    # dŶ = −A⁻¹ dA Ŷ and dẐ = −A_c⁻¹ dA_c Ẑ; Θ also occurs outside A, in both inner products.
    to_theta = difference @ difference.mT - value * (y_hat @ y_hat.mT)
    to_a = problem.solve(lost - value * kept).mul_(-2) @ y_hat.mT
    to_a[:n, :n] += problem.solve_sample(lost[:n]).mul_(2) @ z_hat[:n].mT
    return value, problem.cotangent(to_a.div_(denominator), to_theta.div_(denominator))
