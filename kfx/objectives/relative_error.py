"""ρ, the relative error of interpolating with the sample instead of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kfx.numerics.arrays import Array, in_kind
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.outer_products import OuterProducts, as_dense
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import Objective, objective
from kfx.objectives.nested import nested_rho
from kfx.objectives.problem import Gram


class RelativeError(Objective):
    """ρ by one Cholesky factor for all samples; the cotangent is a sum of outer products."""

    is_rho_by_cholesky = True

    def measure(
        self,
        gram: Factored,
        y: torch.Tensor,
        sample_sizes: Sequence[int],
        regularization: Regularization,
        cotangent: bool,
    ) -> tuple[float, list[float], OuterProducts | None]:
        ratios, to_gram = nested_rho(gram, y, sample_sizes, regularization, cotangent)
        return ratios[0], ratios, to_gram


@objective("ρ", "Owhadi & Yoo 2019, eq. 3.4", is_ratio=True, kind=RelativeError)
def rho(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
) -> tuple[float, Array | None]:
    """ρ = ‖v† − vˢ‖² / ‖v†‖² in the kernel's RKHS norm (Owhadi & Yoo 2019, eq. 3.3, Prop. 3.2, Remark 6.1).

    A fit computes it by `RelativeError.measure`, of small batches by `kfx.objectives.nested.rho_of_factor`.

    With A = Θ + λI = LLᵀ and w = L⁻¹Y the leading block of L factors the sample's matrix, so

        ρ = ‖w[N_c:]‖² / ‖w‖² ∈ [0, 1],     Ŷ = L⁻ᵀw,     Ẑ = (L_cc⁻ᵀ w[:N_c], 0),
        G = −((1 − ρ) ŶŶᵀ − ẐẐᵀ) / ‖w‖²,    then λ's dependence on Θ.

    gram: (N_f, N_f), the sample's points first. y: (N_f,) or (N_f, outputs). sample_size: N_c, 1 ≤ N_c < N_f.
    regularization: λ; a plain number is absolute.
    Returns ρ and G, (N_f, N_f), symmetric, dρ = Σ_ij G_ij dΘ_ij; G is None with `cotangent=False`.
    Raises NumericalError where A cannot be factored or Y is zero.
    """
    (value,), result = nested_rho(gram, y, (sample_size,), regularization, cotangent)
    if result is None:
        return value, None
    dense = as_dense(result)
    return value, dense if isinstance(gram, Factored) else in_kind(dense, gram)
