"""The law of ρ for targets that are draws of the kernel's own Gaussian process."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def rho_law(batch_size: int, sample_size: int, outputs: float = 1) -> Any:
    """Return the distribution of ρ for draws of the kernel's own Gaussian process, with SciPy's `mean`, `std`, `cdf`.

    If the m columns of Y, (N_f, m), are independent draws of N(0, s(Θ + λI)), one s > 0 for all, then w = L⁻¹Y (see
    `kfx.objectives.rho`) is white, and so, whatever the kernel, s and λ, with N_h = N_f − N_c and p = N_c / N_f,

        ρ = ‖w[N_c:]‖² / ‖w‖² ~ Beta(m N_h / 2, m N_c / 2),   mean 1 − p,   variance p (1 − p) / (m N_f / 2 + 1).

    batch_size: N_f. sample_size: N_c. outputs: m > 0; not whole where outputs are correlated (`effective_outputs`).
    Raises ValueError unless 1 ≤ sample_size < batch_size and outputs > 0.
    """
    from scipy.stats import beta

    if not (1 <= sample_size < batch_size and outputs > 0):
        got = f"batch_size={batch_size}, sample_size={sample_size}, outputs={outputs}"
        raise ValueError(f"{got}: expected 1 <= sample_size < batch_size and outputs > 0")
    return beta(outputs * (batch_size - sample_size) / 2, outputs * sample_size / 2)


def mean_and_deviation(batch_size: int, sample_size: int, outputs: float = 1) -> tuple[float, float]:
    """Return the mean and the standard deviation of `rho_law`, without SciPy's distributions, which load slowly."""
    p = sample_size / batch_size
    return 1 - p, math.sqrt(p * (1 - p) / (outputs * batch_size / 2 + 1))


def effective_outputs(y: torch.Tensor) -> float:
    """Return tr(YᵀY)² / tr((YᵀY)²), the number of independent outputs of one scale that vary as much as Y, (n, m).

    It is from 1 to m. Columns that are smooth functions of the points correlate by chance, so it errs towards few.
    """
    y = y / y.abs().max()  # so that its fourth power neither over- nor underflows
    products = y.T @ y
    return float(products.trace() ** 2 / (products**2).sum())
