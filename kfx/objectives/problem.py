"""A checked problem for an objective: Gram matrix, targets, sample size and λ, factored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from kfx.numerics.arrays import Array, are_finite, as_tensor, in_kind
from kfx.numerics.linear_algebra import Factored, solve_lower, solve_upper
from kfx.numerics.regularization import Regularization, as_regularization
from kfx.numerics.weighting import WeightedRegularization
from kfx.outcomes import Event, NumericalError

Gram = Array | Factored
"""A Gram matrix, (N, N), as an array, or as a `Factored` that keeps its Cholesky factors for other uses."""


@dataclass
class Problem:
    """Checked arguments of an objective, with the factors and solutions that objectives share.

    factored: Θ, (N, N), the sample's points first. y: Y, (N, outputs), float64. sample_size: N_c. given: the Gram
    matrix as the caller passed it. A = Θ + λI; A_c is its leading block, (N_c, N_c), with the λ of the whole batch.
    """

    factored: Factored
    y: torch.Tensor
    sample_size: int
    regularization: Regularization
    given: Gram

    @cached_property
    def theta(self) -> torch.Tensor:
        """Θ, (N, N), in float64."""
        return self.factored.gram.to(torch.float64)

    @cached_property
    def effective(self) -> float:
        """The effective λ for this Θ."""
        return self.factored.effective(self.regularization)

    @cached_property
    def factor(self) -> torch.Tensor:
        """L, (N, N), with A = LLᵀ; its leading block factors A_c. NumericalError where A cannot be factored."""
        return self.factored.factor(self.effective)

    @cached_property
    def inverse(self) -> torch.Tensor:
        """A⁻¹, (N, N). NumericalError where A cannot be factored."""
        return self.factored.inverse(self.effective)

    @cached_property
    def sample_factor(self) -> torch.Tensor:
        """L_c, (N_c, N_c), with A_c = L_c L_cᵀ. NumericalError where A_c cannot be factored."""
        return self.factored.sample_factor(self.effective, self.sample_size)

    @property
    def roots(self) -> torch.Tensor | None:
        """√w of points with weights, (N, 1); Θ and Y are then SΘS and SY of `kfx.numerics.weighting`."""
        return self.regularization.roots[:, None] if isinstance(self.regularization, WeightedRegularization) else None

    def log_roots(self, first: int = 0) -> float:
        """Return Σ log √w over the points from `first` on, the log density of Y less that of SY; 0 without weights."""
        return 0.0 if self.roots is None else float(self.roots[first:].log().sum())

    @cached_property
    def y_hat(self) -> torch.Tensor:
        """Ŷ = A⁻¹Y, (N, outputs)."""
        return self.solve(self.y)

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """Return A⁻¹ right, (N, columns). right: (N, columns), float64."""
        return solve_upper(self.factor, solve_lower(self.factor, right))

    def solve_sample(self, right: torch.Tensor) -> torch.Tensor:
        """Return A_c⁻¹ right, (N_c, columns). right: (N_c, columns), float64."""
        return solve_upper(self.sample_factor, solve_lower(self.sample_factor, right))

    def cotangent(self, to_a: torch.Tensor, to_theta: torch.Tensor | None = None) -> Array:
        """Return the symmetric cotangent G of Θ, (N, N), λ's dependence included, in the kind of the given Gram matrix.

        to_a: derivative with respect to A, (N, N). to_theta: that with respect to Θ where Θ occurs outside A, (N, N).
        Neither need be symmetric.
        """
        total = self.regularization.pull((to_a + to_a.mT).div_(2))
        if to_theta is not None:
            total = total + (to_theta + to_theta.mT) / 2
        return self.in_kind(total)

    def in_kind(self, cotangent: torch.Tensor) -> Array:
        """Return the cotangent, (N, N), as NumPy or torch, the kind of the given Gram matrix."""
        return cotangent if isinstance(self.given, Factored) else in_kind(cotangent, self.given)


def pose(gram: Gram, y: Array, sample_size: int, regularization: float | Regularization) -> Problem:
    """Return the checked problem of an objective.

    gram: Θ, (N, N), the sample's points first. y: (N,) or (N, outputs). sample_size: N_c, 1 ≤ N_c < N.
    regularization: λ; a plain number is absolute. Raises ValueError where shapes do not match, or Θ is not real and
    symmetric, NumericalError for a target that is not finite.
    """
    factored = gram if isinstance(gram, Factored) else Factored(_checked(gram))
    theta = factored.gram
    is_ready = isinstance(y, torch.Tensor) and y.dtype == torch.float64 and not y.requires_grad
    targets: torch.Tensor = y if is_ready else as_tensor(y, dtype=torch.float64)  # type: ignore[assignment]
    if targets.device != theta.device:
        targets = targets.to(theta.device)
    require_sizes(theta.shape, targets.shape, sample_size)
    targets = targets if targets.ndim == 2 else targets.reshape(len(theta), -1)
    if not are_finite(targets):
        raise NumericalError(Event.DIVERGED, "a target is not a finite number")
    return Problem(factored, targets, sample_size, as_regularization(regularization), gram)


def require_sizes(gram: Sequence[int], targets: Sequence[int], sample_size: int) -> None:
    """Raise ValueError unless the shapes of a Gram matrix and of targets match and 1 ≤ sample_size < N.

    gram: shape of Θ, expected (N, N). targets: shape of Y, expected (N,) or (N, outputs).
    """
    n = gram[0] if gram else 0
    if isinstance(sample_size, bool):
        raise ValueError(f"sample_size={sample_size}: expected a whole number from 1 to {n - 1}")
    if tuple(gram) != (n, n) or not targets or targets[0] != n or not 1 <= sample_size < n:
        raise ValueError(
            f"expected a square Gram matrix, as many targets, and 1 <= sample_size < {n}; got a Gram matrix of "
            f"{tuple(gram)}, targets of {tuple(targets)}, sample_size={sample_size}"
        )


def _checked(gram: Array) -> torch.Tensor:
    """Return a caller's Gram matrix as a tensor; ValueError where it is complex or not symmetric."""
    theta = as_tensor(gram)
    if theta.ndim == 2 and theta.shape[0] == theta.shape[1] and len(theta):
        require_symmetric(theta)
    return theta


def require_symmetric(gram: torch.Tensor) -> None:
    """Raise ValueError where a Gram matrix, (N, N), is not symmetric.

    It may differ from its transpose by the cube root of machine epsilon times its largest entry: round-off and finite
    differences of one entry stay below. NaN passes, since the factorisation reports it better.
    """
    difference, largest = float((gram - gram.mT).abs().max()), float(gram.abs().max())
    if difference > torch.finfo(gram.dtype).eps ** (1 / 3) * largest:
        raise ValueError(
            f"gram: expected a symmetric matrix, got entries that differ from their mirror images by up to "
            f"{difference:.3g}; pass (gram + gram.T) / 2 for its symmetric part"
        )


class SamplePrediction:
    """The sample's predictions at every point of the batch, `value`: S = Θ[:, :N_c] A_c⁻¹ Y_c, (N_f, outputs)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        n = problem.sample_size
        self.z = problem.solve_sample(problem.y[:n])
        self.value = problem.theta[:, :n] @ self.z

    def pull(self, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the derivatives with respect to A and to Θ, both (N_f, N_f), not symmetric, given that of S.

        g: cotangent of S, (N_f, outputs). The derivative with respect to A is zero outside the sample's block.
        """
        n = self.problem.sample_size
        to_theta, to_a = torch.zeros_like(self.problem.theta), torch.zeros_like(self.problem.theta)
        to_theta[:, :n] = g @ self.z.mT
        to_a[:n, :n] = -self.problem.solve_sample(self.problem.theta[:, :n].mT @ g) @ self.z.mT
        return to_a, to_theta
