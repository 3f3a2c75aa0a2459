"""A folder with a kernel's Gram matrix on a data set and its covariances with the test points."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import torch
import zarr

from kfx.files import write_json
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import in_numpy
from kfx.outcomes import StoreError
from kfx.store.identity import ENTRIES, Identity, digest, finite, hashed
from kfx.store.manifest import MANIFEST, REMEDY, Entry, hexadecimal, line_of, read, require, whole
from kfx.store.tiles import ZARR_ERRORS, Tiles, chunk_bytes, create_array, open_array
from kfx.version import __version__

GRAM, TEST = "gram", "test"
_BEGUN = "begun"
_OF_LOCK = (".lock", ".writer.json")
_LEAST_TILE, _MOST_TILE = 64, 2048


def _is_rising(value: object) -> bool:
    if not isinstance(value, list) or not all(type(each) is int and each >= 1 for each in value):
        return False
    return value == sorted(set(value))


_ENTRIES = {
    **ENTRIES,
    "n": whole(1),
    "points_sha256": hexadecimal(64),
    "test_points_sha256": hexadecimal(64)._replace(optional=True),
    "grown_at": Entry("rising whole numbers >= 1", _is_rising),
}


def tile_for(n: int, memory: int | None = None) -> int:
    """Rows of a tile for n points: about 16 tiles a side, of 256 to 2048 rows.

    So one tile is a small part of the work, yet large enough for fast matrix products. It has fewer rows where `memory`
    bytes must hold five tiles in float64, as a factorisation needs.
    """
    rows = min(max(64 * round(n / 16 / 64), 256), _MOST_TILE)
    return rows if memory is None else max(min(rows, int((memory / 40) ** 0.5) // 64 * 64), _LEAST_TILE)


class GramStore:
    """A folder with the points x, K(x, x) and, with test points x*, K(x*, x), as zarr arrays, under a manifest.

    gram: K(x, x), tiles of the lower triangle. test: K(x*, x), or None. `GramWork` computes the tiles that are missing.
        Any number of processes may read; a process that writes holds the folder's lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.manifest = read(self.folder, "Gram store", _ENTRIES)
        self.identity = Identity.from_manifest(self.manifest)
        self.grown_at: list[int] = self.manifest["grown_at"]
        self._n: int = self.manifest["n"]
        self.gram = Tiles(self.folder / GRAM)
        self.test = Tiles(self.folder / TEST) if (self.folder / TEST / "zarr.json").exists() else None
        self._require_arrays()

    def __len__(self) -> int:
        return self._n

    @property
    def belongs_to(self) -> str:
        """Digits of the kernel and the points, for files that are computed from them."""
        own = self.identity
        return hashed([own.kernel, own.parameters, own.settings, own.dtype, self.manifest["points_sha256"]])

    def _require_arrays(self) -> None:
        """StoreError if an array is not the one that the manifest describes.

        A store whose process was killed while it grew has points beyond n, or matrices of its previous size.
        """
        n, manifest = len(self), self.folder / MANIFEST
        points = self._open("points")
        require(points.shape[0] >= n, manifest, "n", n, f"a number of the {points.shape[0]} points that are there")
        require(all(edge < n for edge in self.grown_at), manifest, "grown_at", self.grown_at, f"numbers below n, {n}")
        sizes = [n, *self.grown_at[-1:]]
        matrices, arrays = [(self.gram, [(size, size) for size in sizes])], [points]
        if self.test is not None:
            digits = self.manifest.get("test_points_sha256", "missing")
            require(digits != "missing", manifest, "test_points_sha256", digits, "the checksum of test_points")
            arrays.append(test_points := self._open("test_points"))
            matrices.append((self.test, [(test_points.shape[0], size) for size in sizes]))
        for tiles, shapes in matrices:
            path = tiles.folder / "zarr.json"
            require(tiles.shape in shapes, path, "shape", tiles.shape, f"{shapes[0]}, by the manifest and the points")
            require(tiles.tile == self.gram.tile, path, "chunk_shape", tiles.tile, f"{self.gram.tile}, as gram's")
            triangular = tiles is self.gram
            require(tiles.triangular == triangular, path, "triangular", tiles.triangular, str(triangular).lower())
            require(tiles.dtype == self.identity.dtype, path, "data_type", tiles.dtype, self.identity.dtype)
        for array, name in zip(arrays, ("points", "test_points"), strict=False):
            path, chunk = self.folder / name / "zarr.json", (self.gram.tile, *array.shape[1:])
            require(array.dtype == self.identity.dtype, path, "data_type", array.dtype, self.identity.dtype)
            require(array.chunks == chunk, path, "chunk_shape", array.chunks, str(chunk))
            first = self.folder.joinpath(name, "c", *["0"] * array.ndim)
            if first.exists():  # before memory is taken for content that a file lacks
                size, expected = first.stat().st_size, chunk_bytes(array)
                require(size == expected, first, "its size", size, f"{expected} bytes")

    @classmethod
    def prepare(
        cls,
        folder: Path,
        kernel: Kernel,
        points: torch.Tensor,
        test_points: torch.Tensor | None = None,
        *,
        tile: int | None = None,
    ) -> Self:
        """Open the store of this kernel on these points, creating it if it is missing and extending it if it has only
        the first points.

        kernel, points: from `Kernel.feature_map_and_kernel`; points (n, …), test_points (m, …). tile: rows of a tile of
            a new store.
        StoreError if the folder holds another kernel, other points, other test points, or no store. The caller holds
        the lock.
        """
        identity = Identity.of(kernel, points)
        if not (folder / MANIFEST).exists():
            store = cls._created(folder, identity, points, tile or tile_for(len(points)))
        else:
            store = cls(folder)
            difference = store.difference(identity, points, test_points)
            if difference is not None:
                raise StoreError(f"{folder}: is the store of something else: {difference}; choose another folder")
            for damage in store.damaged_points():
                raise StoreError(f"{damage}; {REMEDY}")
            store._mend()
            store._require_places(kernel, points, test_points)
            if len(points) > len(store):
                store._grow(points)
        if test_points is not None and store.test is None:
            store._take_test_points(test_points)
        return store

    @classmethod
    def _created(cls, folder: Path, identity: Identity, points: torch.Tensor, tile: int) -> Self:
        folder.mkdir(parents=True, exist_ok=True)
        there = [path.name for path in folder.iterdir() if path.name not in _OF_LOCK]
        if there and _BEGUN not in there:
            raise StoreError(f"{folder}: holds {sorted(there)[0]} and no store; choose a new folder, or an empty one")
        (folder / _BEGUN).touch()  # from now on all content is the store's, and may be overwritten
        _write_points(folder / "points", points, tile)
        Tiles.create(folder / GRAM, (len(points), len(points)), tile, identity.dtype, triangular=True)
        content = {
            "kfx": __version__,
            "zarr": zarr.__version__,
            **identity.to_manifest(),
            "n": len(points),
            "points_sha256": digest(points),
            "grown_at": [],
        }
        write_json(folder / MANIFEST, content)  # last: a folder without it is no store
        (folder / _BEGUN).unlink()
        return cls(folder)

    def difference(self, identity: Identity, points: torch.Tensor, test_points: torch.Tensor | None) -> str | None:
        """How the store differs from one of this kernel and these points, in words; None if they agree.

        points: (n, …), of which the store may hold only the first, or more. test_points: (m, …), or None.
        """
        if identity.dtype != self.identity.dtype:
            return identity.differs_from(self.identity)
        shared = min(len(points), len(self))
        whole = shared == len(self)
        held = self.manifest["points_sha256"] if whole else digest(self.points(slice(0, shared)))
        if held != digest(points[:shared]):
            return f"its first {shared} points are others"
        held = None if test_points is None or self.test is None else self.manifest.get("test_points_sha256")
        if held is not None and test_points is not None and held != digest(test_points):
            return "its test points are others"
        return identity.differs_from(self.identity)

    def _mend(self) -> None:
        """Repair what a killed process left unfinished."""
        for partial in self.folder.glob("*/c/**/*.partial"):
            partial.unlink(missing_ok=True)
        self.gram.resize((len(self), len(self)))
        if self.test is not None:
            self.test.resize((self.test.shape[0], len(self)))

    def _require_places(self, kernel: Kernel, points: torch.Tensor, test_points: torch.Tensor | None) -> None:
        """StoreError if a tile is that of another place, whose checksum is right too: by one entry of each tile."""
        for matrix, of in ((GRAM, points), (TEST, test_points)):
            if of is None or (matrix == TEST and self.test is None) or not (tiles := self.tiles(matrix)).done():
                continue
            rows = [last for i in range(tiles.grid[0]) if (last := tiles.rows(i).stop - 1) < len(of)]
            columns = [first for j in range(tiles.grid[1]) if (first := tiles.columns(j).start) < len(points)]
            if not rows:
                continue
            expected = finite(kernel, kernel.gram(of[rows], points[columns])).astype(np.float64)
            allowed = np.sqrt(np.finfo(tiles.dtype).eps) * np.abs(expected).max()
            for i, j in tiles.places():
                if i >= len(rows) or j >= len(columns) or not tiles.has(i, j) or self.is_at_earlier_edge(matrix, i, j):
                    continue
                if matrix == GRAM and rows[i] == columns[j]:  # K(x, x) may have noise that K(x, copy of x) lacks
                    continue
                if not abs(tiles.corner(i, j) - expected[i, j]) <= allowed:
                    raise StoreError(
                        f"{tiles.path(i, j)}: holds the tile of another place; delete the file, and the same command "
                        "computes it again"
                    )

    def _grow(self, points: torch.Tensor) -> None:
        """Add further points; computed tiles of the old points stay. points: (n, …), the old ones first."""
        n, old = len(points), len(self)
        stored = open_array(self.folder / "points", "r+")
        stored.resize((n, *stored.shape[1:]))
        stored[old:] = in_numpy(points[old:])
        self.grown_at = [*self.grown_at, old]
        self.manifest |= {"n": n, "points_sha256": digest(points), "grown_at": self.grown_at}
        write_json(self.folder / MANIFEST, self.manifest)
        self._n = n
        self._mend()

    def _take_test_points(self, points: torch.Tensor) -> None:
        _write_points(self.folder / "test_points", points, self.gram.tile)
        self.manifest["test_points_sha256"] = digest(points)
        write_json(self.folder / MANIFEST, self.manifest)
        shape = (len(points), len(self))
        self.test = Tiles.create(self.folder / TEST, shape, self.gram.tile, self.identity.dtype)

    def points(self, rows: slice, *, test: bool = False) -> np.ndarray:
        """Some of the points, or of the test points, (rows, …); StoreError if their file is damaged."""
        name = "test_points" if test else "points"
        stored = self._open(name)
        try:
            return np.asarray(stored[rows])
        except ZARR_ERRORS as error:
            raise StoreError(f"{self.folder / name}: is damaged ({line_of(error)}); {REMEDY}") from error

    def _open(self, name: str) -> zarr.Array:
        return open_array(self.folder / name, "r")

    def damaged_probe(self) -> Iterator[str]:
        """Yield a message if the manifest's kernel values on the first points differ from the first tile."""
        if self.gram.has(0, 0) and self.gram.damaged(0, 0, is_edge=self.is_at_earlier_edge(GRAM, 0, 0)) is None:
            error = self.identity.error_of(self.gram.read(0, 0))
            if error is not None:
                yield f"{self.folder / MANIFEST}: probe differs from the first tile by {error:.1e}"

    def damaged_points(self) -> Iterator[str]:
        """Yield a message for each damage of the points and the test points."""
        for name, test in (("points", False), ("test_points", True)):
            if f"{name}_sha256" not in self.manifest:
                continue
            try:
                found = digest(self.points(slice(None if test else len(self)), test=test))
                if found != self.manifest[f"{name}_sha256"]:
                    yield f"{self.folder / name}: are not those of the manifest"
            except StoreError as error:
                yield str(error).partition(";")[0]

    def tiles(self, matrix: str) -> Tiles:
        """The tiles of the matrix `gram` or `test`."""
        tiles = self.gram if matrix == GRAM else self.test
        assert tiles is not None
        return tiles

    def is_at_earlier_edge(self, matrix: str, i: int, j: int) -> bool:
        """Whether the store ended within this tile before it was extended."""
        at = self.tiles(matrix).rows(i) if matrix == GRAM else self.tiles(matrix).columns(j)
        return any(at.start < edge < at.stop for edge in self.grown_at)

    def finished(self, matrix: str, i: int, j: int) -> bool:
        """Whether a tile is there with all its rows and columns; a tile at an earlier edge may lack those added
        later."""
        tiles = self.tiles(matrix)
        if not tiles.has(i, j):
            return False
        if not self.is_at_earlier_edge(matrix, i, j):
            return True
        block = tiles.read(i, j)
        return not np.isnan(block[-1, 0] if matrix == GRAM else block[0, -1])


def size_now(folder: Path) -> int:
    """The present number of points in the store, which may have grown since it was opened."""
    return int(json.loads((folder / MANIFEST).read_text())["n"])


def _write_points(folder: Path, points: torch.Tensor, rows: int) -> None:
    shape, dtype = tuple(points.shape), str(points.dtype).removeprefix("torch.")
    array = create_array(folder, shape=shape, chunks=(rows, *shape[1:]), dtype=dtype)
    array[:] = in_numpy(points)
