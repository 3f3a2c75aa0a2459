"""Functions that are known everywhere: draws of Gaussian processes, and Genz's families of formulas (Genz 1984)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from kfx.kernels import RBF, Matern
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import as_tensor
from kfx.numerics.linear_algebra import cholesky

LENGTH = 0.4
"""Length scale of the draws, as a share of the diagonal of the unit cube."""
MODELS: Mapping[str, Callable[[float], Kernel]] = {
    "matern12": lambda length: Matern(length, 0.5),
    "matern32": lambda length: Matern(length, 1.5),
    "matern52": lambda length: Matern(length, 2.5),
    "rbf": RBF,
}
"""Families of kernels by name, each with a length scale; K(x, x) = 1."""


def _oscillatory(x: np.ndarray, c: np.ndarray, u: np.ndarray) -> np.ndarray:
    return np.cos(2 * math.pi * u[0] + x @ (9.0 * c))


def _kinked(x: np.ndarray, c: np.ndarray, u: np.ndarray) -> np.ndarray:
    return np.exp(-np.abs(x - u) @ (9.0 * c))


def _step(x: np.ndarray, c: np.ndarray, u: np.ndarray) -> np.ndarray:
    return np.where((x[:, :2] > 0.3 + 0.4 * u[:2]).any(axis=1), 0.0, np.exp(x @ (4.3 * c)))


FORMULAS: Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "oscillatory": _oscillatory,
    "kinked": _kinked,
    "step": _step,
}
"""Genz's oscillatory, continuous and discontinuous integrands of x, (n, d), by c, (d,), of sum 1, and u, (d,)."""
TRUTHS = (*MODELS, *FORMULAS)


def function(truth: str, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return values f(x), (n,), of a random function, with mean 0 and deviation 1 over these points.

    truth: one of `TRUTHS`; a draw of a Gaussian process of length `LENGTH` √d, or a formula with random c and u.
    x: points of the unit cube, (n, d).
    """
    n, d = x.shape
    if truth in MODELS:
        factor = cholesky(as_tensor(MODELS[truth](LENGTH * math.sqrt(d)).gram(x)), 0.0)
        values = factor.numpy() @ rng.normal(size=n)
    else:
        c = np.asarray(rng.uniform(size=d))
        values = FORMULAS[truth](x, c / c.sum(), np.asarray(rng.uniform(size=d)))
    centred: np.ndarray = values - values.mean()
    return centred / centred.std()
