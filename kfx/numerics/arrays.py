"""Conversions between NumPy arrays and torch tensors, and the choice of NumPy for small ones."""

from __future__ import annotations

import hashlib
import math
from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import ArrayLike

from kfx.numerics import threads

Array = np.ndarray | torch.Tensor
A = TypeVar("A", np.ndarray, torch.Tensor)
"""A NumPy array or a torch tensor: the same kind throughout a signature."""
Vector = np.ndarray | torch.Tensor
"""Parameters of a kernel, (n,): a float64 NumPy array, or a tensor where the kernel has a network."""


def as_tensor(x: ArrayLike | torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return `x`, of any shape, as a floating-point tensor; integers become float64, arrays share their memory.

    Raises ValueError for complex numbers, and for a tensor that requires gradients while autograd records.
    """
    if not isinstance(x, torch.Tensor):
        array = np.asarray(x)
        array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        x = torch.from_numpy(np.ascontiguousarray(array) if array.flags.writeable else array.copy())
    if x.dtype.is_complex:
        raise ValueError(f"got complex numbers ({x.dtype}); expected real ones: pass the real part")
    if dtype is None and not x.dtype.is_floating_point:
        dtype = torch.float64
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "got a tensor that requires gradients, which would be lost: kernels give theirs by pullback(x); pass "
            "x.detach(), or compute under torch.no_grad()"
        )
    return x.detach().to(dtype) if dtype is not None else x.detach()


def by_one_thread(x: torch.Tensor) -> bool:
    """Return whether torch computes on `x`, of any shape, with one CPU thread.

    NumPy and SciPy then take half of torch's time for some functions. With several threads, their pool and torch's
    would block each other.
    """
    return x.is_cpu and threads.of_torch() == 1


_BLOCK, _TAKEN = 4096, (torch.float64, torch.float32, torch.int64)
MOST_SMALL = 256
"""Rows of a small array; see `is_small`."""


def is_small(x: torch.Tensor) -> bool:
    """Return whether `x`, (n, …), has at most `MOST_SMALL` rows, on the CPU, in float32 or float64, without gradients.

    Calling torch then takes longer than the arithmetic, and several times as long as calling NumPy.
    """
    real = x.dtype in (torch.float64, torch.float32) and not x.requires_grad
    return real and x.is_cpu and len(x) <= MOST_SMALL


def numpy_if_small(x: torch.Tensor) -> Any:
    """Return `x`, (n, …), as a NumPy array that shares its memory where `is_small(x)`; else `x` itself."""
    return x.numpy() if is_small(x) else x


def rows_of(x: torch.Tensor, indices: Array) -> torch.Tensor:
    """Return x[indices], (m, …), a copy on x's device. x: (n, …). indices: (m,), whole numbers."""
    if x.is_cpu and len(indices) <= MOST_SMALL and x.dtype in _TAKEN and not x.requires_grad:
        return torch.from_numpy(x.numpy().take(in_numpy(indices), axis=0))
    return x.index_select(0, torch.as_tensor(indices, device=x.device))


def extent(points: torch.Tensor) -> tuple[float, float]:
    """Return max |x_ik| and max |x_ik − x_0k| over the points' coordinates; NaN where one is NaN. points: x, (n, …)."""
    if is_small(points):
        from kfx.numerics import small_loops

        size, spread = small_loops.extent(points.numpy().reshape(len(points), -1))
        return float(size), float(spread)
    low, high = (float(each) for each in torch.aminmax(points))
    return max(abs(low), abs(high)), max(float((each - points[0]).abs().max()) for each in points.split(_BLOCK))


@overload
def diagonal(matrix: np.ndarray) -> np.ndarray: ...
@overload
def diagonal(matrix: torch.Tensor) -> torch.Tensor: ...
def diagonal(matrix: Array) -> Array:
    """Return the diagonal of a matrix (n, n) as a writable view, (n,)."""
    return np.einsum("ii->i", matrix) if isinstance(matrix, np.ndarray) else matrix.diagonal()


def total(x: Array) -> float:
    """Return the sum of all entries of `x`, of any shape, in float64."""
    return float(x.sum(dtype=np.float64) if isinstance(x, np.ndarray) else x.sum(dtype=torch.float64))


@overload
def in_kind(result: torch.Tensor, asked_with: torch.Tensor) -> torch.Tensor: ...
@overload
def in_kind(result: torch.Tensor, asked_with: ArrayLike) -> np.ndarray: ...
def in_kind(result: torch.Tensor, asked_with: ArrayLike | torch.Tensor) -> Array:
    """Return `result`, of any shape, unchanged where `asked_with` is a tensor, else as a NumPy array."""
    return result if isinstance(asked_with, torch.Tensor) else result.cpu().numpy()


def in_numpy(value: ArrayLike | torch.Tensor) -> np.ndarray:
    """Return a number, or an array or tensor of any shape and device, as a NumPy array of the same dtype."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


@overload
def as_kind(value: ArrayLike | torch.Tensor, like: np.ndarray) -> np.ndarray: ...
@overload
def as_kind(value: ArrayLike | torch.Tensor, like: torch.Tensor) -> torch.Tensor: ...
def as_kind(value: ArrayLike | torch.Tensor, like: Array) -> Array:
    """Return `value`, of any shape, as an array or tensor with the dtype and on the device of `like`."""
    if isinstance(like, torch.Tensor):
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return np.asarray(in_numpy(value), dtype=like.dtype)


def is_finite(vector: Vector) -> bool:
    """Return whether every entry of a vector (n,) is a finite number."""
    if isinstance(vector, torch.Tensor):
        return bool(torch.isfinite(vector).all())
    return all(map(math.isfinite, vector.tolist()))  # faster than NumPy for a short vector


def as_rows(x: A) -> A:
    """Return points, (n, …), as vectors, (n, features); n may be 0."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def are_finite(x: torch.Tensor) -> bool:
    """Return whether every entry of a tensor of any shape is a finite number."""
    few = numpy_if_small(x)
    return bool((np.isfinite(few) if isinstance(few, np.ndarray) else torch.isfinite(few)).all())


def digests(x: torch.Tensor) -> np.ndarray:
    """Return a hash of each point's coordinates, (n, 16), uint8; −0 counts as 0. x: (n, …)."""
    rows = np.ascontiguousarray(x.flatten(1).cpu().numpy() + 0.0)
    found = b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows)
    return np.frombuffer(found, np.uint8).reshape(len(x), 16)


def plain(value: float | Array) -> float | np.ndarray:
    """Return a float unchanged; an array or tensor, of any shape, as a NumPy array."""
    return value if isinstance(value, float) else in_numpy(value)


MOST_SETTLING = 5000
"""The number of points from which data-dependent settings of kernels are fixed."""


def some_of(x: torch.Tensor, most: int = MOST_SETTLING) -> torch.Tensor:
    """At most `most` of the points x, (n, …), evenly spaced in their order."""
    return x[:: -(-len(x) // most)] if len(x) > most else x
