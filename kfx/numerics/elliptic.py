"""−(b u')' = f on (0, 1), u = 0 at both ends, by piecewise-linear elements of equal length.

There are n elements. b, (n,), has one value for each element; u and f, (n − 1,), have one for each inner node i/n.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import solveh_banded

_FREQUENCIES = 3.0 ** np.arange(5)
_AMPLITUDES = 2.0 ** (-np.arange(5) / 2)


def nodes(intervals: int) -> np.ndarray:
    """Return the inner nodes i/n of n intervals, (n − 1,)."""
    return np.arange(1, intervals) / intervals


def midpoints(intervals: int) -> np.ndarray:
    """Return the midpoints of n equal elements of (0, 1), (n,)."""
    return (np.arange(intervals) + 0.5) / intervals


def rough(x: np.ndarray) -> np.ndarray:
    """Return a rough conductivity a at x, in x's shape: log a(x) = Σ_{j ≤ 4} 2^{−j/2} cos(2π 3^j x + j).

    x: of any shape. a lies between 0.08 and 12. Its highest frequency, 81, exceeds the 64
    that Owhadi & Yoo 2019, §5, learn. The paper shows its own conductivity only as a figure.
    """
    waves = np.cos(2 * np.pi * np.multiply.outer(x, _FREQUENCIES) + np.arange(5))
    return np.exp(waves @ _AMPLITUDES)


def smooth_source(x: np.ndarray) -> np.ndarray:
    """Return f(x) = 1 + sin 2πx, a smooth right-hand side, in x's shape. x: of any shape."""
    return 1 + np.sin(2 * np.pi * x)


CONDUCTIVITIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"one": np.ones_like, "rough": rough}
"""Conductivities by name, as functions of x."""


def stiffness(b: np.ndarray) -> np.ndarray:
    """Return A₀(b), the symmetric tridiagonal matrix ∫ b φ_i' φ_j', in lower banded form, (2, n − 1).

    b: conductivity on each of n elements of (0, 1), (n,), > 0.
    """
    n = len(b)
    return np.stack([n * (b[:-1] + b[1:]), np.append(-n * b[1:-1], 0.0)])


def energy_matrix(b: np.ndarray) -> np.ndarray:
    """Return A₀(b) in full, (n − 1, n − 1): vᵀ A₀ v = ∫ b v'^2. b: (n,)."""
    diagonal, below = stiffness(b)
    return np.diag(diagonal) + np.diag(below[:-1], -1) + np.diag(below[:-1], 1)


def solve(b: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return A₀(b)⁻¹ right, in the shape of `right`, (n − 1,) or (n − 1, columns). b: (n,).

    Raises LinAlgError where b varies too much for float64.
    """
    return solveh_banded(stiffness(b), right, lower=True, check_finite=False)


def solution(b: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Return u at the inner nodes, (n − 1,). b: (n,). f: at the inner nodes, (n − 1,).

    The load ∫ f φ_i is taken as f_i/n. Raises LinAlgError as `solve` does.
    """
    return solve(b, f / len(b))
