"""Covariance maps through a network in torch: the reference, on any device and in any dtype."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from kfx.kernels.cnngp.layers import Add, Conv2d, Erf, Instruction, Layer, ReLU, Size
from kfx.kernels.cnngp.tiling import filled, halving, tile_bytes, tiles
from kfx.kernels.engine import Engine, Gradient, Scalar

Kept = tuple[torch.Tensor, ...]
"""Tensors of a step's forward pass that its adjoint needs."""
Sums = tuple[list[Scalar], list[Scalar]]
"""A gradient to which each tile adds; see `Gradient`."""

_MAPS_OF_A_VALUE = 6  # alive at once for each pair, while a Gram tile is computed
_MAPS_OF_A_STEP = 3  # kept for each pair and step, while a tile is pulled back


# ---- the steps: layers bound to a size, dtype and device. Maps are (…, height, width)


class Step(abc.ABC):
    """A layer for maps of one size."""

    @abc.abstractmethod
    def variance(self, v: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
        """Return the layer's output variance maps, (n, height, width). v: input variance maps, (n, height, width)."""

    @abc.abstractmethod
    def variance_adjoint(self, g: torch.Tensor, v: torch.Tensor, weight: float) -> tuple[torch.Tensor, Scalar, Scalar]:
        """Return the cotangents of v, weight and bias. g: the cotangent of `variance`. v, g: (n, height, width)."""

    @abc.abstractmethod
    def forward(
        self, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor, weight: float, bias: float
    ) -> tuple[torch.Tensor, Kept]:
        """Return the layer's output covariance maps, (n, m, height, width), and the tensors that the adjoint needs.

        c: input covariance maps, (n, m, height, width). v, w: variance maps of rows and columns, (n, …) and (m, …).
        """

    @abc.abstractmethod
    def adjoint(
        self, g: torch.Tensor, kept: Kept, v: torch.Tensor, w: torch.Tensor, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Scalar, Scalar]:
        """Return the cotangents of c, v, w, weight and bias from that of `forward`, (n, m, height, width)."""


class ConvStep(Step):
    """K = bias + weight · B_h c B_wᵀ, with the bands B of `Conv2d.band`, since a window of ones is separable."""

    def __init__(self, layer: Conv2d, size: Size, dtype: torch.dtype, device: torch.device) -> None:
        bands = [layer.band(i, size[i]) for i in (0, 1)]
        self.is_pointwise = all(np.array_equal(band, np.eye(len(band))) for band in bands)
        self.rows, self.columns = (torch.as_tensor(band).to(device, dtype) for band in bands)

    def variance(self, v: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
        return self._between(self.rows, v, self.columns.mT).mul_(weight).add_(bias)

    def variance_adjoint(self, g: torch.Tensor, v: torch.Tensor, weight: float) -> tuple[torch.Tensor, Scalar, Scalar]:
        spread = self._between(self.rows.mT, g, self.columns)
        to_weight, to_bias = (spread * v).sum(dtype=torch.float64), g.sum(dtype=torch.float64)
        return spread.mul_(weight), to_weight, to_bias

    def forward(
        self, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor, weight: float, bias: float
    ) -> tuple[torch.Tensor, Kept]:
        return self.variance(c, weight, bias), (c,)

    def adjoint(
        self, g: torch.Tensor, kept: Kept, v: torch.Tensor, w: torch.Tensor, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Scalar, Scalar]:
        to_c, to_weight, to_bias = self.variance_adjoint(g, kept[0], weight)
        return to_c, None, None, to_weight, to_bias

    def _between(self, left: torch.Tensor, maps: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The products with the bands; millions of them are slow where a map is one pixel."""
        return maps.clone() if self.is_pointwise else left @ (maps @ right)


class ReLUStep(Step):
    """V = (s + (π − θ) c) / 2π with s = √(v v' − c²), θ = atan2(s, c); ∂V/∂c = (π − θ)/2π, ∂V/∂v = s/(4π v)."""

    def variance(self, v: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
        return v / 2

    def variance_adjoint(self, g: torch.Tensor, v: torch.Tensor, weight: float) -> tuple[torch.Tensor, Scalar, Scalar]:
        return g / 2, 0.0, 0.0

    def forward(
        self, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor, weight: float, bias: float
    ) -> tuple[torch.Tensor, Kept]:
        # √v √v' rather than √(v v'): the product of two tiny variances would underflow.
        r = v.sqrt()[:, None] * w.sqrt()[None, :]
        s = ((r - c) * r.add_(c)).clamp_(min=0.0).sqrt_()
        angle = torch.atan2(s, c).neg_().add_(math.pi)
        return torch.addcmul(s, angle, c).mul_(1 / (2 * math.pi)), (s, angle)

    def adjoint(
        self, g: torch.Tensor, kept: Kept, v: torch.Tensor, w: torch.Tensor, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Scalar, Scalar]:
        s, angle = kept
        to_s = (s * g).mul_(1 / (4 * math.pi))
        to_c = (angle * g).mul_(1 / (2 * math.pi))
        to_c *= (v > 0)[:, None] & (w > 0)[None, :]  # where a variance is 0, all derivatives are 0
        to_v = torch.where(v > 0, to_s.sum(dim=1) / v, 0.0)
        to_w = torch.where(w > 0, to_s.sum(dim=0) / w, 0.0)
        return to_c, to_v, to_w, 0.0, 0.0


class ErfStep(Step):
    """V = (2/π) arcsin(u), u = 2c / √((1 + 2v)(1 + 2v')); ∂V/∂c = (2/π) u/(c √(1 − u²)), ∂V/∂v = −c/(1 + 2v) ∂V/∂c."""

    def variance(self, v: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
        return (2 * v / (1 + 2 * v)).arcsin_().mul_(2 / math.pi)

    def variance_adjoint(self, g: torch.Tensor, v: torch.Tensor, weight: float) -> tuple[torch.Tensor, Scalar, Scalar]:
        return g * (4 / math.pi) / ((1 + 2 * v) * (1 + 4 * v).sqrt()), 0.0, 0.0

    def forward(
        self, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor, weight: float, bias: float
    ) -> tuple[torch.Tensor, Kept]:
        scale = 2 * (1 + 2 * v).rsqrt()[:, None] * (1 + 2 * w).rsqrt()[None, :]
        sine = (c * scale).clamp_(-1.0, 1.0)
        slope = scale.mul_(2 / math.pi).div_(((1 - sine) * (1 + sine)).sqrt_())
        return sine.arcsin_().mul_(2 / math.pi), (slope, c)

    def adjoint(
        self, g: torch.Tensor, kept: Kept, v: torch.Tensor, w: torch.Tensor, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Scalar, Scalar]:
        slope, c = kept
        to_c = slope * g
        through = to_c * c
        return to_c, through.sum(dim=1).div_(-(1 + 2 * v)), through.sum(dim=0).div_(-(1 + 2 * w)), 0.0, 0.0


class AddStep(Step):
    """The identity on the first of two maps; the engine, which has both, adds the second."""

    def variance(self, v: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
        return v

    def variance_adjoint(self, g: torch.Tensor, v: torch.Tensor, weight: float) -> tuple[torch.Tensor, Scalar, Scalar]:
        return g, 0.0, 0.0

    def forward(
        self, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor, weight: float, bias: float
    ) -> tuple[torch.Tensor, Kept]:
        return c, ()

    def adjoint(
        self, g: torch.Tensor, kept: Kept, v: torch.Tensor, w: torch.Tensor, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Scalar, Scalar]:
        return g, None, None, 0.0, 0.0


@lru_cache(maxsize=32)
def _bound(program: tuple[Instruction, ...], dtype: torch.dtype, device: torch.device) -> tuple[Step, ...]:
    def bind(layer: Layer | Add, size: Size) -> Step:
        match layer:
            case Conv2d():
                return ConvStep(layer, size, dtype, device)
            case ReLU():
                return ReLUStep()
            case Erf():
                return ErfStep()
            case Add():
                return AddStep()
        raise TypeError(f"no step for {layer!r}")

    return tuple(bind(instruction.layer, instruction.size) for instruction in program)


# ---- tile by tile


class TorchEngine(Engine):
    """Gram matrices and gradients of a program, tile by tile, in x's dtype and on its device.

    weights, biases: of each instruction; 0 where it has none. tile_megabytes: see `tile_bytes`.
    """

    def __init__(
        self,
        program: tuple[Instruction, ...],
        weights: Sequence[float],
        biases: Sequence[float],
        tile_megabytes: float,
    ) -> None:
        self.program, self.parameters = program, list(zip(weights, biases, strict=True))
        self.tile_megabytes = tile_megabytes

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        others = x if y is None else y

        def compute(rows: slice, columns: slice) -> torch.Tensor:
            v = self._variances(x[rows])
            w = v if y is None and rows == columns else self._variances(others[columns])
            return self._tile(x[rows], others[columns], v, w, keep=False)[0]

        return halving(lambda side: filled(x, y, side, compute), self._tile_side(x, _MAPS_OF_A_VALUE))

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        blocks = [self._variances(block)[-1][:, 0, 0] for block in x.split(self._tile_side(x, 1) ** 2)]
        return torch.cat(blocks) if blocks else x.new_empty(0)

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        # Each tile is computed again, pulled back and dropped, so that an exact gradient needs the memory of one tile.
        def compute(side: int) -> tuple[Gradient, torch.Tensor | None]:
            gradient: Sums = ([0.0] * len(self.program), [0.0] * len(self.program))
            to_x = torch.zeros_like(x) if inputs else None
            for rows, columns in tiles(len(x), None, side):
                self._pull_tile(x, cotangent, rows, columns, gradient, to_x)
            return gradient, to_x

        return halving(compute, self._tile_side(x, _MAPS_OF_A_VALUE + _MAPS_OF_A_STEP * len(self.program)))

    def _tile_side(self, x: torch.Tensor, maps: int) -> int:
        largest = max(height * width for height, width in (instruction.size for instruction in self.program))
        pairs = tile_bytes(self.tile_megabytes, x.device) / (maps * largest * x.element_size())
        return max(int(math.sqrt(pairs)), 1)

    def _steps(self, x: torch.Tensor) -> list[tuple[int, Instruction, Step, float, float]]:
        bound = _bound(self.program, x.dtype, x.device)
        together = zip(self.program, bound, self.parameters, strict=True)
        return [(k, instruction, step, *pair) for k, (instruction, step, pair) in enumerate(together)]

    def _variances(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return every variance map, (n, height, width) each, in the program's numbering."""
        maps = [x.square().mean(dim=1)]
        for _, instruction, step, weight, bias in self._steps(x):
            first, *second = instruction.sources
            out = step.variance(maps[first], weight, bias)
            maps.append(out + maps[second[0]] if second else out)
        return maps

    def _tile(
        self, x: torch.Tensor, y: torch.Tensor, v: list[torch.Tensor], w: list[torch.Tensor], keep: bool
    ) -> tuple[torch.Tensor, list[Kept]]:
        """Return K(x, y), (n, m), of a tile with variance maps v of x and w of y, and the tensors that the adjoint
        needs, where `keep`."""
        c = torch.einsum("ichw,jchw->ijhw", x, y) if x.shape[1] > 1 else x[:, None, 0] * y[None, :, 0]
        maps: dict[int, torch.Tensor] = {0: c / x.shape[1]}
        last_read = {source: k for k, instruction in enumerate(self.program) for source in instruction.sources}
        kept: list[Kept] = []
        for k, instruction, step, weight, bias in self._steps(x):
            first, *second = instruction.sources
            out, needed = step.forward(maps[first], v[first], w[first], weight, bias)
            maps[k + 1] = out + maps[second[0]] if second else out
            kept.append(needed if keep else ())
            for source in instruction.sources:
                if last_read[source] == k:
                    del maps[source]
        return maps[len(self.program)][..., 0, 0], kept

    def _pull_tile(
        self,
        x: torch.Tensor,
        cotangent: torch.Tensor,
        rows: slice,
        columns: slice,
        gradient: Sums,
        to_x: torch.Tensor | None,
    ) -> None:
        here, there = x[rows], x[columns]
        on_diagonal = rows == columns
        v = self._variances(here)
        w = v if on_diagonal else self._variances(there)
        _, kept = self._tile(here, there, v, w, keep=True)
        g = cotangent[rows, columns]
        own = None
        if on_diagonal:  # the diagonal depends on the variance maps alone, which are exact
            own = g.diagonal().clone()
            g = g - torch.diag(own)
        else:  # both triangles
            g = g + cotangent[columns, rows].mT
        to_products, to_v, to_w = self._tile_adjoint(g, kept, v, w, here, gradient)
        to_squares = self._variance_adjoint(own, to_v, v, here, gradient)
        to_other_squares = self._variance_adjoint(None, to_w, w, there, gradient)
        if to_x is not None:
            channels = x.shape[1]
            to_x[rows] += torch.einsum("ijhw,jchw->ichw", to_products, there) / channels
            to_x[columns] += torch.einsum("ijhw,ichw->jchw", to_products, here) / channels
            to_x[rows] += to_squares[:, None] * here * (2 / channels)
            to_x[columns] += to_other_squares[:, None] * there * (2 / channels)

    def _tile_adjoint(
        self,
        g: torch.Tensor,
        kept: list[Kept],
        v: list[torch.Tensor],
        w: list[torch.Tensor],
        x: torch.Tensor,
        gradient: Sums,
    ) -> tuple[torch.Tensor, list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Return the cotangents of the product maps and of the variance maps that each step reads, from a tile's."""
        to_v: list[torch.Tensor | None] = [None] * len(self.program)
        to_w: list[torch.Tensor | None] = [None] * len(self.program)
        cotangents = {len(self.program): g[..., None, None]}
        for k, instruction, step, weight, _ in reversed(self._steps(x)):
            first, *second = instruction.sources
            g = cotangents.pop(k + 1)
            to_c, to_v[k], to_w[k], to_weight, to_bias = step.adjoint(g, kept[k], v[first], w[first], weight)
            kept[k] = ()
            _accumulate(gradient, k, to_weight, to_bias)
            for source, part in ((first, to_c), *((other, g) for other in second)):
                cotangents[source] = cotangents[source] + part if source in cotangents else part
        return cotangents[0], to_v, to_w

    def _variance_adjoint(
        self,
        last: torch.Tensor | None,
        at_steps: list[torch.Tensor | None],
        maps: list[torch.Tensor],
        x: torch.Tensor,
        gradient: Sums,
    ) -> torch.Tensor:
        """Return the cotangent of the mean square, from those of the variance maps that steps read and of the last."""
        cotangents = [torch.zeros_like(each) for each in maps]
        if last is not None:
            cotangents[-1] += last[:, None, None]
        for k, instruction, step, weight, _ in reversed(self._steps(x)):
            first, *second = instruction.sources
            to_v, to_weight, to_bias = step.variance_adjoint(cotangents[k + 1], maps[first], weight)
            _accumulate(gradient, k, to_weight, to_bias)
            cotangents[first] += to_v
            here = at_steps[k]
            if here is not None:
                cotangents[first] += here
            for other in second:
                cotangents[other] += cotangents[k + 1]
        return cotangents[0]


def _accumulate(gradient: Sums, k: int, to_weight: Scalar, to_bias: Scalar) -> None:
    gradient[0][k] += to_weight
    gradient[1][k] += to_bias
