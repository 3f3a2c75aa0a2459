"""Folders for Gram matrices that do not fit in memory. What computes and reads them is imported when one is needed."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.lock import Lock
from kfx.numerics.memory import bytes_in_memory
from kfx.outcomes import HeldError
from kfx.version import __version__

if TYPE_CHECKING:
    from kfx.store.gram_store import GramStore
    from kfx.store.identity import Identity
    from kfx.store.work import Work

Do = Callable[["Work", str], None]
"""`do(work, label)`: compute the missing tiles, with progress shown under that label."""


@dataclass(frozen=True)
class DiskStores:
    """Folders for Gram matrices that do not fit in memory.

    root: a folder of stores, one for each kernel and set of points; or an existing store, which is used if it belongs
        to this kernel and these points.
    memory: bytes that a matrix may take, and that all `processes` together have for the tiles of a factorisation.
    keep: keep the stores for later runs; otherwise a store is deleted when its results are recorded.
    follow: called with the state of long work, in words.
    """

    root: Path
    memory: int
    do: Do
    processes: int = 1
    keep: bool = False
    follow: Callable[[str], None] = lambda state: None
    used: list[Path] = field(default_factory=list)

    def takes(self, n: int, n_test: int, itemsize: int) -> bool:
        """Whether a matrix for n points and n_test test points goes on disk. itemsize: bytes of an entry."""
        return bytes_in_memory(n, n_test, itemsize) > self.memory

    @contextmanager
    def store(self, kernel: Kernel, points: torch.Tensor, test_points: torch.Tensor | None) -> Iterator[GramStore]:
        """Yield the store of the complete Gram matrix of these points; compute what is missing first, and hold the lock
        meanwhile.

        points: (n, …). test_points: (m, …), or None.
        """
        from kfx.store.gram_store import GramStore, tile_for
        from kfx.store.gram_work import GramWork

        mapped, compare = kernel.feature_map_and_kernel()
        points, test_points = mapped(points), None if test_points is None else mapped(test_points)
        folder = self._folder(compare, points, test_points)
        self.used.append(folder)
        with held(folder):
            tile = tile_for(len(points), self.memory // self.processes)
            store = GramStore.prepare(folder, compare, points, test_points, tile=tile)
            self.do(GramWork.of(store, compare, points.device), "Gram")
            yield store
            shutil.rmtree(folder / "factor", ignore_errors=True)  # if interrupted, the factor stays

    def _folder(self, kernel: Kernel, points: torch.Tensor, test_points: torch.Tensor | None) -> Path:
        """Folder of the store that has, or will have, this kernel and these points."""
        from kfx.store.gram_store import MANIFEST, GramStore
        from kfx.store.identity import Identity, digest, hashed

        identity = Identity.of(kernel, points)
        if (self.root / MANIFEST).exists():
            difference = GramStore(self.root).difference(identity, points, test_points)
            if difference is None:
                return self.root
            warnings.warn(
                f"{self.root}: is the store of something else: {difference}; one more is made in it", stacklevel=1
            )
        parts: list[object] = [identity.kernel, identity.parameters, identity.settings, identity.dtype, digest(points)]
        parts.append(None if test_points is None else digest(test_points))
        return self.root / hashed(parts)

    def known(self, key: list[object], of: Identity, compute: Callable[[], float]) -> float:
        """Return a number of a kernel that is expensive to compute: read it from the folder under `key`, or compute it
        and keep it there. of: the kernel's identity, whose values on the first points must be those of then."""
        from kfx.store import sealed
        from kfx.store.identity import hashed

        name = hashed([__version__, of.kernel, of.parameters, of.settings, of.dtype, *key])
        path = self.root / "known" / f"{name}.npz"
        found = sealed.read(path, name)
        if found is None or of.error_of(found["probe"]) is not None:
            found = {"value": np.array(compute()), "probe": of.probe}
            sealed.write(path, name, found)
        return float(found["value"])

    def discard(self) -> None:
        """Delete the stores whose results are recorded, unless they are to be kept."""
        while self.used:
            folder = self.used.pop()
            if not self.keep:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make a store's folder, and hold its lock within the block."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = _waited_for(folder)
    try:
        yield
    finally:
        lock.release()


def _waited_for(folder: Path) -> Lock:
    """Wait until no other process holds the store, and return its lock."""
    told = False
    while True:
        try:
            return Lock(folder)
        except HeldError as error:
            if not told:
                warnings.warn(f"{str(error).partition(';')[0]}; waiting for it", stacklevel=1)
            told = True
            time.sleep(0.5)
