"""Generalized cross-validation of kernel ridge regression."""

from __future__ import annotations

from kfx.numerics.arrays import Array
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import objective
from kfx.objectives.problem import Gram, pose


@objective("GCV", "Golub, Heath & Wahba 1979")
def gcv(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
) -> tuple[float, Array | None]:
    """Generalized cross-validation, N ‖A⁻¹Y‖² / (outputs (tr A⁻¹)²), A = Θ + λI, and its gradient.

    It is the leave-one-out error with (A⁻¹)_ii replaced by its mean over i (Golub, Heath & Wahba 1979), and
    the kernel alignment risk estimator KARE up to a factor (Jacot et al. 2020). It does not change
    if Θ and λ are both multiplied by the same number. The sample is ignored.
    gram: (N, N). y: (N,) or (N, outputs). G: (N, N). Other arguments and errors: see `Objective`.
    """
    problem = pose(gram, y, sample_size, regularization)
    inverse = problem.inverse
    n, outputs = problem.y.shape
    energy, trace = problem.y_hat.square().sum(), inverse.diagonal().sum()
    value = n / outputs * energy / trace**2
    if not cotangent:
        return float(value), None
    # dŶ = −A⁻¹ dA Ŷ and d tr A⁻¹ = −tr(A⁻² dA).
    squared = inverse @ inverse
    to_a = 2 * n / outputs / trace**2 * (energy / trace * squared - (inverse @ problem.y_hat) @ problem.y_hat.mT)
    return float(value), problem.cotangent(to_a)
