"""Gram matrices tile by tile: which tiles there are, and how they fill a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch

from kfx.numerics.incidents import report
from kfx.numerics.threads import in_order
from kfx.outcomes import Event

T = TypeVar("T")
Tile = tuple[slice, slice]
"""Its rows and its columns."""


def flat(x: torch.Tensor) -> np.ndarray:
    """Return images as arrays of pixels, (n, channels, pixels), in their memory. x: (n, channels, height, width)."""
    return x.detach().contiguous().flatten(2).numpy()


def tile_bytes(megabytes: float, device: torch.device) -> float:
    """Return the bytes of a tile's maps: so many megabytes, as a CPU's cache holds, and 32 times as much on a GPU, on
    which many small launches would take longer than their work."""
    return megabytes * 2**20 * (1 if device.type == "cpu" else 32)


def tiles(n: int, m: int | None, side: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of tiles of an (n, m) matrix; with m None, those on and above the diagonal of (n, n).

    The last ones may be smaller.
    """
    for top in range(0, n, side):
        for left in range(top if m is None else 0, n if m is None else m, side):
            yield slice(top, min(top + side, n)), slice(left, min(left + side, n if m is None else m))


def halving(compute: Callable[[int], T], side: int) -> T:
    """Return compute(side); where a GPU's memory runs out, halve the side and try again, down to 1."""
    while True:
        try:
            return compute(side)
        except torch.OutOfMemoryError:
            if side == 1:
                raise
            torch.cuda.empty_cache()
        side = max(side // 2, 1)  # outside the handler, which keeps the failed tile's memory alive
        report(Event.TILE_HALVED)


def filled(
    x: torch.Tensor, y: torch.Tensor | None, side: int, compute: Callable[[slice, slice], torch.Tensor]
) -> torch.Tensor:
    """Return K(x, y), (n, m), or K(x, x), (n, n), where y is None: then one triangle is computed and copied.

    compute: maps the rows and columns of a tile to its values. side: rows of a tile.
    """
    others = x if y is None else y
    gram = x.new_empty(len(x), len(others))
    for rows, columns in tiles(len(x), None if y is None else len(others), side):
        gram[rows, columns] = compute(rows, columns)
        if y is None and rows != columns:
            gram[columns, rows] = gram[rows, columns].mT
    return gram


def fill(
    out: np.ndarray, items: Sequence[Tile], is_symmetric: bool, compute: Callable[[slice, slice, np.ndarray], None]
) -> None:
    """Fill matrices, (n, m) or (k, n, m), on all cores.

    items: the tiles; of symmetric matrices those on and above the diagonal. compute: fills zeros in the shape of a tile
    with its values; on the diagonal of symmetric matrices those above, and the diagonal if it is wanted.
    """

    def at(tile: Tile) -> None:
        rows, columns = tile
        block = np.zeros((*out.shape[:-2], rows.stop - rows.start, columns.stop - columns.start), out.dtype)
        compute(rows, columns, block)
        if is_symmetric and rows == columns:
            block += np.triu(block, 1).swapaxes(-1, -2)
        out[..., rows, columns] = block
        if is_symmetric and rows != columns:
            out[..., columns, rows] = block.swapaxes(-1, -2)

    for _ in in_order(at, items):
        pass
