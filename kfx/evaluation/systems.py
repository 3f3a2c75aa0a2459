"""Kernel ridge regression on the leading points of one order: a system is solved for any λ and number of points."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from kfx.evaluation.interpolants import Computed, Covariances, Exact, Interpolant, Kept
from kfx.kernels.base import Kernel
from kfx.numerics.linear_algebra import Factored, cholesky, solve_lower
from kfx.numerics.regression import ROWS, coefficients
from kfx.numerics.regularization import Regularization
from kfx.numerics.weighting import weighted


class System(Protocol):
    """Θ of n ordered points, (n, n): in memory, on disk or through centres."""

    @property
    def test(self) -> Covariances:
        """The covariances of the test points with these points."""

    def effective(self, regularization: Regularization, size: int) -> float:
        """The effective λ for the first `size` points: it depends on Θ of the points that are used."""

    def interpolant(self, regularization: Regularization, targets: torch.Tensor) -> Interpolant:
        """Solve (Θ + λI) α = Y on the first k points. targets: Y, (k, outputs). NumericalError if that fails."""

    def fitted(self, interpolant: Interpolant, x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """An interpolant of this system at all training points x, (n, …): (n, outputs), float64.

        head: indices in x of the system's points, in its order.
        """


@runtime_checkable
class OfAllPoints(Protocol):
    """A `System` that factors Θ, as those without centres do."""

    def energies(self, regularization: Regularization, targets: torch.Tensor) -> torch.Tensor:
        """What each of the first k points adds to the squared RKHS norm of the interpolant: Σ over outputs of (L⁻¹Y)²,
        (k,), where Θ + λI = LLᵀ. targets: Y, (k, outputs). NumericalError if there is no factor."""


class InMemory:
    """The `System` of the interpolation points `points`, (n, …), with Θ as a matrix.

    x_test: points, (m, …), none to predict at other points. solver: as in `kfx.numerics.regression`, and
    `conjugate_gradients`, up to a relative residual of `tolerance`. weights: of the points, (n,), or None.
    """

    def __init__(
        self,
        kernel: Kernel,
        points: torch.Tensor,
        x_test: torch.Tensor | None = None,
        solver: str = "cholesky",
        rcond: float | None = None,
        tolerance: float = 1e-6,
        weights: np.ndarray | None = None,
    ) -> None:
        self._mapped, self._compare = kernel.feature_map_and_kernel()
        self._points = self._mapped(points)
        self._gram = self._compare.gram(self._points)
        self._kernel, self._solver, self._rcond, self._tolerance = kernel, solver, rcond, tolerance
        self._weights = None if weights is None else torch.as_tensor(weights, device=points.device)
        self._has_test = x_test is not None  # whose covariances take memory too
        if x_test is not None:
            blocks = (self._compare.gram(self._mapped(block), self._points) for block in x_test.split(ROWS))
            self.test = Kept(kernel, x_test, torch.cat(list(blocks)))

    def effective(self, regularization: Regularization, size: int) -> float:
        gram, _, own = self._plain(regularization, self._gram.new_zeros(size, 1))
        return own.of(gram)

    def _plain(
        self, regularization: Regularization, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Regularization]:
        """Θ, Y and λ of the first k points, or those of the plain problem of their weights. targets: (k, outputs)."""
        size, weights = len(targets), self._weights
        used = None if weights is None else weights[:size]
        return weighted(self._gram[:size, :size], targets.to(torch.float64), regularization, used)

    def interpolant(self, regularization: Regularization, targets: torch.Tensor) -> Exact:
        size, report = len(targets), {}
        matrix, y, own = self._plain(regularization, targets)
        gram, effective = Factored(matrix), own.of(matrix)
        if self._solver == "conjugate_gradients":
            from kfx.numerics.conjugate_gradients import solve

            theta = gram.gram.to(torch.float64)
            entries = theta.__matmul__, lambda rows, columns: theta[rows][:, columns], None, theta.diagonal()
            solved = solve(*entries, y, effective, self._tolerance, 8 * size**2)
            alpha, report = solved.alpha, {"residual": solved.residual, "iterations": solved.iterations}
        else:
            alpha = coefficients(gram, y, effective, self._solver, self._rcond, in_place=self._has_test)
        given = self._points[:size], alpha, effective, y, self._compare, gram, report
        return Exact(*given, None if self._weights is None else self._weights[:size].sqrt())

    def energies(self, regularization: Regularization, targets: torch.Tensor) -> torch.Tensor:
        gram, y, own = self._plain(regularization, targets)
        return solve_lower(cholesky(gram, own.of(gram)), y).square().sum(dim=1)

    def fitted(self, interpolant: Interpolant, x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        return interpolant.mean(Computed(self._kernel, x, self._points))
