"""How the rows of a table, and new rows, become points: words to columns of 0 and 1, as the training rows have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kfx.data import row_file
from kfx.data.cells import numbers_of
from kfx.data.table_columns import LARGEST, MOST_FEATURES, MOST_SHOWN, Layout, levels, meaning
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file.

    rows: their numbers, from 1, (n,). x: their features, (n, …), float64, NaN for a value that the run imputes.
    problems: of the rows that cannot be read, which have no part in the others, by their numbers. unknown: of the rows
    with a word that no training row has, which counts as none of the known: 0 in all columns.
    """

    rows: np.ndarray
    x: np.ndarray
    problems: Mapping[int, str]
    unknown: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoding:
    """How a table is read as points, (n, features).

    columns: of the features, in order. values: of each categorical column, in the order of its columns of 0 and 1.
    flags: numeric columns of zeros and ones alone, which may be written as true and false.
    """

    layout: Layout
    columns: tuple[str, ...]
    values: Mapping[str, Sequence[object]]
    flags: frozenset[str]

    @classmethod
    def of(cls, frame: pd.DataFrame, layout: Layout, path: Path, by_size: bool) -> Encoding:
        """The encoding of the rows of a table, numbers converted. by_size: as of `levels`."""
        columns = tuple(name for name in frame.columns if name not in layout.beside)
        numeric = [name for name in columns if name not in layout.categorical]
        flags = frozenset(name for name in numeric if frame[name].dropna().isin([0, 1]).all())
        values = {name: levels(frame[name], layout, by_size)[1] for name in layout.categorical}
        width = len(numeric)
        for name, own in values.items():
            if (width := width + len(own)) > MOST_FEATURES:
                many = f"has {len(own)} different values, too many to be one-hot; leave it out"
                raise DataError(f"{path}: column {name} {many}")
        return cls(layout, columns, values, flags)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features: of columns of 0 and 1 `column=value`."""
        each = [
            [f"{name}={value}" for value in self.values[name]] if name in self.values else [name]
            for name in self.columns
        ]
        return tuple(name for names in each for name in names)

    def seen(self, x: np.ndarray) -> np.ndarray:
        """Which features training points x, (n, features), know, (features,): all but words that none of them has."""
        is_word = [np.full(len(self.values.get(name, [0])), name in self.values) for name in self.columns]
        return ~np.concatenate(is_word) | (x > 0).any(axis=0)

    def limited(self, seen: np.ndarray) -> Encoding:
        """The encoding without the words that are not seen. seen: (features,)."""
        values, rest = dict(self.values), seen.tolist()
        for name in self.columns:
            own = self.values.get(name, [name])
            there, rest = rest[: len(own)], rest[len(own) :]
            if name in values:
                values[name] = [value for value, is_seen in zip(own, there, strict=True) if is_seen]
        return replace(self, values=values)

    def rows(self, frame: pd.DataFrame) -> Chunk:
        """Encode the rows of a frame; other columns than the features are ignored."""
        frame = frame.rename(columns=str)
        self._require(list(frame.columns), "new rows")
        return self.encode(frame)

    def _require(self, columns: Sequence[str], where: str) -> None:
        """Raise DataError unless each feature is once among the columns. where: begins the message."""
        if lacking := [name for name in self.columns if list(columns).count(name) != 1]:
            shown = ", ".join(lacking[:MOST_SHOWN]) + (", …" if len(lacking) > MOST_SHOWN else "")
            raise DataError(f"{where}: expected each feature of the run once among its columns; look at {shown}")

    def encode(self, frame: pd.DataFrame, first: int = 1) -> Chunk:
        """Encode rows that have these columns, the first of them numbered `first`."""
        rows, parts = np.arange(first, first + len(frame)), list[np.ndarray]()
        problems, unknown = dict[int, str](), dict[int, str]()

        def note(found: dict[int, str], wrong: np.ndarray, name: str, what: str) -> None:
            for i in np.flatnonzero(wrong):
                shown = what.replace("{}", repr(str(frame[name].iloc[i])[:40]))
                found.setdefault(int(rows[i]), f"column {name} {shown}")

        blame = partial(note, problems)
        for name in self.columns:
            column = frame[name]
            if column.dtype.kind in "mMc":
                raise DataError(f"new rows: column {name} holds {column.dtype}; expected numbers or words")
            absent = column.isna().to_numpy()
            if self.layout.missing not in ("mean", "median"):
                blame(absent, name, "has no value")
            if name in self.values:
                codes = self.codes(name, column)
                note(unknown, (codes < 0) & ~absent, name, "holds {}, which no training row has; it counts as none")
                part = (codes[:, None] == np.arange(len(self.values[name]))).astype(np.float64)
                part[absent] = np.nan
            else:
                if name in self.flags:
                    column = column.map(lambda value: _FLAGS.get(str(value).strip().lower(), value), na_action="ignore")
                part = numbers_of(column, self.layout.form).to_numpy(dtype=np.float64, na_value=np.nan)[:, None]
                blame(np.isnan(part[:, 0]) & ~absent, name, "holds {}, which is no number")
                blame(np.abs(part[:, 0]) > LARGEST, name, "holds {}, which is too large to be squared")
            parts.append(part)
        good = ~np.isin(rows, list(problems))
        unknown = {row: what for row, what in unknown.items() if row not in problems}
        return Chunk(rows[good], np.concatenate(parts, axis=1)[good], problems, unknown)

    def codes(self, name: str, column: pd.Series) -> np.ndarray:
        """The places of the values in those of the training rows, (n,), −1 for others; as tools write one value in two
        ways, `1` and `1.0`, a value is compared as it is written and then by its meaning."""
        codes = {str(value): code for code, value in enumerate(self.values[name])}
        meanings = [meaning(text) for text in codes]
        by_meaning = {m: code for m, code in zip(meanings, codes.values(), strict=True) if meanings.count(m) == 1}

        places, values = column.astype(object).factorize()
        texts = map(str, values)
        of_values = [codes[text] if text in codes else by_meaning.get(meaning(text), -1) for text in texts]
        return np.array([*of_values, -1], dtype=np.int64)[places]

    def chunks(self, path: Path, size: int) -> Iterator[Chunk]:
        """Read a table in chunks of `size` rows; other columns than the features are ignored.

        Raises DataError for a file that cannot be read, or that lacks a feature. A line with more or fewer fields than
        the first is a problem of its row.
        """
        if path.suffix.lower() == ".npz":
            raise DataError(f"{path}: the run reads a table; expected {', '.join(row_file.SUFFIXES)}")
        self._require(row_file.columns(path, self.layout.form), str(path))
        first = 1
        for frame, broken in row_file.chunks(path, self.columns, self.layout.form, size):
            chunk = self.encode(frame, first)
            problems = {**chunk.problems, **{first + i: text for i, text in broken.items()}}
            good = ~np.isin(chunk.rows, list(problems))
            yield Chunk(chunk.rows[good], chunk.x[good], dict(sorted(problems.items())), chunk.unknown)
            first += len(frame)


_FLAGS = {"true": 1, "false": 0}
