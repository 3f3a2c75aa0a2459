"""Gram matrices of a kernel and their pullback: what every kernel computes, and what its author writes."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Protocol, TypeVar, overload

import numpy as np
import torch

from kfx.config.plugins import Portable
from kfx.kernels.parameters import Parameters, Value
from kfx.numerics.arrays import Array, Vector, are_finite, as_tensor, in_kind
from kfx.numerics.outer_products import OuterProducts, as_dense
from kfx.numerics.process import computing
from kfx.outcomes import Event, NumericalError

Pull = Callable[[Any, bool], tuple[Mapping[str, Value], torch.Tensor | None]]
"""`pull(G, inputs)` returns the gradients of Σ_ij G_ij Θ_ij with respect to each parameter, by name, and with respect
to the points, in x's shape, or None without `inputs`. G, (n, n), is symmetric, counts both triangles and is on x's
device; it is a tensor, or `OuterProducts` where the kernel is one `OfOuterProducts`."""
Cotangent = Array | OuterProducts
"""G, (n, n), symmetric, with the derivative Σ_ij G_ij dK_ij over both triangles."""
A_co = TypeVar("A_co", np.ndarray, torch.Tensor, covariant=True)


class FlatPull(Protocol[A_co]):
    """The function that `Covariance.pullback` returns with the Gram matrix: maps a cotangent, (n, n), to gradients."""

    @overload
    def __call__(self, cotangent: Cotangent, inputs: Literal[False] = False) -> Vector: ...
    @overload
    def __call__(self, cotangent: Cotangent, inputs: Literal[True]) -> tuple[Vector, A_co]: ...


SmallPullback = tuple[np.ndarray, Callable[[OuterProducts, bool], tuple[Mapping[str, Value], np.ndarray | None]]]
"""K(x, x), (n, n), and its pullback, in NumPy; see `OfOuterProducts.small_pullback`."""


class OfOuterProducts(abc.ABC):
    """Base of kernels whose pullback takes a cotangent as vectors and weights (`OuterProducts`) in place of the matrix,
    and which have a path in NumPy for small batches: `Stationary` and `ARD`.

    The cotangent of ρ is a sum of two outer products for each output, of which products need no matrix.
    """

    @abc.abstractmethod
    def small_pullback(self, x: torch.Tensor) -> SmallPullback | None:
        """Return K(x, x), (n, n), and its pullback in NumPy, for a batch that is small; None for any other.

        x: (n, …). The pullback takes `OuterProducts`, (n, n), and `inputs`; it returns the gradients by parameter name,
        and with respect to the points as rows, (n, features), or None without `inputs`. On small batches torch's calls
        take longer than the arithmetic.
        """


class Covariance(Portable, Parameters, abc.ABC):
    """A positive semidefinite function of two points, with named parameters; see `kfx.kernels.base.Kernel`."""

    fills_diagonal: ClassVar[bool] = True
    """Whether the diagonal of K(x, x) is overwritten by `_diagonal`; not where it is that already."""

    @overload
    def gram(self, x: np.ndarray, y: Array | None = None) -> np.ndarray: ...
    @overload
    def gram(self, x: torch.Tensor, y: Array | None = None) -> torch.Tensor: ...
    def gram(self, x: Array, y: Array | None = None) -> Array:
        """Return K(x, y), (n, m), or K(x, x), (n, n), in x's dtype and on x's device; NumPy or torch as x is.

        x: points, (n, features) or (n, channels, height, width). y: (m, …) with the same trailing shape, or None for x.
        The diagonal of K(x, x) equals `diagonal(x)` exactly. Raises ValueError where the shapes do not match or the
        kernel does not take such points, and NumericalError (diverged) where a parameter is too large or too small to
        compute with.
        """
        points = _points(x)
        others = None if y is None else _points(y).to(points)
        if others is not None and others.shape[1:] != points.shape[1:]:
            raise ValueError(f"points of shape {tuple(points.shape[1:])} and {tuple(others.shape[1:])} do not match")
        with self._computing(points, others):
            gram = self._gram(points, others)
            if others is None and self.fills_diagonal:
                gram.diagonal().copy_(self._diagonal(points))
        return in_kind(gram, x)

    @overload
    def diagonal(self, x: np.ndarray) -> np.ndarray: ...
    @overload
    def diagonal(self, x: torch.Tensor) -> torch.Tensor: ...
    def diagonal(self, x: Array) -> Array:
        """Return K(x_i, x_i) for each point of x, (n, …), as (n,) in x's dtype. Points and errors as for `gram`."""
        points = _points(x)
        with self._computing(points[:1], points):
            return in_kind(self._diagonal(points), x)

    def is_finite_at(self, x: torch.Tensor) -> bool:
        """Return whether K(x_i, x_i) is a finite number in x's dtype for each point of x, (n, …)."""
        return are_finite(self._diagonal(x))

    @overload
    def pullback(self, x: np.ndarray) -> tuple[np.ndarray, FlatPull[np.ndarray]]: ...
    @overload
    def pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, FlatPull[torch.Tensor]]: ...
    def pullback(self, x: Array) -> tuple[Array, FlatPull[Any]]:
        """Return K(x, x), (n, n), and the function that pulls a cotangent of K back. Points and errors as for `gram`.

        `pull(G)` returns the gradient of Σ_ij G_ij K_ij with respect to `flat`, (p,), a vector of its kind.
        `pull(G, inputs=True)` returns this gradient and the one with respect to x, in x's shape, dtype and kind. G,
        (n, n), counts both triangles and must be symmetric. `pull` raises ValueError where G has another shape.
        """
        points = _points(x)
        with self._computing(points):
            gram, pull = self._pullback(points)
            if self.fills_diagonal:
                gram.diagonal().copy_(self._diagonal(points))

        @overload
        def pull_back(cotangent: Cotangent, inputs: Literal[False] = False) -> Vector: ...
        @overload
        def pull_back(cotangent: Cotangent, inputs: Literal[True]) -> tuple[Vector, Array]: ...
        def pull_back(cotangent: Cotangent, inputs: bool = False) -> Vector | tuple[Vector, Array]:
            is_kept = isinstance(cotangent, OuterProducts) and isinstance(self, OfOuterProducts)
            given = cotangent if is_kept else as_matrix(cotangent, points)
            if given.shape != gram.shape:
                raise ValueError(f"the cotangent must be {tuple(gram.shape)}, as K(x, x), got {tuple(given.shape)}")
            with self._computing(points):
                by_name, to_inputs = pull(given, inputs)
            flat: Vector = self.flatten(by_name)
            return flat if to_inputs is None else (flat, in_kind(to_inputs.to(points.dtype), x))

        return in_kind(gram, x), pull_back

    def multiplications(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Return the approximate number of multiplications in K(x, y), which decides the number of threads.

        x: (n, …). y: (m, …). Infinite for a kernel that uses all threads for any number of points.
        """
        return float(len(x) * len(y) * (math.prod(x.shape[1:]) + _ENTRY))

    @contextmanager
    def _computing(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Iterator[None]:
        """A block with kfx's own process settings; overflow inside raises NumericalError (diverged)."""
        work = self.multiplications(x, x if y is None else y)
        try:
            with computing(work), np.errstate(all="ignore"):  # infinities and NaN show in the result
                yield
        except (OverflowError, ZeroDivisionError) as error:
            raise NumericalError(Event.DIVERGED, "its entries leave the range of float64") from error

    # ---- what the author of a kernel writes: functions of tensors, called while autograd does not record

    @abc.abstractmethod
    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """Return K(x, y), (n, m), or K(x, x), (n, n), where y is None: a new tensor in x's dtype and on x's device.

        x: (n, features) or (n, channels, height, width). y: (m, …). Both are floating, of one dtype and device. The
        diagonal of K(x, x) is overwritten by `_diagonal`. Raises ValueError for points of a shape that the kernel does
        not take, NumericalError where K cannot be computed; OverflowError and ZeroDivisionError are converted to it.
        """

    @abc.abstractmethod
    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        """Return K(x_i, x_i), (n,), in x's dtype and on x's device. x: (n, …). Errors as for `_gram`."""

    @abc.abstractmethod
    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        """Return K(x, x), (n, n), as `_gram` does, and a function of a cotangent G, see `Pull`.

        The function may be called several times. G is in x's dtype or float64. It returns a gradient for every
        parameter, trainable or not. A kernel without gradients with respect to its points raises ValueError for
        `inputs=True`, and its option sets `input_gradients = False`.
        """


_ENTRY = 20  # multiplications that an exponential or a similar function counts for


def as_matrix(cotangent: Cotangent, points: torch.Tensor) -> torch.Tensor:
    """Return a cotangent as a tensor, (n, n), on the points' device, in the wider of both dtypes. points: (n, …)."""
    matrix = as_dense(cotangent)
    return matrix.to(points.device, torch.promote_types(points.dtype, matrix.dtype))


def _points(x: Array) -> torch.Tensor:
    points = as_tensor(x)
    if points.ndim < 2:
        raise ValueError(f"points must be (n, features) or (n, channels, height, width), got {tuple(points.shape)}")
    return points
