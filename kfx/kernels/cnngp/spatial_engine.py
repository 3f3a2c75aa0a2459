"""Kernels of convolutional networks with pooling on a CPU, in compiled loops over one pair of images at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch

from kfx.kernels.cnngp import spatial_loops as loops
from kfx.kernels.cnngp.layers import Activation, Add, AvgPool2d, Conv2d, Erf, Instruction, ReLU
from kfx.kernels.cnngp.tiling import fill, flat, tiles
from kfx.kernels.engine import Engine, ForwardEngine, Gradient
from kfx.numerics.threads import in_order

_ACTIVATIONS = {ReLU: loops.RELU, Erf: loops.ERF}
_SIDE = 4  # pairs along a side of a tile: some milliseconds each


class SpatialEngine(Engine):
    """Gram matrices and gradients of a program with pooling on a CPU, in x's dtype.

    trained: None for the covariance kernel (NNGP); for the tangent kernel (NTK) a 0 or 1 for each instruction, whether
    its weights and biases are trained. A thread holds a map of (height · width)² entries or two, and for a gradient two
    more and one for each convolution. Results are bitwise equal for any number of threads.
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
        return self.tables.groups, self.tables.steps, *(v.astype(x.dtype) for v in self.values), sizes

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
        left = flat(x)
        right = left if y is None else flat(y)
        ri, qi, _ = self._scales(left)
        rj, qj, _ = (ri, qi, None) if y is None else self._scales(right)
        gram = torch.zeros(len(left), len(right), dtype=x.dtype)
        arguments = self._arguments(left)

        def compute(rows: slice, columns: slice, block: np.ndarray) -> None:
            pairs = loops.ABOVE if y is None and rows == columns else loops.ALL
            own = ri[rows], qi[rows], rj[columns], qj[columns]
            loops.values(left[rows], right[columns], pairs, *arguments, *own, block)

        fill(gram.numpy(), list(tiles(len(left), None if y is None else len(right), _SIDE)), y is None, compute)
        return gram

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._scales(flat(x))[2])

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        # Pairs of images first, whose gradients to the images' variances add up; then each image with itself.
        points, none = flat(x), flat(x)[:0]
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


class ForwardSpatialEngine(SpatialEngine, ForwardEngine):
    """A `SpatialEngine` for the covariance kernel, with forward mode for two shared parameters.

    A thread then holds three times the maps of a value.
    """

    def gram_along(
        self, x: torch.Tensor, along_weights: np.ndarray, along_biases: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        points = flat(x)
        groups, steps, weights, biases, _, sizes = self._arguments(points)
        directions = [
            np.ascontiguousarray(a[:, self.convolutions], points.dtype) for a in (along_weights, along_biases)
        ]
        arguments = (groups, steps, weights, biases, *directions, sizes)
        n = len(points)
        r, q = (np.empty((n, self.tables.variances), points.dtype) for _ in range(2))
        v = np.empty((n, 2, self.tables.variances), points.dtype)
        matrices, diagonal = torch.empty(3, n, n, dtype=x.dtype), np.empty((3, n), points.dtype)

        def of_images(at: slice) -> None:
            block = np.empty((3, at.stop - at.start, 1), points.dtype)
            own = (r[at], q[at]) * 2 + (v[at], v[at])
            loops.values_along(points[at], points[at], loops.OWN, *arguments, *own, block)
            diagonal[:, at] = block[:, :, 0]

        def of_pairs(rows: slice, columns: slice, block: np.ndarray) -> None:
            both = r[rows], q[rows], r[columns], q[columns], v[rows], v[columns]
            pairs = loops.ABOVE if rows == columns else loops.ALL
            loops.values_along(points[rows], points[columns], pairs, *arguments, *both, block)

        for _ in in_order(of_images, [slice(k, min(k + _SIDE, n)) for k in range(0, n, _SIDE)]):
            pass
        fill(matrices.numpy(), list(tiles(n, None, _SIDE)), True, of_pairs)
        matrices.diagonal(dim1=1, dim2=2).copy_(torch.from_numpy(diagonal))
        return matrices[0], matrices[1:]


def compile_for(dtype: torch.dtype) -> None:
    """Load the compiled loops for float32 or float64; the first call on a machine compiles and caches them."""
    size = (2, 2)
    program = (Instruction(Conv2d(1), (0,), size), Instruction(AvgPool2d(2), (1,), size))
    engine = ForwardSpatialEngine(program, [1.0, 0.0], [1.0, 0.0])
    x = torch.ones(2, 1, *size, dtype=dtype)
    engine.pull(x, engine.gram(x, None), inputs=True)
    engine.gram_along(x, np.ones((2, 2)), np.ones((2, 2)))


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
        sources = [own for _, _, own, _, _ in fused]
        self.groups = np.array(_groups(steps, sources, names))
        maps = _place_maps(steps, sources, names, self.groups.tolist())
        cotangents = _share_cotangents(steps, sources, names)
        each = [size for _, _, _, *both in fused for size in both]
        largest, rows = max(map(_entries, each)), max(height * width * (width + 1) for height, width in each)
        block = max(width * (width + 1) for _, width in each)
        line = max(width * (width + 1) + 2 * (width + 2) for _, width in each)
        self.steps, self.variances = steps, max(variances, 1)
        self.sizes = np.array([maps, largest, cotangents, max(kept, 1), line, block, rows])


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


def _groups(steps: np.ndarray, sources: list[tuple[int, ...]], names: list[int]) -> list[int]:
    """Return the first step of each group that is walked shift by shift, and the number of steps.

    All steps of a group make maps of one size, and read those of the group along diagonals of blocks.
    """
    starts = [0]
    for k in range(1, len(steps)):
        row, before = steps[k], steps[k - 1]
        axes = (loops.ROWS, loops.COLUMNS)
        same = all(row[axis + loops.OUTPUTS] == before[axis + loops.OUTPUTS] for axis in axes)
        mixes = row[loops.KIND] == loops.POOL or any(row[axis + loops.STRIDE] > 1 for axis in axes)
        if not same or (mixes and set(sources[k]) & set(names[starts[-1] : k])):
            starts.append(k)
    return [*starts, len(steps)]


def _place_maps(steps: np.ndarray, sources: list[tuple[int, ...]], names: list[int], groups: list[int]) -> int:
    """Assign each map a place in memory, reusing those no longer needed; return the number of entries.

    A map that is read in its group alone is held for one shift at a time, so its place is free again within the group;
    others hold all shifts.
    """
    places: dict[int, tuple[int, int, int]] = {0: (loops.IMAGES, 0, 0)}
    taken: dict[int, tuple[int, int]] = {}  # entries, place
    free: list[tuple[int, int]] = []
    count = 0
    for first, stop in pairwise(groups):
        later = {source for own in sources[stop:] for source in own} | {names[-1]}
        free_in_group: list[tuple[int, int]] = []  # each shift is written there again
        for k in range(first, stop):
            row, name = steps[k], names[k]
            m, n = (int(row[axis + loops.OUTPUTS]) for axis in (loops.ROWS, loops.COLUMNS))
            size, shifts = n * (n + 1), m if name in later else 1
            among = [own for own in ([] if name in later else free_in_group) + free if own[0] >= m * shifts * size]
            if among:
                taken[name] = among[0]
                (free if among[0] in free else free_in_group).remove(among[0])
            else:
                taken[name], count = (m * shifts * size, count), count + m * shifts * size
            places[name] = taken[name][1], size * shifts, size if name in later else 0
            row[loops.OUT : loops.OUT + 3] = places[name]
            row[loops.IN : loops.IN + 3], row[loops.IN2 : loops.IN2 + 3] = places[sources[k][0]], places[sources[k][-1]]
            read = {source for own in sources[k + 1 : stop] for source in own}
            free_in_group += [taken.pop(each) for each in set(names[first:k]) & set(taken) - later - read]
        free += free_in_group + [taken.pop(each) for each in set(taken) - later]
        free.sort()
    return count


def _share_cotangents(steps: np.ndarray, sources: list[tuple[int, ...]], names: list[int]) -> int:
    """Assign each cotangent on the way back a place in memory, reusing those no longer needed; return their number."""
    place: dict[int, int] = {names[-1]: 0}
    free: list[int] = []
    count = 1
    for k in reversed(range(len(steps))):
        row = steps[k]
        row[loops.G_OUT] = place[names[k]]
        columns = ((loops.G_IN, loops.FRESH), (loops.G_IN2, loops.FRESH2))
        for (column, fresh), source in zip(columns, sources[k], strict=False):
            row[fresh] = source not in place
            if source not in place:
                place[source], count = (free.pop(), count) if free else (count, count + 1)
            row[column] = place[source]
        free.append(place.pop(names[k]))
    return count
