"""Named parameters, and the flat vector of the trainable ones."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import ClassVar, Self, TypedDict

import numpy as np
import torch
from numpy.typing import ArrayLike

from kfx.kernels.names import NORM, OF_FEATURES
from kfx.kernels.space import random_within
from kfx.numerics.arrays import Vector, as_kind, in_numpy

Value = float | Vector
Given = ArrayLike | torch.Tensor
"""A parameter as a caller gives it: a number, an array or a sequence of numbers, or a tensor of weights."""
Bounds = tuple[float, float]
ANYWHERE: Bounds = (-math.inf, math.inf)

_MOST_SHOWN = 256


class Training(TypedDict, total=False):
    """Keywords of every kernel.

    trainable: names of the parameters that optimizers move; None for the usual ones. bounds: ranges that differ from
    the default ones, by the name of the parameter.
    """

    trainable: Iterable[str] | None
    bounds: Mapping[str, Bounds] | None


class Parameters:
    """A kernel's parameters by name: floats, arrays with one entry for each layer or mode, and blocks.

    A block is a torch tensor of a network's weights. A parameter is > 0; if it is a variance or named in
    `may_be_zero`, ≥ 0; if it is named in `signed`, any number.

    Immutable: `with_parameters` and `with_flat` return another object. `flat` is the vector of the *trainable*
    parameters in the order of `names`, and `bounds` are their ranges. `flat` is a tensor with the dtype and device of
    the blocks where some are trainable, else a float64 NumPy array. A subclass states `default_bounds` of every
    parameter, in order. Raises ValueError for values out of range, unknown names, and bounds that begin at 0 or
    below where a parameter must be > 0.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]]
    default_trainable: ClassVar[tuple[str, ...] | None] = None
    may_be_zero: frozenset[str] = frozenset()
    """Parameters that may be 0, in addition to those whose name ends in `variance`."""
    signed: frozenset[str] = frozenset()
    """Parameters that may be any number."""
    length: ClassVar[str | None] = None
    """The parameter that is the kernel's length, in the units of the points."""
    distance_norm: float = 2.0
    """The norm of the kernel's distance ‖x − x'‖, 1 or 2."""
    labels: Mapping[str, Sequence[str]] = {}
    """Names of the entries of an array, as those of features; the entries of other arrays are numbered."""

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
        for name, (low, high) in self._bounds.items():
            if not low <= high:
                raise ValueError(f"{type(self).__name__}: bounds of {name} must rise, got {low:g} and {high:g}")
            if name not in self.signed and (low < 0 or (low == 0 and not self._takes_zero(name))):
                raise ValueError(f"{type(self).__name__}: bounds of {name} must begin above 0, got {low:g}")
        self.trainable = tuple(name for name in self._values if name in set(chosen))

    @property
    def parameters(self) -> dict[str, Value]:
        """Every parameter by name: a float, an array, or a block."""
        return dict(self._values)

    @property
    def names(self) -> list[str]:
        """The name of each entry of `flat`: `sigma`, or `weight_variance.0`, … for an array."""
        return [name for key in self.trainable for name in self._entries(key)]

    @property
    def shown(self) -> dict[str, float]:
        """Every parameter as numbers by name, for the columns of tables.

        Each entry of an array gets a column. Where there are too many entries, each array has one column, its Euclidean
        norm, `name.norm`.
        """
        if self.are_many:
            return _norms(self._values)
        return {
            entry: float(number)
            for name, value in self._values.items()
            for entry, number in zip(self._entries(name), np.atleast_1d(in_numpy(value)).ravel(), strict=True)
        }

    @property
    def are_many(self) -> bool:
        """Whether there are too many numbers for a reader or for the columns of a table."""
        return sum(map(_size, self._values.values())) > _MOST_SHOWN

    @property
    def keys(self) -> list[str]:
        """The parameter that each entry of `flat` belongs to: `sigma`, or `weight_variance` for each of its entries."""
        return [key for key in self.trainable for _ in range(_size(self._values[key]))]

    @property
    def limits(self) -> dict[str, Bounds]:
        """The range of each parameter in optimization, by name."""
        return dict(self._bounds)

    @property
    def flat(self) -> Vector:
        """The trainable parameters as one vector, (p,)."""
        return self.flatten(self._values)

    @property
    def bounds(self) -> np.ndarray:
        """The range of each entry of `flat` in optimization, (p, 2)."""
        each = np.array([self._bounds[key] for key in self.trainable], dtype=np.float64).reshape(-1, 2)
        return each.repeat([_size(self._values[key]) for key in self.trainable], axis=0)

    def split(self, vector: Vector) -> dict[str, Value]:
        """Return the trainable parameters by name. vector: like `flat`, (p,). Raises ValueError for another length."""
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
        """Return the same kernel with `flat` replaced. vector: (p,). Raises ValueError for another shape."""
        flat: Vector = vector.clone() if isinstance(vector, torch.Tensor) else np.asarray(vector, dtype=np.float64)
        if flat.ndim != 1:
            raise ValueError(f"expected a vector of parameters, got {tuple(flat.shape)}")
        return self._replaced(self.split(flat))

    def with_parameters(self, **values: Given) -> Self:
        """Return the same kernel with the named parameters replaced, trainable or not.

        values: numbers, or arrays in the shapes of the parameters, as (layers,). Raises ValueError for unknown names,
        numbers out of range and blocks of another shape.
        """
        return self._replaced({self._require(name): self._checked(name, value) for name, value in values.items()})

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        """Return new random values, by name, of parameters with a distribution of their own, as a network's weights."""
        return {}

    def drawn(
        self,
        rng: np.random.Generator,
        ranges: Mapping[str, Bounds] | None = None,
        distribution: str = "log_uniform",
        *,
        in_ranges_only: bool = False,
    ) -> Self:
        """Return the same kernel with random trainable parameters and blocks.

        ranges: by the name of a parameter or of an entry; others are drawn by `fresh`, or else within their bounds, or
            with in_ranges_only stay as they are.
        Raises ValueError where a range is infinite.
        """
        ranges = ranges or {}
        ranged = {key for key in self._values for name in ranges if name == key or name.startswith(f"{key}.")}
        own = {
            key: value
            for key, value in ({} if in_ranges_only else self.fresh(rng)).items()
            if key not in ranged and (key in self.trainable or isinstance(value, torch.Tensor))
        }
        rest = [key for key in self.trainable if key not in own and (key in ranged or not in_ranges_only)]
        box = [ranges.get(name, ranges.get(key, self._bounds[key])) for key in rest for name in self._entries(key)]
        if not np.isfinite(np.array(box)).all():
            raise ValueError(f"{type(self).__name__}: cannot be drawn without bounds; set kernel.initial_range")
        entries, values, start = random_within(np.array(box).reshape(-1, 2), rng, distribution), dict(own), 0
        for key in rest:
            held = self._values[key]
            entry, start = entries[start : start + _size(held)], start + _size(held)
            values[key] = float(entry[0]) if isinstance(held, float) else as_kind(entry, held).reshape(held.shape)
        return self._replaced(values)

    def with_fresh_blocks(self, rng: np.random.Generator) -> Self:
        """Return the same kernel with random blocks and unchanged other parameters."""
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
        if held is not None and array.shape != np.shape(held) and name.rpartition(".")[2] not in OF_FEATURES:
            shapes = f"an array of shape {np.shape(held)}" if np.ndim(held) else "a number"
            raise ValueError(f"{type(self).__name__}: {name} takes {shapes}, got {array.tolist()!r}")
        # A variance may be 0 (its bounds then start at 0); a length or an exponent may not.
        lowest_is_zero, signed = self._takes_zero(name), name in self.signed
        if not np.all(np.isfinite(array)) or not (signed or np.all(array >= 0 if lowest_is_zero else array > 0)):
            accepted = "a finite number" + ("" if signed else " >= 0" if lowest_is_zero else " > 0")
            raise ValueError(f"{type(self).__name__}: {name} takes {accepted}, got {array.tolist()!r}")
        return array.copy() if array.ndim else float(array)

    def _block(self, name: str, value: Given, held: torch.Tensor | None) -> torch.Tensor:
        """Return a copy of a block, in the dtype and on the device of the block that it replaces."""
        block = (torch.as_tensor(value) if held is None else as_kind(value, held)).detach().clone()
        if held is not None and block.shape != held.shape:
            shapes = f"{tuple(held.shape)}, got {tuple(block.shape)}"
            raise ValueError(f"{type(self).__name__}: {name} takes an array of shape {shapes}")
        if not bool(torch.isfinite(block).all()):
            raise ValueError(f"{type(self).__name__}: {name} takes finite numbers")
        return block

    def _entries(self, name: str) -> list[str]:
        value = self._values[name]
        if isinstance(value, float):
            return [name]
        return [f"{name}.{label}" for label in self.labels.get(name) or range(_size(value))]

    def training(self, names: Container[str]) -> Self:
        """Return the same kernel, of whose trainable parameters only these are trained."""
        other = self._replaced({})
        other.trainable = tuple(name for name in self.trainable if name in names)
        return other

    def with_limits(self, **limits: Bounds) -> Self:
        """Return the same kernel with other ranges of parameters, (low, high) by name."""
        other = self._replaced({})
        other._bounds = {**self._bounds, **limits}
        return other

    def _takes_zero(self, name: str) -> bool:
        return name.endswith("variance") or name in self.may_be_zero

    def _scalar(self, name: str) -> float:
        return float(self._values[name])

    def _as_tensors(self, x: torch.Tensor, gradient: bool = False) -> dict[str, torch.Tensor]:
        """Return all parameters by name as tensors of x's dtype on its device, which autograd follows if asked."""
        return {
            name: torch.tensor(value, dtype=x.dtype, device=x.device, requires_grad=gradient)
            for name, value in self._values.items()
        }

    def flatten(self, by_name: Mapping[str, Value]) -> Vector:
        """Return the trainable ones among values by name as one vector like `flat`, (p,)."""
        chosen = [by_name[key] for key in self.trainable]
        if all(isinstance(value, float) for value in chosen):  # the usual case, ten times faster
            return np.array(chosen, dtype=np.float64)
        if blocks := [value for value in chosen if isinstance(value, torch.Tensor)]:
            return torch.cat([as_kind(value, blocks[0]).reshape(-1) for value in chosen])
        return np.concatenate([np.asarray(value, dtype=np.float64).ravel() for value in chosen] or [np.zeros(0)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_short(value)}' for name, value in self._values.items())})"


def _size(value: Value) -> int:
    return 1 if isinstance(value, float) else int(math.prod(value.shape))


def _short(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, np.ndarray) and value.size <= 8:
        return "[" + ", ".join(f"{v:.6g}" for v in value.ravel()) + "]"
    return f"{' × '.join(map(str, value.shape))} numbers"


def _norms(values: Mapping[str, Value]) -> dict[str, float]:
    """Return numbers, and the Euclidean norms of arrays and blocks, by name."""
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
