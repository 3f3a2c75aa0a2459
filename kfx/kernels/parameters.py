"""Named parameters, and the flat vector of those that optimizers move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np

Value = float | np.ndarray
Bounds = tuple[float, float]


class Parameters:
    """What a kernel has: parameters by name, each a float > 0, or an array with one entry a layer; a variance may be 0.

    Immutable: `with_parameters` and `with_flat` return another. `flat` is the vector of the *trainable* ones, in the
    order of `names`; `bounds` are theirs. A subclass states `default_bounds` of every parameter, in order.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]]
    default_trainable: ClassVar[tuple[str, ...] | None] = None
    may_be_zero: frozenset[str] = frozenset()
    """Parameters that may be 0, beside those whose name ends in `variance`."""

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
            if low < 0 or (low == 0 and not self._takes_zero(name)):
                raise ValueError(f"{type(self).__name__}: bounds of {name} begin above 0, got {low:g}")
        self.trainable = tuple(name for name in self._values if name in chosen)

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
        lowest_is_zero = self._takes_zero(name)
        if not np.all(np.isfinite(array)) or not np.all(array >= 0 if lowest_is_zero else array > 0):
            accepted = "a finite number >= 0" if lowest_is_zero else "a finite number > 0"
            raise ValueError(f"{type(self).__name__}: {name} takes {accepted}, got {array.tolist()!r}")
        return array.copy() if array.ndim else float(array)

    def _takes_zero(self, name: str) -> bool:
        return name.endswith("variance") or name in self.may_be_zero

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
