"""Layers of a convolutional network of infinite width: what they are, and how covariance maps pass through them.

A pair of images has one covariance map c, (height, width): only the diagonal of the spatial covariance is needed
(Garriga-Alonso et al. 2019, §3.3). An image by itself has its variance map v. A layer is a description (`Conv2d`,
`ReLU`); bound to the size of the maps that reach it, it becomes a step with a pair of functions, forward and adjoint.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

import torch

Size = tuple[int, int]
Scalar = torch.Tensor | float  # stays on the device: reading it would wait for the device


class Layer(abc.ABC):
    """The description of a layer."""

    @abc.abstractmethod
    def output_size(self, size: Size) -> Size:
        """The size of the map that leaves, for one that arrives; an entry below 1 where it does not fit."""


@dataclass(frozen=True)
class Conv2d(Layer):
    """A convolution with Gaussian weights and biases.

    kernel_size, stride, dilation: a number, or one for height and one for width.
    padding: zeros on each side; "valid" is 0; "same" covers the offsets −((k−1)//2) … k//2 around each kept point,
        at every stride (as cnn-gp; equal to JAX's SAME at stride 1 only).
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
        """(outputs, stride, offset of the first tap) along one axis."""
        kernel, stride, dilation = (_pair(v)[axis] for v in (self.kernel_size, self.stride, self.dilation))
        if self.padding == "same":
            return -(-length // stride), stride, -dilation * ((kernel - 1) // 2)
        padding = 0 if self.padding == "valid" else _pair(self.padding)[axis]
        return (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1, stride, -padding

    def output_size(self, size: Size) -> Size:
        return self._geometry(0, size[0])[0], self._geometry(1, size[1])[0]

    def band(self, axis: int, length: int) -> torch.Tensor:
        """The 0/1 matrix (outputs, length) that sums the taps of each output along one axis."""
        outputs, stride, first = self._geometry(axis, length)
        kernel, dilation = _pair(self.kernel_size)[axis], _pair(self.dilation)[axis]
        matrix = torch.zeros(outputs, length, dtype=torch.float64)
        for output in range(outputs):
            for tap in range(kernel):
                position = output * stride + first + tap * dilation
                if 0 <= position < length:
                    matrix[output, position] = 1.0
        return matrix


@dataclass(frozen=True)
class ReLU(Layer):
    """max(u, 0), without a factor √2."""

    def output_size(self, size: Size) -> Size:
        return size


class Sequential:
    """Layers one after another; a Sequential inside another is laid flat."""

    def __init__(self, *layers: Layer | Sequential) -> None:
        self.layers: tuple[Layer, ...] = tuple(
            layer for given in layers for layer in (given.layers if isinstance(given, Sequential) else (given,))
        )
        for layer in self.layers:
            if not isinstance(layer, Layer):
                raise ValueError(f"Sequential takes Conv2d, ReLU or Sequential, got {layer!r}")
        if not self.layers or not isinstance(self.layers[0], Conv2d):
            raise ValueError("an architecture starts with a Conv2d, which turns images into covariances")

    @property
    def convolutions(self) -> int:
        return sum(isinstance(layer, Conv2d) for layer in self.layers)

    def sizes(self, size: Size) -> list[Size]:
        """The size that reaches each layer. ValueError unless each fits and the last leaves 1 × 1."""
        reaching = []
        for i, layer in enumerate(self.layers):
            reaching.append(size)
            after = layer.output_size(size)
            if min(after) < 1:
                raise ValueError(f"layer {i}, {layer}: maps of {size[0]} × {size[1]} reach it and are too small for it")
            size = after
        if size != (1, 1):
            raise ValueError(
                f"layer {i}, {layer}: maps of {reaching[-1][0]} × {reaching[-1][1]} reach it and {size[0]} × {size[1]} "
                f"leave it, but the last layer must leave 1 × 1; end with Conv2d({reaching[-1]}, padding=0)"
            )
        return reaching

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"


# ---- bound to a size: the numerical steps


class Step(abc.ABC):
    """A layer for maps of one size, dtype and device. Maps are (…, height, width)."""

    @abc.abstractmethod
    def variance(self, v: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
        """Variance maps through the layer."""

    @abc.abstractmethod
    def variance_adjoint(self, g: torch.Tensor, v: torch.Tensor, weight: float) -> tuple[torch.Tensor, Scalar, Scalar]:
        """From the cotangent of `variance` to those of v, σ_w² and σ_b²."""

    @abc.abstractmethod
    def forward(
        self, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor, weight: float, bias: float
    ) -> tuple[torch.Tensor, Any]:
        """Covariance maps (n, m, height, width) of images with variances v, (n, …), and w, (m, …); and what the
        adjoint needs of this."""

    @abc.abstractmethod
    def adjoint(
        self, g: torch.Tensor, kept: Any, v: torch.Tensor, w: torch.Tensor, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Scalar, Scalar]:
        """From the cotangent of `forward` to those of c, v, w, σ_w² and σ_b²."""


class ConvStep(Step):
    """K = σ_b² + σ_w² B_h c B_wᵀ / area: a window of ones is separable."""

    def __init__(self, layer: Conv2d, size: Size, mean: bool, dtype: torch.dtype, device: torch.device) -> None:
        factor = layer.weight_multiplier / (layer.area if mean else 1)
        self.rows = (layer.band(0, size[0]) * factor).to(device, dtype)
        self.columns = layer.band(1, size[1]).to(device, dtype)

    def _window(self, c: torch.Tensor) -> torch.Tensor:
        return self.rows @ (c @ self.columns.mT)

    def _transposed(self, g: torch.Tensor) -> torch.Tensor:
        return self.rows.mT @ (g @ self.columns)

    def variance(self, v: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
        return self._window(v).mul_(weight).add_(bias)

    def variance_adjoint(self, g: torch.Tensor, v: torch.Tensor, weight: float) -> tuple[torch.Tensor, Scalar, Scalar]:
        spread = self._transposed(g)
        to_weight, to_bias = (spread * v).sum(dtype=torch.float64), g.sum(dtype=torch.float64)
        return spread.mul_(weight), to_weight, to_bias

    def forward(
        self, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor, weight: float, bias: float
    ) -> tuple[torch.Tensor, Any]:
        return self.variance(c, weight, bias), c

    def adjoint(
        self, g: torch.Tensor, kept: Any, v: torch.Tensor, w: torch.Tensor, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Scalar, Scalar]:
        to_c, to_weight, to_bias = self.variance_adjoint(g, kept, weight)
        return to_c, None, None, to_weight, to_bias


class ReLUStep(Step):
    """V = (s + (π − θ) c) / 2π with s = √(v v' − c²), θ = atan2(s, c); ∂V/∂c = (π − θ)/2π, ∂V/∂v = s/(4π v)."""

    def variance(self, v: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
        return v / 2

    def variance_adjoint(self, g: torch.Tensor, v: torch.Tensor, weight: float) -> tuple[torch.Tensor, Scalar, Scalar]:
        return g / 2, 0.0, 0.0

    def forward(
        self, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor, weight: float, bias: float
    ) -> tuple[torch.Tensor, Any]:
        # √v √v' rather than √(v v'): the product of two tiny variances would underflow.
        r = v.sqrt()[:, None] * w.sqrt()[None, :]
        s = ((r - c) * r.add_(c)).clamp_(min=0.0).sqrt_()
        angle = torch.atan2(s, c).neg_().add_(math.pi)
        return torch.addcmul(s, angle, c).mul_(1 / (2 * math.pi)), (s, angle)

    def adjoint(
        self, g: torch.Tensor, kept: Any, v: torch.Tensor, w: torch.Tensor, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Scalar, Scalar]:
        s, angle = kept
        to_s = (s * g).mul_(1 / (4 * math.pi))
        to_c = (angle * g).mul_(1 / (2 * math.pi))
        to_c *= (v > 0)[:, None] & (w > 0)[None, :]  # at a vanishing variance all derivatives are 0
        to_v = torch.where(v > 0, to_s.sum(dim=1) / v, 0.0)
        to_w = torch.where(w > 0, to_s.sum(dim=0) / w, 0.0)
        return to_c, to_v, to_w, 0.0, 0.0


def bind(layer: Layer, size: Size, mean: bool, dtype: torch.dtype, device: torch.device) -> Step:
    """The numerical step of a layer. `mean`: a convolution divides by its patch's area."""
    if isinstance(layer, Conv2d):
        return ConvStep(layer, size, mean, dtype, device)
    if isinstance(layer, ReLU):
        return ReLUStep()
    raise TypeError(f"no step for {layer!r}")


def _pair(value: Any) -> Size:
    return (value, value) if isinstance(value, int) else tuple(value)
