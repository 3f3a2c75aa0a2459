"""Covariance maps through a network on a GPU by programs of Triton, a tile of pairs each, from the images to K."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from kfx.kernels.cnngp import triton_kernels as kernels
from kfx.kernels.cnngp.engine import Gradient
from kfx.kernels.cnngp.layers import Activation, Add, Conv2d, Erf, Instruction, ReLU
from kfx.kernels.cnngp.torch_engine import TorchEngine, halving
from kfx.kernels.cnngp.triton_kernels import Kind

LARGEST = 64
"""The largest height and width of a map: a pair's stays in registers."""
_KINDS = {Conv2d: Kind.CONV, ReLU: Kind.RELU, Erf: Kind.ERF, Add: Kind.ADD}
_PROGRAMS = 2048  # that keep a large GPU busy at a time
_MOST = 16  # images on a side of a program's tile


class TritonEngine(TorchEngine):
    """Gram matrices and gradients of a program on a GPU, in float32.

    The maps of images by themselves, a small part of the work, go through torch. tile_megabytes: memory for what the
    programs of one launch keep; it is halved where a GPU's memory runs out. The bits are the same in every run.
    """

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """K(x, y); with y None K(x, x) without its diagonal, each pair computed once."""
        ours = _Images(self, x)
        others = ours if y is None else _Images(self, y)
        out = x.new_zeros(len(x), len(others.x))
        tables = _tables(self.program, ours.side, x.device)
        strip = 4 * (len(self.program) + 1) * ours.side**2

        def compute(most: int) -> torch.Tensor:
            for tiles, side in _tiles(len(x), None if y is None else len(others.x), most, x.device):
                kernels.gram[(len(tiles),)](
                    ours.x, others.x, ours.scales, others.scales, tiles, tables.forward, tables.bands,
                    *self._parameters(x), x.new_empty(len(tiles) * strip // 4), out,
                    len(x), len(others.x), int(y is None), side, len(self.program), x.shape[1], tables.activations,
                    SIDE=ours.side, PRECISION=_precision(), num_warps=_warps(ours.side),
                )  # fmt: skip
            return out

        return halving(compute, self._programs(strip))

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        """Gradients of Σ G_ij K_ij(x, x) to the weights and biases of each instruction, and to x when asked; each pair
        is computed again."""
        images = _Images(self, x)
        both = (cotangent + cotangent.mT).contiguous()
        tables = _tables(self.program, images.side, x.device)
        wanted, area = (x.shape[1] if inputs else 0), images.side**2
        slots = tables.activations + wanted
        strip = 4 * area * (2 * (len(self.program) + 1) + 2 * _MOST * slots)

        def compute(most: int) -> tuple[torch.Tensor, torch.Tensor]:
            total = torch.zeros(tables.convolutions, 2, dtype=torch.float64, device=x.device)
            to_images = x.new_zeros(len(x), slots, images.side, images.side)
            for tiles, side in _tiles(len(x), None, most, x.device):
                sums = total.new_zeros(len(tiles), tables.convolutions, 2)
                parts = x.new_zeros(len(tiles), 2, side, slots, images.side, images.side)
                kernels.pull[(len(tiles),)](
                    images.x, images.scales, tiles, tables.backward, tables.bands, *self._parameters(x),
                    x.new_empty(len(tiles), 2, len(self.program) + 1, area), both, sums, parts,
                    len(x), side, len(self.program), x.shape[1], tables.activations, tables.convolutions, wanted,
                    SIDE=images.side, PRECISION=_precision(), num_warps=_warps(images.side),
                )  # fmt: skip
                total += sums.sum(dim=0)
                _add_parts(to_images, parts, tiles, side)
            return total, to_images

        total, to_images = halving(compute, self._programs(strip))
        return self._through_variances(x, cotangent.diagonal(), images, tables, total, to_images, inputs)

    def _through_variances(
        self,
        x: torch.Tensor,
        own: torch.Tensor,
        images: _Images,
        tables: _Tables,
        total: torch.Tensor,
        to_images: torch.Tensor,
        inputs: bool,
    ) -> tuple[Gradient, torch.Tensor | None]:
        """Add what passes by the images' own variances to the gradients of the pairs."""
        gradient: Gradient = ([0.0] * len(self.program), [0.0] * len(self.program))
        for k, index in tables.convolution_at.items():
            gradient[0][k] += total[index, 0]
            gradient[1][k] += total[index, 1]
        at_steps: list[torch.Tensor | None] = [None] * len(self.program)
        for k, index in tables.activation_at.items():
            height, width = self.program[k].size
            at_steps[k] = to_images[:, index, :height, :width]
        to_squares = self._variance_adjoint(own, at_steps, images.variances, x, gradient)
        if not inputs:
            return gradient, None
        channels, (height, width) = x.shape[1], x.shape[2:]
        to_x = to_images[:, tables.activations :, :height, :width] + to_squares[:, None] * x * (2 / channels)
        return gradient, to_x

    def _programs(self, bytes_each: int) -> int:
        return max(min(int(self.tile_megabytes * 2**20 / bytes_each), _PROGRAMS), 1)

    def _parameters(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [pair for pair, step in zip(self.parameters, self.program, strict=True) if _is(step, Conv2d)]
        weights, biases = torch.tensor(pairs, dtype=torch.float32).to(x.device).unbind(dim=1)
        return weights.contiguous(), biases.contiguous()


class _Images:
    """Images of float32 in squares of a power of two, and what activations need of their variances."""

    def __init__(self, engine: TorchEngine, x: torch.Tensor) -> None:
        program = engine.program
        largest = max(max(*step.size, *step.output_size) for step in program)
        self.side = max(1 << (largest - 1).bit_length(), 16)  # 16: the least that a product takes
        self.variances = engine._variances(x)
        self.x = _in_squares(x, self.side)
        scales = [
            torch.stack(_scales(step.layer, self.variances[step.sources[0]]), dim=1)
            for step in program
            if _is(step, Activation)
        ]
        squares = [_in_squares(each, self.side) for each in scales] or [x.new_zeros(len(x), 2, self.side, self.side)]
        self.scales = torch.stack(squares, dim=1)


def _scales(layer: Any, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """r and q of a variance: √v and its inverse for a ReLU, 1 and 1/√(1 + 2v) for Erf."""
    if isinstance(layer, Erf):
        return torch.ones_like(v), (1 + 2 * v).rsqrt()
    root = v.sqrt()
    return root, torch.where(v > 0, 1 / root, 0.0)


def _in_squares(maps: torch.Tensor, side: int) -> torch.Tensor:
    """Maps (…, height, width) with zeros to the right and below, (…, side, side)."""
    height, width = maps.shape[-2:]
    return torch.nn.functional.pad(maps, (0, side - width, 0, side - height)).contiguous()


# ---- the program as tables of numbers


class _Tables:
    """What the programs read: a row for each instruction, on the way there and on the way back, and the bands."""

    def __init__(self, program: tuple[Instruction, ...], side: int, device: torch.device) -> None:
        self.convolution_at = {k: i for i, k in enumerate(_numbers(program, Conv2d))}
        self.activation_at = {k: i for i, k in enumerate(_numbers(program, Activation))}
        self.convolutions, self.activations = len(self.convolution_at), len(self.activation_at)
        index = self.convolution_at | self.activation_at
        bands: dict[bytes, int] = {}
        squares: list[np.ndarray] = []

        def band(layer: Conv2d, axis: int, length: int) -> int:
            square = np.zeros((side, side), np.float32)
            own = layer.band(axis, length)
            square[: own.shape[0], : own.shape[1]] = own
            if square.tobytes() not in bands:
                bands[square.tobytes()] = len(squares)
                squares.append(square)
            return bands[square.tobytes()]

        rows = np.zeros((len(program), int(kernels.FIELDS.value)), np.int32)
        for k, step in enumerate(program):
            first, second = step.sources[0], step.sources[-1]
            later = [source for other in program[k + 2 :] for source in other.sources]
            beside = program[k + 1].sources[1:] if k + 1 < len(program) else ()
            layer = step.layer
            windows = [band(layer, axis, step.size[axis]) for axis in (0, 1)] if isinstance(layer, Conv2d) else [0, 0]
            is_kept = k + 1 in later or k + 1 in beside
            rows[k, :7] = _KINDS[type(layer)], first, second, index.get(k, 0), *windows, is_kept
        seen: set[int] = set()
        for k in reversed(range(len(program))):
            step = program[k]
            rows[k, 7] = step.sources[0] not in seen
            seen.add(step.sources[0])
            rows[k, 8] = step.sources[-1] not in seen
            seen.update(step.sources)
        self.forward = torch.from_numpy(rows.copy()).to(device)
        rows[:, int(kernels.KEEP.value)] = 1
        self.backward = torch.from_numpy(rows).to(device)
        self.bands = torch.from_numpy(np.stack(squares)).to(device)


@lru_cache(maxsize=32)
def _tables(program: tuple[Instruction, ...], side: int, device: torch.device) -> _Tables:
    return _Tables(program, side, device)


def _is(step: Instruction, kind: type) -> bool:
    return isinstance(step.layer, kind)


def _numbers(program: tuple[Instruction, ...], kind: type) -> list[int]:
    return [k for k, step in enumerate(program) if _is(step, kind)]


# ---- tiles and launches


def _tiles(n: int, m: int | None, most: int, device: torch.device) -> Iterator[tuple[torch.Tensor, int]]:
    """The first row and column of each tile of a launch of at most so many programs, and the tiles' side: as large as
    leaves work for a whole GPU."""
    pairs = n * (n - 1) / 2 if m is None else n * m
    side = min(max(int(math.sqrt(pairs / _PROGRAMS)), 1), _MOST)
    if m is None:
        starts = np.arange(0, n, side)
        low, high = np.triu_indices(len(starts))
        all_tiles = np.stack([starts[low], starts[high]], axis=1)
    else:
        all_tiles = np.stack(np.meshgrid(np.arange(0, n, side), np.arange(0, m, side), indexing="ij"), -1).reshape(
            -1, 2
        )
    for start in range(0, len(all_tiles), most):
        yield torch.from_numpy(all_tiles[start : start + most].astype(np.int32)).to(device), side


def _add_parts(to_images: torch.Tensor, parts: torch.Tensor, tiles: torch.Tensor, side: int) -> None:
    """Sum each image's part of every tile, in the order of the tiles."""
    firsts = tiles.cpu()
    for at in (0, 1):
        for first in firsts[:, at].unique().tolist():
            rows = slice(first, min(first + side, len(to_images)))
            chosen = (firsts[:, at] == first).nonzero()[:, 0].to(parts.device)
            to_images[rows] += parts[:, at].index_select(0, chosen).sum(dim=0)[: rows.stop - rows.start]


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _warps(side: int) -> int:
    return max(side**2 // 512, 1)  # so that a map, and what is made of it, stay in registers


def runs_on(device: torch.device) -> bool:
    """Whether programs of Triton run there: on a GPU, or anywhere under its interpreter."""
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
