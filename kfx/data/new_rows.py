"""New rows of a table, or new points, encoded as the training points of a run."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kfx.data import table_file
from kfx.data.array_file import new_points
from kfx.data.files import require_file
from kfx.data.own import LARGEST
from kfx.data.table_columns import MOST_SHOWN, Layout, feature_values, meaning, numbers_of
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file.

    rows: their numbers, from 1, (n,). x: their features, (n, …), float64, NaN for a value that the run imputes.
    problems: of the rows that cannot be read, which have no part in the others, by their numbers.
    """

    rows: np.ndarray
    x: np.ndarray
    problems: Mapping[int, str]


@dataclass(frozen=True)
class Encoding:
    """How a run reads its table.

    features: their columns, in order. values: of each categorical column, in the order of its one-hot columns. flags:
    numeric columns of zeros and ones alone, which may be written as true and false.
    """

    layout: Layout
    features: tuple[str, ...]
    values: Mapping[str, Sequence[object]]
    flags: frozenset[str]

    @classmethod
    def of_table(cls, path: Path, layout: Layout, test_path: Path | None = None) -> Encoding:
        """Return the encoding of a training table and a second one, as `table_file.read` reads them."""
        frame, _, _, by_size = table_file.checked(path, layout, test_path)
        features = tuple(name for name in frame.columns if name not in (*layout.targets, layout.test))
        numeric = [name for name in features if name not in layout.categorical]
        flags = frozenset(name for name in numeric if frame[name].dropna().isin([0, 1]).all())
        return cls(layout, features, feature_values(frame, layout, by_size), flags)

    def rows(self, frame: pd.DataFrame) -> Chunk:
        """Encode the rows of a frame; other columns than the features are ignored."""
        frame = frame.rename(columns=str)
        self._require(list(frame.columns), "new rows")
        return self.encode(frame)

    def _require(self, columns: Sequence[str], where: str) -> None:
        """Raise DataError unless each feature is once among the columns. where: begins the message."""
        if lacking := [name for name in self.features if list(columns).count(name) != 1]:
            shown = ", ".join(lacking[:MOST_SHOWN]) + (", …" if len(lacking) > MOST_SHOWN else "")
            raise DataError(f"{where}: expected each feature of the run once among its columns; look at {shown}")

    def encode(self, frame: pd.DataFrame, first: int = 1) -> Chunk:
        """Encode rows that have the columns `features`, the first of them numbered `first`."""
        rows, problems, parts = np.arange(first, first + len(frame)), dict[int, str](), list[np.ndarray]()

        def blame(wrong: np.ndarray, name: str, what: str) -> None:
            for i in np.flatnonzero(wrong):
                shown = what.replace("{}", repr(str(frame[name].iloc[i])[:40]))
                problems.setdefault(int(rows[i]), f"column {name} {shown}")

        for name in self.features:
            column = frame[name]
            if column.dtype.kind in "mMc":
                raise DataError(f"new rows: column {name} holds {column.dtype}; expected numbers or words")
            absent = column.isna().to_numpy()
            if self.layout.missing not in ("mean", "median"):
                blame(absent, name, "has no value")
            if name in self.values:
                codes = self._codes(name, column)
                blame((codes < 0) & ~absent, name, "holds {}, which no training row has")
                part = np.eye(len(self.values[name]))[codes]
                part[codes < 0] = np.nan
            else:
                if name in self.flags:
                    column = column.map(lambda value: _FLAGS.get(str(value).strip().lower(), value), na_action="ignore")
                part = numbers_of(column, self.layout.decimal).to_numpy(dtype=np.float64, na_value=np.nan)[:, None]
                blame(np.isnan(part[:, 0]) & ~absent, name, "holds {}, which is no number")
                blame(np.abs(part[:, 0]) > LARGEST, name, "holds {}, which is too large to be squared")
            parts.append(part)
        good = ~np.isin(rows, list(problems))
        return Chunk(rows[good], np.concatenate(parts, axis=1)[good], problems)

    def _codes(self, name: str, column: pd.Series) -> np.ndarray:
        """The places of the values in those of the training rows, (n,), −1 for others; as tools write one value in two
        ways, `1` and `1.0`, a value is compared as it is written and then by its meaning."""
        codes = {str(value): code for code, value in enumerate(self.values[name])}
        meanings = [meaning(text) for text in codes]
        by_meaning = {m: code for m, code in zip(meanings, codes.values(), strict=True) if meanings.count(m) == 1}

        def code(value: object) -> int:
            text = str(value)
            if text not in codes:
                codes[text] = by_meaning.get(meaning(text), -1)
            return codes[text]

        found: np.ndarray = column.astype(object).map(code, na_action="ignore").fillna(-1).to_numpy(dtype=np.int64)
        return found

    def chunks(self, path: Path, size: int) -> Iterator[Chunk]:
        """Read a table in chunks of `size` rows; other columns than the features are ignored.

        Raises DataError for a file that cannot be read, or that lacks a feature. A line with more or fewer fields than
        the first is a problem of its row.
        """
        if path.suffix.lower() not in table_file.SUFFIXES:
            raise DataError(f"{path}: the run reads a table; expected {', '.join(table_file.SUFFIXES)}")
        self._require(table_file.columns(path, self.layout), str(path))
        read = _of_parquet if table_file.is_parquet(path) else _of_text
        first = 1
        for frame, broken in read(path, self.features, self.layout, size):
            chunk = self.encode(frame, first)
            problems = {**chunk.problems, **{first + i: text for i, text in broken.items()}}
            good = ~np.isin(chunk.rows, list(problems))
            yield Chunk(chunk.rows[good], chunk.x[good], dict(sorted(problems.items())))
            first += len(frame)


_FLAGS = {"true": 1, "false": 0}


@dataclass(frozen=True)
class PointEncoding:
    """How a run that is not on a table takes points: as they are. shape: that of a training point. channels: `last` for
    images (n, height, width, channels)."""

    shape: tuple[int, ...]
    channels: str = "first"

    def rows(self, points: pd.DataFrame | np.ndarray) -> Chunk:
        """Check points, (n, …); rows with values that are no finite numbers are problems."""
        try:
            x = np.asarray(points, dtype=np.float64)
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


def _of_text(
    path: Path, features: Sequence[str], layout: Layout, size: int
) -> Iterator[tuple[pd.DataFrame, Mapping[int, str]]]:
    """Yield rows as text, missing values as None, and what is wrong with a line, by its place among the rows."""
    import pandas as pd

    known, separator, _ = table_file.header(path, layout)
    places = [known.index(name) for name in features]
    missing, rows, broken = set(table_file.MISSING), list[list[str | None]](), dict[int, str]()
    with path.open(encoding=table_file.encoding(layout), newline="") as stream:
        reader = table_file.fields_of(stream, separator)
        try:
            next(row for row in reader if row)
            for row in filter(None, reader):
                if len(row) != len(known):
                    broken[len(rows)] = f"its line has {len(row)} fields, the first line {len(known)}"
                    rows.append([None] * len(features))
                else:
                    rows.append([None if row[i].strip() in missing else row[i].strip() for i in places])
                if len(rows) == size:
                    yield pd.DataFrame(rows, columns=list(features), dtype=object), broken
                    rows, broken = [], {}
        except UnicodeError as error:
            raise DataError(f"{path}: is not in {layout.encoding} ({error})") from error
        except csv.Error as error:
            raise DataError(f"{path}: line {reader.line_num}: {error}; is a quotation mark not closed?") from error
    if rows:
        yield pd.DataFrame(rows, columns=list(features), dtype=object), broken


def _of_parquet(
    path: Path, features: Sequence[str], layout: Layout, size: int
) -> Iterator[tuple[pd.DataFrame, Mapping[int, str]]]:
    file = table_file.parquet(path)
    table_file.require_plain(path, file, features)
    with table_file.reading(path):
        for batch in file.iter_batches(size, columns=list(features)):
            frame = batch.to_pandas(ignore_metadata=True, integer_object_nulls=True)[list(features)]
            yield frame.reset_index(drop=True), {}


def count(path: Path) -> int:
    """The number of rows, or of lines below the first; exact unless a field has several lines. DataError without a
    file."""
    require_file(path, (*table_file.SUFFIXES, ".npz"))
    if path.suffix.lower() == ".npz":
        return len(new_points(path))
    if table_file.is_parquet(path):
        rows: int = table_file.parquet(path).metadata.num_rows
        return rows
    with path.open("rb") as stream:
        return max(sum(block.count(b"\n") for block in iter(partial(stream.read, 1 << 20), b"")) - 1, 1)
