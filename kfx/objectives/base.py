"""What a fit minimises: a function of a Gram matrix, with what is known of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial, update_wrapper
from typing import Any, ClassVar

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.outer_products import OuterProducts
from kfx.numerics.process import computing
from kfx.numerics.regularization import Regularization
from kfx.objectives.nested import nested_rho
from kfx.objectives.problem import Gram

_WORST_RATIO = 1.0


Cotangent = Array | OuterProducts | None
"""Of Θ: G, (N_f, N_f), symmetric, or the vectors that it is made of."""
Function = Callable[..., tuple[float, Array | None]]
"""`(gram, y, sample_size, regularization, cotangent) → value, G`, as `kfx.objectives.rho`."""


class Objective:
    """A function of a Gram matrix, computed under kfx's own precision and threads wherever it is called from.

    symbol: as papers and pictures print it. equation: where a paper defines it. is_ratio: whether it compares two
    norms: 0 is perfect, and 1 means that nothing is kept.
    """

    measures_factor: ClassVar[bool] = False
    """Whether it has `of_factor`: all that it needs is a Cholesky factor."""

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
        **settings: Any,
    ) -> tuple[float, Array | None]:
        if isinstance(gram, Factored):  # a fit's, which has seen to threads and precision
            return self.function(gram, y, sample_size, regularization, cotangent, **settings)
        with computing(len(gram) ** 3 if getattr(gram, "ndim", 0) else 0):
            return self.function(gram, y, sample_size, regularization, cotangent, **settings)

    def with_settings(self, **settings: Any) -> Objective:
        """The same objective with other settings, such as `nll.with_settings(scale="profiled")`."""
        return type(self)(partial(self, **settings), self.symbol, self.equation, is_ratio=self.is_ratio)

    def measure(
        self,
        gram: Factored,
        y: torch.Tensor,
        sample_sizes: Sequence[int],
        regularization: Regularization,
        cotangent: bool,
    ) -> tuple[float, list[float], Cotangent]:
        """Return its value for the first sample, ρ of each sample, and the cotangent of Θ, None unless asked for.

        gram: Θ, (N_f, N_f), the samples' points first. y: (N_f, outputs), float64. sample_sizes: N_c of each sample.
        """
        ratios, _ = nested_rho(gram, y, sample_sizes, regularization, False)
        value, to_gram = self(gram, y, sample_sizes[0], regularization, cotangent)
        return value, ratios, to_gram

    def worst(self, so_far: Iterable[float]) -> float:
        """What a search is told where the objective cannot be had: 1 for a ratio, else the largest value so far."""
        return _WORST_RATIO if self.is_ratio else max(so_far, default=_WORST_RATIO)

    def __repr__(self) -> str:
        return f"<objective {getattr(self, '__name__', self.symbol)}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        name = getattr(self, "__name__", "")
        if getattr(sys.modules.get(getattr(self, "__module__", "")), name, None) is self:
            return name  # kfx's own, and those of a module: by reference
        return type(self), (self.function, self.symbol, self.equation), {"is_ratio": self.is_ratio}


def objective(
    symbol: str, equation: str = "", *, is_ratio: bool = False, kind: type[Objective] = Objective
) -> Callable[[Function], Objective]:
    """Make an objective of the function that follows."""
    return lambda function: kind(function, symbol, equation, is_ratio=is_ratio)


def ratio(function: Function) -> Objective:
    """Make an objective of a function that compares two norms: 0 is perfect, 1 nothing kept."""
    return Objective(function, is_ratio=True)


def as_objective(given: Function | Objective) -> Objective:
    """An objective from a function of one's own, or from one with settings."""
    if isinstance(given, partial) and isinstance(given.func, Objective):
        return given.func.with_settings(**given.keywords)
    if isinstance(given, Objective):
        return given
    return Objective(given, is_ratio=getattr(given, "is_ratio", False))
