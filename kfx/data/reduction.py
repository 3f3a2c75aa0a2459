"""Fewer outputs: components of the targets, by principal components or canonical correlations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kfx.outcomes import DataError


@dataclass(frozen=True)
class Reduction:
    """A linear map from targets to components and back.

    project: (outputs, q), so that t @ project are components of unit variance. basis: (q, outputs), so that components
    @ basis are the targets up to what is left out. left_out: the mean square of that, (outputs,).
    """

    project: np.ndarray
    basis: np.ndarray
    left_out: np.ndarray

    @classmethod
    def of(cls, t: np.ndarray, project: np.ndarray) -> Reduction:
        """The reduction with components along the columns of `project`, (outputs, q), of targets t, (n, outputs), whose
        mean is 0: the basis reconstructs them best."""
        scores = t @ project
        project = project / np.sqrt(np.mean(scores**2, axis=0))
        scores = t @ project
        basis = np.linalg.lstsq(scores, t, rcond=None)[0]
        return cls(project, basis, np.mean((t - scores @ basis) ** 2, axis=0))


def principal(t: np.ndarray, components: float) -> Reduction:
    """Principal components of targets t, (n, outputs), whose mean is 0.

    components: their number, or if it is below 1 the share of the variance that they have at least.
    """
    _, sizes, rows = np.linalg.svd(t, full_matrices=False)
    return Reduction.of(t, rows[: _count(sizes**2, components)].T)


def canonical(t: np.ndarray, x: np.ndarray, components: float, regularization: float) -> Reduction:
    """Directions of the targets that correlate most with a linear function of the points (Hotelling 1936), as in
    KernelFlows.jl.

    t: (n, outputs), x: (n, features), both with mean 0. regularization: added to the diagonal of both covariances, in
    units of their mean diagonal. components: as for `principal`, of the squared correlations.
    """

    def half(values: np.ndarray) -> np.ndarray:
        """C^(-1/2) of the regularized covariance C."""
        covariance = values.T @ values / len(values)
        shift = regularization * np.trace(covariance) / len(covariance)
        sizes, vectors = np.linalg.eigh(covariance + shift * np.eye(len(covariance)))
        return np.asarray((vectors / np.sqrt(np.maximum(sizes, 1e-300))) @ vectors.T)

    of_targets = half(t)
    left, correlations, _ = np.linalg.svd(of_targets @ (t.T @ x / len(t)) @ half(x), full_matrices=False)
    return Reduction.of(t, of_targets @ left[:, : _count(correlations**2, components)])


def _count(sizes: np.ndarray, components: float) -> int:
    rank = int((sizes > 1e-12 * sizes[0]).sum())
    if components < 1:
        return min(int(np.searchsorted(np.cumsum(sizes) / sizes.sum(), components)) + 1, rank)
    if components > rank:
        raise DataError(f"outputs.components={components:g}: the training points give {rank}; take at most so many")
    return int(components)
