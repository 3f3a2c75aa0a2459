"""Covariance maps through a network on a GPU by Triton programs, one for each tile of pairs, from images to K."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import numpy as np
import torch

from kfx.kernels.cnngp import triton_kernels as kernels
from kfx.kernels.cnngp.layers import Activation, Add, Conv2d, Erf, Instruction, Layer, ReLU
from kfx.kernels.cnngp.tiling import halving, tile_bytes, tiles
from kfx.kernels.cnngp.torch_engine import Sums, TorchEngine
from kfx.kernels.cnngp.triton_kernels import Kind
from kfx.kernels.engine import Gradient

LARGEST = 64
"""The largest height and width of a map, since a pair's map stays in registers."""
_KINDS = {Conv2d: Kind.CONV, ReLU: Kind.RELU, Erf: Kind.ERF, Add: Kind.ADD}
MOST_PROGRAMS = 2048  # programs of a launch, enough to keep a large GPU busy
_MOST = 16  # images on a side of a program's tile


class TritonEngine(TorchEngine):
    """Gram matrices and gradients of a program on a GPU, in float32, block by block of images.

    torch computes the maps of single images, a small part of the work. tile_megabytes: see `tile_bytes`; of a block's
    images, and of the programs of one launch. The number of images is halved where a GPU's memory runs out. Results are
    bitwise equal in every run.
    """

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """Return K(x, y), (n, m), in x's dtype; with y None K(x, x), (n, n), without its diagonal, each pair once."""
        others = x if y is None else y

        def compute(most: int) -> torch.Tensor:
            out = x.new_zeros(len(x), len(others))
            for rows, columns in tiles(len(x), None if y is None else len(others), most):
                is_same = y is None and rows == columns
                block = self._gram_block(x[rows], None if is_same else others[columns])
                out[rows, columns] = block
                if y is None and not is_same:
                    out[columns, rows] = block.mT
            return out

        return halving(compute, self._images_at_once(x))

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        """Return gradients of Σ G_ij K_ij(x, x) to the weights and biases of each instruction, and to x, (n, …), with
        `inputs`. cotangent: G, (n, n). Each pair is computed again."""

        def compute(most: int) -> tuple[Gradient, torch.Tensor | None]:
            gradient: Sums = ([0.0] * len(self.program), [0.0] * len(self.program))
            to_x = torch.zeros_like(x) if inputs else None
            for rows, columns in tiles(len(x), None, most):
                both = cotangent[rows, columns] + cotangent[columns, rows].mT
                self._pull_block(x, both, cotangent.diagonal(), rows, columns, gradient, to_x)
            return gradient, to_x

        return halving(compute, self._images_at_once(x))

    # ---- a block of images, and the launches for it

    def _gram_block(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        ours = _Images(self, x)
        others = ours if y is None else _Images(self, y)
        out = x.new_zeros(len(x), len(others.x))
        tables = _tables(self.program, ours.side, x.device)
        side = _side(len(x), None if y is None else len(others.x))
        strip = (len(self.program) + 1) * ours.side**2
        for at in self._launches(len(x), None if y is None else len(others.x), side, 4 * strip, x.device):
            with _on(x.device):
                kernels.gram[(len(at),)](
                    ours.x, others.x, ours.scales, others.scales, at, tables.forward, tables.bands,
                    *self._parameters(x), x.new_empty(len(at), strip), out,
                    len(x), len(others.x), int(y is None), side, len(self.program), x.shape[1], tables.activations,
                    SIDE=ours.side, PRECISION=_precision(), num_warps=_warps(ours.side),
                )  # fmt: skip
        return out

    def _pull_block(
        self,
        x: torch.Tensor,
        both: torch.Tensor,
        own: torch.Tensor,
        rows: slice,
        columns: slice,
        gradient: Sums,
        to_x: torch.Tensor | None,
    ) -> None:
        is_same = rows == columns
        ours = _Images(self, x[rows])
        others = ours if is_same else _Images(self, x[columns])
        tables = _tables(self.program, ours.side, x.device)
        n, m = len(ours.x), len(others.x)
        side = _side(n, None if is_same else m)
        wanted, area = (0 if to_x is None else x.shape[1]), ours.side**2
        slots, kept = tables.activations + wanted, 2 * (len(self.program) + 1)
        total = torch.zeros(tables.convolutions, 2, dtype=torch.float64, device=x.device)
        to_ours = x.new_zeros(n, slots, ours.side, ours.side)
        to_others = to_ours if is_same else x.new_zeros(m, slots, ours.side, ours.side)
        each = 4 * area * (kept + 2 * side * slots)
        for at in self._launches(n, None if is_same else m, side, each, x.device):
            sums = total.new_zeros(len(at), tables.convolutions, 2)
            parts = x.new_zeros(len(at), 2, side, slots, ours.side, ours.side)
            with _on(x.device):
                kernels.pull[(len(at),)](
                    ours.x, others.x, ours.scales, others.scales, at, tables.backward, tables.bands,
                    *self._parameters(x), x.new_empty(len(at), kept, area), both.contiguous(), sums, parts,
                    n, m, int(is_same), side, len(self.program), x.shape[1], tables.activations, tables.convolutions,
                    wanted, SIDE=ours.side, PRECISION=_precision(), num_warps=_warps(ours.side),
                )  # fmt: skip
            total += sums.sum(dim=0)
            _add_parts(to_ours, parts[:, 0], at[:, 0], side)
            _add_parts(to_others, parts[:, 1], at[:, 1], side)
        for k, index in tables.convolution_at.items():
            gradient[0][k] += total[index, 0]
            gradient[1][k] += total[index, 1]
        self._through_variances(x, rows, ours, tables, own[rows] if is_same else None, to_ours, gradient, to_x)
        if not is_same:
            self._through_variances(x, columns, others, tables, None, to_others, gradient, to_x)

    def _through_variances(
        self,
        x: torch.Tensor,
        at: slice,
        images: _Images,
        tables: _Tables,
        own: torch.Tensor | None,
        to_images: torch.Tensor,
        gradient: Sums,
        to_x: torch.Tensor | None,
    ) -> None:
        """Add the gradients through single images' variances and to pixels. own: the diagonal of the cotangent."""
        at_steps: list[torch.Tensor | None] = [None] * len(self.program)
        for k, index in tables.activation_at.items():
            height, width = self.program[k].size
            at_steps[k] = to_images[:, index, :height, :width]
        to_squares = self._variance_adjoint(own, at_steps, images.variances, x[at], gradient)
        if to_x is not None:
            channels, (height, width) = x.shape[1], x.shape[2:]
            to_x[at] += to_images[:, tables.activations :, :height, :width]
            to_x[at] += to_squares[:, None] * x[at] * (2 / channels)

    def _images_at_once(self, x: torch.Tensor) -> int:
        """Return how many images, with their maps, fit into the memory of a block's two sides."""
        area, steps = _square(self.program) ** 2, len(self.program)
        each = 4 * area * (2 * steps + 2 * x.shape[1] + 2 * len(_numbers(self.program, Activation)))
        return max(int(tile_bytes(self.tile_megabytes, x.device) / 2 / each), 1)

    def _launches(
        self, n: int, m: int | None, side: int, bytes_each: int, device: torch.device
    ) -> Iterator[torch.Tensor]:
        """Yield the first row and column of each tile, for as many tiles at a time as fit into memory."""
        if m is None:
            starts = np.arange(0, n, side)
            low, high = np.triu_indices(len(starts))
            every = np.stack([starts[low], starts[high]], axis=1)
        else:
            grid = np.meshgrid(np.arange(0, n, side), np.arange(0, m, side), indexing="ij")
            every = np.stack(grid, axis=-1).reshape(-1, 2)
        most = max(min(int(tile_bytes(self.tile_megabytes, device) / bytes_each), MOST_PROGRAMS), 1)
        for start in range(0, len(every), most):
            yield torch.from_numpy(every[start : start + most].astype(np.int32)).to(device)

    def _parameters(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [pair for pair, step in zip(self.parameters, self.program, strict=True) if _is(step, Conv2d)]
        weights, biases = torch.tensor(pairs, dtype=torch.float32).to(x.device).unbind(dim=1)
        return weights.contiguous(), biases.contiguous()


class _Images:
    """Images in float32, padded to squares of a power of two, with the scales that activations need."""

    def __init__(self, engine: TorchEngine, x: torch.Tensor) -> None:
        program = engine.program
        self.side = _square(program)
        self.variances = engine._variances(x)
        self.x = _in_squares(x, self.side)
        scales = [
            torch.stack(_scales(step.layer, self.variances[step.sources[0]]), dim=1)
            for step in program
            if _is(step, Activation)
        ]
        squares = [_in_squares(each, self.side) for each in scales] or [x.new_zeros(len(x), 2, self.side, self.side)]
        self.scales = torch.stack(squares, dim=1)


def _scales(layer: Layer | Add, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales r and q of a variance v: √v and 1/√v for a ReLU, 1 and 1/√(1 + 2v) for Erf."""
    if isinstance(layer, Erf):
        return torch.ones_like(v), (1 + 2 * v).rsqrt()
    root = v.sqrt()
    return root, torch.where(v > 0, 1 / root, 0.0)


def _in_squares(maps: torch.Tensor, side: int) -> torch.Tensor:
    """Return maps (…, height, width) with zeros to the right and below, (…, side, side)."""
    height, width = maps.shape[-2:]
    return torch.nn.functional.pad(maps, (0, side - width, 0, side - height)).contiguous()


# ---- the program as tables of numbers


class _Tables:
    """The tables that the programs read: a row for each instruction, forward and backward, and the bands."""

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


def _side(n: int, m: int | None) -> int:
    """Return the number of images on a side of a program's tile: the most that keep a whole GPU busy."""
    pairs = n * (n - 1) / 2 if m is None else n * m
    return min(max(int(math.sqrt(pairs / MOST_PROGRAMS)), 1), _MOST)


def _add_parts(to_images: torch.Tensor, parts: torch.Tensor, firsts: torch.Tensor, side: int) -> None:
    """Add each image's part of every tile, in the order of the tiles. firsts: the first image of each tile."""
    here = firsts.cpu()
    for first in here.unique().tolist():
        rows = slice(first, min(first + side, len(to_images)))
        chosen = (here == first).nonzero()[:, 0].to(parts.device)
        to_images[rows] += parts.index_select(0, chosen).sum(dim=0)[: rows.stop - rows.start]


def _square(program: tuple[Instruction, ...]) -> int:
    """Return the side of the squares to which maps are padded, a power of two."""
    largest = max(max(*step.size, *step.output_size) for step in program)
    return max(1 << (largest - 1).bit_length(), 16)  # 16: the smallest size of a product


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which Triton, which uses the current device, launches on this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _warps(side: int) -> int:
    return max(side**2 // 512, 1)  # so that a map and its results stay in registers


def refusal(x: torch.Tensor, program: tuple[Instruction, ...]) -> str | None:
    """Return why the programs do not take images, (n, channels, height, width), as an error's message, or None.

    They take float32 on a CUDA device, and maps up to `LARGEST` in height and width.
    """
    if x.dtype != torch.float32 or not runs_on(x.device):
        return (
            f"engine=triton takes float32 on a CUDA device, and the points are {x.dtype} on {x.device}; use torch or "
            "auto"
        )
    if max(max(*step.size, *step.output_size) for step in program) > LARGEST:
        return (
            f"engine=triton takes images and maps of at most {LARGEST} × {LARGEST}, got {x.shape[2]} × {x.shape[3]}; "
            "use torch"
        )
    return None


def runs_on(device: torch.device) -> bool:
    """Return whether Triton programs run on a device: on a GPU, or on any device with Triton's interpreter."""
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
