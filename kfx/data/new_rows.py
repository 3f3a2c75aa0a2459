"""How the rows of a table, and new rows, become points, with what the training rows say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kfx.data import row_file
from kfx.data.column_kinds import FEWEST_ROWS, Dates, Kind, Words
from kfx.data.table_columns import LARGEST, MOST_FEATURES, MOST_NAMED, MOST_SHOWN, MOST_WORDS, Layout
from kfx.numerics.round_off import is_constant
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file.

    rows: their numbers, from 1, (n,). x: their features, (n, …), float64, NaN for a value that the run imputes.
    problems: of the rows that cannot be read, which have no part in the others, by their numbers. unknown: of the rows
    with a word that no training row has, which counts as none of the known, or without a value where they all have one.
    """

    rows: np.ndarray
    x: np.ndarray
    problems: Mapping[int, str]
    unknown: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoding:
    """How a table is read as points, (n, features).

    kinds: of the columns, in order. kept: which features of each column are those of points: with `missing=auto` those
    that vary over the training rows, else all but words that none of them has; empty before the fit. gaps: the columns
    in which training rows miss values.
    """

    layout: Layout
    kinds: Mapping[str, Kind]
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)
    gaps: frozenset[str] = frozenset()

    def fitted(self, frame: pd.DataFrame) -> Encoding:
        """With what the training rows say: known words, the first date, which features vary.

        Raises DataError if no feature is left, or if there are too many, or two of one name.
        """
        form = self.layout.form
        kinds = {name: kind.fitted(frame[name], form) for name, kind in self.kinds.items()}
        width = 0
        for name, kind in kinds.items():
            if (width := width + len(kind.names(name))) > MOST_FEATURES:
                many = f"with it there are {width} features, too many ({MOST_FEATURES} at most)"
                raise DataError(f"column {name}: {many}; leave it out")
        whole = replace(self, kinds=kinds, kept={})
        kept = {name: self._kept(kind, whole._part(name, frame[name])) for name, kind in kinds.items()}
        fitted = replace(whole, kept=kept, gaps=frozenset(name for name in kinds if frame[name].isna().any()))
        names = fitted.names
        if not names:
            raise DataError("no column is left for the features: in the training rows each has one value, or none")
        if (twice := Counter(names).most_common(1)[0])[1] > 1:
            raise DataError(f"two features are named {twice[0]}: a column or a value of the same name; rename one")
        return fitted

    def _kept(self, kind: Kind, part: np.ndarray) -> np.ndarray:
        """Which features of a column to keep, by those of the training rows, (n, features); a mark of few missing
        numbers tells nothing of them."""
        if self._is_auto:
            kept = np.array([_varies(part[:, i]) for i in range(part.shape[1])], dtype=bool)
            kept[-1] &= isinstance(kind, Words) or part[:, -1].sum() >= FEWEST_ROWS
            return kept
        return np.asarray((part > 0).any(axis=0) | (not isinstance(kind, Words)))

    @property
    def _is_auto(self) -> bool:
        return self.layout.missing == "auto"

    def _names(self, name: str, kind: Kind) -> tuple[str, ...]:
        return (*kind.names(name), *([f"{name} is missing"] if self._is_auto else []))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that give a feature, in order."""
        return tuple(name for name in self.kinds if self.kept[name].any())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features: `column=value` of words, `column is other`, `column is missing`, and parts of
        dates as `column.days` and `column.month.sin`."""
        each = [np.array(self._names(name, self.kinds[name]), dtype=object)[self.kept[name]] for name in self.columns]
        return tuple(name for names in each for name in names)

    @property
    def values(self) -> Mapping[str, Sequence[object]]:
        """The values of each column of words that have a feature, in order."""
        of_words = {name: kind for name, kind in self.kinds.items() if isinstance(kind, Words)}
        return {name: list(kind.known) for name, kind in of_words.items() if self.kept[name].any()}

    def remarks(self) -> list[str]:
        """What the training rows have that is no feature of its own, in words."""
        found = [
            f"column {name} holds {len(kind.known) + kind.rest} different words; {kind.rest} of them, beyond the "
            f"{MOST_WORDS} most frequent or in fewer than {FEWEST_ROWS} rows, count as one category"
            for name, kind in self.kinds.items()
            if isinstance(kind, Words) and kind.rest
        ]
        if left_out := [name for name in self.kinds if name not in self.columns]:
            some = ", ".join(left_out[:MOST_NAMED]) + (", …" if len(left_out) > MOST_NAMED else "")
            found.append(f"of no use as a feature, with one value or none in the training rows: {some}")
        return found

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
            column, kind, kept = frame[name], self.kinds[name], self.kept[name]
            if column.dtype.kind in ("c" if isinstance(kind, Dates) else "cM"):
                raise DataError(f"new rows: column {name} holds {column.dtype}; expected numbers or words")
            if isinstance(kind, Dates) and (other := kind.other_reading(column)) is not None:
                said = f"all its dates are written as {other}, those of the training rows as {kind.format}"
                raise DataError(f"new rows: column {name}: {said}; write them in the same way")
            absent, part = column.isna().to_numpy(), self._part(name, column)
            own = part[:, : len(kind.names(name))]
            if isinstance(kind, Words):
                nowhere = (own == 0).all(axis=1) & ~absent
                note(unknown, nowhere, name, "holds {}, which no training row has; it counts as none")
            else:
                blame(np.isnan(own).all(axis=1) & ~absent, name, f"holds {{}}, {kind.expected}")
                blame((np.abs(own) > LARGEST).any(axis=1), name, "holds {}, which is too large to be squared")
            if self._is_auto and name not in self.gaps:
                filled = "it counts as none of the words" if isinstance(kind, Words) else "the median counts"
                note(unknown, absent, name, f"has no value, as no training row; {filled}")
            elif not self._is_auto and self.layout.missing not in ("mean", "median"):
                blame(absent, name, "has no value")
            parts.append(part[:, kept])
        good = ~np.isin(rows, list(problems))
        unknown = {row: what for row, what in unknown.items() if row not in problems}
        return Chunk(rows[good], np.concatenate(parts, axis=1)[good], problems, unknown)

    def _part(self, name: str, column: pd.Series) -> np.ndarray:
        """The features of a column, (n, features), all that it may have, and with `missing=auto` the mark of missing
        values."""
        kind = self.kinds[name]
        part = kind.features(column, self.layout.form)
        if not self._is_auto:
            return part
        absent = column.isna().to_numpy()
        if isinstance(kind, Words):
            part[absent] = 0.0
        return np.column_stack([part, absent])

    def chunks(self, path: Path, size: int) -> Iterator[Chunk]:
        """Read a table in chunks of `size` rows; other columns than the features are ignored.

        Raises DataError for a file that cannot be read, or that lacks a feature. A line with more or fewer fields than
        the first is a problem of its row.
        """
        if path.suffix.lower() == ".npz":
            raise DataError(f"{path}: the run reads a table; expected {', '.join(row_file.SUFFIXES)}")
        self._require(row_file.columns(path, self.layout.form), str(path))
        first = 1
        dates = [name for name, kind in self.kinds.items() if isinstance(kind, Dates)]
        for frame, broken in row_file.chunks(path, self.columns, self.layout.form, size, dates):
            chunk = self.encode(frame, first)
            problems = {**chunk.problems, **{first + i: text for i, text in broken.items()}}
            good = ~np.isin(chunk.rows, list(problems))
            unknown = {row: what for row, what in chunk.unknown.items() if row not in problems}
            yield Chunk(chunk.rows[good], chunk.x[good], dict(sorted(problems.items())), unknown)
            first += len(frame)


def _varies(values: np.ndarray) -> bool:
    """Whether values, (n,), NaN for missing ones, are not all the same."""
    known = values[~np.isnan(values)]
    return len(known) > 0 and not is_constant(known)
