"""The protocol of a kernel: its parameters, its Gram matrix, and the pullback of a cotangent."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
import torch

from kfx.numerics.arrays import Array, as_tensor, in_kind
from kfx.numerics.regularization import Regularization
from kfx.outcomes import Event, NumericalError

Value = float | np.ndarray
Bounds = tuple[float, float]


Pull = Callable[[torch.Tensor, bool], tuple[Mapping[str, Any], torch.Tensor | None]]
"""`pull(G, inputs)`: the gradients of Σ_ij G_ij Θ_ij by parameter name, floats or arrays, and to the points, in x's
shape, where `inputs` asks for it; None otherwise. G, (n, n), is symmetric, counts both triangles, is on x's device."""


class Kernel(abc.ABC):
    """A positive semidefinite function of two points, with named parameters.

    A kernel is immutable: `with_parameters` and `with_flat` return a new one. `flat` is the vector of the
    *trainable* parameters that optimizers move, in the order of `names`; `bounds` are theirs.

    A subclass states `default_bounds` (every parameter, in order) and writes three methods on tensors: `_gram`,
    `_diagonal` and `_pullback`; or, for a formula that autograd is to differentiate, is a `Formula`. A parameter is a
    float, or an array when it has one entry a layer.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]]
    default_trainable: ClassVar[tuple[str, ...] | None] = None

    def __init__(
        self,
        values: Mapping[str, float | Iterable[float]],
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        self._values: dict[str, Value] = {name: self._checked(name, value) for name, value in values.items()}
        chosen = tuple(trainable if trainable is not None else self.default_trainable or self._values)
        given = {name: (float(low), float(high)) for name, (low, high) in (bounds or {}).items()}
        self._bounds: dict[str, Bounds] = {**self.default_bounds, **given}
        for name in (*chosen, *self._bounds):
            self._require(name)
        for name, (low, _) in self._bounds.items():
            if low <= 0 and not name.endswith("variance"):
                raise ValueError(f"{type(self).__name__}: bounds of {name} begin above 0, got {low:g}")
        self.trainable = tuple(name for name in self._values if name in chosen)

    def backend_on(self, device: torch.device) -> str:
        """What computes it there; recorded with each run."""
        return "torch"

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:  # noqa: B027
        """Do beforehand what the first Gram matrix would otherwise do once, as compiling. Most have nothing to do."""

    @property
    def own_regularization(self) -> Regularization | None:
        """The λ that the kernel brings along, where it brings one: objectives and evaluation then take that."""
        return None

    # ---- algebra: what is trainable in the parts is trainable in the whole

    def __add__(self, other: Kernel) -> Kernel:
        from kfx.kernels.combination import Sum

        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum([part for side in (self, other) for part in (side.parts if isinstance(side, Sum) else [side])])

    def __mul__(self, other: Kernel | float) -> Kernel:
        from kfx.kernels.combination import Product, Scaled

        if isinstance(other, (int, float)):
            if not other > 0:
                raise ValueError(f"a kernel times a number takes one > 0, got {other!r}")
            return Scaled(self, math.sqrt(other))
        if not isinstance(other, Kernel):
            return NotImplemented
        return Product(
            [part for side in (self, other) for part in (side.parts if isinstance(side, Product) else [side])]
        )

    __rmul__ = __mul__

    # ---- parameters

    @property
    def parameters(self) -> dict[str, Value]:
        """Every parameter by name: a float, or an array with one entry a layer."""
        return dict(self._values)

    @property
    def names(self) -> list[str]:
        """The entries of `flat`: `sigma`, or `weight_variance.0`, … for an array."""
        return [name for key in self.trainable for name in _entries(key, self._values[key])]

    @property
    def keys(self) -> list[str]:
        """The parameter that each entry of `flat` belongs to: `sigma`, or `weight_variance` for each of its entries."""
        return [key for key in self.trainable for _ in _entries(key, self._values[key])]

    @property
    def limits(self) -> dict[str, Bounds]:
        """The range in which an optimizer may move each parameter, by name."""
        return dict(self._bounds)

    @property
    def flat(self) -> np.ndarray:
        """The trainable parameters as one float64 vector."""
        return self._flatten(self._values)

    @property
    def bounds(self) -> np.ndarray:
        """(len(flat), 2): the range in which each entry of `flat` may move."""
        return np.array([self._bounds[key] for key in self.trainable for _ in range(np.size(self._values[key]))])

    def with_flat(self, vector: Iterable[float]) -> Self:
        """The same kernel with `flat` replaced."""
        vector = np.asarray(vector, dtype=np.float64)
        if vector.shape != (len(self.names),):
            raise ValueError(f"expected {len(self.names)} parameters ({', '.join(self.names)}), got {vector.shape}")
        values, start = {}, 0
        for key in self.trainable:
            size = np.size(self._values[key])
            entry = vector[start : start + size]
            values[key] = entry.copy() if isinstance(self._values[key], np.ndarray) else float(entry[0])
            start += size
        return self._replaced(values)

    def with_parameters(self, **values: float | Iterable[float]) -> Self:
        """The same kernel with the named parameters replaced, trainable or not."""
        return self._replaced({self._require(name): self._checked(name, value) for name, value in values.items()})

    def _replaced(self, values: Mapping[str, Value]) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._values = {**self._values, **values}
        return other

    def _require(self, name: str) -> str:
        if name not in self._values:
            raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(self._values)}")
        return name

    def _checked(self, name: str, value: float | Iterable[float]) -> Value:
        array = np.asarray(value, dtype=np.float64)
        # A variance may be 0 (its bounds then start at 0); a length or an exponent may not.
        lowest_is_zero = name.endswith("variance")
        if not np.all(np.isfinite(array)) or not np.all(array >= 0 if lowest_is_zero else array > 0):
            accepted = "a finite number >= 0" if lowest_is_zero else "a finite number > 0"
            raise ValueError(f"{type(self).__name__}: {name} takes {accepted}, got {array.tolist()!r}")
        return array.copy() if array.ndim else float(array)

    def _scalar(self, name: str) -> float:
        return float(self._values[name])

    def _flatten(self, by_name: Mapping[str, Any]) -> np.ndarray:
        chosen = [by_name[key] for key in self.trainable]
        if all(isinstance(value, float) for value in chosen):  # the usual case, in a tenth of the time
            return np.array(chosen, dtype=np.float64)
        parts = [np.atleast_1d(np.asarray(value, dtype=np.float64)) for value in chosen]
        return np.concatenate(parts) if parts else np.zeros(0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={_short(v)}' for k, v in self._values.items())})"

    # ---- Gram matrices

    def gram(self, x: Array, y: Array | None = None) -> Any:
        """K(x, y), (len(x), len(y)), or K(x, x), in x's dtype, on x's device; NumPy or torch as x is.

        The diagonal of K(x, x) equals `diagonal(x)` exactly.
        """
        points = _points(x)
        others = None if y is None else _points(y).to(points)
        if others is not None and others.shape[1:] != points.shape[1:]:
            raise ValueError(f"points of shape {tuple(points.shape[1:])} and {tuple(others.shape[1:])} do not match")
        with self._within_numbers():
            gram = self._gram(points, others)
            if others is None:
                gram.diagonal().copy_(self._diagonal(points))
        return in_kind(gram, x)

    def diagonal(self, x: Array) -> Any:
        """K(x_i, x_i) for each point, (len(x),)."""
        return in_kind(self._diagonal(_points(x)), x)

    def pullback(self, x: Array) -> tuple[Any, Any]:
        """K(x, x) and the function that pulls a cotangent of it back.

        `pull(G)` gives the gradient of Σ_ij G_ij K_ij to `flat`, a float64 vector; `pull(G, inputs=True)` gives
        the pair of that and the gradient to x, in x's shape. G counts both triangles and must be symmetric.
        """
        points = _points(x)
        with self._within_numbers():
            gram, pull = self._pullback(points)
            gram.diagonal().copy_(self._diagonal(points))

        def pull_back(cotangent: Array, inputs: bool = False) -> Any:
            given = as_tensor(cotangent)
            given = given.to(points.device, torch.promote_types(points.dtype, given.dtype))
            with self._within_numbers():
                by_name, to_inputs = pull(given, inputs)
            flat = self._flatten(by_name)
            return flat if to_inputs is None else (flat, in_kind(to_inputs.to(points.dtype), x))

        return in_kind(gram, x), pull_back

    @contextmanager
    def _within_numbers(self) -> Iterator[None]:
        """NumericalError (diverged) where a parameter is too large or too small to compute with."""
        try:
            yield
        except (OverflowError, ZeroDivisionError) as error:
            raise NumericalError(Event.DIVERGED, "its entries leave the range of float64") from error

    # ---- what the author of a kernel writes: on tensors, without gradients being recorded

    @abc.abstractmethod
    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """K(x, y), or K(x, x) where y is None: a new tensor (len(x), len(y)), in x's dtype and on x's device.

        x, y: (n, features) or (n, channels, height, width), floating, of one dtype and device. The diagonal of K(x, x)
        is overwritten by `_diagonal`. ValueError for points of a shape that the kernel does not take; NumericalError
        where it cannot be computed; OverflowError and ZeroDivisionError become one.
        """

    @abc.abstractmethod
    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        """K(x_i, x_i), (len(x),), in x's dtype and on x's device. Errors as `_gram`."""

    @abc.abstractmethod
    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        """K(x, x), as `_gram` gives it, and a function of a cotangent G, see `Pull`, that may be called several times.

        G comes in x's dtype or float64. What is kept between the two is the kernel's affair; a gradient for each
        parameter is given, trainable or not. A kernel without gradients to its points raises ValueError for
        `inputs=True`, and its option says `input_gradients = False`.
        """


def _points(x: Array) -> torch.Tensor:
    points = as_tensor(x)
    if points.ndim < 2:
        raise ValueError(f"points must be (n, features) or (n, channels, height, width), got {tuple(points.shape)}")
    return points


def _entries(name: str, value: Value) -> list[str]:
    return [f"{name}.{i}" for i in range(np.size(value))] if isinstance(value, np.ndarray) else [name]


def _short(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "[" + ", ".join(f"{v:.6g}" for v in value) + "]"


def flat_parameters(values: Mapping[str, Value]) -> dict[str, float]:
    """Parameters with arrays spread out, one entry a scalar: the columns of the trace."""
    return {
        entry: float(number)
        for name, value in values.items()
        for entry, number in zip(_entries(name, value), np.atleast_1d(value), strict=True)
    }
