"""A checked problem for an objective: Gram matrix, targets, sample size and λ, factored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from kfx.numerics.arrays import Array, as_tensor, in_kind
from kfx.numerics.linear_algebra import Factored, solve_lower, solve_upper
from kfx.numerics.regularization import Regularization, as_regularization

Gram = Array | Factored
"""What an objective takes: a Gram matrix, or one whose factors others need as well."""


@dataclass
class Problem:
    """Θ, (N, N), its first `sample_size` points the sample; Y, (N, outputs), float64; λ.

    Names as in DESIGN's formulas: A = Θ + λI, A_c the sample's block with the *batch's* λ.
    """

    factored: Factored
    y: torch.Tensor
    sample_size: int
    regularization: Regularization
    given: Gram

    @cached_property
    def theta(self) -> torch.Tensor:
        """Θ in float64."""
        return self.factored.gram.to(torch.float64)

    @cached_property
    def effective(self) -> float:
        """λ for this Θ."""
        return self.regularization.of(self.factored.gram)

    @cached_property
    def factor(self) -> torch.Tensor:
        """L, A = LLᵀ; its leading block factors A_c. NumericalError where there is none."""
        return self.factored.factor(self.effective)

    @cached_property
    def sample_factor(self) -> torch.Tensor:
        """A_c's."""
        return self.factored.sample_factor(self.effective, self.sample_size)

    @cached_property
    def y_hat(self) -> torch.Tensor:
        """A⁻¹Y."""
        return self.solve(self.y)

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """A⁻¹ right."""
        return solve_upper(self.factor, solve_lower(self.factor, right))

    def solve_sample(self, right: torch.Tensor) -> torch.Tensor:
        """A_c⁻¹ right."""
        return solve_upper(self.sample_factor, solve_lower(self.sample_factor, right))

    def cotangent(self, to_a: torch.Tensor, to_theta: torch.Tensor | None = None) -> Array:
        """The cotangent of Θ, symmetric, from that of A and that of Θ where it stands by itself."""
        total = self.regularization.pull((to_a + to_a.mT).div_(2))
        if to_theta is not None:
            total = total + (to_theta + to_theta.mT) / 2
        return self.in_kind(total)

    def in_kind(self, cotangent: torch.Tensor) -> Array:
        """The cotangent in the kind that Θ came in: NumPy or torch."""
        return cotangent if isinstance(self.given, Factored) else in_kind(cotangent, self.given)


def pose(gram: Gram, y: Array, sample_size: int, regularization: float | Regularization) -> Problem:
    """The problem, or ValueError with what was expected. A plain number is an absolute λ."""
    factored = gram if isinstance(gram, Factored) else Factored(_checked(gram))
    theta = factored.gram
    is_ready = isinstance(y, torch.Tensor) and y.dtype == torch.float64 and not y.requires_grad
    targets: torch.Tensor = y if is_ready else as_tensor(y, dtype=torch.float64)  # type: ignore[assignment]
    if targets.device != theta.device:
        targets = targets.to(theta.device)
    require_sizes(theta.shape, targets.shape, sample_size)
    targets = targets if targets.ndim == 2 else targets.reshape(len(theta), -1)
    return Problem(factored, targets, sample_size, as_regularization(regularization), gram)


def require_sizes(gram: Sequence[int], targets: Sequence[int], sample_size: int) -> None:
    """ValueError unless shapes of a Gram matrix and of targets, and a sample's size, go together."""
    n = gram[0] if gram else 0
    if isinstance(sample_size, bool):
        raise ValueError(f"sample_size={sample_size}: expected a whole number from 1 to {n - 1}")
    if tuple(gram) != (n, n) or not targets or targets[0] != n or not 1 <= sample_size < n:
        raise ValueError(
            f"expected a square Gram matrix, as many targets, and 1 <= sample_size < {n}; got a Gram matrix of "
            f"{tuple(gram)}, targets of {tuple(targets)}, sample_size={sample_size}"
        )


def _checked(gram: Array) -> torch.Tensor:
    """The Gram matrix of a caller as a tensor; ValueError for one that is complex or not symmetric."""
    theta = as_tensor(gram)
    if theta.ndim == 2 and theta.shape[0] == theta.shape[1] and len(theta):
        require_symmetric(theta)
    return theta


def require_symmetric(gram: torch.Tensor) -> None:
    """ValueError where a square matrix and its transpose differ by more than the cube root of machine epsilon, relative
    to the largest entry: less is round-off, or a step of differences. NaN passes: a factorisation says more of it."""
    difference, largest = float((gram - gram.mT).abs().max()), float(gram.abs().max())
    if difference > torch.finfo(gram.dtype).eps ** (1 / 3) * largest:
        raise ValueError(
            f"gram: expected a symmetric matrix, got entries that differ from their mirror images by up to "
            f"{difference:.3g}; pass (gram + gram.T) / 2 if that is meant"
        )


class SamplePrediction:
    """S = Θ[:, :N_c] A_c⁻¹ Y_c, (N_f, outputs): what the sample alone predicts at every point of the batch."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        n = problem.sample_size
        self.z = problem.solve_sample(problem.y[:n])
        self.value = problem.theta[:, :n] @ self.z

    def pull(self, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """From the cotangent g of S to those of A, of which only the sample's block is not 0, and of Θ."""
        n = self.problem.sample_size
        to_theta, to_a = torch.zeros_like(self.problem.theta), torch.zeros_like(self.problem.theta)
        to_theta[:, :n] = g @ self.z.mT
        to_a[:n, :n] = -self.problem.solve_sample(self.problem.theta[:, :n].mT @ g) @ self.z.mT
        return to_a, to_theta
