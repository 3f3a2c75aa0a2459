"""A matrix on disk in square tiles, each a file with its checksum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec

from kfx.outcomes import StoreError

ZARR_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError)
"""What reading a damaged array may raise."""


class Tiles:
    """A matrix of float32 or float64 in tiles of `tile` × `tile`, of which some may not be there yet; NaN stands there.

    A zarr array (format 3): any reader of zarr can read it, also while it grows. A tile is one file, written beside and
    then renamed, so that it is there whole or not at all, and ends in its CRC-32C, so that a flipped bit is found. It
    is not compressed: the mantissas of a Gram matrix are noise to a codec, see `scripts/bench_store.py`.

    triangular: square, and only tiles on and below the diagonal are there; those on it are whole.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        try:
            self._array = zarr.open_array(self.folder, mode="r+")
            if self._array.ndim != 2 or self._array.chunks[0] != self._array.chunks[1]:
                raise ValueError(f"its shape is {self._array.shape}, its chunks {self._array.chunks}")
        except ZARR_ERRORS as error:
            raise StoreError(f"{folder}: is no matrix in tiles ({line_of(error)})") from error
        self.triangular = bool(self._array.attrs.get("triangular", False))

    @classmethod
    def create(cls, folder: Path, shape: tuple[int, int], tile: int, dtype: str, *, triangular: bool = False) -> Tiles:
        """An empty one, in place of what is there."""
        zarr.create_array(
            folder,
            shape=shape,
            chunks=(tile, tile),
            dtype=dtype,
            fill_value=np.nan,
            serializer=BytesCodec(endian="little"),
            compressors=[Crc32cCodec()],
            attributes={"triangular": triangular},
            overwrite=True,
        )
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
        """How many tiles there are down and across."""
        return -(-self.shape[0] // self.tile), -(-self.shape[1] // self.tile)

    def places(self) -> Iterator[tuple[int, int]]:
        """Row and column of each tile, row by row: what is finished is a leading block."""
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
        """Whether the tile is there."""
        return self.path(i, j).exists()

    def read(self, i: int, j: int) -> np.ndarray:
        """A tile, smaller at the edges; StoreError where it is missing or damaged."""
        if not self.has(i, j):
            raise StoreError(f"{self.path(i, j)}: this tile is not there yet; go on with the command that computes it")
        try:
            return np.asarray(self._array.get_block_selection((i, j)))
        except ZARR_ERRORS as error:
            raise StoreError(
                f"{self.path(i, j)}: this tile is damaged ({line_of(error)}); delete the file, and the same command "
                "computes it again; kfx gram verify finds all such tiles"
            ) from error

    def write(self, i: int, j: int, block: np.ndarray) -> None:
        """Put a tile in its place, whole or not at all."""
        self._array.set_block_selection((i, j), block)

    def drop(self, i: int, j: int) -> None:
        """Remove a tile."""
        self.path(i, j).unlink(missing_ok=True)

    def resize(self, shape: tuple[int, int]) -> None:
        """More rows or columns, or fewer; tiles keep their places."""
        if shape != self.shape:
            self._array.resize(shape)

    def bytes_to_come(self) -> int:
        """Of disk, for the tiles that are not there."""
        count = sum(1 for _ in self.places()) - self.done()
        return count * self.tile**2 * self.dtype.itemsize

    def done(self) -> int:
        """How many tiles are there."""
        return sum(self.has(i, j) for i, j in self.places())

    def damaged(self, i: int, j: int, *, is_edge: bool = False) -> str | None:
        """What is wrong with a tile that is there, in words; None if nothing is. is_edge: some of it may be to come."""
        try:
            block = self.read(i, j)
        except StoreError as error:
            return str(error).partition(";")[0]
        finite = np.isfinite(block) | (np.isnan(block) & is_edge)
        return None if finite.all() else f"{self.path(i, j)}: holds what is no finite number"


def line_of(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def block_of(tiles: Tiles, rows: slice, columns: slice) -> np.ndarray:
    """Any block of a matrix, put together from its tiles; of a triangular one from whichever triangle is there."""
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
    """What tile i has of the rows that are wanted: where in the tile, and where among them."""
    low, high = max(i * size, wanted.start), min((i + 1) * size, wanted.stop)
    return slice(low - i * size, high - i * size), slice(low - wanted.start, high - wanted.start)
