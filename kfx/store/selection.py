"""Some of the points of a Gram store, as ranges: the leading ones, or all but a fold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kfx.store.gram_store import GramStore
from kfx.store.tiles import block_of


@dataclass(frozen=True)
class Selection:
    """The Gram matrix of the points in `ranges`, in tiles of the store's size; ranges are [start, stop), ascending and
    disjoint."""

    ranges: tuple[tuple[int, int], ...]
    tile: int

    @classmethod
    def head(cls, store: GramStore, size: int) -> Selection:
        """The first `size` points."""
        return cls(((0, size),), store.gram.tile)

    @classmethod
    def without(cls, store: GramStore, fold: slice, size: int) -> Selection:
        """The first `size` points, without those of a fold."""
        ranges = [(low, high) for low, high in ((0, fold.start), (fold.stop, size)) if low < high]
        return cls(tuple(ranges), store.gram.tile)

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    @property
    def places(self) -> int:
        """Number of tile rows."""
        return -(-len(self) // self.tile)

    def rows(self, i: int) -> slice:
        """The selected points of tile row i, counted among the selected points."""
        return slice(i * self.tile, min((i + 1) * self.tile, len(self)))

    def pieces(self, i: int) -> list[slice]:
        """The selected points of tile row i, as ranges of the store."""
        wanted, found, at = self.rows(i), [], 0
        for start, stop in self.ranges:
            low, high = max(wanted.start - at, 0), min(wanted.stop - at, stop - start)
            if low < high:
                found.append(slice(start + low, start + high))
            at += stop - start
        return found

    def read(self, store: GramStore, i: int, j: int) -> np.ndarray:
        """Tile (i, j), j ≤ i, in float64: (tile, tile), smaller at the edges."""
        across = self.pieces(j)
        return np.block(
            [[block_of(store.gram, rows, columns) for columns in across] for rows in self.pieces(i)]
        ).astype(np.float64, copy=False)
