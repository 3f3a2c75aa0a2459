"""Kernel ridge regression: its coefficients, and its errors at points that are left out."""

from __future__ import annotations

import torch

from kfx.numerics.linear_algebra import Factored, solve_lower, solve_upper, solved_in_place
from kfx.outcomes import Event, NumericalError

ROWS = 2000
"""Number of test points whose covariances with all training points are used at a time."""
LARGE = 8192
"""Number of points from which systems are solved in place, since a second float64 matrix would cost too much memory."""


def coefficients(
    gram: torch.Tensor | Factored,
    y: torch.Tensor,
    regularization: float,
    solver: str = "cholesky",
    rcond: float | None = None,
    *,
    in_place: bool = True,
) -> torch.Tensor:
    """Return α with (K + λI) α = Y, float64, (n, outputs); predictions are K(x*, X) α.

    gram: K, (n, n). y: (n, outputs), float64. regularization: λ.
    solver: `cholesky`; or, to repeat published runs, `lstsq`, which drops singular values below `rcond` times the
    largest, and `inverse`, which forms (K + λI)⁻¹. in_place: solve large systems in little memory, by one thread.
    Raises NumericalError where the system cannot be solved.
    """
    factored = gram if isinstance(gram, Factored) else Factored(gram)
    if solver == "cholesky" and in_place and len(factored.gram) >= LARGE and factored.gram.is_cpu:
        return solved_in_place(factored.gram, y, regularization)
    if solver == "cholesky":
        factor = factored.factor(regularization)
        return solve_upper(factor, solve_lower(factor, y))
    matrix = factored.gram.to(torch.float64, copy=True)
    matrix.diagonal().add_(regularization)
    if not bool(matrix.isfinite().all() and y.isfinite().all()):
        raise NumericalError(Event.DIVERGED, f"solver {solver}: the system has entries that are not finite")
    try:
        if solver == "inverse":
            return torch.linalg.inv(matrix) @ y
        # gelsd is the driver that takes a cutoff; torch has it on the CPU only
        solution = torch.linalg.lstsq(matrix.cpu(), y.cpu(), rcond=rcond, driver="gelsd").solution
        return solution.to(matrix.device)
    except torch.linalg.LinAlgError as error:
        raise NumericalError(Event.NOT_POSITIVE_DEFINITE, f"solver {solver}: {error}") from error


_MOST_LEFT_OUT = 2000


def inverse_diagonal(factor: torch.Tensor) -> torch.Tensor:
    """Return (A⁻¹)_ii for the points i of `spread_over`, (k,). factor: L, (n, n), A = LLᵀ."""
    points = spread_over(factor)
    units = factor.new_zeros(len(factor), len(points))
    units[points, torch.arange(len(points), device=points.device)] = 1.0
    return solve_lower(factor, units).square().sum(dim=0)


def left_out_scale(alpha: torch.Tensor, diagonal: torch.Tensor) -> torch.Tensor:
    """Return the factor s of the covariance, (outputs,), for which leave-one-out errors have the predicted variances.

    The error e_i = α_i / (A⁻¹)_ii has the variance s / (A⁻¹)_ii (Rasmussen & Williams 2006, eqs. 5.10 to 5.12), so s is
    the mean of α_i² / (A⁻¹)_ii, here over at most 2000 points spread over all.

    alpha: A⁻¹Y, (n, outputs), A = K + λI. diagonal: as of `inverse_diagonal`, (k,).
    """
    return (alpha[spread_over(alpha)].square() / diagonal[:, None]).mean(dim=0)


def spread_over(points: torch.Tensor) -> torch.Tensor:
    """Return the indices of the points that are left out one by one, at most 2000 spread over all of (n, …)."""
    n = len(points)
    return torch.linspace(0, n - 1, min(n, _MOST_LEFT_OUT), device=points.device).round().to(torch.int64)
