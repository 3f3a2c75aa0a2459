"""Symmetric matrices of low rank, stored as vectors and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kfx.numerics.arrays import A, Array, as_kind, as_tensor, diagonal, in_numpy, total

_FEW = 16  # largest rank × columns for which a product uses the vectors instead of G


@dataclass(frozen=True, slots=True)
class OuterProducts:
    """The matrix G = Σ_k s_k u_k u_kᵀ + d I, (n, n), stored as its vectors. The cotangent of ρ has this form.

    Most operations on G then read the other matrix once and never form G.

    vectors: u, (n, rank), float64, NumPy or torch. weights: s, (rank,), of the same kind. on_diagonal: d.
    """

    vectors: Any  # an array or a tensor; `weights` is of the same kind
    weights: Any
    on_diagonal: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.vectors), len(self.vectors)

    def of_kind(self, like: Array) -> OuterProducts:
        """Return the same matrix, with vectors in NumPy or torch and on the device as those of `like`, of any shape."""
        if isinstance(like, np.ndarray) == isinstance(self.vectors, np.ndarray):
            return self
        if isinstance(like, np.ndarray):
            return OuterProducts(in_numpy(self.vectors), in_numpy(self.weights), self.on_diagonal)
        vectors, weights = (torch.as_tensor(each, device=like.device) for each in (self.vectors, self.weights))
        return OuterProducts(vectors, weights, self.on_diagonal)

    def trace(self) -> float:
        """Return tr G."""
        return total(self.vectors * self.vectors * self.weights) + len(self.vectors) * self.on_diagonal

    def inner(self, matrix: Any) -> float:
        """Return Σ_ij G_ij M_ij. matrix: M, symmetric, (n, n), of the vectors' kind and of any precision."""
        if isinstance(self.vectors, np.ndarray):
            from kfx.numerics import small_loops

            found = small_loops.inner_product(matrix, self.vectors, self.weights)
        else:
            found = total(self.vectors * self.weights * (matrix.to(self.vectors) @ self.vectors))
        return found + self.on_diagonal * total(diagonal(matrix)) if self.on_diagonal else found

    def product(self, matrix: A, right: A) -> A:
        """Return (G ∘ M) R, (n, columns), ∘ the entrywise product. matrix: M, (n, n). right: R, (n, columns)."""
        rank, other = self.vectors.shape[1], as_kind(matrix, right)
        if rank * right.shape[1] > _FEW:
            return (self.dense() * other) @ right
        found: Any = 0.0
        for u, scaled in zip(self.vectors.T, (self.vectors * self.weights).T, strict=True):
            found = found + scaled[:, None] * (other @ (u[:, None] * right))
        return found + self.on_diagonal * diagonal(matrix)[:, None] * right if self.on_diagonal else found

    def shifted(self, on_diagonal: float, everywhere: float, along: Any = None) -> OuterProducts:
        """Return G + a I + b vvᵀ. on_diagonal: a. everywhere: b. along: v, (n, 1), of the vectors' kind; None for 1."""
        vectors, weights = self.vectors, self.weights
        if everywhere:
            vectors = with_ones(vectors) if along is None else _beside(along, vectors)
            weights = _beside(weights[None, :1] * 0 + everywhere, weights[None])[0]
        return OuterProducts(vectors, weights, self.on_diagonal + on_diagonal)

    def dense(self) -> Any:
        """Return G as an (n, n) matrix of the vectors' kind."""
        matrix = (self.vectors * self.weights) @ self.vectors.T
        if self.on_diagonal:
            diagonal(matrix)[:] += self.on_diagonal
        return matrix


def with_ones(rows: A) -> A:
    """Return `rows`, (n, columns), with a column of ones in front, (n, 1 + columns)."""
    first = rows[:, :1]
    return _beside(torch.ones_like(first) if isinstance(first, torch.Tensor) else np.ones_like(first), rows)


def _beside(left: A, right: A) -> A:
    if isinstance(left, torch.Tensor):
        return torch.cat([left, right], dim=1)
    return np.concatenate([left, right], axis=1)


def as_dense(matrix: Array | OuterProducts) -> torch.Tensor:
    """Return a matrix, (n, n), as a tensor."""
    return as_tensor(matrix.dense() if isinstance(matrix, OuterProducts) else matrix)
