"""Read a person's arrays from an .npz file, without trusting its content; pickled arrays are never loaded."""

from __future__ import annotations

import lzma
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np

from kfx.data import row_file
from kfx.data.files import require_file
from kfx.data.new_rows import Chunk
from kfx.data.own import Points, Targets, as_targets, counted, looks_channels_last
from kfx.data.table_columns import LARGEST, require_numbers
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd

_ONE, _TWO = ("x", "y"), ("x_train", "y_train", "x_test", "y_test")
_MOST_BYTES = 8 << 30


def read(path: Path, task: str, channels: str, weights: str | None = None) -> Points:
    """The points of an .npz file: x and y, or x_train, y_train, x_test and y_test.

    weights: the name of an array beside x and y, or, with `_train` and `_test`, of two; what has weight 0 is left out.

    channels: `first` if images are (n, channels, height, width), `last` if they are (n, height, width, channels);
    `auto`: first, DataError for a shape that looks like last.
    """
    require_file(path, (".npz",))
    if weights in _ONE:
        raise DataError(f"{path}: {weights} holds the points or their targets; name the array of weights")
    shapes = _shapes(path)
    further = {} if weights is None else {_ONE: (weights,), _TWO: (f"{weights}_train", f"{weights}_test")}
    names = next((names for names in (_ONE, _TWO) if {*names, *further.get(names, ())} == set(shapes)), None)
    if names is None:
        also = [f", {' and '.join(each)}" for each in further.values()] or ["", ""]
        expected = f"x and y{also[0]}, or {', '.join(_TWO)}{also[1]}"
        raise DataError(f"{path}: holds {', '.join(sorted(shapes)) or 'nothing'}; expected {expected}")
    arrays = _loaded(path, names)
    x = [_points(path, name, array, channels) for name, array in zip(names[::2], arrays[::2], strict=True)]
    y = [_target(path, name, array) for name, array in zip(names[1::2], arrays[1::2], strict=True)]
    of_weights = further.get(names, ())
    w = [each.reshape(each.shape[0] if each.ndim else 1, -1) for each in _loaded(path, of_weights)]
    for name, own, other in zip((*names[1::2], *of_weights), (*y, *w), (*x, *x[: len(w)]), strict=True):
        if len(own) != len(other):
            raise DataError(f"{path}: {name} has {len(own)} entries, x {len(other)}; expected as many")
    if len({each.shape[1:] for each in x}) > 1 or len({(each.shape[1:], each.dtype.kind == "U") for each in y}) > 1:
        raise DataError(f"{path}: training and test points, or their targets, have different shapes")
    targets: Targets = as_targets(np.concatenate(y), task, f"{path}: {', '.join(names[1::2])}")
    is_test = None if names is _ONE else np.arange(len(x[0]) + len(x[1])) >= len(x[0])
    points = Points(np.concatenate(x), targets, is_test)
    return points if weights is None else _with_weights(points, np.concatenate(w), f"{path}: {', '.join(of_weights)}")


def _with_weights(points: Points, weights: np.ndarray, where: str) -> Points:
    """The points but those of weight 0. weights: (n, 1). where: begins the message of an error."""
    if weights.dtype.kind not in "biuf" or weights.shape[1:] != (1,):
        raise DataError(f"{where}: of weights expected a number for each point, (n,)")
    found = weights[:, 0].astype(np.float64)
    return points.but(counted(found, where), found)


def new_points(path: Path, channels: str = "first") -> np.ndarray:
    """Return the points of an .npz file without targets, or beside them: `x`, or else `x_test`, (n, …), float64, with
    values that are no finite numbers as they are."""
    require_file(path, (".npz",))
    shapes = _shapes(path)
    name = next((name for name in ("x", "x_test") if name in shapes), None)
    if name is None:
        raise DataError(f"{path}: holds {', '.join(sorted(shapes)) or 'nothing'}; expected x, or x_test")
    return _points(path, name, _loaded(path, [name])[0], channels, missing=True)


def _loaded(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return [stored[name] for name in names]
    except (ValueError, OSError, EOFError, KeyError, BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: is damaged ({' '.join(str(error).split())})") from error


def image(path: Path, channels: str) -> tuple[int, ...] | None:
    """Height, width and, if it is not 1, the number of channels; None if the points are no images. channels: as for
    `read`."""
    require_file(path, (".npz",))
    shapes = _shapes(path)
    shape = shapes.get("x", shapes.get("x_train", ()))
    if len(shape) != 4:
        return None
    height, width, count = shape[1:] if channels == "last" else (*shape[2:], shape[1])
    return (height, width) if count == 1 else (height, width, count)


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays by name, from headers alone; DataError for an array that cannot or must not be loaded."""
    try:
        with ZipFile(path) as archive:
            found = {info.filename.removesuffix(".npy"): _shape(archive, info, path) for info in archive.infolist()}
    except (
        *(ValueError, OSError, EOFError, RuntimeError, NotImplementedError),
        *(BadZipFile, zlib.error, lzma.LZMAError),
    ) as error:
        raise DataError(f"{path}: is no .npz file that can be read ({' '.join(str(error).split())[:200]})") from error
    return found


def _shape(archive: ZipFile, info: ZipInfo, path: Path) -> tuple[int, ...]:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(stream)
    if dtype.hasobject or dtype.kind not in "biufU":
        raise DataError(f"{path}: {name} holds {dtype}; expected numbers, or words for classes (objects are pickles)")
    size = math.prod(shape) * dtype.itemsize
    if any(length < 0 for length in shape) or size > _MOST_BYTES:
        raise DataError(f"{path}: {name} says that it has {size} bytes, shape {shape}; at most {_MOST_BYTES} are read")
    if size > info.file_size:
        raise DataError(f"{path}: {name} is cut off: {info.file_size} of {size} bytes")
    return tuple(shape)


def _points(path: Path, name: str, x: np.ndarray, channels: str, *, missing: bool = False) -> np.ndarray:
    if x.ndim not in (2, 4) or x.dtype.kind == "U":
        hint = {1: "reshape it to (n, 1)", 3: "images of one channel are (n, 1, height, width)"}.get(x.ndim, "")
        raise DataError(
            f"{path}: {name} has shape {x.shape}; expected (n, features) or (n, channels, height, width)"
            + (f": {hint}" if hint else "")
        )
    if len(x) < 1 or 0 in x.shape:
        raise DataError(f"{path}: {name} has shape {x.shape}, which holds no points")
    if x.ndim == 4 and channels == "auto" and looks_channels_last(x.shape[1:]):
        raise DataError(
            f"{path}: {name} has shape {x.shape}, which looks like (n, height, width, channels); set "
            "dataset.channels=last, or first for (n, channels, height, width)"
        )
    if x.ndim == 4 and channels == "last":
        x = np.moveaxis(x, -1, 1)
    x = x.astype(np.float64)
    if not missing:
        require_numbers(x.reshape(len(x), -1), f"{path}: {name}")
    return x


def _target(path: Path, name: str, y: np.ndarray) -> np.ndarray:
    if y.ndim not in (1, 2) or (y.ndim == 2 and y.shape[1] == 0):
        raise DataError(f"{path}: {name} has shape {y.shape}; expected (n,) or (n, outputs)")
    if y.dtype.kind != "U":
        require_numbers(y.astype(np.float64), f"{path}: {name}")
    return y.astype(str) if y.dtype.kind == "b" else y


@dataclass(frozen=True)
class PointEncoding:
    """How a run that is not on a table takes points: as they are. shape: that of a training point. channels: `last` for
    images (n, height, width, channels)."""

    shape: tuple[int, ...]
    channels: str = "first"

    def rows(self, points: pd.DataFrame | np.ndarray) -> Chunk:
        """Check points, (n, …); rows with values that are no finite numbers are problems."""
        try:
            x = np.ma.filled(np.ma.asarray(points, dtype=np.float64), np.nan)
        except (TypeError, ValueError) as error:
            raise DataError(f"new rows: {error}") from error
        if x.ndim == 4 and self.channels == "last":
            x = np.moveaxis(x, -1, 1)
        return self._checked(x, 1, "new rows")

    def chunks(self, path: Path, size: int) -> Iterator[Chunk]:
        """Read the points of an .npz file, `x` or `x_test`, in chunks of `size`."""
        if path.suffix.lower() != ".npz":
            raise DataError(f"{path}: the run reads no table; expected an .npz file with its points x")
        x = new_points(path, self.channels)
        for start in range(0, len(x), size):
            yield self._checked(x[start : start + size], start + 1, str(path))

    def _checked(self, x: np.ndarray, first: int, where: str) -> Chunk:
        if x.shape[1:] != self.shape:
            last = x.ndim == 4 and (x.shape[3], *x.shape[1:3]) == self.shape
            hint = ": give np.moveaxis(x, -1, 1)" if last else ""
            raise DataError(
                f"{where}: the points have the shape {x.shape[1:]}; expected {self.shape}, as in training{hint}"
            )
        with np.errstate(invalid="ignore"):
            good = (np.abs(x) <= LARGEST).all(axis=tuple(range(1, x.ndim)))
        rows = np.arange(first, first + len(x))
        return Chunk(rows[good], x[good], dict.fromkeys(rows[~good].tolist(), "holds what is no finite number"))


def count(path: Path) -> int:
    """The number of points in a file, for a progress bar. DataError without a file."""
    return len(new_points(path)) if path.suffix.lower() == ".npz" else row_file.count(path)
