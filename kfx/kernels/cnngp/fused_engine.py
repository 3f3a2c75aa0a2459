"""Covariance maps through a network on a CPU: sixteen pairs at a time, in cache, with tiles split between cores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from kfx.kernels.cnngp import maps as maps
from kfx.kernels.cnngp.layers import Add, Conv2d, Erf, Instruction, ReLU
from kfx.kernels.cnngp.tiling import fill, flat, tiles
from kfx.kernels.engine import ForwardEngine, Gradient
from kfx.numerics.threads import in_order

_KINDS = {Conv2d: maps.CONV, ReLU: maps.RELU, Erf: maps.ERF, Add: maps.ADD}


class FusedEngine(ForwardEngine):
    """Gram matrices and gradients of a program on a CPU, in x's dtype.

    `pull` is reverse mode over sixteen pairs at a time: it computes the maps again, keeps maps and slopes, and goes
    back. Its cost is the same for two shared parameters, for two in each layer and for all pixels. `gram_along` is
    forward mode for two shared parameters. Results are bitwise equal for any number of threads.
    """

    def __init__(self, program: tuple[Instruction, ...], weights: Sequence[float], biases: Sequence[float]) -> None:
        self.program = program
        self.convolutions = [k for k, instruction in enumerate(program) if isinstance(instruction.layer, Conv2d)]
        self.weights, self.biases = (np.asarray(values)[self.convolutions] for values in (weights, biases))
        self.tables = _tables(program)

    def _arguments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        tables = self.tables
        return tables.steps, tables.table, self.weights.astype(x.dtype), self.biases.astype(x.dtype), tables.activations

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        left = flat(x)
        right = left if y is None else flat(y)
        gram = torch.empty(len(left), len(right), dtype=x.dtype)
        arguments = self._arguments(left)

        def compute(rows: slice, columns: slice, block: np.ndarray) -> None:
            same = y is None and rows == columns
            maps.gram(left[rows], right[columns], same, *arguments, self.tables.maps, block)

        fill(gram.numpy(), _tiles(len(left), None if y is None else len(right)), y is None, compute)
        return gram

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        points = flat(x)
        diagonal = torch.empty(len(points), dtype=x.dtype)
        maps.diagonal(points, *self._arguments(points), diagonal.numpy())
        return diagonal

    def gram_along(
        self, x: torch.Tensor, along_weights: np.ndarray, along_biases: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        points, arguments = flat(x), self._arguments(flat(x))
        directions = [
            np.ascontiguousarray(a[:, self.convolutions], points.dtype) for a in (along_weights, along_biases)
        ]
        matrices = torch.empty(3, len(x), len(x), dtype=x.dtype)

        def compute(rows: slice, columns: slice, block: np.ndarray) -> None:
            both = points[rows], points[columns], rows == columns
            maps.gram_along(*both, *arguments, self.tables.maps, *directions, block[0], block[1:])

        fill(matrices.numpy(), _tiles(len(points), None), True, compute)
        return matrices[0], matrices[1:]

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        points, arguments = flat(x), self._arguments(flat(x))
        both = (cotangent + cotangent.mT).numpy()
        own = cotangent.diagonal().contiguous().numpy()
        none = points[:0]

        def compute(tile: tuple[slice, slice]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            rows, columns = tile
            gradient = np.zeros((2, len(self.convolutions)))
            to_rows, to_columns = (np.zeros_like(points[at]) if inputs else none for at in tile)
            maps.pull(
                points[rows], points[columns], np.ascontiguousarray(both[rows, columns]), own[rows], rows == columns,
                *arguments, self.tables.cotangents, gradient[0], gradient[1], to_rows, to_columns,
            )  # fmt: skip
            return gradient, to_rows, to_columns

        total, to_x = np.zeros((2, len(self.program))), np.zeros_like(points) if inputs else None
        for (rows, columns), (gradient, to_rows, to_columns) in in_order(compute, _tiles(len(points), None)):
            total[:, self.convolutions] += gradient
            if to_x is not None:
                to_x[rows] += to_rows
                to_x[columns] += to_columns
        return (list(total[0]), list(total[1])), None if to_x is None else torch.from_numpy(to_x).reshape(x.shape)


def compile_for(dtype: torch.dtype) -> None:
    """Load the compiled loops for float32 or float64; the first call on a machine compiles and caches them."""
    size = (2, 2)
    program = (Instruction(Conv2d(size), (0,), size),)
    engine = FusedEngine(program, [1.0], [1.0])
    x = torch.ones(2, 1, *size, dtype=dtype)
    engine.pull(x, engine.gram(x, None), inputs=True)
    engine.gram_along(x, np.ones((2, 1)), np.ones((2, 1)))
    engine.diagonal(x)


def _tiles(n: int, m: int | None) -> list[tuple[slice, slice]]:
    """Return tiles of up to 64 × 64 pairs, in which single images' maps cost little compared with the pairs'.

    There are enough tiles for all cores, and those on the diagonal, with half the work, come last, so that cores finish
    together. Of a triangle, a first strip takes the remainder modulo sixteen as rows; as columns it would leave most
    lanes empty.
    """
    side = min(max(16 * (max(n, m or 0) // 80), 32), 64)
    if m is not None:
        return list(tiles(n, m, side))
    first = n % maps.LANES
    strips = ([slice(0, first)] if first else []) + [slice(k, min(k + side, n)) for k in range(first, n, side)]
    pairs = [(rows, columns) for i, rows in enumerate(strips) for columns in strips[i:]]
    return sorted(pairs, key=lambda tile: tile[0] == tile[1])


# ---- the program as tables of numbers


class _Tables:
    """The tables that compiled loops read: a row for each instruction, and the windows of its convolution."""

    def __init__(self, program: tuple[Instruction, ...]) -> None:
        steps = np.zeros((len(program), maps.FIELDS), np.int64)
        sizes = [program[0].size, *(instruction.output_size for instruction in program)]
        windows: list[int] = [max(height * width for height, width in sizes), 0]
        counts = {True: 0, False: 0}  # of convolutions, and of activations
        for k, instruction in enumerate(program):
            layer, row = instruction.layer, steps[k]
            row[maps.KIND] = _KINDS[type(layer)]
            row[maps.SOURCE], row[maps.SECOND] = instruction.sources[0], instruction.sources[-1]
            row[maps.IN_SIZE], row[maps.OUT_SIZE] = np.prod(instruction.size), np.prod(instruction.output_size)
            if not isinstance(layer, Add):
                row[maps.INDEX] = counts[isinstance(layer, Conv2d)]
                counts[isinstance(layer, Conv2d)] += 1
            if isinstance(layer, Conv2d):
                places = (maps.ROWS, maps.COLUMNS, maps.ROWS_BACK, maps.COLUMNS_BACK)
                for place, (axis, back) in zip(places, ((0, False), (1, False), (0, True), (1, True)), strict=True):
                    row[place] = len(windows)
                    window = _window(layer, axis, instruction.size[axis], back)
                    windows += window
                    # The length of a row, with the zeros around it, that the sliding windows reach.
                    reach = window[maps.OUTPUTS] + window[maps.INPUTS] + window[maps.TAPS] + abs(window[maps.FIRST_TAP])
                    windows[1] = max(windows[1], reach)
        self.steps, self.table, self.activations = steps, np.array(windows), max(counts[False], 1)
        self.maps = _share_maps(steps, forward=True)
        self.cotangents = _share_maps(steps, forward=False)


@lru_cache(maxsize=32)
def _tables(program: tuple[Instruction, ...]) -> _Tables:
    return _Tables(program)


def _window(layer: Conv2d, axis: int, length: int, back: bool) -> list[int]:
    """Return the windows of a convolution, or with `back` of its adjoint, along one axis, as `maps` reads them."""
    band = layer.band(axis, length)
    first, taps = layer.first_tap(axis, length), layer.along(axis)[0]
    if back:
        band, first = band.T, 1 - first - taps
    slides = layer.along(axis)[1:] == (1, 1)  # each window is the previous one shifted by one
    low = [int(np.flatnonzero(row)[0]) if row.any() else 0 for row in band]
    high = [int(np.flatnonzero(row)[-1]) + 1 if row.any() else 0 for row in band]
    steps = {int(step) for row in band for step in np.diff(np.flatnonzero(row))}
    assert len(steps) <= 1, "the taps of a window are evenly spaced"
    return [*band.shape, first, taps, max(steps, default=1), int(slides), *low, *high]


def _share_maps(steps: np.ndarray, forward: bool) -> int:
    """Assign each map, or each cotangent on the way back, a place in memory, reusing those no longer needed.

    Fills in the columns of places in `steps`, and returns the number of places.
    """
    order = range(len(steps)) if forward else range(len(steps) - 1, -1, -1)
    sources = [[row[maps.SOURCE], row[maps.SECOND]][: 1 + (row[maps.KIND] == maps.ADD)] for row in steps]
    place: dict[int, int] = {}
    free: list[int] = []
    count = 0

    def take(value: int) -> int:
        nonlocal count
        if free:
            place[value] = min(free)
            free.remove(place[value])
        else:
            place[value], count = count, count + 1
        return place[value]

    take(0 if forward else len(steps))
    for k in order:
        row = steps[k]
        if forward:
            for column, source in zip((maps.IN, maps.IN2), sources[k], strict=False):
                row[column] = place[source]
            row[maps.OUT] = take(k + 1)
            dead = [s for s in set(sources[k]) if not any(s in later for later in sources[k + 1 :])]
        else:
            row[maps.G_OUT] = place[k + 1]
            columns = ((maps.G_IN, maps.FRESH), (maps.G_IN2, maps.FRESH2))
            for (column, fresh), source in zip(columns, sources[k], strict=False):
                row[fresh] = source not in place
                row[column] = place[source] if source in place else take(source)
            dead = [k + 1]
        free += [place.pop(value) for value in dead]
    return count
