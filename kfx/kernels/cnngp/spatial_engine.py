"""Kernels of convolutional networks with pooling on a CPU, in compiled loops over one pair of images at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from kfx.kernels.cnngp import spatial_loops as loops
from kfx.kernels.cnngp.layers import Activation, Add, AvgPool2d, Conv2d, Erf, Instruction, ReLU
from kfx.kernels.cnngp.torch_engine import tiles
from kfx.kernels.engine import Gradient
from kfx.numerics.threads import in_order

_ACTIVATIONS = {ReLU: loops.RELU, Erf: loops.ERF}
_SIDE = 4  # pairs along a side of a tile: some milliseconds each


class SpatialEngine:
    """Gram matrices and gradients of a program with pooling on a CPU, in x's dtype.

    trained: None for the covariance kernel (NNGP); for the tangent kernel (NTK) a 0 or 1 for each instruction, whether
    its weights and biases are trained. A thread holds three to five maps of (height · width)² entries, and for a
    gradient one more for each convolution. Results are bitwise equal for any number of threads.
    """

    def __init__(
        self,
        program: tuple[Instruction, ...],
        weights: Sequence[float],
        biases: Sequence[float],
        trained: Sequence[float] | None = None,
    ) -> None:
        self.program, self.is_tangent = program, trained is not None
        self.convolutions = [k for k, instruction in enumerate(program) if isinstance(instruction.layer, Conv2d)]
        trained = [0.0] * len(program) if trained is None else trained
        self.values = [np.asarray(values, float)[self.convolutions] for values in (weights, biases, trained)]
        self.tables = _tables(program)

    def _arguments(self, x: np.ndarray) -> tuple[object, ...]:
        sizes = np.array([1 + self.is_tangent, *self.tables.sizes])
        return self.tables.steps, *(v.astype(x.dtype) for v in self.values), sizes

    def _scales(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the scales and inverse scales at the activations, (n, variances), and the diagonal, (n,)."""
        r, q = (np.empty((len(points), self.tables.variances), points.dtype) for _ in range(2))
        diagonal = np.empty((len(points), 1), points.dtype)
        arguments = self._arguments(points)

        def compute(at: slice) -> None:
            images = points[at]
            loops.values(images, images, loops.OWN, *arguments, r[at], q[at], r[at], q[at], diagonal[at])

        for _ in in_order(compute, [slice(k, k + _SIDE) for k in range(0, len(points), _SIDE)]):
            pass
        return r, q, diagonal[:, 0]

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """Return K(x, y), (n, m); with y None K(x, x), (n, n), without its diagonal, one triangle computed."""
        left = _flat(x)
        right = left if y is None else _flat(y)
        ri, qi, _ = self._scales(left)
        rj, qj, _ = (ri, qi, None) if y is None else self._scales(right)
        gram = torch.zeros(len(left), len(right), dtype=x.dtype)
        out, arguments = gram.numpy(), self._arguments(left)

        def compute(tile: tuple[slice, slice]) -> None:
            rows, columns = tile
            same = y is None and rows == columns
            block = np.zeros((rows.stop - rows.start, columns.stop - columns.start), left.dtype)
            pairs = loops.ABOVE if same else loops.ALL
            loops.values(
                left[rows], right[columns], pairs, *arguments, ri[rows], qi[rows], rj[columns], qj[columns], block
            )
            out[rows, columns] = block + block.T if same else block
            if y is None and not same:
                out[columns, rows] = block.T

        for _ in in_order(compute, list(tiles(len(left), None if y is None else len(right), _SIDE))):
            pass
        return gram

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        """Return K(x_i, x_i), (n,), in x's dtype."""
        return torch.from_numpy(self._scales(_flat(x))[2])

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        """Return gradients of Σ G_ij K_ij(x, x) to the weights and biases of each instruction, and to x, (n, …), with
        `inputs`. cotangent: G, (n, n).

        Pairs of images first, whose gradients to the images' variances add up; then each image with itself.
        """
        points, none = _flat(x), _flat(x)[:0]
        arguments = self._arguments(points)
        both = (cotangent + cotangent.mT).numpy()
        r, q, _ = self._scales(points)
        to_v = np.zeros((len(points), self.tables.variances), points.dtype)
        to_x = np.zeros_like(points) if inputs else none
        total = np.zeros((2, len(self.program)))

        def compute(tile: tuple[slice, slice], own: bool, g: np.ndarray) -> tuple[np.ndarray, list, list]:
            rows, columns = tile
            gradient = np.zeros((2, len(self.convolutions)))
            to_v_tile = [to_v[rows] if own else np.zeros_like(to_v[rows]), np.zeros_like(to_v[columns])]
            to_x_tile = [np.zeros_like(points[at]) if inputs else none for at in tile]
            pairs = loops.OWN if own else loops.ABOVE if rows == columns else loops.ALL
            loops.pull(
                points[rows], points[columns], g, pairs, *arguments, r[rows], q[rows], r[columns], q[columns], inputs,
                *to_v_tile, *gradient, *to_x_tile,
            )  # fmt: skip
            return gradient, to_v_tile, to_x_tile

        def of_pairs(tile: tuple[slice, slice]) -> tuple[np.ndarray, list, list]:
            return compute(tile, False, np.ascontiguousarray(both[tile]))

        def of_images(tile: tuple[slice, slice]) -> tuple[np.ndarray, list, list]:
            return compute(tile, True, both.diagonal()[tile[0], None] / 2)

        own = [(slice(k, k + _SIDE), slice(k, k + _SIDE)) for k in range(0, len(points), _SIDE)]
        for work, items in ((of_pairs, list(tiles(len(points), None, _SIDE))), (of_images, own)):
            for tile, (gradient, to_v_tile, to_x_tile) in in_order(work, items):
                total[:, self.convolutions] += gradient
                for at, to_v_side, to_x_side in zip(tile, to_v_tile, to_x_tile, strict=True):
                    if work is of_pairs:
                        to_v[at] += to_v_side
                    if inputs:
                        to_x[at] += to_x_side
        return (list(total[0]), list(total[1])), torch.from_numpy(to_x).reshape(x.shape) if inputs else None


def compile_for(dtype: torch.dtype) -> None:
    """Load the compiled loops for float32 or float64; the first call on a machine compiles and caches them."""
    size = (2, 2)
    program = (Instruction(Conv2d(1), (0,), size), Instruction(AvgPool2d(2), (1,), size))
    engine = SpatialEngine(program, [1.0, 0.0], [1.0, 0.0])
    x = torch.ones(2, 1, *size, dtype=dtype)
    engine.pull(x, engine.gram(x, None), inputs=True)


def _flat(x: torch.Tensor) -> np.ndarray:
    return x.detach().contiguous().flatten(2).numpy()


# ---- the program as tables of numbers


class _Tables:
    """The tables that compiled loops read: a row for each linear layer with the activation that follows it."""

    def __init__(self, program: tuple[Instruction, ...]) -> None:
        fused, names = _fuse(program)
        steps = np.zeros((len(fused), loops.FIELDS), np.int64)
        variances = kept = convolutions = 0
        for row, (layer, activation, _, size, output) in zip(steps, fused, strict=True):
            row[loops.KIND] = _kind(layer)
            row[loops.ACTIVATION] = loops.NONE if activation is None else _ACTIVATIONS[type(activation)]
            if isinstance(layer, Conv2d):
                row[loops.INDEX] = convolutions
                convolutions += 1
            row[loops.KEPT] = loops.NOT_KEPT
            if activation is not None or isinstance(layer, Conv2d):
                row[loops.KEPT] = kept
                kept += _entries(output)
            if activation is not None:
                row[loops.SCALES] = variances
                variances += math.prod(output)
            for axis, (place, back) in enumerate(((loops.ROWS, loops.ROWS_BACK), (loops.COLUMNS, loops.COLUMNS_BACK))):
                taps, first, stride, dilation = _geometry(layer, axis, size[axis])
                row[place : place + 6] = size[axis], output[axis], taps, first, stride, dilation
                row[back : back + 6] = output[axis], size[axis], taps, -first - (taps - 1) * dilation, stride, dilation
        maps = _share(steps, [sources for _, _, sources, _, _ in fused], names, forward=True)
        cotangents = _share(steps, [sources for _, _, sources, _, _ in fused], names, forward=False)
        each = [size for _, _, _, *both in fused for size in both]
        largest, rows = max(map(_entries, each)), max(height * width * (width + 1) for height, width in each)
        block = max(width * (width + 1) for _, width in each)
        line = max(width * (width + 1) + 2 * (width + 2) for _, width in each)
        self.steps, self.variances = steps, max(variances, 1)
        self.sizes = np.array([largest, maps, cotangents, max(kept, 1), line, block, rows])


def _entries(size: tuple[int, int]) -> int:
    """Return the entries of the map of a pair of images of this size, with the zero at the end of each row."""
    height, width = size
    return height * height * width * (width + 1)


@lru_cache(maxsize=32)
def _tables(program: tuple[Instruction, ...]) -> _Tables:
    return _Tables(program)


def _kind(layer: object) -> int:
    return {Conv2d: loops.CONV, AvgPool2d: loops.POOL, Add: loops.ADD}.get(type(layer), loops.COPY)


def _geometry(layer: object, axis: int, length: int) -> tuple[int, int, int, int]:
    """Return (taps, first tap, stride, dilation) along one axis."""
    if isinstance(layer, Conv2d):
        taps, stride, dilation = layer.along(axis)
        return taps, layer.first_tap(axis, length), stride, dilation
    if isinstance(layer, AvgPool2d):
        taps, stride = layer.along(axis)
        return taps, 0, stride, 1
    return 1, 0, 1, 1


_Fused = tuple[object, Activation | None, tuple[int, ...], tuple[int, int], tuple[int, int]]


def _fuse(program: tuple[Instruction, ...]) -> tuple[list[_Fused], list[int]]:
    """Return the steps (layer, activation, sources, input size, output size), and the number of each one's map.

    An activation joins the step before it where nothing else reads what that step makes.
    """
    readers = [source for instruction in program for source in instruction.sources]
    fused: list[_Fused] = []
    names: list[int] = []
    for k, each in enumerate(program):
        activation = each.layer if isinstance(each.layer, Activation) else None
        if activation and names and each.sources == (names[-1],) and readers.count(names[-1]) == 1:
            layer, before, sources, size, output = fused[-1]
            if before is None:
                fused[-1] = (layer, activation, sources, size, output)
                names[-1] = k + 1
                continue
        fused.append((each.layer, activation, each.sources, each.size, each.output_size))
        names.append(k + 1)
    return fused, names


def _share(steps: np.ndarray, sources: list[tuple[int, ...]], names: list[int], forward: bool) -> int:
    """Assign each map, or each cotangent on the way back, a place in memory, reusing those no longer needed.

    Fills in the columns of places in `steps`, and returns the number of places.
    """
    place: dict[int, int] = {}
    free: list[int] = []
    count = 0

    def take(name: int) -> int:
        nonlocal count
        if free:
            place[name] = free.pop()
        else:
            place[name], count = count, count + 1
        return place[name]

    if forward:
        place[0] = loops.IMAGES
    else:
        take(names[-1])
    for k in range(len(steps)) if forward else reversed(range(len(steps))):
        row = steps[k]
        if forward:
            row[loops.IN], row[loops.IN2] = place[sources[k][0]], place[sources[k][-1]]
            row[loops.OUT] = take(names[k])
            dead = [s for s in set(sources[k]) if not any(s in later for later in sources[k + 1 :])]
        else:
            row[loops.G_OUT] = place[names[k]]
            columns = ((loops.G_IN, loops.FRESH), (loops.G_IN2, loops.FRESH2))
            for (column, fresh), source in zip(columns, sources[k], strict=False):
                row[fresh] = source not in place
                row[column] = place[source] if source in place else take(source)
            dead = [names[k]]
        free += [place.pop(name) for name in dead if name or not forward]
    return count
