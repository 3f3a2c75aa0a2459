"""The tiles of a Gram store, computed from its points."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.numerics.arrays import in_numpy
from kfx.outcomes import Event, NumericalError
from kfx.store.gram_store import GRAM, TEST, GramStore
from kfx.store.work import Task


@dataclass(frozen=True)
class GramWork:
    """Compute the tiles of the store in `folder` that are missing.

    kernel: pickled, as `Kernel.unfolded` gives it. n: how many points the store has. device: where it computes.
    """

    folder: str
    kernel: bytes
    n: int
    device: str = "cpu"

    @classmethod
    def of(cls, store: GramStore, kernel: Kernel, device: torch.device) -> GramWork:
        return cls(str(store.folder), pickle.dumps(kernel), len(store), str(device))

    @property
    def store(self) -> str:
        return self.folder

    @cached_property
    def _store(self) -> GramStore:
        return GramStore(Path(self.folder))

    @cached_property
    def _kernel(self) -> Kernel:
        kernel = pickle.loads(self.kernel)
        assert isinstance(kernel, Kernel)
        return kernel

    def _all(self) -> list[Task]:
        parts = [GRAM] + ([TEST] if self._store.test is not None else [])
        return [Task(part, i, j) for part in parts for i, j in self._store.tiles(part).places()]

    def tasks(self) -> list[Task]:
        return [task for task in self._all() if not self._store.finished(*task)]

    def total(self) -> int:
        return len(self._all())

    def bytes_to_come(self) -> int:
        test = self._store.test
        return self._store.gram.bytes_to_come() + (test.bytes_to_come() if test is not None else 0)

    def needs(self, task: Task) -> Iterable[Task]:
        return ()

    def cost(self, task: Task) -> float:
        """Pairs of points."""
        tiles = self._store.tiles(task.matrix)
        rows, columns = tiles.rows(task.row), tiles.columns(task.column)
        pairs = (rows.stop - rows.start) * (columns.stop - columns.start)
        return pairs / 2 if task.matrix == GRAM and task.row == task.column else pairs

    def do(self, task: Task) -> None:
        store = self._store
        if store.finished(*task):
            return
        matrix, i, j = task
        tiles = store.tiles(matrix)
        rows, columns = tiles.rows(i), tiles.columns(j)
        block = np.full((rows.stop - rows.start, columns.stop - columns.start), np.nan, tiles.dtype)
        if tiles.has(i, j):  # at an earlier edge: what is there stays
            held = tiles.read(i, j)
            block[: held.shape[0], : held.shape[1]] = held
        old_rows, old_columns = (int(np.isfinite(side).sum()) for side in (block[:, 0], block[0]))
        right = self._points(columns, test=False)
        if matrix == GRAM and i == j:
            new = right[old_rows:]
            block[old_rows:, old_rows:] = self._finite(self._kernel.gram(new))
            if old_rows:
                block[:old_rows, old_rows:] = self._finite(self._kernel.gram(right[:old_rows], new))
                block[old_rows:, :old_rows] = block[:old_rows, old_rows:].T
        elif matrix == GRAM:  # by the upper triangle, as a Gram matrix in memory
            left = self._points(rows, test=False)[old_rows:]
            block[old_rows:] = self._finite(self._kernel.gram(right, left)).T
        else:
            left = self._points(rows, test=True)
            block[:, old_columns:] = self._finite(self._kernel.gram(left, right[old_columns:]))
        tiles.write(i, j, block)

    def _points(self, rows: slice, *, test: bool) -> torch.Tensor:
        return torch.from_numpy(self._store.points(rows, test=test)).to(self.device)

    def _finite(self, block: torch.Tensor) -> np.ndarray:
        if not bool(block.isfinite().all()):
            raise NumericalError(Event.DIVERGED, f"{self._kernel!r} has entries that are not finite on these points")
        return in_numpy(block)
