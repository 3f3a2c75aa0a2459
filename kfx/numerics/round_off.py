"""What is the same but for the rounding of numbers."""

from __future__ import annotations

import numpy as np

_ROUND_OFF = 64 * float(np.finfo(np.float64).eps)
_OF_FLOAT32 = float(np.finfo(np.float32).eps)
_DIGITS_9 = 5e-9  # float32 is written with nine digits


def round_off(x: np.ndarray, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> np.ndarray:
    """Return the difference up to which values are the same, a share of the largest size along `axis`.

    x: of any shape, float64, with a value that is not NaN along `axis`. The standard deviation of equal values is no
    test: that of thirty times 14.62 is 1.8e-15.
    """
    return _ROUND_OFF * np.asarray(np.nanmax(np.abs(x), axis=axis, keepdims=keepdims))


def is_constant(x: np.ndarray, axis: int | tuple[int, ...] | None = 0, keepdims: bool = False) -> np.ndarray:
    """Return whether the values along `axis` are the same but for round-off of their size. x: as for `round_off`.

    Also for round-off of float32, where the values are numbers of float32 and not whole: a file may hold such.
    """
    extent = np.nanmax(x, axis=axis, keepdims=keepdims) - np.nanmin(x, axis=axis, keepdims=keepdims)
    size = round_off(x, axis, keepdims) / _ROUND_OFF
    found, near = extent <= _ROUND_OFF * size, (extent > _OF_FLOAT32 / 4 * size) & (extent <= 8 * _OF_FLOAT32 * size)
    if (near & ~found).any():
        with np.errstate(over="ignore"):
            rounded = np.nanmax(np.abs(x - x.astype(np.float32)), axis=axis, keepdims=keepdims)
        whole = np.nanmax(np.abs(x - np.round(x)), axis=axis, keepdims=keepdims) == 0
        found = found | (near & (rounded <= _DIGITS_9 * size) & ~whole)
    return np.asarray(found)


def scale(x: np.ndarray, axis: int | tuple[int, ...] = 0, keepdims: bool = False) -> np.ndarray:
    """Return the standard deviation along `axis` by which to divide x, 1 where x is constant. x: as for `round_off`."""
    deviation = x.std(axis=axis, keepdims=keepdims)
    return np.where(is_constant(x, axis, keepdims) | (deviation == 0), 1.0, deviation)
