"""What kernels of the distance compute with on small matrices: NumPy and compiled loops."""

from __future__ import annotations

import numpy as np
import torch

from kfx.kernels import stationary_tensors
from kfx.numerics.arrays import as_tensor, diagonal
from kfx.numerics.outer_products import OuterProducts, with_ones

_FEW = 64  # coordinates of a point up to which sums of differences are faster than a matrix product


def squared_distances(x: np.ndarray, y: np.ndarray | None) -> np.ndarray:
    """Return ‖x_i − y_j‖², (n, m), of points (n, features) and (m, features), or of x with itself.

    Of x with itself by differences where a point has at most 64 coordinates, else by a matrix product.
    """
    if y is None and x.shape[1] <= _FEW:
        return _by_loops(x)
    centre = x[:1]  # distances do not change, cancellation shrinks; a mean would cost more
    a = x - centre
    b = a if y is None else y - centre
    products = a @ b.T
    norms = products.diagonal() if y is None else np.einsum("ij,ij->i", a, a)
    r2 = norms[:, None] + (norms if y is None else np.einsum("ij,ij->i", b, b))
    products *= 2
    r2 -= products
    return np.maximum(r2, 0.0, out=r2)


def squared_distances_by_differences(x: np.ndarray, y: np.ndarray | None) -> np.ndarray:
    """Return ‖x_i − y_j‖² as `squared_distances`, never by a matrix product."""
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
    """Return exp(x), in x's memory."""
    return np.exp(x, out=x)


def log(x: np.ndarray) -> np.ndarray:
    """Return log x, entry by entry."""
    return np.log(x)


def in_float64(x: np.ndarray) -> np.ndarray:
    """Return x in float64; x itself where it is."""
    return x.astype(np.float64, copy=False)


def fill_diagonal(matrix: np.ndarray, value: float) -> None:
    """Write the value on the diagonal of (n, n)."""
    diagonal(matrix)[:] = value


def inner(a: np.ndarray, b: np.ndarray) -> float:
    """Return Σ_ij a_ij b_ij of two matrices (n, n)."""
    return float(np.vdot(a, b))


def to_points(cotangent: np.ndarray | OuterProducts, slope: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return Σ_j 4 G_ij S_ij (x_i − x_j), (n, features), float64, of a cotangent G and slopes S, (n, n), which may be
    overwritten."""
    if isinstance(cotangent, OuterProducts) and points.shape[1] <= _FEW:
        from kfx.numerics import small_loops

        moved = np.empty(points.shape)
        small_loops.moved_points(slope, cotangent.vectors, cotangent.weights, points, moved)
        return moved
    diagonal(slope)[:] = 0.0  # so that a point alone is not moved by round-off
    if isinstance(cotangent, OuterProducts):
        flat = points.astype(cotangent.vectors.dtype, copy=False)
        both = cotangent.product(slope, with_ones(flat))
        return 4 * (both[:, :1] * flat - both[:, 1:])
    weights = cotangent * slope
    flat = points.astype(weights.dtype, copy=False)
    return 4 * (weights.sum(axis=1, keepdims=True) * flat - weights @ flat)


def compile_for(dtype: torch.dtype) -> None:
    """Load the compiled loops for float32 or float64; the first time on a machine they are compiled, and kept."""
    from kfx.numerics import small_loops

    small_loops.compile_for(np.float32 if dtype == torch.float32 else np.float64)
