"""A matrix on disk in square tiles, each a file with a checksum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding

from kfx.outcomes import StoreError
from kfx.store.manifest import REMEDY, line_of, require

ZARR_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, EOFError)
"""Errors that opening or reading a damaged array may raise."""
_CODECS = BytesCodec(endian="little"), Crc32cCodec()
_OF_CHECKSUM = 4
MOST_ROWS = 16384
"""Of a tile."""


def create_array(folder: Path, **settings: Any) -> zarr.Array:
    """A new zarr array (format 3), replacing any before: little-endian, with a CRC-32C at the end of each file."""
    return zarr.create_array(folder, serializer=_CODECS[0], compressors=[_CODECS[1]], overwrite=True, **settings)


def open_array(folder: Path, mode: str) -> zarr.Array:
    """Open an array made by `create_array`; StoreError if its `zarr.json` is damaged or describes another kind of
    array."""
    path = folder / "zarr.json"
    try:
        array: Any = zarr.open_array(folder, mode=mode)
        codecs, names = tuple(array.metadata.codecs), array.metadata.chunk_key_encoding
        require(codecs == _CODECS, path, "codecs", codecs, "little-endian bytes with a CRC-32C")
        require(names == DefaultChunkKeyEncoding(separator="/"), path, "chunk_key_encoding", names, "default, with /")
        require(str(array.dtype) in ("float32", "float64"), path, "data_type", array.dtype, "float32 or float64")
        require(array.ndim >= 2, path, "shape", array.shape, "two dimensions at least")
    except ZARR_ERRORS as error:
        raise StoreError(f"{path}: is damaged ({line_of(error)}); {REMEDY}") from error
    return array


def chunk_bytes(array: zarr.Array) -> int:
    """Bytes of each file of an array; files at the edges have the same size."""
    return array.dtype.itemsize * math.prod(array.chunks) + _OF_CHECKSUM


class Tiles:
    """A matrix of float32 or float64 in tiles of `tile` × `tile`; missing tiles read as NaN.

    A zarr array (format 3), so that any zarr reader can read it, also while it grows. A tile is one file. It is written
    under another name and then renamed, so that it is always whole or absent, and ends in its CRC-32C, so that a
    flipped bit is found. It is not compressed, because the mantissas of a Gram matrix hardly compress
    (`scripts/bench_store.py`).

    triangular: the matrix is square and only tiles on and below the diagonal are kept; diagonal tiles are full.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._array = open_array(self.folder, "r+")
        path, tile = self.folder / "zarr.json", self._array.chunks
        require(self._array.ndim == 2, path, "shape", self._array.shape, "two numbers")
        square = tile[0] == tile[1] <= MOST_ROWS
        require(square, path, "chunk_shape", tile, f"two equal whole numbers >= 1 and <= {MOST_ROWS}")
        attributes, empty = self._array.metadata.attributes, self._array.fill_value
        triangular = attributes.get("triangular") if isinstance(attributes, dict) else None
        require(isinstance(triangular, bool), path, "attributes", attributes, "triangular: true or false")
        require(isinstance(empty, np.floating) and bool(np.isnan(empty)), path, "fill_value", empty, "NaN")
        self.triangular = triangular is True
        self._tile_bytes = chunk_bytes(self._array)

    @classmethod
    def create(cls, folder: Path, shape: tuple[int, int], tile: int, dtype: str, *, triangular: bool = False) -> Tiles:
        """An empty matrix, replacing any before."""
        chunks, attributes = (tile, tile), {"triangular": triangular}
        create_array(folder, shape=shape, chunks=chunks, dtype=dtype, fill_value=np.nan, attributes=attributes)
        return cls(folder)

    @property
    def shape(self) -> tuple[int, int]:
        return self._array.shape[0], self._array.shape[1]

    @property
    def tile(self) -> int:
        return int(self._array.chunks[0])

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self._array.dtype)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of tiles down and across."""
        return -(-self.shape[0] // self.tile), -(-self.shape[1] // self.tile)

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield row and column of each tile, row by row, so that finished tiles form a leading block."""
        down, across = self.grid
        return ((i, j) for i in range(down) for j in range(i + 1 if self.triangular else across))

    def rows(self, i: int) -> slice:
        """The rows of tile row i."""
        return slice(i * self.tile, min((i + 1) * self.tile, self.shape[0]))

    def columns(self, j: int) -> slice:
        """The columns of tile column j."""
        return slice(j * self.tile, min((j + 1) * self.tile, self.shape[1]))

    def path(self, i: int, j: int) -> Path:
        """The file of a tile."""
        return self.folder / "c" / str(i) / str(j)

    def has(self, i: int, j: int) -> bool:
        """Whether the tile is there and complete; a truncated one is computed again."""
        return self._size(i, j) == self._tile_bytes

    def _size(self, i: int, j: int) -> int | None:
        """Bytes of a tile's file; None if there is none."""
        try:
            return self.path(i, j).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, i: int, j: int) -> np.ndarray:
        """A tile, (tile, tile), smaller at the edges; StoreError if it is missing or damaged."""
        size = self._size(i, j)
        if size is None:
            raise StoreError(f"{self.path(i, j)}: this tile is not there yet; go on with the command that computes it")
        if size != self._tile_bytes:
            raise StoreError(
                f"{self.path(i, j)}: this tile is damaged (it has {size} bytes, not {self._tile_bytes}); go on with "
                "the command that computes it; kfx gram verify finds all such tiles"
            )
        try:
            return np.asarray(self._array.get_block_selection((i, j)))
        except ZARR_ERRORS as error:
            raise StoreError(
                f"{self.path(i, j)}: this tile is damaged ({line_of(error)}); delete the file, and the same command "
                "computes it again; kfx gram verify finds all such tiles"
            ) from error

    def corner(self, i: int, j: int) -> float:
        """The entry of a complete tile in its last row and first column, without a look at its checksum."""
        row = self.rows(i).stop - 1 - self.rows(i).start
        kind = self.dtype.newbyteorder("<")
        entry = np.fromfile(self.path(i, j), kind, count=1, offset=row * self.tile * kind.itemsize)
        return float(entry[0])

    def write(self, i: int, j: int, block: np.ndarray) -> None:
        """Write a tile so that it appears whole or not at all. block: (tile, tile), smaller at the edges."""
        self._array.set_block_selection((i, j), block)

    def drop(self, i: int, j: int) -> None:
        """Remove a tile."""
        self.path(i, j).unlink(missing_ok=True)

    def resize(self, shape: tuple[int, int]) -> None:
        """Change the number of rows and columns; tiles keep their places."""
        if shape != self.shape:
            self._array.resize(shape)

    def bytes_to_come(self) -> int:
        """Bytes on disk that the missing tiles will take."""
        count = sum(1 for _ in self.places()) - self.done()
        return count * self.tile**2 * self.dtype.itemsize

    def done(self) -> int:
        """Number of tiles that are there."""
        return sum(self.has(i, j) for i, j in self.places())

    def is_begun(self, i: int, j: int) -> bool:
        """Whether there is a file for the tile, complete or not."""
        return self._size(i, j) is not None

    def damaged(self, i: int, j: int, *, is_edge: bool = False) -> str | None:
        """What is wrong with a tile that is there, in words; None if nothing is. is_edge: part of it may not be
        computed yet."""
        try:
            block = self.read(i, j)
        except StoreError as error:
            return str(error).partition(";")[0]
        finite = np.isfinite(block) | (np.isnan(block) & is_edge)
        return None if finite.all() else f"{self.path(i, j)}: holds what is no finite number"


def block_of(tiles: Tiles, rows: slice, columns: slice) -> np.ndarray:
    """A block of a matrix, (rows, columns), assembled from its tiles; of a triangular one from either triangle."""
    size = tiles.tile
    out = np.empty((rows.stop - rows.start, columns.stop - columns.start), tiles.dtype)
    for i in range(rows.start // size, -(-rows.stop // size)):
        for j in range(columns.start // size, -(-columns.stop // size)):
            mirrored = tiles.triangular and j > i
            block = tiles.read(j, i).T if mirrored else tiles.read(i, j)
            (source_rows, rows_out), (source_columns, columns_out) = _overlap(i, size, rows), _overlap(j, size, columns)
            out[rows_out, columns_out] = block[source_rows, source_columns]
    return out


def _overlap(i: int, size: int, wanted: slice) -> tuple[slice, slice]:
    """The part of tile i that lies in the wanted rows: its place in the tile, and among the wanted rows."""
    low, high = max(i * size, wanted.start), min((i + 1) * size, wanted.stop)
    return slice(low - i * size, high - i * size), slice(low - wanted.start, high - wanted.start)
