"""Write files whole, or row by row, so that an interruption leaves them valid; and compute checksums."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


Document = dict[str, Any]
"""A JSON object: its values are of any kind."""
TableRow = Mapping[str, Any]
"""A row of a table: values by its columns."""


def write_json(path: Path, content: object) -> None:
    """Write a JSON file whole or not at all, so that a reader never sees half of it."""
    write_whole(path, json.dumps(as_json(content), indent=2, allow_nan=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or leave it as it was."""
    with whole_file(path) as stream:
        stream.write(text.encode())


def partial_of(path: Path) -> Path:
    """The file beside `path` that is written before it replaces `path`."""
    return path.with_name(f".partial.{path.name}")


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Yield a path to write to, with the same ending; at the end of the block that file replaces `path` at once."""
    partial = partial_of(path)
    partial.unlink(missing_ok=True)  # a link there would be followed
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def whole_file(path: Path, *, keep: Path | None = None, durable: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write; at the end of the block it replaces `path` at once, otherwise `path` stays as it was.

    keep: a path that receives the replaced file. durable: wait until the disk has the data.
    """
    with whole_path(path) as partial:
        with partial.open("wb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
    if durable:
        sync(path.parent)


def is_inside(folder: Path, path: Path) -> bool:
    """Whether a path lies in a folder when links are followed."""
    return path.resolve().is_relative_to(folder.resolve())


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_arrays(stream: BinaryIO, arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> None:
    """Write arrays by name, as `np.load` reads them."""
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)  # type: ignore[arg-type]


def digest(path: Path, algorithm: str) -> str:
    """A file's checksum in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


class GrowingFile:
    """A file that only grows, and the checksums of what it held at growing sizes, for which it is read once."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, (hashlib.sha256(), 0)

    def digest(self, size: int) -> str:
        """SHA-256 of the first `size` bytes in hexadecimal; `size` is at least that of the call before."""
        found = self._read[0].copy()
        with self._path.open("rb") as stream:
            stream.seek(self._read[1])
            while part := stream.read(min(size - stream.tell(), 1 << 20)):
                found.update(part)
            self._read = found, stream.tell()  # at once, so that a signal leaves both as they were
        return found.hexdigest()


def as_json(value: Any) -> Any:
    """The value as JSON can hold it: null for NaN, lists and plain numbers for NumPy's types."""
    if isinstance(value, Mapping):
        return {str(k): as_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(v) for v in value]
    if isinstance(value, np.ndarray):
        return as_json(value.tolist())
    if isinstance(value, np.generic):
        return as_json(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class CsvFile:
    """A CSV file whose rows reach the operating system as they are written, each call in one piece.

    keep: None appends to the present file; a number keeps so many bytes of it; 0 starts the file anew.
    """

    def __init__(self, path: Path, header: Sequence[str], keep: int | None = 0) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self.size = os.fstat(self._file).st_size if keep is None else keep
        os.ftruncate(self._file, self.size)
        os.lseek(self._file, self.size, os.SEEK_SET)
        self._text, self._columns = io.StringIO(), len(header)
        self._csv = csv.writer(self._text, lineterminator="\n")
        if self.size == 0:
            self.write(header)

    def write(self, *rows: Sequence[Any]) -> None:
        if any(len(row) != self._columns for row in rows):
            raise ValueError(f"expected rows of {self._columns} cells")
        self._text.seek(0)
        self._text.truncate()
        self._csv.writerows(rows)
        content = self._text.getvalue().encode()
        written = os.write(self._file, content)
        self.size += written
        if written < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_rows(path: Path, columns: Sequence[str] = (), texts: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV file of a run without a half-written last row; an empty frame of these columns if there is no file.

    texts: columns whose cells stay as they are written.
    """
    import pandas as pd

    if not path.is_file() or b"\n" not in path.read_bytes():  # a run may be killed before the first line
        return pd.DataFrame(columns=list(columns))
    whole = path.read_text().rpartition("\n")[0]
    settings: Any = {"dtype": dict.fromkeys(texts, str)} if texts else {}
    settings |= {"keep_default_na": False, "na_values": ["nan"], "low_memory": False}
    return pd.read_csv(io.StringIO(whole), **settings, **as_written(pd.__version__))


def as_written(version: str) -> dict[str, Any]:
    """What makes pandas read numbers to the last bit: from 3.1 on it does so by itself, and warns of this setting."""
    major, minor = map(int, version.split(".")[:2])
    return {} if (major, minor) >= (3, 1) else {"float_precision": "round_trip"}
