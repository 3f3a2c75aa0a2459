"""Convert arrays at the public boundary: NumPy or torch in, the same kind out."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch

from kfx.numerics import threads

Array = np.ndarray | torch.Tensor
Vector = np.ndarray | torch.Tensor
"""Parameters of a kernel: float64 in NumPy, or in torch where a network has them."""


def as_tensor(x: Any, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`x` as a floating-point tensor; integers become float64, arrays share their memory."""
    if not isinstance(x, torch.Tensor):
        x = np.asarray(x)
        x = torch.from_numpy(np.ascontiguousarray(x) if x.flags.writeable else x.copy())
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
    """Whether one CPU thread works on it: NumPy and SciPy then compute in its place some things in half of torch's
    time. On several threads their pool and torch's would hold each other up."""
    return x.is_cpu and threads.of_torch() == 1


_BLOCK, _TAKEN = 4096, (torch.float64, torch.float32, torch.int64)
MOST_SMALL = 256
"""The most rows of what `is_small`."""


def is_small(x: torch.Tensor) -> bool:
    """Whether it has at most `MOST_SMALL` rows, on the CPU: a call of torch's then takes longer than its arithmetic,
    and several times as long as NumPy's."""
    real = x.dtype in (torch.float64, torch.float32) and not x.requires_grad
    return real and x.is_cpu and len(x) <= MOST_SMALL


def numpy_if_small(x: torch.Tensor) -> Any:
    """The same memory as a NumPy array where that is faster to work on, see `is_small`; else `x`."""
    return x.numpy() if is_small(x) else x


def rows_of(x: torch.Tensor, indices: Array) -> torch.Tensor:
    """x[indices], a copy."""
    if x.is_cpu and len(indices) <= MOST_SMALL and x.dtype in _TAKEN and not x.requires_grad:
        return torch.from_numpy(x.numpy().take(in_numpy(indices), axis=0))
    return x.index_select(0, torch.as_tensor(indices, device=x.device))


def extent(points: torch.Tensor) -> tuple[float, float]:
    """The largest size of a coordinate, and of the difference of one to the first point's; NaN where there is one."""
    if is_small(points):
        from kfx.numerics import small_loops

        size, spread = small_loops.extent(points.numpy().reshape(len(points), -1))
        return float(size), float(spread)
    low, high = (float(each) for each in torch.aminmax(points))
    return max(abs(low), abs(high)), max(float((each - points[0]).abs().max()) for each in points.split(_BLOCK))


def diagonal(matrix: Array) -> Any:
    """A view of the diagonal, to be read and written."""
    return np.einsum("ii->i", matrix) if isinstance(matrix, np.ndarray) else matrix.diagonal()


def total(x: Array) -> float:
    """The sum of all entries, in float64."""
    return float(x.sum(dtype=np.float64) if isinstance(x, np.ndarray) else x.sum(dtype=torch.float64))


def in_kind(result: torch.Tensor, asked_with: Any) -> Any:
    """`result` as a tensor if the caller brought one, else as a NumPy array."""
    return result if isinstance(asked_with, torch.Tensor) else result.cpu().numpy()


def in_numpy(value: Any) -> np.ndarray:
    """A number, an array or a tensor, wherever it is, as a NumPy array."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def as_kind(value: Any, like: Array) -> Any:
    """`value` as an array of the kind, dtype and device of `like`."""
    if isinstance(like, torch.Tensor):
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return np.asarray(in_numpy(value), dtype=like.dtype)


def is_finite(vector: Vector) -> bool:
    """Whether every entry is a finite number."""
    if isinstance(vector, torch.Tensor):
        return bool(torch.isfinite(vector).all())
    return all(map(math.isfinite, vector.tolist()))  # of a short one faster than NumPy


def are_finite(x: torch.Tensor) -> bool:
    """Whether every entry is a finite number."""
    few = numpy_if_small(x)
    return bool((np.isfinite(few) if isinstance(few, np.ndarray) else torch.isfinite(few)).all())


def digests(x: torch.Tensor) -> np.ndarray:
    """(n, 16) bytes that name each point by its coordinates; −0 is 0."""
    rows = np.ascontiguousarray(x.flatten(1).cpu().numpy() + 0.0)
    found = b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows)
    return np.frombuffer(found, np.uint8).reshape(len(x), 16)


def plain(value: Any) -> Any:
    """A number as it is, an array or a tensor as a NumPy array."""
    return value if isinstance(value, float) else in_numpy(value)
