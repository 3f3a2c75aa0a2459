"""Linear systems of kernel ridge regression for the leading points of one order, in memory or on disk."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np
import torch

from kfx.evaluation.interpolants import Exact
from kfx.kernels.base import Kernel
from kfx.numerics.conjugate_gradients import solve
from kfx.numerics.linear_algebra import cholesky, solve_lower
from kfx.numerics.regression import ROWS, coefficients, posterior_variance
from kfx.numerics.regularization import Regularization


class System(Protocol):
    """Θ of n ordered points, (n, n), and the covariances of m test points with them.

    Every method takes the leading points: a kernel's λ depends on Θ of those that are used (`regularization` holds λ
        and its scale).
    """

    def effective(self, regularization: Regularization, size: int) -> float:
        """The effective λ for the first `size` points."""

    def coefficients(self, regularization: Regularization, targets: torch.Tensor) -> torch.Tensor:
        """α with (Θ + λI) α = Y on the first k points, (k, outputs), float64. targets: Y, (k, outputs)."""

    def predictions(self, alpha: torch.Tensor) -> torch.Tensor:
        """K(x*, x) α, (m, outputs), float64. alpha: (k, outputs)."""

    def fitted(self, x: torch.Tensor, head: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        """K(x, ·) α for any points x, (n, …): (n, outputs), float64.

        head: indices in x of the system's points, in its order. alpha: (k, outputs).
        """

    def variance(self, regularization: Regularization, size: int, prior: torch.Tensor) -> torch.Tensor:
        """Posterior variance of the test points given the first `size` points, (m,). prior: K(x*, x*), (m,)."""

    def deviation(
        self, regularization: Regularization, alpha: torch.Tensor, targets: torch.Tensor, prior: torch.Tensor
    ) -> torch.Tensor | None:
        """Standard deviations of observed targets of the test points, (m, outputs); None if the matrix is on disk.

        alpha: α, (k, outputs), of targets Y, (k, outputs). prior: K(x*, x*), (m,).
        """

    def left_out(
        self, regularization: Regularization, alpha: torch.Tensor, targets: torch.Tensor
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Targets of some training points and their predictions without these points, (j, outputs) each; None if the
        matrix is on disk. Arguments as for `deviation`."""

    def report(self) -> dict[str, float]:
        """Metrics of the last solution, such as its residual, if the solver gives any."""


class InMemory:
    """The `System` with Θ and the covariances as matrices."""

    def __init__(
        self,
        kernel: Kernel,
        points: torch.Tensor,
        x_test: torch.Tensor,
        solver: str = "cholesky",
        rcond: float | None = None,
        tolerance: float = 1e-6,
    ) -> None:
        self._mapped, self._compare = kernel.feature_map_and_kernel()
        self._points = self._mapped(points)
        self._gram = self._compare.gram(self._points)
        blocks = x_test.split(ROWS)
        self._cross = torch.cat([self._compare.gram(self._mapped(block), self._points) for block in blocks])
        self._solver, self._rcond, self._tolerance = solver, rcond, tolerance
        self._report: dict[str, float] = {}
        self._norms: dict[float, torch.Tensor] = {}
        self._factors: dict[tuple[int, float], torch.Tensor] = {}

    def effective(self, regularization: Regularization, size: int) -> float:
        return regularization.of(self._gram[:size, :size])

    def coefficients(self, regularization: Regularization, targets: torch.Tensor) -> torch.Tensor:
        used = self._gram[: len(targets), : len(targets)]
        y, effective = targets.to(torch.float64), regularization.of(used)
        if self._solver == "conjugate_gradients":
            theta = used.to(torch.float64)
            solved = solve(
                theta.__matmul__,
                lambda rows, columns: theta[rows][:, columns],
                None,
                theta.diagonal(),
                y,
                effective,
                self._tolerance,
                8 * len(y) ** 2,
            )
            self._report = {"residual": solved.residual, "iterations": solved.iterations}
            return solved.alpha
        return coefficients(used, y, effective, self._solver, self._rcond)

    def predictions(self, alpha: torch.Tensor) -> torch.Tensor:
        return products(self._cross[:, : len(alpha)], alpha)

    def fitted(self, x: torch.Tensor, head: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        used = self._points[: len(alpha)]
        return torch.cat([products(self._compare.gram(self._mapped(b), used), alpha) for b in x.split(ROWS)])

    def energies(self, regularization: Regularization, targets: torch.Tensor) -> torch.Tensor:
        """Σ over outputs of (L⁻¹ Y)² for each of the first k points, (k,). targets: Y, (k, outputs)."""
        used = self._gram[: len(targets), : len(targets)]
        effective = regularization.of(used)
        if effective not in self._norms:
            w = solve_lower(cholesky(used, effective), targets.to(torch.float64))
            self._norms[effective] = w.square().sum(dim=1)
        return self._norms[effective]

    def variance(self, regularization: Regularization, size: int, prior: torch.Tensor) -> torch.Tensor:
        return posterior_variance(self._factor(regularization, size), self._cross[:, :size], prior)

    def deviation(
        self, regularization: Regularization, alpha: torch.Tensor, targets: torch.Tensor, prior: torch.Tensor
    ) -> torch.Tensor:
        return self._interpolant(regularization, alpha, targets).deviation(self._cross[:, : len(alpha)], prior)

    def left_out(
        self, regularization: Regularization, alpha: torch.Tensor, targets: torch.Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._interpolant(regularization, alpha, targets).left_out()

    def _interpolant(self, regularization: Regularization, alpha: torch.Tensor, targets: torch.Tensor) -> Exact:
        size = len(alpha)
        factor = partial(self._factor, regularization, size)
        return Exact(self._points[:size], alpha, self.effective(regularization, size), targets, factor)

    def _factor(self, regularization: Regularization, size: int) -> torch.Tensor:
        used = self._gram[:size, :size]
        effective = regularization.of(used)
        if (size, effective) not in self._factors:
            self._factors = {(size, effective): cholesky(used, effective)}
        return self._factors[size, effective]

    def report(self) -> dict[str, float]:
        return self._report


def products(rows: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """K(x*, x) α, (m, outputs), in float64, computed for some rows at a time. rows: K(x*, x), (m, k). alpha: (k,
    outputs)."""
    return torch.cat([block.to(torch.float64) @ alpha for block in rows.split(ROWS)])
