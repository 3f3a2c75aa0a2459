"""The base class of kernels, with Gram matrices and their pullback; sums, products and multiples of kernels."""

from __future__ import annotations

import abc
import copy
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, overload

import numpy as np
import torch

from kfx.config.plugins import Portable
from kfx.kernels.parameters import Bounds, Parameters, Value
from kfx.kernels.prediction import Prediction
from kfx.numerics.arrays import Array, Vector, are_finite, as_kind, as_tensor, in_kind
from kfx.numerics.outer_products import OuterProducts
from kfx.numerics.process import computing
from kfx.numerics.regularization import Regularization
from kfx.outcomes import Event, NumericalError

Pull = Callable[[Any, bool], tuple[Mapping[str, Value], torch.Tensor | None]]
"""`pull(G, inputs)` returns the gradients of Σ_ij G_ij Θ_ij with respect to each parameter, by name, and with respect
to the points, in x's shape, or None without `inputs`. G, (n, n), is symmetric, counts both triangles and is on x's
device; it is a tensor, or `OuterProducts` where the kernel `takes_outer_products`."""
Cotangent = Array | OuterProducts
"""G, (n, n), symmetric, with the derivative Σ_ij G_ij dK_ij over both triangles."""
A_co = TypeVar("A_co", np.ndarray, torch.Tensor, covariant=True)


class PullBack(Protocol[A_co]):
    """The function that `Kernel.pullback` returns with the Gram matrix: maps a cotangent, (n, n), to gradients."""

    @overload
    def __call__(self, cotangent: Cotangent, inputs: Literal[False] = False) -> Vector: ...
    @overload
    def __call__(self, cotangent: Cotangent, inputs: Literal[True]) -> tuple[Vector, A_co]: ...


SmallPullback = tuple[np.ndarray, Callable[[OuterProducts, bool], tuple[Mapping[str, Value], np.ndarray | None]]]
"""K(x, x), (n, n), and its pullback, in NumPy; see `Kernel.small_pullback`."""


class Kernel(Portable, Parameters, abc.ABC):
    """A positive semidefinite function of two points, with named parameters.

    A kernel is immutable: `with_parameters` and `with_flat` return a new one. `flat` is the vector of the
    *trainable* parameters, which optimizers move, in the order of `names`; `bounds` are their ranges.

    A subclass states `default_bounds`, with every parameter in order, and writes three methods on tensors: `_gram`,
    `_diagonal` and `_pullback`. For a formula that autograd can differentiate, use `Formula` instead. A parameter is a
    float, or an array with one entry for each layer, or a tensor of a network's weights.
    """

    takes_outer_products: ClassVar[bool] = False
    """Whether the pullback accepts a cotangent as a sum of outer products."""
    weight_names: frozenset[str] = frozenset()
    """Parameters that are weights of a sum, which a `proximal` step can make zero."""

    def proximal(self, values: Mapping[str, Value], amount: float) -> dict[str, Value]:
        """Return parameters by name after a step that lowers the sum of the kernel's weights; unchanged by default."""
        return dict(values)

    def backend_on(self, device: torch.device) -> str:
        """Return the name of the engine that computes the kernel on a device, which each run records."""
        return "torch"

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        """Do in advance the work that the first Gram matrix would do once, as compiling; nothing by default."""

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """Return the same kernel with its blocks, such as a network's weights, in a dtype and on a device."""
        return self

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features that the kernel compares: a network's, (n, features), or x itself. x: points, (n, …)."""
        return x

    def feature_map_and_kernel(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Kernel]:
        """Return a map f, from points (n, …) to (n, …), and a kernel k with K(x, x') = k(f(x), f(x')).

        Several Gram matrices of the same points can then share f(x). By default f is the identity and k this kernel.
        """
        return _as_they_are, self

    def small_pullback(self, x: torch.Tensor) -> SmallPullback | None:
        """Return K(x, x), (n, n), and its pullback in NumPy for a small batch; None for kernels without this fast path.

        x: (n, …). The pullback takes `OuterProducts`, (n, n), and `inputs`; it returns the gradients by parameter name,
        and with respect to the points as rows, (n, features), or None without `inputs`.
        """
        return None

    def require_good_on(self, x: torch.Tensor) -> None:
        """Raise ValueError where the kernel is not defined on points like x, a few points (n, …); never by default."""

    def inner_grams(self, x: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """Yield the name and the Gram matrix, (n, n), of each of the kernel's layers; none by default. x: (n, …)."""
        return ()

    def predict(self, x: torch.Tensor) -> Prediction | None:
        """Return the predictions of the kernel's own head at points x, (n, …); None for a kernel without a head."""
        return None

    def for_features(self, count: int, names: Sequence[str] = ()) -> Self:
        """Return the kernel with an entry for each of `count` features where a parameter has one, as lengths of ARD.

        names: of the features. By default no parameter has, and the kernel itself is returned.
        """
        return self

    def fixed_on(self, x: torch.Tensor) -> Self:
        """Return the kernel with data-dependent settings, such as a length, fixed from points x, (n, …).

        By default there are none, and the kernel itself is returned.
        """
        return self

    @property
    def own_regularization(self) -> Regularization | None:
        """The kernel's own λ, which objectives and evaluation use instead of the configured one; None by default."""
        return None

    # ---- algebra: trainable parameters of the parts stay trainable

    def __add__(self, other: Kernel) -> Kernel:
        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum([part for side in (self, other) for part in (side.parts if isinstance(side, Sum) else [side])])

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, (int, float)):
            if not other > 0:
                raise ValueError(f"a kernel can be multiplied by a number > 0, got {other!r}")
            return Scaled(self, math.sqrt(other))
        if not isinstance(other, Kernel):
            return NotImplemented
        return Product(
            [part for side in (self, other) for part in (side.parts if isinstance(side, Product) else [side])]
        )

    __rmul__ = __mul__

    # ---- Gram matrices

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
            if others is None:
                self._fill_diagonal(gram, points)
        return in_kind(gram, x)

    def against(self, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function x ↦ K(x, y), (n, m), for many calls with a few points x, (n, …). y: (m, …)."""
        return lambda x: self.gram(x, y)

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
        """Return whether K(x_i, x_i) is a finite number for each point of x, (n, …)."""
        return are_finite(self._diagonal(x))

    @overload
    def pullback(self, x: np.ndarray) -> tuple[np.ndarray, PullBack[np.ndarray]]: ...
    @overload
    def pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, PullBack[torch.Tensor]]: ...
    def pullback(self, x: Array) -> tuple[Array, PullBack[Any]]:
        """Return K(x, x), (n, n), and the function that pulls a cotangent of K back. Points and errors as for `gram`.

        `pull(G)` returns the gradient of Σ_ij G_ij K_ij with respect to `flat`, (p,), a vector of its kind.
        `pull(G, inputs=True)` returns this gradient and the one with respect to x, in x's shape, dtype and kind. G,
        (n, n), counts both triangles and must be symmetric. `pull` raises ValueError where G has another shape.
        """
        points = _points(x)
        with self._computing(points):
            gram, pull = self._pullback(points)
            self._fill_diagonal(gram, points)

        @overload
        def pull_back(cotangent: Cotangent, inputs: Literal[False] = False) -> Vector: ...
        @overload
        def pull_back(cotangent: Cotangent, inputs: Literal[True]) -> tuple[Vector, Array]: ...
        def pull_back(cotangent: Cotangent, inputs: bool = False) -> Vector | tuple[Vector, Array]:
            if isinstance(cotangent, OuterProducts) and not self.takes_outer_products:
                cotangent = cotangent.dense()
            given = cotangent if isinstance(cotangent, OuterProducts) else as_tensor(cotangent)
            if given.shape != gram.shape:
                raise ValueError(f"the cotangent must be {tuple(gram.shape)}, as K(x, x), got {tuple(given.shape)}")
            if isinstance(given, torch.Tensor):
                given = given.to(points.device, torch.promote_types(points.dtype, given.dtype))
            with self._computing(points):
                by_name, to_inputs = pull(given, inputs)
            flat: Vector = self.flatten(by_name)
            return flat if to_inputs is None else (flat, in_kind(to_inputs.to(points.dtype), x))

        return in_kind(gram, x), pull_back

    def _fill_diagonal(self, gram: torch.Tensor, x: torch.Tensor) -> None:
        gram.diagonal().copy_(self._diagonal(x))

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


def _as_they_are(x: torch.Tensor) -> torch.Tensor:
    return x


def _points(x: Array) -> torch.Tensor:
    points = as_tensor(x)
    if points.ndim < 2:
        raise ValueError(f"points must be (n, features) or (n, channels, height, width), got {tuple(points.shape)}")
    return points


# ---- sums, products and multiples


class Combination(Kernel):
    """A kernel that combines `parts`. It has their parameters, as `0.sigma`, `1.alpha`, …, with the same bounds; those
    trainable in the parts are trainable here."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = {}

    def __init__(
        self,
        parts: Sequence[Kernel],
        own: Mapping[str, float] | None = None,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if not parts or not all(isinstance(part, Kernel) for part in parts):
            raise ValueError(f"{type(self).__name__} takes kernels, got {list(parts)!r}")
        self._made_of, self.labels = tuple(parts), _labels(parts)
        self.may_be_zero = frozenset(f"{i}.{name}" for i, part in enumerate(parts) for name in part.may_be_zero)
        self.signed = frozenset(f"{i}.{name}" for i, part in enumerate(parts) for name in part.signed)
        values: dict[str, Value] = dict(own or {})
        inherited: dict[str, Bounds] = {}
        usual = list(values)
        for i, part in enumerate(parts):
            values |= {f"{i}.{name}": value for name, value in part.parameters.items()}
            inherited |= {f"{i}.{name}": bound for name, bound in part.limits.items()}
            usual += [f"{i}.{name}" for name in part.trainable]
        super().__init__(values, usual if trainable is None else trainable, {**inherited, **(bounds or {})})

    @property
    def parts(self) -> list[Kernel]:
        """The combined kernels, with the present parameters."""
        return [
            part._replaced({name: self._values[f"{i}.{name}"] for name in part.parameters})
            for i, part in enumerate(self._made_of)
        ]

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        return {f"{i}.{name}": value for i, part in enumerate(self.parts) for name, value in part.fresh(rng).items()}

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        moved = copy.copy(self)
        moved._made_of = tuple(part.to(dtype, device) for part in self._made_of)
        blocks = {
            f"{i}.{name}": as_kind(self._values[f"{i}.{name}"], value)
            for i, part in enumerate(moved._made_of)
            for name, value in part.parameters.items()
            if isinstance(value, torch.Tensor)
        }
        return moved._replaced(blocks)

    def fixed_on(self, x: torch.Tensor) -> Self:
        return self._with_each(lambda part: part.fixed_on(x))

    def for_features(self, count: int, names: Sequence[str] = ()) -> Self:
        return self._with_each(lambda part: part.for_features(count, names))

    def _with_each(self, change: Callable[[Kernel], Kernel]) -> Self:
        parts = self.parts
        changed = [change(part) for part in parts]
        if all(map(operator.is_, changed, parts)):
            return self
        other = self._replaced({f"{i}.{k}": v for i, part in enumerate(changed) for k, v in part.parameters.items()})
        other._made_of, other.labels = tuple(changed), _labels(changed)
        return other

    def require_good_on(self, x: torch.Tensor) -> None:
        for part in self.parts:
            part.require_good_on(x)

    def backend_on(self, device: torch.device) -> str:
        return "+".join(sorted({part.backend_on(device) for part in self._made_of}))

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        for part in self._made_of:
            part.prepare(dtype, device)

    def multiplications(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return sum(part.multiplications(x, y) for part in self._made_of)

    @abc.abstractmethod
    def _combined(self, each: list[torch.Tensor]) -> torch.Tensor:
        """Return this kernel's values from those of the parts, entry by entry."""

    @abc.abstractmethod
    def _cotangents(
        self, cotangent: torch.Tensor, grams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        """Return the cotangents of the parts' Gram matrices, (n, n), and the gradients of own parameters by name."""

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self._combined([part._gram(x, y) for part in self.parts])

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self._combined([part._diagonal(x) for part in self.parts])

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        grams, pulls = map(list, zip(*(part._pullback(x) for part in self.parts), strict=True))
        for gram, part in zip(grams, self.parts, strict=True):
            gram.diagonal().copy_(part._diagonal(x))

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            cotangents, own = self._cotangents(cotangent, grams)
            by_name: dict[str, Value] = dict(own)
            to_inputs: torch.Tensor | None = None
            for i, (pull_part, part) in enumerate(zip(pulls, cotangents, strict=True)):
                named, moved = pull_part(part, inputs)
                by_name |= {f"{i}.{name}": value for name, value in named.items()}
                if moved is not None:
                    to_inputs = moved if to_inputs is None else to_inputs + moved
            return by_name, to_inputs

        return self._combined(grams), pull


def _labels(parts: Sequence[Kernel]) -> dict[str, Sequence[str]]:
    return {f"{i}.{name}": labels for i, part in enumerate(parts) for name, labels in part.labels.items()}


class Sum(Combination):
    """Σ_i K_i."""

    def _combined(self, each: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(each).sum(dim=0) if len(each) > 2 else each[0] + each[-1] if len(each) == 2 else each[0]

    def _cotangents(
        self, cotangent: torch.Tensor, grams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        return [cotangent] * len(grams), {}


class Product(Combination):
    """Π_i K_i, entry by entry."""

    def _combined(self, each: list[torch.Tensor]) -> torch.Tensor:
        return math.prod(each[1:], start=each[0])

    def _cotangents(
        self, cotangent: torch.Tensor, grams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        others = [math.prod(grams[:i] + grams[i + 1 :], start=cotangent) for i in range(len(grams))]
        return others, {}


class Scaled(Combination):
    """c² K, where c > 0 is `coefficient`; the square keeps the kernel positive (Darcy 2020, §4.3)."""

    def __init__(
        self,
        kernel: Kernel,
        coefficient: float = 1.0,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        given = {"coefficient": (1e-4, 1e4), **(bounds or {})}
        super().__init__([kernel], {"coefficient": coefficient}, trainable, given)

    def _combined(self, each: list[torch.Tensor]) -> torch.Tensor:
        return each[0] * self._scalar("coefficient") ** 2

    def _cotangents(
        self, cotangent: torch.Tensor, grams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        c = self._scalar("coefficient")
        return [cotangent * c**2], {"coefficient": 2 * c * float((cotangent * grams[0]).sum())}
