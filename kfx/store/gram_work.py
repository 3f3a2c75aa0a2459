"""Compute the tiles of a Gram store from its points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.store.gram_store import GRAM, TEST, GramStore, size_now
from kfx.store.identity import finite
from kfx.store.work import TileTask, Work


@dataclass(frozen=True)
class GramWork(Work):
    """Compute the missing tiles of the store in `folder`.

    kernel: from `Kernel.feature_map_and_kernel`. n: number of points in the store. device: where the tiles are
        computed.
    """

    kernel: Kernel
    n: int
    device: str = "cpu"

    @classmethod
    def of(cls, store: GramStore, kernel: Kernel, device: torch.device) -> GramWork:
        return cls(str(store.folder), kernel, len(store), str(device))

    @cached_property
    def _store(self) -> GramStore:
        return GramStore(Path(self.folder))

    def _all(self) -> list[TileTask]:
        parts = [GRAM] + ([TEST] if self._store.test is not None else [])
        return [TileTask(part, i, j) for part in parts for i, j in self._store.tiles(part).places()]

    def tasks(self) -> list[TileTask]:
        return [task for task in self._all() if not self._store.finished(*task)]

    def total(self) -> int:
        return len(self._all())

    def bytes_to_come(self) -> int:
        test = self._store.test
        return self._store.gram.bytes_to_come() + (test.bytes_to_come() if test is not None else 0)

    def cost(self, task: TileTask) -> float:
        """Number of pairs of points."""
        tiles = self._store.tiles(task.matrix)
        rows, columns = tiles.rows(task.row), tiles.columns(task.column)
        pairs = (rows.stop - rows.start) * (columns.stop - columns.start)
        return pairs / 2 if task.matrix == GRAM and task.row == task.column else pairs

    def do(self, task: TileTask) -> None:
        store = self._store
        if store.finished(*task):
            return
        matrix, i, j = task
        tiles = store.tiles(matrix)
        rows, columns = tiles.rows(i), tiles.columns(j)
        block = np.full((rows.stop - rows.start, columns.stop - columns.start), np.nan, tiles.dtype)
        if tiles.has(i, j):  # at an earlier edge: computed entries stay
            held = tiles.read(i, j)
            block[: held.shape[0], : held.shape[1]] = held
        old_rows, old_columns = (int(np.isfinite(side).sum()) for side in (block[:, 0], block[0]))
        right = self._points(columns, test=False)
        if matrix == GRAM and i == j:
            new = right[old_rows:]
            block[old_rows:, old_rows:] = finite(self.kernel, self.kernel.gram(new))
            if old_rows:
                block[:old_rows, old_rows:] = finite(self.kernel, self.kernel.gram(right[:old_rows], new))
                block[old_rows:, :old_rows] = block[:old_rows, old_rows:].T
        elif matrix == GRAM:  # from the upper triangle, for the same bits as in memory
            left = self._points(rows, test=False)[old_rows:]
            block[old_rows:] = finite(self.kernel, self.kernel.gram(right, left)).T
        else:
            left = self._points(rows, test=True)
            block[:, old_columns:] = finite(self.kernel, self.kernel.gram(left, right[old_columns:]))
        if size_now(store.folder) == self.n:  # else the process that extended the store computes the tile
            tiles.write(i, j, block)

    def _points(self, rows: slice, *, test: bool) -> torch.Tensor:
        return torch.from_numpy(self._store.points(rows, test=test)).to(self.device)
