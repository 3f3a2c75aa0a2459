"""The identity of a store: a kernel with all its settings, and the arithmetic of its entries."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from kfx.documents import is_number
from kfx.files import Document
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import Array, in_numpy
from kfx.outcomes import Event, NumericalError
from kfx.store.manifest import Entry, hexadecimal, shortened

_PROBES = 8
_NOT_OF_VALUES = ("trainable", "_bounds")
"""Attributes of a kernel that concern only optimizers."""


@dataclass(frozen=True)
class Identity:
    """A kernel by its class, its parameters, a digest of all its other attributes, and its values on the first points.

    The values must agree up to round-off, which detects another version of kfx, or the arithmetic of another machine.
    """

    kernel: str
    parameters: Mapping[str, object]
    settings: str
    probe: np.ndarray
    dtype: str

    @classmethod
    def of(cls, kernel: Kernel, points: torch.Tensor) -> Self:
        """The identity of a kernel. points: (n, …), those that the kernel will see."""
        probe = finite(kernel, kernel.gram(points[:_PROBES])).astype(np.float64)
        values = {name: _shown(value) for name, value in kernel.parameters.items()}
        held = {name: value for name, value in vars(kernel).items() if name not in _NOT_OF_VALUES}
        settings = hashlib.sha256(repr(_described(held, ())).encode()).hexdigest()[:16]
        return cls(type(kernel).__name__, values, settings, probe, str(points.dtype).removeprefix("torch."))

    @classmethod
    def from_manifest(cls, content: Document) -> Self:
        """Read the identity from the manifest of a store; its entries are `ENTRIES`."""
        probe = np.array(content["probe"], dtype=float)
        return cls(content["kernel"], content["parameters"], content["settings"], probe, content["dtype"])

    def to_manifest(self) -> Document:
        """The entries of a manifest."""
        return {**dataclasses.asdict(self), "probe": self.probe.tolist()}

    def differs_from(self, other: Identity) -> str | None:
        """In what the kernel or the dtype differs, in words; None if both are the same."""
        if self.dtype != other.dtype:
            return f"its entries are {other.dtype}, not {self.dtype}"
        if self.kernel != other.kernel:
            return f"its kernel is {other.kernel}, not {self.kernel}"
        for name in dict.fromkeys([*self.parameters, *other.parameters]):
            mine, theirs = self.parameters.get(name), other.parameters.get(name)
            if mine != theirs:
                return f"its kernel has {name} {shortened(str(theirs))}, not {shortened(str(mine))}"
        if self.settings != other.settings:
            return f"its kernel, {other.kernel}, has other settings"
        error = self.error_of(other.probe)
        if error is not None:
            return f"its kernel, {other.kernel}, has other values: by {error:.1e} on the first points"
        return None

    def error_of(self, gram: np.ndarray) -> float | None:
        """Relative error of a Gram matrix of the first points, (k, k), if it is larger than round-off; else None."""
        n = min(len(self.probe), len(gram))
        scale = np.abs(self.probe[:n, :n]).max() or 1.0
        error = float(np.abs(self.probe[:n, :n] - gram[:n, :n]).max() / scale)
        return None if error < 100 * np.finfo(self.dtype).eps else error


def _is_probe(value: object) -> bool:
    rows = value if isinstance(value, list) else []
    square = all(isinstance(row, list) and len(row) == len(rows) for row in rows)
    return 1 <= len(rows) <= _PROBES and square and all(is_number(each) for row in rows for each in row)


def _is_shown(value: object) -> bool:
    """Whether a value can be one that `_shown` returns."""
    return all(map(_is_shown, value)) if isinstance(value, list) else isinstance(value, str) or is_number(value)


ENTRIES = {
    "kernel": Entry("the name of a kernel", lambda v: isinstance(v, str) and v != ""),
    "parameters": Entry("names and numbers", lambda v: isinstance(v, dict) and all(map(_is_shown, v.values()))),
    "settings": hexadecimal(16),
    "dtype": Entry("float32 or float64", lambda v: v in ("float32", "float64")),
    "probe": Entry(f"a square matrix of at most {_PROBES} rows of finite numbers", _is_probe),
}
"""The entries of an identity in a manifest."""


def finite(kernel: Kernel, block: torch.Tensor) -> np.ndarray:
    """The block of kernel values, (rows, columns), in NumPy; NumericalError (diverged) if one is not finite."""
    if not bool(block.isfinite().all()):
        raise NumericalError(Event.DIVERGED, f"{kernel!r} has entries that are not finite on these points")
    return in_numpy(block)


def digest(points: Array) -> str:
    """SHA-256 of the numbers of an array of any shape."""
    return hashlib.sha256(np.ascontiguousarray(in_numpy(points)).tobytes()).hexdigest()


def hashed(parts: object) -> str:
    """Sixteen hexadecimal digits of a SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _described(value: object, within: tuple[int, ...]) -> object:
    """A value in plain types, equal for equal values in any process; a function by its name."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return str(value.dtype), tuple(value.shape), digest(value)
    if id(value) in within:
        return "..."
    within = (*within, id(value))
    if isinstance(value, Mapping):
        return sorted((repr(key), _described(item, within)) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_described(item, within)) for item in value)
    if isinstance(value, (list, tuple)):
        return [_described(item, within) for item in value]
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return f"{value.__module__}.{name}"
    return type(value).__qualname__, _described(getattr(value, "__dict__", repr(type(value))), within)


def _shown(value: ArrayLike | torch.Tensor) -> object:
    """A number, a short list, or the checksum of a block."""
    array = np.asarray(in_numpy(value))
    return f"sha256:{digest(array)}" if array.size > 1000 else array.tolist()
