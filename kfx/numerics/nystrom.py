"""Kernel ridge regression through M centres (Nyström), from sums over the training points in one pass.

With Z the centres and L Lᵀ = K(Z, Z), a point has the features φ(x) = L⁻¹ K(Z, x), and φ(x)·φ(x') approximates K(x, x')
(Williams & Seeger 2001). Ridge regression with them needs only B = Σ φφᵀ and Σ φ yᵀ. Features rather than the columns
K(Z, x) are summed, because Σ K(Z, x) K(x, Z) squares the condition number of K(Z, Z).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kfx.numerics.conjugate_gradients import conjugate_gradients
from kfx.numerics.linear_algebra import cholesky, solve_lower, solve_upper
from kfx.numerics.regularization import Regularization
from kfx.outcomes import NumericalError


class Comparison(Protocol):
    """A kernel."""

    def gram(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        """Return K(x, y), (n, m), or K(x, x), (n, n)."""

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        """Return K(x_i, x_i), (n,)."""


@dataclass(frozen=True)
class Centres:
    """M centres and the features that they give.

    kernel: compares mapped points (`Kernel.feature_map_and_kernel`). points: Z, (M, …), mapped. root: L, (M, M).
    """

    kernel: Comparison
    points: torch.Tensor
    root: torch.Tensor

    @classmethod
    def of(cls, kernel: Comparison, points: torch.Tensor) -> Centres:
        """NumericalError where K(Z, Z) cannot be factored."""
        return cls(kernel, points, cholesky(kernel.gram(points), 0.0))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return φ, (M, n), float64. x: mapped points, (n, …)."""
        return solve_lower(self.root, self.cross(x).to(torch.float64).mT)

    def cross(self, x: torch.Tensor) -> torch.Tensor:
        """Return K(x, Z), (n, M)."""
        return self.kernel.gram(x, self.points)

    def coefficients(self, weights: torch.Tensor) -> torch.Tensor:
        """Return α with K(x, Z) α = φ(x)·w, (M, outputs). weights: w, (M, outputs)."""
        return solve_upper(self.root, weights)


@dataclass(frozen=True)
class Sums:
    """Sums over n points: outer = Σ φφᵀ, (M, M); products = Σ φ yᵀ, (M, outputs); squares = Σ y², (outputs,);
    total = Σ φ, (M,); trace = Σ K(x, x)."""

    n: int
    outer: torch.Tensor
    products: torch.Tensor
    squares: torch.Tensor
    total: torch.Tensor
    trace: float

    @classmethod
    def zero(cls, centres: int, outputs: int) -> Sums:
        sizes = (centres, centres), (centres, outputs), (outputs,), (centres,)
        outer, products, squares, total = (torch.zeros(size, dtype=torch.float64) for size in sizes)
        return cls(0, outer, products, squares, total, 0.0)

    def with_points(self, features: torch.Tensor, y: torch.Tensor, diagonal: torch.Tensor) -> Sums:
        """Return the sums with further points; the arrays are updated in place.

        features: φ, (M, k). y: (k, outputs), float64. diagonal: K(x, x), (k,).
        """
        _add_outer(self.outer, features)
        self.products.add_(features @ y)
        self.squares.add_(y.square().sum(dim=0))
        self.total.add_(features.sum(dim=1))
        trace = self.trace + float(diagonal.sum(dtype=torch.float64))
        return Sums(self.n + len(y), self.outer, self.products, self.squares, self.total, trace)

    def __add__(self, other: Sums) -> Sums:
        return self._with(other, 1)

    def __sub__(self, other: Sums) -> Sums:
        return self._with(other, -1)

    def _with(self, other: Sums, sign: int) -> Sums:
        return Sums(
            self.n + sign * other.n,
            self.outer + sign * other.outer,
            self.products + sign * other.products,
            self.squares + sign * other.squares,
            self.total + sign * other.total,
            self.trace + sign * other.trace,
        )

    def effective(self, regularization: Regularization) -> float:
        """Return the effective λ for these points, with φ·φ for K where λ's scale takes the whole Gram matrix."""
        return regularization.of_sums(self.n, self.trace, float(self.total.square().sum()))

    def unexplained(self) -> float:
        """Return the share of Σ K(x, x) that Σ φ·φ lacks: 0 where the points' kernel is that of their features."""
        return 1 - float(self.outer.trace()) / self.trace


_BLOCKS = 8


def _add_outer(out: torch.Tensor, features: torch.Tensor) -> None:
    """Add φφᵀ, (M, M), of which only blocks on and below the diagonal are multiplied. features: φ, (M, k), float64."""
    for rows in torch.arange(len(out)).tensor_split(_BLOCKS):
        if len(rows):
            start, stop = int(rows[0]), int(rows[-1]) + 1
            block = features[start:stop] @ features[:stop].mT
            out[start:stop, :stop] += block
            out[:start, start:stop] += block[:, :start].mT


@dataclass(frozen=True)
class Spectrum:
    """B = Q Λ Qᵀ. values: Λ, (M,), ≥ 0, rising. vectors: Q, (M, M)."""

    values: torch.Tensor
    vectors: torch.Tensor

    @classmethod
    def of(cls, sums: Sums) -> Spectrum:
        values, vectors = torch.linalg.eigh(sums.outer)
        return cls(values.clamp_(min=0.0), vectors)

    @property
    def resolved(self) -> float:
        """The round-off of an eigenvalue: a direction has a meaning where its eigenvalue, or λ, is larger."""
        return torch.finfo(self.values.dtype).eps * len(self.values) * float(self.values[-1])

    def inverse(self, regularization: torch.Tensor | float, share: float = 1.0) -> torch.Tensor:
        """Return 1 / (share · Λ + λ), (M, 1) or (M, outputs), and 0 for directions without a meaning.

        regularization: λ, one for all outputs or (outputs,).
        """
        shifted = share * self.values[:, None] + regularization
        return torch.where(shifted > self.resolved, 1 / shifted, 0.0)

    def lost(self, regularization: float) -> int:
        """Return the number of directions in which a solution has no digit, or less than one."""
        return int((self.values + regularization <= 10 * self.resolved).sum())

    def solve(self, y: torch.Tensor, regularization: torch.Tensor | float, share: float = 1.0) -> torch.Tensor:
        """Return (share · B + λI)⁻¹ y, (M, outputs). y: (M, outputs). regularization, share: as for `inverse`."""
        return self.vectors @ (self.vectors.mT @ y * self.inverse(regularization, share))


class Nystrom:
    """Ridge regression with features, for any λ, and its cross-validation, from the sums of folds.

    folds: two or more functions that return the sums of disjoint random parts of the training points, so that one part
        at a time is in memory. sums: of all points. spectrum: of `sums`. left_out: the folds that are predicted from
        all others, to choose λ and the scale; None: each of them.
    """

    def __init__(
        self,
        folds: Sequence[Callable[[], Sums]],
        sums: Sums,
        spectrum: Spectrum,
        left_out: Sequence[int] | None = None,
    ) -> None:
        self._folds, self.sums, self.spectrum = folds, sums, spectrum
        self.left_out = range(len(folds)) if left_out is None else left_out
        self._spectra: dict[int, Spectrum] = {}

    def weights(self, regularization: float) -> torch.Tensor:
        """Return w = (B + λI)⁻¹ Σ φ yᵀ, (M, outputs), for an effective λ."""
        return self.spectrum.solve(self.sums.products, regularization)

    def one_left_out(
        self, features: torch.Tensor, y: torch.Tensor, prior: torch.Tensor, regularization: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the errors of training points, (k, outputs), each predicted from all others, and the variance that the
        observed values should then have, (k,), for a kernel of scale 1.

        features: φ, (M, k). y: (k, outputs), float64. prior: K(x, x), (k,). regularization: λ; below round-off of the
        fit, a λ that is not, for which leaving a point out is much the same.
        """
        used = max(regularization, _RESOLVED * float(prior.mean()))
        rotated = self.spectrum.vectors.mT @ features
        own = (rotated.square() * self.spectrum.inverse(used)).sum(dim=0)  # a point's share of its own fit
        rest = (1 - own).clamp(min=torch.finfo(own.dtype).eps)
        errors = (y - features.mT @ self.weights(used)) / rest[:, None]
        return errors, (prior - features.square().sum(dim=0)).clamp(min=0.0) + used / rest

    def _weights(self, fold: int, rest: Sums, regularizations: Sequence[float]) -> list[torch.Tensor]:
        """By conjugate gradients for all λ at once: the other folds are preconditioned by all, which are like them."""
        share, outputs = rest.n / self.sums.n, len(rest.squares)
        shifts = torch.tensor(regularizations, dtype=torch.float64).repeat_interleave(outputs)
        y = rest.products.repeat(1, len(regularizations))
        preconditioner = _Others(self.spectrum, shifts, share)
        try:
            found = conjugate_gradients(rest.outer.__matmul__, y, shifts, preconditioner, _TOLERANCE, _MOST_STEPS).alpha
        except NumericalError:  # few points for so many centres: the folds are not alike
            if fold not in self._spectra:
                self._spectra[fold] = Spectrum.of(rest)
            found = self._spectra[fold].solve(y, shifts)
        return list(found.split(outputs, dim=1))

    def errors(self, candidates: Sequence[Regularization]) -> list[float]:
        """Return the sum of squared errors of each λ over the folds left out, each predicted from the others."""
        found = torch.zeros(len(candidates), dtype=torch.float64)
        for number in self.left_out:
            fold = self._folds[number]()
            rest = self.sums - fold
            weights = self._weights(number, rest, [rest.effective(each) for each in candidates])
            found += torch.stack([_squared_errors(fold, own).sum() for own in weights])
        return found.tolist()

    def reduction(self, regularization: float) -> torch.Tensor:
        """Return R, (M, M), with the posterior variance K(x, x) − ‖Rᵀφ(x)‖² (DTC: Quiñonero-Candela & Rasmussen 2005,
        eq. 20)."""
        shares = self.spectrum.values * self.spectrum.inverse(regularization)[:, 0]
        return self.spectrum.vectors * shares.sqrt()


_RESOLVED = 1e-12
_TOLERANCE, _MOST_STEPS = 1e-8, 30
"""More steps would take longer than the spectrum of the other folds."""


@dataclass(frozen=True)
class _Others:
    """The preconditioner share · B + λI."""

    spectrum: Spectrum
    regularization: torch.Tensor
    share: float

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        return self.spectrum.solve(v, self.regularization, self.share)


def _squared_errors(fold: Sums, weights: torch.Tensor) -> torch.Tensor:
    """Return Σ (y − φ·w)² over the points of a fold, (outputs,), which rounding may not make negative."""
    linear = (fold.products * weights).sum(dim=0)
    return (fold.squares - 2 * linear + (weights * (fold.outer @ weights)).sum(dim=0)).clamp(min=0.0)
