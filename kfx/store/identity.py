"""What the numbers of a store depend on: a kernel with all its settings, and the arithmetic of its entries."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.numerics.arrays import Array, in_numpy

_PROBES = 8
_NOT_OF_VALUES = ("trainable", "_bounds")
"""What a kernel holds for optimizers."""


@dataclass(frozen=True)
class Identity:
    """A kernel: its class, its parameters, a digest of all that it holds beside them, and its values on the first
    points, which must agree to round-off, so that another version, or another machine's arithmetic, shows."""

    kernel: str
    parameters: Mapping[str, Any]
    settings: str
    probe: np.ndarray
    dtype: str

    @classmethod
    def of(cls, kernel: Kernel, points: torch.Tensor) -> Self:
        """points: those that the kernel will see."""
        probe = in_numpy(kernel.gram(points[:_PROBES])).astype(np.float64)
        values = {name: _shown(value) for name, value in kernel.parameters.items()}
        held = {name: value for name, value in vars(kernel).items() if name not in _NOT_OF_VALUES}
        settings = hashlib.sha256(repr(_described(held, ())).encode()).hexdigest()[:16]
        return cls(type(kernel).__name__, values, settings, probe, str(points.dtype).removeprefix("torch."))

    @classmethod
    def from_manifest(cls, content: Mapping[str, Any]) -> Self:
        """Of a store."""
        kernel, settings, dtype = (str(content[name]) for name in ("kernel", "settings", "dtype"))
        return cls(kernel, dict(content["parameters"]), settings, np.array(content["probe"], dtype=float), dtype)

    def to_manifest(self) -> dict[str, Any]:
        """For a store."""
        return {**dataclasses.asdict(self), "probe": self.probe.tolist()}

    def differs_from(self, other: Identity) -> str | None:
        """In what, in words; None where it is the same kernel in the same dtype."""
        if self.dtype != other.dtype:
            return f"its entries are {other.dtype}, not {self.dtype}"
        if self.kernel != other.kernel:
            return f"its kernel is {other.kernel}, not {self.kernel}"
        for name in dict.fromkeys([*self.parameters, *other.parameters]):
            mine, theirs = self.parameters.get(name), other.parameters.get(name)
            if mine != theirs:
                return f"its kernel has {name} {_short(theirs)}, not {_short(mine)}"
        if self.settings != other.settings:
            return f"its kernel, {other.kernel}, has other settings"
        n = min(len(self.probe), len(other.probe))
        error = np.abs(self.probe[:n, :n] - other.probe[:n, :n]).max() / np.abs(self.probe[:n, :n]).max()
        if not error < 100 * np.finfo(self.dtype).eps:
            return f"its kernel, {other.kernel}, has other values: by {error:.1e} on the first points"
        return None


def digest(points: Array) -> str:
    """SHA-256 of the numbers."""
    return hashlib.sha256(np.ascontiguousarray(in_numpy(points)).tobytes()).hexdigest()


def _described(value: Any, within: tuple[int, ...]) -> Any:
    """What a value is made of, in plain types: the same for equal values, in any process. Functions by their names."""
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


def _shown(value: Any) -> Any:
    """A number, a short list, or the checksum of a block."""
    array = np.asarray(in_numpy(value))
    return f"sha256:{digest(array)}" if array.size > 1000 else array.tolist()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
