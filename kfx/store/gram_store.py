"""A kernel's Gram matrix on a data set, and the test points' covariances with it, in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec

from kfx import __version__
from kfx.files import write_json
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import in_numpy
from kfx.outcomes import StoreError
from kfx.store.tiles import Tiles

_PROBES = 8
MANIFEST = "manifest.json"
GRAM, TEST = "gram", "test"


def tile_for(n: int) -> int:
    """Rows of a tile for n points: about 24 tiles a side, so that one is a small part of the work, of 256 to 2048
    rows, so that products of tiles run at the machine's rate."""
    return min(max(64 * round(n / 24 / 64), 256), 2048)


@dataclass(frozen=True)
class Identity:
    """What a store's numbers depend on: points and kernel.

    A kernel is known by its parameters, which must be equal, and by its values on the first points, which must agree to
    round-off: so a setting that is no parameter, another version and another machine's arithmetic show alike.
    """

    kernel: str
    parameters: Mapping[str, Any]
    probe: np.ndarray
    dtype: str

    @classmethod
    def of(cls, kernel: Kernel, points: torch.Tensor) -> Identity:
        """points: those that the kernel will see."""
        probe = in_numpy(kernel.gram(points[:_PROBES])).astype(np.float64)
        values = {name: _plain(value) for name, value in kernel.parameters.items()}
        return cls(type(kernel).__name__, values, probe, str(points.dtype).removeprefix("torch."))

    def differs_from(self, other: Identity) -> str | None:
        """In what, in words; None where it is the same kernel in the same dtype."""
        if self.dtype != other.dtype:
            return f"its entries are {other.dtype}, not {self.dtype}"
        for name in dict.fromkeys([*self.parameters, *other.parameters]):
            mine, theirs = self.parameters.get(name), other.parameters.get(name)
            if mine != theirs:
                return f"its kernel has {name} {_short(theirs)}, not {_short(mine)}"
        n = min(len(self.probe), len(other.probe))
        error = np.abs(self.probe[:n, :n] - other.probe[:n, :n]).max() / np.abs(self.probe[:n, :n]).max()
        if not error < 100 * np.finfo(self.dtype).eps:
            return f"its kernel, {other.kernel}, has other values: by {error:.1e} on the first points"
        return None


class GramStore:
    """A folder with the points x, K(x, x) and, with test points x*, K(x*, x), as zarr arrays, under a manifest.

    gram: K(x, x), tiles of the lower triangle. test: K(x*, x), or None. Tiles may be missing yet: `work` says which.
    Any number of processes may read; who writes holds the folder's lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        try:
            self.manifest: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text())
            self.identity = Identity(
                self.manifest["kernel"],
                self.manifest["parameters"],
                np.array(self.manifest["probe"]),
                self.manifest["dtype"],
            )
            self.grown_at: list[int] = list(self.manifest["grown_at"])
            self._n: int = int(self.manifest["n"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{folder}: is no Gram store (its {MANIFEST}: {error})") from error
        self.gram = Tiles(self.folder / GRAM)
        self.test = Tiles(self.folder / TEST) if (self.folder / TEST / "zarr.json").exists() else None

    def __len__(self) -> int:
        return self._n

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
        """The store of this kernel on these points: made, or gone on with, and grown where it has the first of them.

        kernel, points: as they come out of `Kernel.unfolded`. StoreError where the folder holds another kernel, other
        points or other test points. The caller holds the lock.
        """
        identity = Identity.of(kernel, points)
        if not (folder / MANIFEST).exists():
            store = cls._created(folder, identity, points, tile or tile_for(len(points)))
        else:
            store = cls(folder)
            store._require(identity, points)
            store._mend()
            if len(points) > len(store):
                store._grow(points)
        if test_points is not None:
            store._with_test_points(test_points)
        return store

    @classmethod
    def _created(cls, folder: Path, identity: Identity, points: torch.Tensor, tile: int) -> Self:
        n = len(points)
        folder.mkdir(parents=True, exist_ok=True)
        _write_points(folder / "points", points, tile)
        Tiles.create(folder / GRAM, (n, n), tile, identity.dtype, triangular=True)
        content = {
            "kfx": __version__,
            "zarr": zarr.__version__,
            "kernel": identity.kernel,
            "parameters": identity.parameters,
            "probe": identity.probe.tolist(),
            "dtype": identity.dtype,
            "n": n,
            "points_sha256": digest(points),
            "grown_at": [],
        }
        write_json(folder / MANIFEST, content)  # last: without it there is no store
        return cls(folder)

    def _require(self, identity: Identity, points: torch.Tensor) -> None:
        """StoreError unless the store is of this kernel, and of the first of these points or more than these."""
        shared = min(len(points), len(self))
        whole = shared == len(self)
        held = self.manifest["points_sha256"] if whole else digest(torch.from_numpy(self.points(slice(0, shared))))
        same_points = held == digest(points[:shared])
        difference = identity.differs_from(self.identity) if same_points else f"its first {shared} points are others"
        if difference is not None:
            raise StoreError(f"{self.folder}: is the store of something else: {difference}; choose another folder")

    def _mend(self) -> None:
        """Put in order what a process that was killed left half done."""
        for partial in self.folder.glob("*/c/**/*.partial"):
            partial.unlink(missing_ok=True)
        self.gram.resize((len(self), len(self)))
        if self.test is not None:
            self.test.resize((self.test.shape[0], len(self)))

    def _grow(self, points: torch.Tensor) -> None:
        """Take further points; what is computed of the old ones stays."""
        n, old = len(points), len(self)
        stored = zarr.open_array(self.folder / "points", mode="r+")
        stored.resize((n, *stored.shape[1:]))
        stored[old:] = in_numpy(points[old:])
        self.grown_at = [*self.grown_at, old]
        self.manifest |= {"n": n, "points_sha256": digest(points), "grown_at": self.grown_at}
        write_json(self.folder / MANIFEST, self.manifest)
        self._n = n
        self._mend()

    def _with_test_points(self, points: torch.Tensor) -> None:
        given = digest(points)
        if self.test is None:
            _write_points(self.folder / "test_points", points, self.gram.tile)
            self.manifest["test_points_sha256"] = given
            write_json(self.folder / MANIFEST, self.manifest)
            self.test = Tiles.create(self.folder / TEST, (len(points), len(self)), self.gram.tile, self.identity.dtype)
        elif self.manifest.get("test_points_sha256") != given:
            raise StoreError(f"{self.folder}: holds other test points; choose another folder")

    def points(self, rows: slice, *, test: bool = False) -> np.ndarray:
        """Some of the points, or of the test points."""
        return np.asarray(zarr.open_array(self.folder / ("test_points" if test else "points"), mode="r")[rows])

    def tiles(self, matrix: str) -> Tiles:
        """`gram` or `test`."""
        tiles = self.gram if matrix == GRAM else self.test
        assert tiles is not None
        return tiles

    def is_at_earlier_edge(self, matrix: str, i: int, j: int) -> bool:
        """Whether the store ended within this tile before it grew."""
        at = self.tiles(matrix).rows(i) if matrix == GRAM else self.tiles(matrix).columns(j)
        return any(at.start < edge < at.stop for edge in self.grown_at)

    def finished(self, matrix: str, i: int, j: int) -> bool:
        """Whether a tile is there and has all its rows and columns: one at an earlier edge may lack those that came
        when the store grew."""
        tiles = self.tiles(matrix)
        if not tiles.has(i, j):
            return False
        if not self.is_at_earlier_edge(matrix, i, j):
            return True
        block = tiles.read(i, j)
        return not np.isnan(block[-1, 0] if matrix == GRAM else block[0, -1])


def _write_points(folder: Path, points: torch.Tensor, rows: int) -> None:
    array = zarr.create_array(
        folder,
        shape=tuple(points.shape),
        chunks=(min(rows, len(points)), *points.shape[1:]),
        dtype=str(points.dtype).removeprefix("torch."),
        serializer=BytesCodec(endian="little"),
        compressors=[Crc32cCodec()],
        overwrite=True,  # what a process that was killed left there
    )
    array[:] = in_numpy(points)


def digest(points: torch.Tensor) -> str:
    """SHA-256 of the numbers."""
    return hashlib.sha256(np.ascontiguousarray(in_numpy(points)).tobytes()).hexdigest()


def _plain(value: Any) -> Any:
    """A number, a short list, or the checksum of a block."""
    array = np.asarray(in_numpy(value))
    if array.size > 1000:
        return f"sha256:{hashlib.sha256(array.tobytes()).hexdigest()}"
    return array.tolist()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
