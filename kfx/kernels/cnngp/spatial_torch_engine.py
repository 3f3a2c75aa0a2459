"""Kernels of convolutional networks with pooling in torch, on any device: a tile of pairs at a time.

Spatial covariances are tensors (pairs, height, height, width, width): K[p₁, q₁, p₂, q₂] of x at (p₁, p₂) and z at
(q₁, q₂). Autograd differentiates a tile; the activations have their derivatives written out, since those of √ and
arccos are not finite where points are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch.nn.functional import pad

from kfx.kernels.cnngp.layers import Add, AvgPool2d, Conv2d, Instruction, ReLU
from kfx.kernels.cnngp.tiling import filled, halving, tile_bytes, tiles
from kfx.kernels.engine import Engine, Gradient

Maps = tuple[torch.Tensor, torch.Tensor | None]
"""K and, for the tangent kernel, Θ."""
_MAPS_OF_A_VALUE, _MAPS_OF_A_LAYER = 6, 5  # of a pair that are alive at once, and that a layer keeps for its gradient


class SpatialTorchEngine(Engine):
    """Gram matrices and gradients of a program with pooling, tile by tile, in x's dtype and on its device.

    trained: None for the covariance kernel (NNGP); for the tangent kernel (NTK) a 0 or 1 for each instruction, whether
    its weights and biases are trained. tile_megabytes: see `tile_bytes`.
    """

    def __init__(
        self,
        program: tuple[Instruction, ...],
        weights: Sequence[float],
        biases: Sequence[float],
        tile_megabytes: float,
        trained: Sequence[float] | None = None,
    ) -> None:
        self.program, self.parameters, self.trained = program, (weights, biases), trained
        self.tile_megabytes = tile_megabytes

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        others = x if y is None else y
        weights, biases = (self._as_tensor(x, values) for values in self.parameters)

        def compute(side: int) -> torch.Tensor:
            of_rows = self._own(x, weights, biases)[0]
            of_columns = of_rows if y is None else self._own(y, weights, biases)[0]

            def tile(rows: slice, columns: slice) -> torch.Tensor:
                v, w = [each[rows] for each in of_rows], [each[columns] for each in of_columns]
                return self._tile(x[rows], others[columns], v, w, weights, biases)

            return filled(x, y, side, tile)

        with torch.no_grad():
            return halving(compute, self._side(x, _MAPS_OF_A_VALUE))

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._own(x, *(self._as_tensor(x, values) for values in self.parameters))[1]

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        both = cotangent + cotangent.mT

        def compute(side: int) -> tuple[Gradient, torch.Tensor | None]:
            leaves = [self._as_tensor(x, values).requires_grad_() for values in self.parameters]
            points = x.detach().clone().requires_grad_(inputs)
            for rows, columns in tiles(len(x), None, side):
                same = rows == columns
                with torch.enable_grad():
                    here, there = points[rows], points[columns]
                    v, own = self._own(here, *leaves)
                    w = v if same else self._own(there, *leaves)[0]
                    total = (own * cotangent.diagonal()[rows]).sum() if same else 0.0
                    g = both[rows, columns].triu(1) if same else both[rows, columns]
                    total = total + (g * self._tile(here, there, v, w, *leaves)).sum()
                total.backward()
            to_weights, to_biases = (leaf.grad.double().tolist() for leaf in leaves if leaf.grad is not None)
            return (to_weights, to_biases), points.grad

        return halving(compute, self._side(x, _MAPS_OF_A_VALUE + _MAPS_OF_A_LAYER * len(self.program)))

    def _as_tensor(self, x: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=x.dtype, device=x.device)

    def _side(self, x: torch.Tensor, maps: int) -> int:
        largest = max(math.prod(each.size) ** 2 for each in self.program) * (1 if self.trained is None else 2)
        return max(int(math.sqrt(tile_bytes(self.tile_megabytes, x.device) / (maps * largest * x.element_size()))), 1)

    def _own(
        self, x: torch.Tensor, weights: torch.Tensor, biases: torch.Tensor
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the variance maps at the activations, (n, height, width) each, and the diagonal, (n,), of images x."""
        size, parts = max(self._side(x, _MAPS_OF_A_VALUE) ** 2, 1), []
        for block in x.split(size):
            variances: list[torch.Tensor] = []

            def at(_: int, k: torch.Tensor, seen: list[torch.Tensor] = variances) -> tuple[torch.Tensor, torch.Tensor]:
                seen.append(k.diagonal(dim1=1, dim2=2).diagonal(dim1=1, dim2=2))
                return seen[-1], seen[-1]

            products = torch.einsum("ncab,ncde->nadbe", block, block) / x.shape[1]
            parts.append((self._walk(products, weights, biases, at), variances))
        maps = [torch.cat(each) for each in zip(*(variances for _, variances in parts), strict=True)]
        return maps, torch.cat([diagonal for diagonal, _ in parts])

    def _tile(
        self,
        x: torch.Tensor,
        z: torch.Tensor,
        v: list[torch.Tensor],
        w: list[torch.Tensor],
        weights: torch.Tensor,
        biases: torch.Tensor,
    ) -> torch.Tensor:
        """Return K(x, z), (n, m), of images with variance maps v and w at the activations."""
        n, m = len(x), len(z)

        def at(k: int, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return v[k].repeat_interleave(m, 0), w[k].repeat(n, 1, 1)

        products = torch.einsum("ncab,mcde->nmadbe", x, z).flatten(0, 1) / x.shape[1]
        return self._walk(products, weights, biases, at).reshape(n, m)

    def _walk(
        self,
        products: torch.Tensor,
        weights: torch.Tensor,
        biases: torch.Tensor,
        variances: Callable[[int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Return K or Θ, (pairs,), from the products of pixels.

        variances: maps an activation's number and its covariances to the variance maps of the two images, (pairs,
        height, width) each.
        """
        maps: dict[int, Maps] = {0: (products, None if self.trained is None else torch.zeros_like(products))}
        last_read = {source: k for k, each in enumerate(self.program) for source in each.sources}
        activations = 0
        for k, each in enumerate(self.program):
            (c, theta), second = maps[each.sources[0]], maps[each.sources[-1]]
            match each.layer:
                case Conv2d() as layer:
                    c = biases[k] + weights[k] * _convolved(c, layer)
                    if theta is not None and self.trained is not None:
                        theta = self.trained[k] * c + weights[k] * _convolved(theta, layer)
                case AvgPool2d() as layer:
                    c, theta = _pooled(c, layer), None if theta is None else _pooled(theta, layer)
                case Add():
                    c, theta = c + second[0], None if theta is None or second[1] is None else theta + second[1]
                case _:
                    v, w = variances(activations, c)
                    activations += 1
                    function = _ReLU if isinstance(each.layer, ReLU) else _Erf
                    c, slope = function.apply(c, v[:, :, None, :, None], w[:, None, :, None, :])
                    theta = None if theta is None else theta * slope
            maps[k + 1] = c, theta
            for source in each.sources:
                if last_read[source] == k:
                    maps.pop(source, None)
        c, theta = maps[len(self.program)]
        return (c if theta is None else theta).flatten()


def _convolved(c: torch.Tensor, layer: Conv2d) -> torch.Tensor:
    """The sum over patches, which shift p and q together."""
    for axis, at in ((0, 1), (1, 3)):
        taps, stride, dilation = layer.along(axis)
        length, first = c.shape[at], layer.first_tap(axis, c.shape[at])
        outputs = layer.output_size((c.shape[1], c.shape[3]))[axis]
        after = max(stride * (outputs - 1) + first + (taps - 1) * dilation + 1 - length, 0)
        margins = [-first, after] * 2
        padded = pad(c, margins if at == 3 else [0, 0, 0, 0, *margins])
        reach = stride * (outputs - 1) + 1
        c = reduce(torch.add, (_window(padded, at, t * dilation, reach, stride, t * dilation) for t in range(taps)))
    return c


def _pooled(c: torch.Tensor, layer: AvgPool2d) -> torch.Tensor:
    """The mean over windows of p and of q."""
    for axis, at in ((0, 1), (1, 3)):
        window, stride = layer.along(axis)
        reach = c.shape[at] - window - (c.shape[at] - window) % stride + 1
        each = (_window(c, at, t, reach, stride, u) for t in range(window) for u in range(window))
        c = reduce(torch.add, each) / window**2
    return c


def _window(c: torch.Tensor, at: int, start: int, reach: int, stride: int, other: int) -> torch.Tensor:
    """Every stride-th entry of axis `at` from `start`, and of the next axis from `other`."""
    picked = [slice(None)] * at + [slice(start, start + reach, stride), slice(other, other + reach, stride)]
    return c[tuple(picked)]


class _ReLU(torch.autograd.Function):
    """V = r (sin θ + (π − θ) cos θ) / 2π, r = √(v w), and its slope (π − θ)/2π to c, with derivatives.

    All are 0 where r = 0.
    """

    @staticmethod
    def forward(ctx: Any, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        r = v.sqrt() * w.sqrt()
        some = r > 0
        sine = ((r - c) * (r + c)).clamp(min=0.0).sqrt()
        sine[c.abs() >= (1 - 16 * torch.finfo(c.dtype).eps) * r] = 0.0  # equal points, up to round-off
        slope = torch.where(some, (math.pi - torch.atan2(sine, c)) / (2 * math.pi), 0.0)
        ctx.save_for_backward(c, v, w, sine, slope)
        return sine / (2 * math.pi) + slope * c, slope

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, to_slope: torch.Tensor) -> tuple[torch.Tensor, ...]:
        c, v, w, sine, slope = ctx.saved_tensors
        bend = torch.where(sine > 0, to_slope / (2 * math.pi * sine), 0.0)
        to_v, to_w = (torch.where(u > 0, (g * sine / (4 * math.pi) - bend * c / 2) / u, 0.0) for u in (v, w))
        return g * slope + bend, to_v.sum_to_size(v.shape), to_w.sum_to_size(w.shape)


class _Erf(torch.autograd.Function):
    """V = (2/π) arcsin(u), u = 2c / √((1 + 2v)(1 + 2w)), and its slope to c, with derivatives."""

    @staticmethod
    def forward(ctx: Any, c: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = 2 * (1 + 2 * v).rsqrt() * (1 + 2 * w).rsqrt()
        u = (c * scale).clamp(-1.0, 1.0)
        slope = (2 / math.pi) * scale / ((1 - u) * (1 + u)).sqrt()
        ctx.save_for_backward(c, v, w, u, scale, slope)
        return (2 / math.pi) * u.arcsin(), slope

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, to_slope: torch.Tensor) -> tuple[torch.Tensor, ...]:
        c, v, w, u, scale, slope = ctx.saved_tensors
        bend = to_slope * slope / ((1 - u) * (1 + u))
        to_c = g * slope + bend * u * scale
        to_v, to_w = (-(g * slope * c + bend) / (1 + 2 * each) for each in (v, w))
        return to_c, to_v.sum_to_size(v.shape), to_w.sum_to_size(w.shape)
