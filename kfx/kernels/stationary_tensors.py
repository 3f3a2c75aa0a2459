"""Arithmetic of distance kernels on torch tensors, on any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kfx.numerics.arrays import A, by_one_thread, extent
from kfx.numerics.outer_products import OuterProducts, with_ones

NUMPY_IS_FASTER = not {"X86_V4", "AVX512_SKX"}.isdisjoint(
    np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
)
"""Whether NumPy's exponential of float64 is vectorized, which takes AVX-512; torch's always is."""


_TAKEN = {2: 1.0, 4: 16.0, 8: 256.0}
"""How many times the round-off of differences a product may have, by the bytes of a number."""
FAR = 100.0  # in units of the points' differences
_AT_A_TIME = 1 << 20  # differences of pairs, and entries that are tested


def squared_distances(x: torch.Tensor, y: torch.Tensor | None, unit: float | torch.Tensor) -> torch.Tensor:
    """Return ‖x_i − y_j‖², (n, m), each as exact as its own pair allows; an exact 0 on the diagonal where y is None.

    By one matrix product, and by differences where `refine` finds the product too coarse.
    x: (n, features). y: (m, features), or None for x. unit: squared distance over which the kernel changes.
    """
    shift = x[:1] if y is None else centre(x, y, unit)
    a = x - shift
    b = a if y is None else y - shift
    norms = a.square().sum(dim=1)
    others = norms if y is None else b.square().sum(dim=1)
    r2 = (norms[:, None] + others).addmm_(a, b.mT, alpha=-2.0).clamp_(min=0.0)
    if len(norms) and not norms.max() <= room(others, unit):
        refine(r2, x, x if y is None else y, norms, others, unit)
    if y is None:
        r2.fill_diagonal_(0.0)
    return r2


def centre(x: A, y: A, unit: float | torch.Tensor) -> A:
    """Return a row by which to shift x, (n, features), and y, (m, features), which keeps distances and reduces
    cancellation: the first of x, or that of y if the two are far apart."""
    if not len(x) or not len(y):
        return x[:1] if len(x) else y[:1]
    between = x[0] - y[0]
    return x[:1] if between @ between <= _TAKEN[x.itemsize] * unit / 4 else y[:1]


def room(others: A, unit: float | torch.Tensor) -> Any:
    """Return the largest ‖a‖² for which a product ‖a‖² + ‖b‖² − 2ab is exact enough for all pairs.

    Its round-off is a share of ‖a‖² + ‖b‖², however close the two points are; that of differences is a share of r².
    others: ‖b‖², (m,). unit: squared distance over which the kernel changes.
    """
    return _TAKEN[others.itemsize] * unit - (others.max() if len(others) else 0.0)


def refine(
    r2: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    norms: torch.Tensor,
    others: torch.Tensor,
    unit: float | torch.Tensor,
) -> None:
    """Compute by differences, in place, each r²_ij for which a product was too coarse, so that no far point spoils it.

    r2: (n, m). x: (n, features). y: (m, features). norms, others: ‖a‖², (n,), and ‖b‖², (m,), about the
    product's centre. unit: as for `room`.
    """

    def refine_some(rows: torch.Tensor, columns: torch.Tensor) -> None:
        block = r2[rows[:, None], columns]
        taken = (block + unit).mul_(_TAKEN[x.itemsize])
        pairs = (norms[rows, None] + others[columns] <= taken).logical_not_().nonzero()
        if 8 * len(pairs) > block.numel():
            r2[rows[:, None], columns] = squared_distances_by_differences(x[rows], y[columns])
            return
        for few in pairs.split(max(1, _AT_A_TIME // x.shape[1])):
            of, to = rows[few[:, 0]], columns[few[:, 1]]
            r2[of, to] = (x[of] - y[to]).square_().sum(dim=1)

    half = _TAKEN[x.itemsize] * unit / 2
    is_far, are_far = (norms <= half).logical_not_(), (others <= half).logical_not_()  # so is NaN
    whole = torch.arange(len(y), device=y.device)
    for rows, columns in ((is_far.nonzero()[:, 0], whole), ((~is_far).nonzero()[:, 0], are_far.nonzero()[:, 0])):
        for some in rows.split(max(1, _AT_A_TIME // max(1, len(columns)))):
            refine_some(some, columns)


def squared_distances_by_differences(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    """Return ‖x_i − y_j‖², (n, m), from differences of coordinates. x: (n, features). y: (m, features) or None."""
    few_digits = x.itemsize < 4  # torch has no such distances of them
    a, b = (each.float() if few_digits else each for each in (x, x if y is None else y))
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_().to(x.dtype)


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
    points = about_middle(points)
    if isinstance(cotangent, OuterProducts):
        flat = points.to(cotangent.vectors)
        both = cotangent.product(slope, with_ones(flat))
        return 4 * (both[:, :1] * flat - both[:, 1:])
    weights = cotangent * slope
    flat = points.to(weights)
    return 4 * (weights.sum(dim=1, keepdim=True) * flat - weights @ flat)


def sums_of_signs(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return Σ_j w_ij sign(x_i − x_j), (n, features). weights: w, (n, n). points: x, (n, features), of its dtype."""
    columns = [(weights * (column[:, None] - column[None, :]).sign()).sum(dim=1) for column in points.mT]
    return torch.stack(columns, dim=1)


def about_middle(points: torch.Tensor) -> torch.Tensor:
    """Return the points, (n, features), shifted by their middle where they lie far from 0 for their distances.

    Sums of w_ij (x_i − x_j) by products would lose those digits. The middle is the median of three points, which a far
    one does not move.
    """
    few = points[:: max(1, len(points) // 2)]
    size, spread = extent(few)
    return points - few.median(dim=0).values if size > FAR * spread else points
