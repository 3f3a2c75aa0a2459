"""Arithmetic of distance kernels on torch tensors, on any device."""

from __future__ import annotations

import numpy as np
import torch

from kfx.numerics.arrays import by_one_thread
from kfx.numerics.outer_products import OuterProducts, with_ones

NUMPY_IS_FASTER = not {"X86_V4", "AVX512_SKX"}.isdisjoint(
    np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
)
"""Whether NumPy's exponential of float64 is vectorized, which takes AVX-512; torch's always is."""


def squared_distances(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    """Return ‖x_i − y_j‖², (n, m), by one matrix product; (n, n) with an exact 0 on the diagonal where y is None.

    x: (n, features). y: (m, features), or None for x.
    """
    centre = x[:1]  # a shift keeps distances and reduces cancellation; the mean would cost more
    a = x - centre
    b = a if y is None else y - centre
    norms = a.square().sum(dim=1)
    others = norms if y is None else b.square().sum(dim=1)
    r2 = (norms[:, None] + others).addmm_(a, b.mT, alpha=-2.0).clamp_(min=0.0)
    if y is None:
        r2.fill_diagonal_(0.0)
    return r2


def squared_distances_by_differences(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    """Return ‖x_i − y_j‖², (n, m), from differences of coordinates. x: (n, features). y: (m, features) or None."""
    return torch.cdist(x, x if y is None else y, compute_mode="donot_use_mm_for_euclid_dist").square_()


def exp(x: torch.Tensor) -> torch.Tensor:
    """Return exp(x), (n, m), computed in place. x: (n, m)."""
    if by_one_thread(x) and (x.dtype == torch.float32 or (x.dtype == torch.float64 and NUMPY_IS_FASTER)):
        array = x.numpy()
        np.exp(array, out=array)
        return x
    return x.exp_()


def log(x: torch.Tensor) -> torch.Tensor:
    """Return log x, (n, m), entry by entry. x: (n, m)."""
    return x.log()


def in_float64(x: torch.Tensor) -> torch.Tensor:
    """Return x, (n, m), in float64, without a copy where it already is."""
    return x.to(torch.float64)


def fill_diagonal(matrix: torch.Tensor, value: float) -> None:
    """Write the value on the diagonal of a matrix (n, n)."""
    matrix.diagonal()[:] = value


def inner(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return Σ_ij a_ij b_ij of two matrices (n, n), in the wider of their dtypes."""
    common = torch.promote_types(a.dtype, b.dtype)
    return float(torch.dot(a.reshape(-1).to(common), b.reshape(-1).to(common)))


def to_points(cotangent: torch.Tensor | OuterProducts, slope: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return Σ_j 4 G_ij S_ij (x_i − x_j), (n, features), float64.

    cotangent: G, (n, n). slope: S, (n, n), which may be overwritten. points: x, (n, features).
    """
    slope.fill_diagonal_(0.0)  # so that round-off gives a single point no gradient
    if isinstance(cotangent, OuterProducts):
        flat = points.to(cotangent.vectors)
        both = cotangent.product(slope, with_ones(flat))
        return 4 * (both[:, :1] * flat - both[:, 1:])
    weights = cotangent * slope
    flat = points.to(weights)
    return 4 * (weights.sum(dim=1, keepdim=True) * flat - weights @ flat)
