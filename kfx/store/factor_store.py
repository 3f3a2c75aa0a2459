"""The Cholesky factor of a regularized Gram matrix in tiles on disk, and the tasks that compute it."""

from __future__ import annotations

import contextlib
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from kfx.documents import is_number
from kfx.files import write_json
from kfx.numerics.linear_algebra import solve_lower, solve_upper
from kfx.outcomes import Event, NumericalError, StoreError
from kfx.store.gram_store import GramStore
from kfx.store.manifest import MANIFEST, Entry, hexadecimal, read, require, whole
from kfx.store.selection import Selection
from kfx.store.tiles import MOST_ROWS, Tiles
from kfx.store.work import TileTask, Work

FACTOR = "factor"


def _is_ranges(value: object) -> bool:
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return False
    edges = [edge for pair in value for edge in pair]
    return bool(edges) and all(type(edge) is int and edge >= 0 for edge in edges) and edges == sorted(edges)


_ENTRIES = {
    "token": hexadecimal(16),
    "gram_points_sha256": hexadecimal(64),
    "ranges": Entry("pairs of rising whole numbers >= 0", _is_ranges),
    "tile": whole(1, MOST_ROWS),
    "regularization": Entry("a number", is_number),
    "jitter": Entry("a number", is_number),
}


class FactorStore:
    """A folder with the factor L of A = Θ + (λ + jitter) I = L Lᵀ, float64, as tiles of the lower triangle under a
    manifest.

    selection: the points of the Gram store that it factors. token: the name of this factor's tiles, so that a late
        worker of an earlier factor writes where nobody reads.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        content = read(self.folder, "factor", _ENTRIES)
        self.regularization, self.jitter = float(content["regularization"]), float(content["jitter"])
        self.gram, self.token = content["gram_points_sha256"], content["token"]
        self.selection = Selection(tuple((start, stop) for start, stop in content["ranges"]), content["tile"])
        self.factor, n = Tiles(self.folder / self.token), len(self.selection)
        path = self.factor.folder / "zarr.json"
        require(self.factor.shape == (n, n), path, "shape", self.factor.shape, f"{(n, n)}, as its ranges")
        require(self.factor.tile == content["tile"], path, "chunk_shape", self.factor.tile, f"{content['tile']}")

    @classmethod
    def prepare(
        cls, folder: Path, store: GramStore, selection: Selection, regularization: float, jitter: float = 0.0
    ) -> FactorStore:
        """Open the factor of these points with this λ and jitter, or create it empty; any other factor in the folder is
        deleted."""
        digest, n = store.manifest["points_sha256"], len(selection)
        with contextlib.suppress(StoreError):  # a damaged factor is replaced too
            held = cls(folder)
            if (held.gram, held.selection, held.shift) == (digest, selection, regularization + jitter):
                for partial in folder.glob("*/c/**/*.partial"):
                    partial.unlink(missing_ok=True)
                return held
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        token = uuid.uuid4().hex[:16]
        Tiles.create(folder / token, (n, n), selection.tile, "float64", triangular=True)
        content = {
            "token": token,
            "gram_points_sha256": digest,
            "ranges": [list(each) for each in selection.ranges],
            "tile": selection.tile,
            "regularization": regularization,
            "jitter": jitter,
        }
        write_json(folder / MANIFEST, content)
        return cls(folder)

    def __len__(self) -> int:
        return len(self.selection)

    @property
    def shift(self) -> float:
        """λ + jitter, which is added to the diagonal."""
        return self.regularization + self.jitter

    def solve_lower(self, y: torch.Tensor) -> torch.Tensor:
        """L⁻¹ y, (k, outputs), float64, for the first k points, in one pass over the factor. y: (k, outputs)."""
        w = y.to(torch.float64, copy=True)
        for i, j, block in self._leading(len(y)):
            rows, columns = self._at(i, len(y)), self._at(j, len(y))
            if i == j:
                w[rows] = solve_lower(block, w[rows])
            else:
                w[rows] -= block @ w[columns]
        return w

    def solve_upper(self, w: torch.Tensor) -> torch.Tensor:
        """L⁻ᵀ w, (k, outputs), float64, for the first k points, in one pass over the factor. w: (k, outputs)."""
        alpha = w.to(torch.float64, copy=True)
        for i, j, block in self._leading(len(w), backwards=True):
            rows, columns = self._at(i, len(w)), self._at(j, len(w))
            if i == j:
                alpha[rows] = solve_upper(block, alpha[rows])
            else:
                alpha[columns] -= block.mT @ alpha[rows]
        return alpha

    def _at(self, i: int, size: int) -> slice:
        tile = self.selection.tile
        return slice(i * tile, min((i + 1) * tile, size))

    def _leading(self, size: int, *, backwards: bool = False) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield the tiles of the leading block of this size, row by row; the next one is read meanwhile."""
        places = [(i, j) for i in range(-(-size // self.selection.tile)) for j in range(i + 1)]
        if backwards:  # the diagonal tile of a row first: it gives the row's unknowns
            places = [(i, j) for i in reversed(range(-(-size // self.selection.tile))) for j in reversed(range(i + 1))]
        for (i, j), block in ahead(self.factor, places):
            yield i, j, block[: self._at(i, size).stop - i * self.selection.tile, : size - j * self.selection.tile]


def ahead(tiles: Tiles, places: Iterable[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
    """Yield each place and its tile; another thread reads the next tile meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for place in places:
            coming = place, pool.submit(tiles.read, *place)
            if waiting is not None:
                yield waiting[0], torch.from_numpy(waiting[1].result())
            waiting = coming
        if waiting is not None:
            yield waiting[0], torch.from_numpy(waiting[1].result())


@dataclass(frozen=True)
class FactorWork(Work):
    """Compute the tiles of the factor in `folder`, column by column, from the Gram store in `gram`.

        L_ij = (A_ij − Σ_{k<j} L_ik L_jkᵀ) L_jj⁻ᵀ,   L_jj the Cholesky factor of A_jj − Σ_{k<j} L_jk L_jkᵀ

    Each tile is written once, and read for the tiles to its right and below.
    memory: bytes that one process may take for tiles; it keeps as much of the row L_jk as fits, because every i needs
        it.
    """

    gram: str
    memory: int
    token: str

    @classmethod
    def of(cls, factor: FactorStore, store: GramStore, memory: int) -> FactorWork:
        return cls(str(factor.folder), str(store.folder), memory, factor.token)

    @property
    def store(self) -> str:
        return self.gram

    def within(self, processes: int) -> FactorWork:
        return replace(self, memory=self.memory // processes)

    @cached_property
    def _factor(self) -> FactorStore:
        factor = FactorStore(Path(self.folder))
        if factor.token != self.token:
            raise StoreError(f"{self.folder}: this factor was given up meanwhile")
        return factor

    @cached_property
    def _gram(self) -> GramStore:
        return GramStore(Path(self.gram))

    @cached_property
    def _row(self) -> _Row:
        tile = 8 * self._factor.selection.tile**2
        return _Row(self._factor.factor, (self.memory - 5 * tile) // tile)

    def _all(self) -> list[TileTask]:
        count = self._factor.selection.places
        return [TileTask(FACTOR, i, j) for j in range(count) for i in range(j, count)]

    def tasks(self) -> list[TileTask]:
        return [task for task in self._all() if not self._factor.factor.has(task.row, task.column)]

    def total(self) -> int:
        return len(self._all())

    def bytes_to_come(self) -> int:
        return self._factor.factor.bytes_to_come()

    def needs(self, task: TileTask) -> Iterable[TileTask]:
        _, i, j = task
        if i != j:
            yield TileTask(FACTOR, j, j)
        if j:
            yield TileTask(FACTOR, i, j - 1)

    def cost(self, task: TileTask) -> float:
        """Number of multiplications and additions."""
        _, i, j = task
        rows, columns = (at.stop - at.start for at in (self._factor.factor.rows(i), self._factor.factor.rows(j)))
        products = 2.0 * rows * columns * j * self._factor.selection.tile
        return products / 2 + columns**3 / 3 if i == j else products + rows * columns**2

    def do(self, task: TileTask) -> None:
        _, i, j = task
        tiles = self._factor.factor
        if tiles.has(i, j):
            return
        block = torch.from_numpy(self._factor.selection.read(self._gram, i, j))
        if i == j:
            block.diagonal().add_(self._factor.shift)
        for (_, k), left in ahead(tiles, [(i, k) for k in range(j)]):
            right = left if i == j else self._row.get(j, k)
            block.addmm_(left, right.mT, alpha=-1.0)
        if i == j:
            factor, info = torch.linalg.cholesky_ex(block)
            if int(info) or not bool(torch.isfinite(factor[-1, -1])):
                raise NumericalError(
                    Event.NOT_POSITIVE_DEFINITE,
                    f"the Gram matrix of {len(self._factor)} points with λ and jitter {self._factor.shift:.3g} has no "
                    f"Cholesky factor beyond its first {tiles.rows(j).start + max(int(info), 1) - 1} points",
                )
            tiles.write(i, j, factor.tril_().numpy())
        else:
            corner = self._row.get(j, j)
            tiles.write(i, j, torch.linalg.solve_triangular(corner.mT, block, upper=True, left=False).numpy())


class _Row:
    """The tiles of one row of a factor, read once and kept as long as there is room."""

    def __init__(self, tiles: Tiles, most: int) -> None:
        self._tiles, self._most = tiles, most
        self._number, self._kept = -1, dict[int, torch.Tensor]()
        self._lock = threading.Lock()

    def get(self, j: int, k: int) -> torch.Tensor:
        with self._lock:
            if j != self._number:
                self._number, self._kept = j, {}
            if k in self._kept:
                return self._kept[k]
        block = torch.from_numpy(self._tiles.read(j, k))
        with self._lock:
            if j == self._number and len(self._kept) < self._most:
                self._kept[k] = block
        return block
