"""Kernel ridge regression and the Gaussian-process posterior."""

from __future__ import annotations

from collections.abc import Callable

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
) -> torch.Tensor:
    """Return α with (K + λI) α = Y, float64, (n, outputs); predictions are K(x*, X) α.

    gram: K, (n, n). y: (n, outputs), float64. regularization: λ.
    solver: `cholesky`; or, to repeat published runs, `lstsq`, which drops singular values below `rcond` times the
    largest, and `inverse`, which forms (K + λI)⁻¹.
    Raises NumericalError where the system cannot be solved.
    """
    factored = gram if isinstance(gram, Factored) else Factored(gram)
    if solver == "cholesky" and len(factored.gram) >= LARGE and factored.gram.is_cpu:
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


def posterior_variance(factor: torch.Tensor, cross: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """Return the posterior variance of f at each test point x*, given noisy values at X, (n_test,), ≥ 0, float64.

    It is K(x*, x*) − K(x*, X)(K + λI)⁻¹K(X, x*) (Rasmussen & Williams 2006, eq. 2.26).

    factor: L, (n, n), K(X, X) + λI = LLᵀ with λ the noise variance. cross: K(x*, X), (n_test, n). prior: K(x*, x*) of
    each test point, (n_test,).
    """
    return unexplained(prior, cross, lambda rows: solve_lower(factor, rows.to(torch.float64).mT))


def unexplained(prior: torch.Tensor, cross: torch.Tensor, half: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return K(x*, x*) − |H|² at each test point x*, (n_test,), ≥ 0, float64, computed for some points at a time.

    half: maps rows of `cross` to H, (k, rows), float64. cross: K(x*, X), (n_test, n). prior: K(x*, x*), (n_test,).
    """
    left = prior.to(torch.float64, copy=True)
    for own, rows in zip(left.split(ROWS), cross.split(ROWS), strict=True):
        own -= half(rows).square().sum(dim=0)  # in place: small arrays between large ones would keep their memory
    return left.clamp_(min=0.0)


_MOST_LEFT_OUT = 2000


def inverse_diagonal(factor: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return (A⁻¹)_ii for the points i, (k,). factor: L, (n, n), A = LLᵀ. points: indices, (k,)."""
    units = factor.new_zeros(len(factor), len(points))
    units[points, torch.arange(len(points), device=points.device)] = 1.0
    return solve_lower(factor, units).square().sum(dim=0)


def left_out_scale(factor: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Return the factor s of the covariance, (outputs,), for which leave-one-out errors have the predicted variances.

    The error e_i = α_i / (A⁻¹)_ii has the variance s / (A⁻¹)_ii (Rasmussen & Williams 2006, eqs. 5.10 to 5.12), so s is
    the mean of α_i² / (A⁻¹)_ii, here over at most 2000 points spread over all.

    factor: L, (n, n), A = K + λI = LLᵀ. alpha: A⁻¹Y, (n, outputs).
    """
    some = spread_over(factor)
    return (alpha[some].square() / inverse_diagonal(factor, some)[:, None]).mean(dim=0)


def spread_over(factor: torch.Tensor) -> torch.Tensor:
    """Return the indices of the points that are left out one by one, at most 2000 spread over all of L, (n, n)."""
    n = len(factor)
    return torch.linspace(0, n - 1, min(n, _MOST_LEFT_OUT), device=factor.device).round().to(torch.int64)
