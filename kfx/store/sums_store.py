"""A folder with the sums over training points from which Nyström regression is solved, and the tasks of its pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import Self

import numpy as np
import torch

from kfx.files import whole_file, write_json
from kfx.numerics.arrays import in_numpy
from kfx.numerics.nystrom import Centres, Spectrum, Sums
from kfx.outcomes import Event, NumericalError, StoreError
from kfx.store import sealed
from kfx.store.identity import digest, hashed
from kfx.store.manifest import MANIFEST, Entry, hexadecimal, line_of, read, require, whole
from kfx.store.tiles import ZARR_ERRORS, create_array, open_array
from kfx.store.work import TileTask, Work

SUMS = "sums"
_MOST_ROWS, _FEATURES = 8192, 2**23
_SHA256 = hexadecimal(64)
_ENTRIES = {
    "n": whole(1),
    "outputs": whole(1),
    "tile": whole(1, _MOST_ROWS),
    "lanes": whole(2),
    "centres_sha256": _SHA256,
    "belongs_to": Entry("text", lambda v: isinstance(v, str)),
    "tiles_sha256": Entry("checksums", lambda v: isinstance(v, list) and all(map(_SHA256.test, v))),
}
_OF_SUMS = ("outer", "products", "squares", "total")
_ANEW = "delete the folder, and the same command starts anew"


class SumsStore:
    """A folder with training points, targets, centres and sums, for one kernel.

    Tile i of the points is added to lane i modulo the number of lanes. A lane is one file, with its sums so far; the
    lanes are disjoint parts of the points, from which cross-validation takes its folds. The manifest has the checksums
    of centres and points, and each file of sums names the manifest and its lane: another in its place is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        content = read(folder, "store of sums", _ENTRIES)
        self.n, self.outputs = content["n"], content["outputs"]
        self.tile, self.lanes, self.belongs_to = content["tile"], content["lanes"], content["belongs_to"]
        self._tiles_sha256, self._centres_sha256 = content["tiles_sha256"], content["centres_sha256"]
        self._identity = hashed(content)
        self._points, self._targets = (open_array(folder / name, "r") for name in ("points", "targets"))
        for name, array in (("points", self._points), ("targets", self._targets)):
            require(array.shape[0] == self.n, folder / name, "shape", array.shape, f"{self.n} rows")

    @classmethod
    def prepare(
        cls,
        folder: Path,
        points: torch.Tensor,
        targets: torch.Tensor,
        lanes: int,
        tile: int,
        choose: Callable[[], torch.Tensor],
        belongs_to: str = "",
    ) -> Self:
        """Open the store in a folder, creating it if it is missing; StoreError if it belongs to something else.

        points: mapped, (n, …). targets: (n, outputs), float64. tile: rows of a tile. choose: returns the centres.
        belongs_to: digits of the kernel, the points, the targets and the choice of centres.
        """
        if not (folder / MANIFEST).exists():
            for name, array in (("points", points), ("targets", targets)):
                dtype = str(array.dtype).removeprefix("torch.")
                chunks = (tile, *array.shape[1:])
                shape = tuple(array.shape)
                held = create_array(folder / name, shape=shape, chunks=chunks, dtype=dtype, fill_value=np.nan)
                held[:] = in_numpy(array)
            with whole_file(folder / "centres.npy") as stream:
                np.save(stream, centres := in_numpy(choose()))
            tiles = zip(points.split(tile), targets.split(tile), strict=True)
            content = {
                "n": len(points),
                "outputs": targets.shape[1],
                "tile": tile,
                "lanes": lanes,
                "belongs_to": belongs_to,
                "centres_sha256": digest(centres),
                "tiles_sha256": [_of_tile(x, y) for x, y in tiles],
            }
            write_json(folder / MANIFEST, content)
        store = cls(folder)
        if store.belongs_to != belongs_to:
            raise StoreError(f"{folder}: holds the sums of something else; {_ANEW}")
        asked = len(points), targets.shape[1], -(-len(points) // store.tile)
        if (store.n, store.outputs, len(store._tiles_sha256)) != asked:
            raise StoreError(f"{folder / MANIFEST}: is damaged, or was edited; {_ANEW}")
        return store

    def centres(self) -> torch.Tensor:
        """Return the centres, (M, …), mapped; StoreError if their file is damaged."""
        path = self.folder / "centres.npy"
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise StoreError(f"{path}: is damaged ({line_of(error)}); {_ANEW}") from error
        if digest(found) != self._centres_sha256:
            raise StoreError(f"{path}: is damaged, or of another store; {_ANEW}")
        return torch.from_numpy(found)

    def rows(self, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the points, (k, …), and the targets, (k, outputs), of a tile."""
        at = slice(tile * self.tile, (tile + 1) * self.tile)
        try:
            x, y = (torch.from_numpy(np.asarray(array[at])) for array in (self._points, self._targets))
        except ZARR_ERRORS as error:
            why = line_of(error)
            raise StoreError(f"{self.folder}: tile {tile} of its points is damaged ({why}); {_ANEW}") from error
        if _of_tile(x, y) != self._tiles_sha256[tile]:
            raise StoreError(f"{self.folder}: tile {tile} of its points is missing, or another; {_ANEW}")
        return x, y

    def tiles(self, lane: int) -> range:
        """Return the tiles of a lane."""
        return range(lane, -(-self.n // self.tile), self.lanes)

    def size(self, tile: int) -> int:
        """Return the number of rows of a tile."""
        return min((tile + 1) * self.tile, self.n) - tile * self.tile

    def _path(self, lane: int) -> Path:
        return self.folder / SUMS / f"{lane}.npz"

    def sums(self, lane: int, centres: int) -> tuple[Sums, int]:
        """Return a lane's sums and the number of its tiles that they hold; of a missing or damaged file, or one of
        another lane or store, none."""
        held = sealed.read(self._path(lane), self._owner(lane))
        if held is None:
            return Sums.zero(centres, self.outputs), 0
        outer, products, squares, total = (torch.from_numpy(held[name]) for name in _OF_SUMS)
        return Sums(int(held["n"]), outer, products, squares, total, float(held["trace"])), int(held["tiles"])

    def _owner(self, lane: int) -> str:
        return f"{self._identity}, lane {lane}"

    def has(self, lane: int) -> bool:
        """Whether there is a file of a lane's sums."""
        return self._path(lane).is_file()

    def fold(self, number: int, count: int, centres: int) -> Sums:
        """Return the sums of one of `count` disjoint parts of the points: of every `count`-th lane. StoreError if one
        lacks tiles."""
        if number >= self.lanes:
            raise StoreError(f"{self.folder / MANIFEST}: lanes={self.lanes}: is damaged, or was edited; {_ANEW}")
        return reduce(add, (self._whole(lane, centres) for lane in range(number, self.lanes, count)))

    def _whole(self, lane: int, centres: int) -> Sums:
        sums, done = self.sums(lane, centres)
        if done != len(self.tiles(lane)):
            raise StoreError(f"{self._path(lane)}: has become unreadable; the same command computes its tiles again")
        return sums

    def spectrum(self, sums: Sums) -> Spectrum:
        """Return the spectrum of all sums, kept in the folder once it is computed."""
        path, owner = self.folder / "spectrum.npz", f"spectrum of {digest(sums.outer)}"
        if (held := sealed.read(path, owner)) is not None:
            return Spectrum(torch.from_numpy(held["values"]), torch.from_numpy(held["vectors"]))
        found = Spectrum.of(sums)
        sealed.write(path, owner, {"values": in_numpy(found.values), "vectors": in_numpy(found.vectors)})
        return found

    def write(self, lane: int, sums: Sums, tiles: int) -> None:
        """Replace a lane's file at once."""
        arrays = {name: in_numpy(getattr(sums, name)) for name in _OF_SUMS}
        numbers = {"n": np.array(sums.n), "trace": np.array(sums.trace), "tiles": np.array(tiles)}
        sealed.write(self._path(lane), self._owner(lane), arrays | numbers)


def _of_tile(x: torch.Tensor, y: torch.Tensor) -> str:
    """The checksum of a tile of points and targets."""
    return hashlib.sha256(f"{digest(x)} {digest(y)}".encode()).hexdigest()


def tile_for(n: int, lanes: int, centres: int) -> int:
    """Return the number of rows of a tile with which all lanes have equal numbers of points, up to one tile's rest;
    their features take 64 MB at most, or the rows are as many as centres, so that sums are read for enough work."""
    most = min(max(_FEATURES // centres, centres, 1024), _MOST_ROWS)
    return -(-n // (lanes * -(-n // (lanes * most))))


@dataclass(frozen=True)
class SumsWork(Work):
    """Add the missing tiles of points to their lanes' sums: one task a tile, and one tile of a lane after the other.

    device: where features are computed.
    """

    centres: Centres
    device: str = "cpu"

    @cached_property
    def _store(self) -> SumsStore:
        return SumsStore(Path(self.folder))

    def tasks(self) -> list[TileTask]:
        count = len(self.centres.points)
        done = [self._store.sums(lane, count)[1] for lane in range(self._store.lanes)]
        left = [TileTask(SUMS, lane, tile) for lane, n in enumerate(done) for tile in self._store.tiles(lane)[n:]]
        return sorted(left, key=lambda task: task.column)

    def total(self) -> int:
        return -(-self._store.n // self._store.tile)

    def bytes_to_come(self) -> int:
        missing = sum(not self._store.has(lane) for lane in range(self._store.lanes))
        return 8 * (missing + 1) * len(self.centres.points) ** 2  # a lane's file is replaced by another

    def needs(self, task: TileTask) -> Iterable[TileTask]:
        if task.column >= self._store.lanes:
            yield TileTask(SUMS, task.row, task.column - self._store.lanes)

    def cost(self, task: TileTask) -> float:
        """Number of pairs of points and centres."""
        return float(self._store.size(task.column) * len(self.centres.points))

    def do(self, task: TileTask) -> None:
        sums, done = self._store.sums(task.row, len(self.centres.points))
        tiles = self._store.tiles(task.row)
        for place in range(done, tiles.index(task.column) + 1):  # more than one where the lane's file was damaged
            x, y = self._store.rows(tiles[place])
            points = x.to(self.device)
            features, own = self.centres.features(points).cpu(), self.centres.kernel.diagonal(points).cpu()
            sums = sums.with_points(features, y, own)
            if not bool(sums.total.isfinite().all()):
                raise NumericalError(Event.DIVERGED, f"{self.centres.kernel!r} has entries that are not finite")
            self._store.write(task.row, sums, place + 1)
