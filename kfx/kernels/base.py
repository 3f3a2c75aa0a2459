"""The base class of kernels; sums, products and multiples of kernels."""

from __future__ import annotations

import abc
import copy
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch

from kfx.kernels.covariance import Covariance, Pull
from kfx.kernels.parameters import Bounds, Given, Value
from kfx.numerics.arrays import as_kind
from kfx.numerics.regularization import Regularization

T = TypeVar("T")


class Kernel(Covariance):
    """A positive semidefinite function of two points, with named parameters.

    `gram`, `diagonal` and `pullback` are in `Covariance`, `with_parameters`, `flat` and `with_flat` in `Parameters`. A
    kernel is immutable: `with_parameters` and `with_flat` return a new one. `flat` is the vector of the
    *trainable* parameters, which optimizers move, in the order of `names`; `bounds` are their ranges.

    A subclass states `default_bounds`, with every parameter in order, and writes three methods on tensors: `_gram`,
    `_diagonal` and `_pullback`. For a formula that autograd can differentiate, use `Formula` instead. A parameter is a
    float, or an array with one entry for each layer, or a tensor of a network's weights. The methods below have
    defaults that fit a kernel without settings that depend on data, devices or other kernels.
    """

    def backend_at(self, x: torch.Tensor) -> str:
        """Return the name of the engine that computes the kernel at points like x, (n, …), which each run records."""
        return "torch"

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        """Do in advance the work that the first Gram matrix would do once, as compiling; nothing by default."""

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """Return the same kernel with its blocks, such as a network's weights, in a dtype and on a device."""
        return self

    def feature_map_and_kernel(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Kernel]:
        """Return a map f, from points (n, …) to (n, …), and a kernel k with K(x, x') = k(f(x), f(x')).

        Several Gram matrices of the same points can then share f(x). By default f is the identity and k this kernel.
        """
        return _as_they_are, self

    def require_good_on(self, x: torch.Tensor) -> None:
        """Raise ValueError where the kernel is not defined on points like x, a few points (n, …); never by default."""

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


@runtime_checkable
class Weighted(Protocol):
    """A kernel that is a weighted sum, whose weights a penalty can make zero."""

    weight_names: frozenset[str]
    """The parameters that are weights."""

    def proximal(self, values: Mapping[str, Value], amount: float) -> dict[str, Value]:
        """Return parameters by name after a step that lowers the sum of the weights by an amount."""


def _as_they_are(x: torch.Tensor) -> torch.Tensor:
    return x


class Composed(Kernel):
    """A kernel made of other kernels, its `parts`, whose parameters are parameters of its own.

    names: for each part, the names of its parameters and those that they have here; a parameter that is left out stays
    as it is. values: all parameters by their names here, in order.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {}

    def __init__(
        self,
        parts: Sequence[Kernel],
        names: Sequence[Mapping[str, str]],
        own: Mapping[str, Given],
        trainable: Iterable[str] | None,
        bounds: Mapping[str, Bounds] | None = None,
        *,
        signed: Iterable[str] = (),
        own_last: bool = False,
    ) -> None:
        self._made_of, self._names = tuple(parts), tuple(names)
        self._relabel()
        self.may_be_zero = frozenset(self._gathered(dict.fromkeys(part.may_be_zero) for part in parts))
        self.signed = frozenset(self._gathered(dict.fromkeys(part.signed) for part in parts)).union(signed)
        inner = self._gathered(part.parameters for part in parts)
        usual = [*own, *self._gathered(dict.fromkeys(part.trainable) for part in parts)]
        limits = self._gathered(part.limits for part in parts)
        super().__init__(
            {**inner, **own} if own_last else {**own, **inner},
            usual if trainable is None else trainable,
            {**limits, **(bounds or {})},
        )

    def _gathered(self, each: Iterable[Mapping[str, T]]) -> dict[str, T]:
        """Return values by their names here. each: for each part its values, by its own names."""
        return {names[k]: v for names, own in zip(self._names, each, strict=True) for k, v in own.items() if k in names}

    def _relabel(self) -> None:
        self.labels = self._gathered(part.labels for part in self._made_of)

    @property
    def parts(self) -> list[Kernel]:
        """The kernels that this one is made of, with the present parameters."""
        return [
            part._replaced({name: self._values[here] for name, here in names.items()})
            for part, names in zip(self._made_of, self._names, strict=True)
        ]

    def _with_parts(self, parts: Sequence[Kernel]) -> Self:
        other = self._replaced(self._gathered(part.parameters for part in parts))
        other._made_of = tuple(parts)
        other._relabel()
        return other

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        return self._gathered(part.fresh(rng) for part in self.parts)

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        moved = copy.copy(self)
        moved._made_of = tuple(part.to(dtype, device) for part in self._made_of)
        held = self._gathered(part.parameters for part in moved._made_of)
        blocks = {name: as_kind(self._values[name], v) for name, v in held.items() if isinstance(v, torch.Tensor)}
        return moved._replaced(blocks)

    def backend_at(self, x: torch.Tensor) -> str:
        return "+".join(sorted({part.backend_at(x) for part in self._made_of}))

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        for part in self._made_of:
            part.prepare(dtype, device)

    def multiplications(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return sum(part.multiplications(x, y) for part in self._made_of)


class Combination(Composed):
    """A kernel whose values are computed from those of its parts, entry by entry. It has their parameters, as
    `0.sigma`, `1.alpha`, …, with the same bounds; those trainable in the parts are trainable here. ValueError for parts
    that are no kernels."""

    def __init__(
        self,
        parts: Sequence[Kernel],
        own: Mapping[str, float] | None = None,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if not parts or not all(isinstance(part, Kernel) for part in parts):
            raise ValueError(f"{type(self).__name__} takes kernels, got {list(parts)!r}")
        names = [{name: f"{i}.{name}" for name in part.parameters} for i, part in enumerate(parts)]
        super().__init__(parts, names, own or {}, trainable, bounds)

    def fixed_on(self, x: torch.Tensor) -> Self:
        return self._with_each(lambda part: part.fixed_on(x))

    def for_features(self, count: int, names: Sequence[str] = ()) -> Self:
        return self._with_each(lambda part: part.for_features(count, names))

    def _with_each(self, change: Callable[[Kernel], Kernel]) -> Self:
        parts = self.parts
        changed = [change(part) for part in parts]
        return self if all(map(operator.is_, changed, parts)) else self._with_parts(changed)

    def require_good_on(self, x: torch.Tensor) -> None:
        for part in self.parts:
            part.require_good_on(x)

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
            named, moved = zip(*(each(part, inputs) for each, part in zip(pulls, cotangents, strict=True)), strict=True)
            by_name: dict[str, Value] = {**own, **self._gathered(named)}
            return by_name, sum(moved[1:], start=moved[0]) if inputs else None

        return self._combined(grams), pull


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
