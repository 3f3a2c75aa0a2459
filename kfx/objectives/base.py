"""Objectives: functions of a Gram matrix that a fit minimises."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial, update_wrapper
from typing import Any, ClassVar

import torch

from kfx.numerics.arrays import Array, as_tensor, in_kind
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.outer_products import OuterProducts
from kfx.numerics.process import computing
from kfx.numerics.regularization import Regularization, as_regularization
from kfx.numerics.weighting import scaled, weighted
from kfx.objectives.nested import nested_rho
from kfx.objectives.problem import Gram

_WORST_RATIO = 1.0


Cotangent = Array | OuterProducts | None
"""The cotangent of Θ: G, (N_f, N_f), symmetric, as a matrix or as a sum of outer products; None unless asked for."""
Function = Callable[..., tuple[float, Array | None]]
"""`(gram, y, sample_size, regularization, cotangent) → value, G`, as `kfx.objectives.rho`."""


class Objective:
    """A function of a Gram matrix, computed under kfx's own precision and threads wherever it is called from.

    symbol: as in papers and figures. equation: the paper and equation that define it. is_ratio: whether the value is
    a relative error: 0 where the sample's interpolant equals the batch's, 1 where nothing of it is kept.
    """

    is_rho_by_cholesky: ClassVar[bool] = False
    """Whether the objective is ρ by a Cholesky factor of Θ + λI, so that small batches take the faster path."""

    def __init__(self, function: Function, symbol: str = "", equation: str = "", *, is_ratio: bool = False) -> None:
        update_wrapper(self, function, updated=())  # a callable object keeps its attributes to itself
        self.function, self.symbol, self.equation, self.is_ratio = function, symbol, equation, is_ratio

    def __call__(
        self,
        gram: Gram,
        y: Array,
        sample_size: int,
        regularization: float | Regularization = 1e-4,
        cotangent: bool = True,
        weights: Array | None = None,
        **settings: Any,
    ) -> tuple[float, Array | None]:
        """Return the value and its gradient G with respect to Θ, (N_f, N_f), symmetric; None with `cotangent=False`.

        gram: Θ, (N_f, N_f), the sample's points first. y: (N_f,) or (N_f, outputs). sample_size: N_c, 1 ≤ N_c < N_f.
        regularization: λ; a plain number is absolute. weights: w, (N_f,), > 0: a point's noise is λ / w, its squared
        error counts w times; the function gets the plain problem of `kfx.numerics.weighting`. settings: keywords of the
        function. Raises ValueError for arguments that do not match, NumericalError where the value cannot be computed.
        """
        if weights is not None:
            matrix = gram.gram if isinstance(gram, Factored) else gram
            theta, each, own = as_tensor(matrix), as_tensor(y), as_tensor(weights, dtype=torch.float64)
            if own.shape != each.shape[:1] or not bool((own > 0).all() and own.isfinite().all()):
                raise ValueError(f"weights: expected {len(each)} finite numbers > 0, got shape {tuple(own.shape)}")
            problem = weighted(theta, each.reshape(len(each), -1), as_regularization(regularization), own)
            value, to_scaled = self(problem[0], problem[1], sample_size, problem[2], cotangent, **settings)
            return value, None if to_scaled is None else in_kind(scaled(as_tensor(to_scaled), own.sqrt()), matrix)
        if isinstance(gram, Factored):  # within a fit, which sets threads and precision itself
            return self.function(gram, y, sample_size, regularization, cotangent, **settings)
        with computing(len(gram) ** 3 if getattr(gram, "ndim", 0) else 0):
            return self.function(gram, y, sample_size, regularization, cotangent, **settings)

    def with_settings(self, **settings: Any) -> Objective:
        """Return the same objective with other settings, as in `nll.with_settings(scale="profiled")`."""
        return type(self)(partial(self, **settings), self.symbol, self.equation, is_ratio=self.is_ratio)

    def measure(
        self,
        gram: Factored,
        y: torch.Tensor,
        sample_sizes: Sequence[int],
        regularization: Regularization,
        cotangent: bool,
    ) -> tuple[float, list[float], Cotangent]:
        """Return the value for the first sample, ρ of each sample, and the cotangent of Θ for the first sample.

        gram: Θ, (N_f, N_f), the samples' points first. y: (N_f, outputs), float64. sample_sizes: N_c of each sample,
        nested. cotangent: whether to compute the cotangent, (N_f, N_f); None is returned otherwise. Raises
        NumericalError where a value cannot be computed.
        """
        ratios, _ = nested_rho(gram, y, sample_sizes, regularization, False)
        value, to_gram = self(gram, y, sample_sizes[0], regularization, cotangent)
        return value, ratios, to_gram

    def worst(self, so_far: Iterable[float]) -> float:
        """Return the value that a search records where the evaluation fails: 1 for a ratio, else the largest so far,
        NaN if there is none."""
        return _WORST_RATIO if self.is_ratio else max(so_far, default=math.nan)

    def __repr__(self) -> str:
        return f"<objective {getattr(self, '__name__', self.symbol)}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        name = getattr(self, "__name__", "")
        if getattr(sys.modules.get(getattr(self, "__module__", "")), name, None) is self:
            return name  # pickled by reference where a module holds the objective
        return type(self), (self.function, self.symbol, self.equation), {"is_ratio": self.is_ratio}


def objective(
    symbol: str, equation: str = "", *, is_ratio: bool = False, kind: type[Objective] = Objective
) -> Callable[[Function], Objective]:
    """Return a decorator that makes an objective of a function; see `Objective` for the arguments."""
    return lambda function: kind(function, symbol, equation, is_ratio=is_ratio)


def ratio(function: Function) -> Objective:
    """Make an objective of a function whose value is a relative error; see `Objective.is_ratio`."""
    return Objective(function, is_ratio=True)


def as_objective(given: Function | Objective) -> Objective:
    """Return the objective of a user's function, or of an objective bound to settings by `functools.partial`."""
    if isinstance(given, partial) and isinstance(given.func, Objective):
        return given.func.with_settings(**given.keywords)
    if isinstance(given, Objective):
        return given
    return Objective(given, is_ratio=getattr(given, "is_ratio", False))
