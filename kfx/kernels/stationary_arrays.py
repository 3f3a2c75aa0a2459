"""Arithmetic of distance kernels on small matrices, by NumPy and compiled loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kfx.kernels import stationary_tensors
from kfx.numerics.arrays import as_tensor, diagonal
from kfx.numerics.outer_products import OuterProducts, with_ones

_FEW = 64  # largest number of features for which sums of differences are faster than a matrix product
_MANY = 2500  # entries from which torch's exponential is worth its call


def squared_distances(x: np.ndarray, y: np.ndarray | None, unit: float) -> np.ndarray:
    """Return ‖x_i − y_j‖², (n, m), each as exact as its own pair allows.

    Where y is None and features ≤ 64, by differences; else by a product, as `stationary_tensors.squared_distances`.
    x: (n, features). y: (m, features), or None for x. unit: squared distance over which the kernel changes.
    """
    if y is None and x.shape[1] <= _FEW:
        return _by_loops(x)
    centre = x[:1] if y is None else stationary_tensors.centre(x, y, unit)
    a = x - centre
    b = a if y is None else y - centre
    products = a @ b.T
    norms = products.diagonal().copy() if y is None else np.einsum("ij,ij->i", a, a)
    others = norms if y is None else np.einsum("ij,ij->i", b, b)
    r2 = norms[:, None] + others
    products *= 2
    r2 -= products
    room = stationary_tensors.room(others, unit)
    return _refined(np.maximum(r2, 0.0, out=r2), x, x if y is None else y, norms, others, unit, room)


def squared_distances_to(y: np.ndarray, unit: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function of x, (n, features), that gives ‖x_i − y_j‖², (n, m).

    y: (m, features). unit: squared distance over which the kernel changes.
    """
    centre = y.sum(axis=0) / max(len(y), 1)  # a shift keeps distances and reduces cancellation
    b = y - centre
    others, minus_twice = np.einsum("ij,ij->i", b, b), -2 * b.T
    room = stationary_tensors.room(others, unit)

    def of(x: np.ndarray) -> np.ndarray:
        a = x - centre
        norms = np.einsum("ij,ij->i", a, a)
        r2 = a @ minus_twice
        r2 += norms[:, None]
        r2 += others
        return _refined(np.maximum(r2, 0.0, out=r2), x, y, norms, others, unit, room)

    return of


def _refined(
    r2: np.ndarray, x: np.ndarray, y: np.ndarray, norms: np.ndarray, others: np.ndarray, unit: float, room: float
) -> np.ndarray:
    """Return r², refined in the same memory where its product was too coarse."""
    if len(norms) and not norms.max() <= room:
        shared, own, of, here, there = map(as_tensor, (r2, x, y, norms, others))
        stationary_tensors.refine(shared, own, of, here, there, unit)
    return r2


def squared_distances_by_differences(x: np.ndarray, y: np.ndarray | None) -> np.ndarray:
    """Return ‖x_i − y_j‖², (n, m), from differences of coordinates. x: (n, features). y: (m, features) or None."""
    if y is None and x.shape[1] <= _FEW:
        return _by_loops(x)
    others = None if y is None else as_tensor(y)
    return stationary_tensors.squared_distances_by_differences(as_tensor(x), others).numpy()


def _by_loops(x: np.ndarray) -> np.ndarray:
    from kfx.numerics import small_loops

    r2 = np.empty((len(x), len(x)), x.dtype)
    small_loops.squared_distances(x, r2)
    return r2


def exp(x: np.ndarray) -> np.ndarray:
    """Return exp(x), (n, m), computed in place. x: (n, m), a new array."""
    if x.dtype == np.float64 and x.size >= _MANY and not stationary_tensors.NUMPY_IS_FASTER:
        return torch.from_numpy(x).exp_().numpy()
    return np.exp(x, out=x)


def log(x: np.ndarray) -> np.ndarray:
    """Return log x, (n, m), entry by entry. x: (n, m)."""
    return np.log(x)


def in_float64(x: np.ndarray) -> np.ndarray:
    """Return x, (n, m), in float64, without a copy where it already is."""
    return x.astype(np.float64, copy=False)


def fill_diagonal(matrix: np.ndarray, value: float) -> None:
    """Write the value on the diagonal of a matrix (n, n)."""
    diagonal(matrix)[:] = value


def inner(a: np.ndarray, b: np.ndarray) -> float:
    """Return Σ_ij a_ij b_ij of two matrices (n, n)."""
    return float(np.vdot(a, b))


def to_points(cotangent: np.ndarray | OuterProducts, slope: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return Σ_j 4 G_ij S_ij (x_i − x_j), (n, features), float64.

    cotangent: G, (n, n). slope: S, (n, n), which may be overwritten. points: x, (n, features).
    """
    if isinstance(cotangent, OuterProducts) and points.shape[1] <= _FEW:
        from kfx.numerics import small_loops

        moved = np.empty(points.shape)
        small_loops.moved_points(slope, cotangent.vectors, cotangent.weights, points, moved)
        return moved
    diagonal(slope)[:] = 0.0  # so that round-off gives a single point no gradient
    points = stationary_tensors.about_middle(as_tensor(points)).numpy()
    if isinstance(cotangent, OuterProducts):
        flat = points.astype(cotangent.vectors.dtype, copy=False)
        both = cotangent.product(slope, with_ones(flat))
        return 4 * (both[:, :1] * flat - both[:, 1:])
    weights = cotangent * slope
    flat = points.astype(weights.dtype, copy=False)
    return 4 * (weights.sum(axis=1, keepdims=True) * flat - weights @ flat)


def sums_of_signs(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """As `stationary_tensors.sums_of_signs`, on the CPU, without a matrix for each feature."""
    from kfx.numerics import small_loops

    if weights.dtype not in (torch.float32, torch.float64):
        return stationary_tensors.sums_of_signs(weights, points)
    sums = torch.empty_like(points)
    small_loops.sums_of_signs(weights.numpy(), points.numpy(), sums.numpy())
    return sums


def compile_for(dtype: torch.dtype) -> None:
    """Load the compiled loops for float32 or float64; the first call on a machine compiles and caches them."""
    from kfx.numerics import small_loops

    small_loops.compile_for(np.float32 if dtype == torch.float32 else np.float64)
