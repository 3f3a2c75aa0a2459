"""Named parameters, and the flat vector of those that optimizers move."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from kfx.kernels.space import random_within
from kfx.numerics.arrays import Vector, as_kind, in_numpy

Value = float | Vector
Given = ArrayLike | torch.Tensor
"""A parameter as a person gives it: a number, an array or a sequence of numbers, or a block."""
Bounds = tuple[float, float]
ANYWHERE: Bounds = (-math.inf, math.inf)

NORM = ".norm"
"""Ends the name of a number that stands for an array."""
_MOST_SHOWN = 256


class Parameters:
    """What a kernel has: parameters by name, each a float, an array with one entry a layer or a mode, or a block, the
    torch tensor of a network's weights.

    A parameter is > 0, unless it is a variance or named in `may_be_zero`, then ≥ 0, or named in `signed`.

    Immutable: `with_parameters` and `with_flat` return another. `flat` is the vector of the *trainable* ones, in the
    order of `names`; `bounds` are theirs. Where a block is among them it is a tensor of the block's dtype, on its
    device, else float64 in NumPy. A subclass states `default_bounds` of every parameter, in order.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]]
    default_trainable: ClassVar[tuple[str, ...] | None] = None
    may_be_zero: frozenset[str] = frozenset()
    """Parameters that may be 0, beside those whose name ends in `variance`."""
    signed: frozenset[str] = frozenset()
    """Parameters that may be any number."""

    def __init__(
        self,
        values: Mapping[str, Given],
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
            if name not in self.signed and (low < 0 or (low == 0 and not self._takes_zero(name))):
                raise ValueError(f"{type(self).__name__}: bounds of {name} begin above 0, got {low:g}")
        self.trainable = tuple(name for name in self._values if name in set(chosen))

    @property
    def parameters(self) -> dict[str, Value]:
        """Every parameter by name: a float, an array, or a block."""
        return dict(self._values)

    @property
    def names(self) -> list[str]:
        """The entries of `flat`: `sigma`, or `weight_variance.0`, … for an array."""
        return [name for key in self.trainable for name in _entries(key, self._values[key])]

    @property
    def keys(self) -> list[str]:
        """The parameter that each entry of `flat` belongs to: `sigma`, or `weight_variance` for each of its entries."""
        return [key for key in self.trainable for _ in range(_size(self._values[key]))]

    @property
    def limits(self) -> dict[str, Bounds]:
        """The range in which an optimizer may move each parameter, by name."""
        return dict(self._bounds)

    @property
    def flat(self) -> Vector:
        """The trainable parameters as one vector."""
        return self.flatten(self._values)

    @property
    def bounds(self) -> np.ndarray:
        """(len(flat), 2): the range in which each entry of `flat` may move."""
        each = np.array([self._bounds[key] for key in self.trainable], dtype=np.float64).reshape(-1, 2)
        return each.repeat([_size(self._values[key]) for key in self.trainable], axis=0)

    def split(self, vector: Vector) -> dict[str, Value]:
        """Return the trainable parameters by name, from a vector like `flat`; ValueError for one of another length."""
        values: dict[str, Value] = {}
        size, start = sum(_size(self._values[key]) for key in self.trainable), 0
        if len(vector) != size:
            raise ValueError(f"expected {size} parameters ({', '.join(self.trainable)}), got {len(vector)}")
        for key in self.trainable:
            held = self._values[key]
            entry = vector[start : start + _size(held)]
            start += len(entry)
            if isinstance(held, torch.Tensor):
                values[key] = as_kind(entry, held).reshape(held.shape)
            elif isinstance(held, np.ndarray):
                values[key] = as_kind(entry, held).reshape(held.shape).copy()
            else:
                values[key] = float(entry[0])
        return values

    def with_flat(self, vector: Given) -> Self:
        """Return the same kernel with `flat` replaced by a vector (len(flat),); ValueError for another shape."""
        flat: Vector = vector.clone() if isinstance(vector, torch.Tensor) else np.asarray(vector, dtype=np.float64)
        if flat.ndim != 1:
            raise ValueError(f"expected a vector of parameters, got {tuple(flat.shape)}")
        return self._replaced(self.split(flat))

    def with_parameters(self, **values: Given) -> Self:
        """Return the same kernel with the named parameters replaced, trainable or not; ValueError for unknown names,
        numbers out of range and other shapes."""
        return self._replaced({self._require(name): self._checked(name, value) for name, value in values.items()})

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        """Return new values, by name, of parameters that the kernel draws itself, as a network's weights."""
        return {}

    def drawn(
        self, rng: np.random.Generator, ranges: Mapping[str, Bounds] | None = None, distribution: str = "log_uniform"
    ) -> Self:
        """The same kernel with its trainable parameters, and every block, drawn at random.

        ranges: of a parameter, or an entry of one, where it is not drawn as `fresh` does, or else within its bounds.
        """
        ranges = ranges or {}
        ranged = {key for key in self._values for name in ranges if name == key or name.startswith(f"{key}.")}
        own = {
            key: value
            for key, value in self.fresh(rng).items()
            if key not in ranged and (key in self.trainable or isinstance(value, torch.Tensor))
        }
        rest = [key for key in self.trainable if key not in own]
        box = [
            ranges.get(name, ranges.get(key, self._bounds[key]))
            for key in rest
            for name in _entries(key, self._values[key])
        ]
        if not np.isfinite(np.array(box)).all():
            raise ValueError(f"{type(self).__name__}: cannot be drawn without bounds; set kernel.initial_range")
        entries, values, start = random_within(np.array(box).reshape(-1, 2), rng, distribution), dict(own), 0
        for key in rest:
            held = self._values[key]
            entry, start = entries[start : start + _size(held)], start + _size(held)
            values[key] = float(entry[0]) if isinstance(held, float) else as_kind(entry, held).reshape(held.shape)
        return self._replaced(values)

    def with_fresh_blocks(self, rng: np.random.Generator) -> Self:
        """The same kernel with its blocks drawn at random, its other parameters as they are."""
        return self._replaced({key: value for key, value in self.fresh(rng).items() if isinstance(value, torch.Tensor)})

    def _replaced(self, values: Mapping[str, Value]) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._values = {**self._values, **values}
        return other

    def _require(self, name: str) -> str:
        if name not in self._values:
            raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(self._values)}")
        return name

    def _checked(self, name: str, value: Given) -> Value:
        held = self.__dict__.get("_values", {}).get(name)
        if isinstance(held, torch.Tensor) or (held is None and isinstance(value, torch.Tensor)):
            return self._block(name, value, held)
        array = np.asarray(in_numpy(value), dtype=np.float64)
        # A variance may be 0 (its bounds then start at 0); a length or an exponent may not.
        lowest_is_zero, signed = self._takes_zero(name), name in self.signed
        if not np.all(np.isfinite(array)) or not (signed or np.all(array >= 0 if lowest_is_zero else array > 0)):
            accepted = "a finite number" + ("" if signed else " >= 0" if lowest_is_zero else " > 0")
            raise ValueError(f"{type(self).__name__}: {name} takes {accepted}, got {array.tolist()!r}")
        return array.copy() if array.ndim else float(array)

    def _block(self, name: str, value: Given, held: torch.Tensor | None) -> torch.Tensor:
        """A copy of a block; one that takes another's place is like it."""
        block = (torch.as_tensor(value) if held is None else as_kind(value, held)).detach().clone()
        if held is not None and block.shape != held.shape:
            shapes = f"{tuple(held.shape)}, got {tuple(block.shape)}"
            raise ValueError(f"{type(self).__name__}: {name} takes an array of shape {shapes}")
        if not bool(torch.isfinite(block).all()):
            raise ValueError(f"{type(self).__name__}: {name} takes finite numbers")
        return block

    def _takes_zero(self, name: str) -> bool:
        return name.endswith("variance") or name in self.may_be_zero

    def _scalar(self, name: str) -> float:
        return float(self._values[name])

    def flatten(self, by_name: Mapping[str, Value]) -> Vector:
        """Return the trainable ones of values by name as one vector like `flat`."""
        chosen = [by_name[key] for key in self.trainable]
        if all(isinstance(value, float) for value in chosen):  # the usual case, in a tenth of the time
            return np.array(chosen, dtype=np.float64)
        if blocks := [value for value in chosen if isinstance(value, torch.Tensor)]:
            return torch.cat([as_kind(value, blocks[0]).reshape(-1) for value in chosen])
        return np.concatenate([np.asarray(value, dtype=np.float64).ravel() for value in chosen] or [np.zeros(0)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_short(value)}' for name, value in self._values.items())})"


def _size(value: Value) -> int:
    return 1 if isinstance(value, float) else int(math.prod(value.shape))


def _entries(name: str, value: Value) -> list[str]:
    return [name] if isinstance(value, float) else [f"{name}.{i}" for i in range(_size(value))]


def _short(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, np.ndarray) and value.size <= 8:
        return "[" + ", ".join(f"{v:.6g}" for v in value.ravel()) + "]"
    return f"{' × '.join(map(str, value.shape))} numbers"


def are_many(values: Mapping[str, Value]) -> bool:
    """Whether there are more numbers than a person looks at, or a table has columns for."""
    return sum(map(_size, values.values())) > _MOST_SHOWN


def flat_parameters(values: Mapping[str, Value]) -> dict[str, float]:
    """Parameters as numbers by name, the columns of tables: arrays spread out, one entry a number; where that would be
    more than a table has columns for, each array by its Euclidean norm, `name.norm`."""
    if not are_many(values):
        return {
            entry: float(number)
            for name, value in values.items()
            for entry, number in zip(_entries(name, value), np.atleast_1d(in_numpy(value)).ravel(), strict=True)
        }
    blocks = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    norms = torch.stack([block.norm() for block in blocks.values()]).tolist() if blocks else []  # one transfer for all
    of_blocks = dict(zip(blocks, norms, strict=True))
    shown: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, float):
            shown[name] = value
        else:
            shown[name + NORM] = of_blocks[name] if name in of_blocks else float(np.linalg.norm(value))
    return shown
