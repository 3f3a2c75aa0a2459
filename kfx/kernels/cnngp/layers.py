"""Layers of a convolutional network of infinite width, and the program of instructions that an architecture gives.

Without pooling, a pair of images has one covariance map, (height, width), since only the diagonal of the spatial
covariance is needed (Garriga-Alonso et al. 2019, §3.3). A single image has a variance map. This module describes the
layers; `torch_engine`, `maps` and `triton_kernels` compute the maps. Pooling needs the whole spatial covariance, which
`spatial_torch_engine` and `spatial_loops` compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Size = tuple[int, int]


@dataclass(frozen=True)
class Conv2d:
    """A convolution with Gaussian weights and biases.

    kernel_size, stride, dilation: one number, or one for height and one for width.
    padding: number of zeros on each side; "valid" is 0; "same" covers the offsets −((k−1)//2) … k//2 around each kept
        point, at every stride (as cnn-gp; equal to JAX's SAME at stride 1 only).
    weight_multiplier: a constant factor on σ_w² in this layer.
    """

    kernel_size: int | Size
    stride: int | Size = 1
    padding: int | Size | str = 0
    dilation: int | Size = 1
    weight_multiplier: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("kernel_size", 1), ("stride", 1), ("dilation", 1), ("padding", 0)):
            value = getattr(self, name)
            if name == "padding" and value in ("same", "valid"):
                continue
            if isinstance(value, str) or any(v < least for v in _pair(value)):
                accepted = f"whole numbers >= {least}" + (", 'same' or 'valid'" if name == "padding" else "")
                raise ValueError(f"Conv2d: {name} takes {accepted}, got {value!r}")
        if not (math.isfinite(self.weight_multiplier) and self.weight_multiplier > 0):
            raise ValueError(f"Conv2d: weight_multiplier takes a number > 0, got {self.weight_multiplier!r}")

    @property
    def area(self) -> int:
        """The number of positions in a patch, padding included."""
        return math.prod(_pair(self.kernel_size))

    def _geometry(self, axis: int, length: int) -> tuple[int, int, int]:
        """Return (outputs, stride, offset of the first tap) along one axis."""
        kernel, stride, dilation = self.along(axis)
        if self.padding == "same":
            return -(-length // stride), stride, -dilation * ((kernel - 1) // 2)
        padding = 0 if isinstance(self.padding, str) else _pair(self.padding)[axis]
        return (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1, stride, -padding

    def output_size(self, size: Size) -> Size:
        """Return the size of the output map for an input map; an entry is below 1 where the input is too small."""
        return self._geometry(0, size[0])[0], self._geometry(1, size[1])[0]

    def along(self, axis: int) -> tuple[int, int, int]:
        """Return (kernel size, stride, dilation) along one axis."""
        kernel, stride, dilation = (_pair(v)[axis] for v in (self.kernel_size, self.stride, self.dilation))
        return kernel, stride, dilation

    def first_tap(self, axis: int, length: int) -> int:
        """Return the input position of the first tap of output 0 along one axis; negative in the padding."""
        return self._geometry(axis, length)[2]

    def band(self, axis: int, length: int) -> np.ndarray:
        """Return the 0/1 matrix (outputs, length) that sums the taps of each output along one axis."""
        outputs, stride, first = self._geometry(axis, length)
        kernel, _, dilation = self.along(axis)
        matrix = np.zeros((outputs, length))
        for output in range(outputs):
            for tap in range(kernel):
                position = output * stride + first + tap * dilation
                if 0 <= position < length:
                    matrix[output, position] = 1.0
        return matrix


@dataclass(frozen=True)
class Activation:
    """A function applied to each unit, which keeps the size of maps."""

    def output_size(self, size: Size) -> Size:
        return size


@dataclass(frozen=True)
class AvgPool2d:
    """The mean over windows, without padding.

    window, stride: one number, or one for height and one for width; the stride is the window by default.
    """

    window: int | Size
    stride: int | Size | None = None

    def __post_init__(self) -> None:
        for name in ("window", "stride"):
            value = getattr(self, name)
            if value is not None and any(v < 1 for v in _pair(value)):
                raise ValueError(f"AvgPool2d: {name} takes whole numbers >= 1, got {value!r}")

    def along(self, axis: int) -> tuple[int, int]:
        """Return (window, stride) along one axis."""
        return _pair(self.window)[axis], _pair(self.window if self.stride is None else self.stride)[axis]

    def output_size(self, size: Size) -> Size:
        height, width = ((size[axis] - self.along(axis)[0]) // self.along(axis)[1] + 1 for axis in (0, 1))
        return height, width


@dataclass(frozen=True)
class GlobalAvgPool:
    """The mean over the whole map, which leaves 1 × 1."""


@dataclass(frozen=True)
class Dense:
    """A dense layer on all units of a map, flattened, or on the channels of a 1 × 1 map.

    weight_multiplier: a constant factor on σ_w² in this layer.
    """

    weight_multiplier: float = 1.0


@dataclass(frozen=True)
class ReLU(Activation):
    """max(u, 0), without a factor √2."""


@dataclass(frozen=True)
class Erf(Activation):
    """erf(u)."""


class Residual:
    """body(u) + u, or body(u) + shortcut(u) with a projection.

    body: layers; the first takes the block's input. shortcut: a Conv2d with its own weights, where the body changes the
    size.

    End the body with a Conv2d: a sum of Gaussian processes has the sum of their covariances only if they are
    independent and of mean zero.
    """

    def __init__(self, *body: Layer, shortcut: Conv2d | None = None) -> None:
        self.body, self.shortcut = Sequential._flattened(body, "Residual"), shortcut
        if not self.body:
            raise ValueError("Residual takes at least one layer")

    def __repr__(self) -> str:
        inside = [*map(repr, self.body), *([f"shortcut={self.shortcut!r}"] if self.shortcut else [])]
        return f"Residual({', '.join(inside)})"


class Sequential:
    """Layers one after another, Conv2d, Dense or Residual first, else ValueError; one inside another is flattened."""

    def __init__(self, *layers: Layer | Sequential) -> None:
        self.layers = self._flattened(layers, "Sequential")
        if not self.layers or not isinstance(self.layers[0], (Conv2d, Dense, Residual)):
            raise ValueError("an architecture starts with a Conv2d or a Residual, which turns images into covariances")

    @staticmethod
    def _flattened(given: tuple[Layer | Sequential, ...], where: str) -> tuple[Layer, ...]:
        flat: list[Layer] = []
        for layer in given:
            if not isinstance(layer, (Conv2d, Dense, Activation, AvgPool2d, GlobalAvgPool, Residual, Sequential)):
                raise ValueError(
                    f"{where} takes Conv2d, Dense, ReLU, Erf, AvgPool2d, GlobalAvgPool, Residual or Sequential, "
                    f"got {layer!r}"
                )
            flat += layer.layers if isinstance(layer, Sequential) else (layer,)
        return tuple(flat)

    @property
    def convolutions(self) -> int:
        """The number of convolutions and dense layers, projections of shortcuts included.

        Each may have its own σ_w² and σ_b².
        """
        return sum(map(_convolutions, self.layers))

    @property
    def pools(self) -> bool:
        """Whether a layer averages over positions, so that the whole spatial covariance is needed."""
        return any(map(_pools, self.layers))

    def program(self, size: Size) -> tuple[Instruction, ...]:
        """Return the instructions for images of this size.

        Raises ValueError where a map is too small for a layer, or the last layer does not give 1 × 1 maps.
        """
        program: list[Instruction] = []
        size, _ = _lower(self.layers, size, 0, program)
        if size != (1, 1):
            last = program[-1]
            raise ValueError(
                f"layer {len(program) - 1}, {last.layer}: maps of {_times(last.size)} reach it and {_times(size)} "
                f"leave it, but the last layer must leave 1 × 1; end with Conv2d({last.size}, padding=0)"
            )
        return tuple(program)

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"


Layer = Conv2d | Dense | Activation | AvgPool2d | GlobalAvgPool | Residual


# ---- the program of an architecture


@dataclass(frozen=True)
class Add:
    """The sum at the end of a residual block."""


@dataclass(frozen=True)
class Instruction:
    """One step of a program. Map 0 has the products of the pixels; instruction k makes map k + 1.

    sources: numbers of the maps that it reads, two for Add. size: height and width of these maps.
    """

    layer: Conv2d | Activation | AvgPool2d | Add
    sources: tuple[int, ...]
    size: Size

    @property
    def output_size(self) -> Size:
        return self.size if isinstance(self.layer, Add) else self.layer.output_size(self.size)


def _lower(layers: tuple[Layer, ...], size: Size, value: int, program: list[Instruction]) -> tuple[Size, int]:
    """Append the instructions of layers that read map `value`; return the size and number of the last map."""
    for layer in layers:
        if isinstance(layer, Residual):
            end, through = _lower(layer.body, size, value, program)
            beside, past = (size, value)
            if layer.shortcut is not None:
                beside, past = _lower((layer.shortcut,), size, value, program)
            if end != beside:
                raise ValueError(
                    f"{layer}: its body leaves maps of {_times(end)} and its shortcut {_times(beside)}; "
                    "give it a shortcut, a Conv2d whose stride matches"
                )
            program.append(Instruction(Add(), (through, past), end))
            size = end
        else:
            if isinstance(layer, GlobalAvgPool):
                layer = AvgPool2d(size)
            elif isinstance(layer, Dense):
                layer = Conv2d(size, weight_multiplier=layer.weight_multiplier)
            after = layer.output_size(size)
            if min(after) < 1:
                raise ValueError(
                    f"layer {len(program)}, {layer}: maps of {_times(size)} reach it and are too small for it"
                )
            program.append(Instruction(layer, (value,), size))
            size = after
        value = len(program)
    return size, value


def _convolutions(layer: Layer) -> int:
    if isinstance(layer, Residual):
        return sum(map(_convolutions, layer.body)) + (layer.shortcut is not None)
    return int(isinstance(layer, (Conv2d, Dense)))


def _pools(layer: Layer) -> bool:
    return isinstance(layer, (AvgPool2d, GlobalAvgPool)) or (
        isinstance(layer, Residual) and any(map(_pools, layer.body))
    )


def _times(size: Size) -> str:
    return f"{size[0]} × {size[1]}"


def _pair(value: int | Sequence[int]) -> Size:
    height, width = (value, value) if isinstance(value, int) else value
    return height, width
