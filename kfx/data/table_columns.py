"""The columns of a person's table: numbers, words, missing values, and which rows are test points."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kfx.config.overrides import typed
from kfx.data.cells import PLAIN, Form, numbers_of, shown, spelling_problem
from kfx.data.files import warn_once
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd

MOST_FEATURES = 20_000
MOST_SHOWN = 3
MOST_NAMED = 20
LARGEST = 1e100
"""Largest number whose squared distances stay within the range of float64."""


@dataclass(frozen=True)
class Layout:
    """How to read a table.

    targets, features: columns; with no features, all columns that have no other use. exclude: columns to leave out.
    categorical: features of which every value becomes one of 0 and 1. test: a column that marks test rows, or None.
    missing: how to treat missing values. form: how the file is written. weights: a
    column, or None.
    """

    targets: tuple[str, ...]
    features: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    test: str | None = None
    task: str = "auto"
    missing: str = "refuse"
    form: Form = PLAIN
    weights: str | None = None

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns with a use that are no features: targets, marks of test rows, weights."""
        return *self.targets, *(name for name in (self.test, self.weights) if name is not None)

    def left_out(self, names: Sequence[str]) -> str:
        """The setting to type in order to leave out these features."""
        them = "it" if len(names) == 1 else "them"
        if self.features is not None:
            return f"leave {them} out of dataset.features"
        return f"to leave {them} out, type {typed('dataset.exclude', [*self.exclude, *names])}"


def require_present(frame: pd.DataFrame, path: Path, layout: Layout) -> None:
    """DataError for missing values, if nothing says how to fill them, and but with `auto` for an empty column."""
    features = [name for name in frame.columns if name not in layout.beside]
    checked = list(layout.beside)
    checked += features if layout.missing == "refuse" else []
    absent = frame[checked].isna()
    if not absent.any(axis=None):
        if layout.missing != "auto" and (empty := [name for name in features if frame[name].isna().all()]):
            raise DataError(f"{path}: column {empty[0]} is empty; {layout.left_out(empty)}")
        return
    rows = [str(i + 1) for i in frame.index[absent.any(axis=1)]]
    names = [name for name in checked if absent[name].any()]
    of_target = any(name in layout.beside for name in names)
    remedy = "drop" if of_target and not frame[features].isna().any(axis=None) else "mean, median or drop"
    more = ", …" if len(rows) > MOST_SHOWN else ""
    count = f"{len(rows)} row{'s' if len(rows) > 1 else ''}"
    raise DataError(
        f"{path}: {count} without a value, {', '.join(rows[:MOST_SHOWN])}{more}, in the columns "
        f"{', '.join(names[:MOST_SHOWN])}{', …' if len(names) > MOST_SHOWN else ''}; set dataset.missing={remedy}"
    )


def as_numbers(column: pd.Series, where: str, form: Form, remedy: str) -> np.ndarray:
    """A column as float64, (n,), NaN for missing values; DataError for words and for too large numbers. remedy: ends
    the message on words."""
    numbers = numbers_of(column, form)
    wrong = column[numbers.isna() & column.notna()]
    if len(wrong):
        problem = spelling_problem(column, form) or (f"holds {shown(wrong)}, which is no number", remedy)
        raise DataError(f"{where} {'; '.join(problem)}")
    found = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    require_numbers(found, where, missing=True)
    return found


def require_numbers(values: np.ndarray, where: str, *, missing: bool = False) -> None:
    """DataError unless all values, of any shape, are finite and small enough to be squared. missing: allow NaN."""
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(values) <= LARGEST)
    if missing:
        wrong &= ~np.isnan(values)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        value = values[place]
        why = "too large to be squared; rescale it" if np.isfinite(value) else "no finite number"
        raise DataError(f"{where}: holds {value:g} in row {place[0] + 1}, which is {why}")


MOST_WORDS = 50
_TIMES = (datetime.date, datetime.time, datetime.timedelta)
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DATE = re.compile(
    r"(\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4}|\d\d?[-/]\d\d?[-/]\d\d|\d\d\.\d\d\.\d\d)([ T].*)?"
    r"|(19|20)\d\d[-/](0?[1-9]|1[0-2])|\d{1,2}:\d\d(:\d\d(\.\d+)?)?"
    rf"|(\d{{1,2}}\W+)?({_MONTHS})[a-z]*\W+(\d{{1,2}}\W+)?\d{{4}}.*",
    re.IGNORECASE,
)
_NUMBER_IN_WORDS = re.compile(r"[$€£¥+\-−(]*\s*\d[\d.,' ]*([dDeE][+\-−]?\d+)?\s*[%$€£¥)]*")


def is_date(text: str) -> bool:
    """Whether a text is like 2026-11-24, 24.11.2026, Nov 24, 2026 or 12:30; a version such as 3.10.1 is not."""
    return _DATE.fullmatch(text.strip()) is not None


def holds_dates(column: pd.Series) -> bool:
    """Whether all values of a column are dates or times, or such texts."""
    return len(known := column.dropna()) > 0 and all(
        is_date(value) if isinstance(value, str) else isinstance(value, _TIMES) for value in known
    )


def holds_words(column: pd.Series, form: Form) -> bool:
    """Whether a column of a file holds categories: most values are words, at most 50 different ones, and no dates.

    A few words among numbers are slips, more different words than that are names or texts, and words such as 1,5 or
    20 % are numbers in another spelling.
    """
    known = column.dropna()
    words = known[numbers_of(known, form).isna()]
    if len(words) * 2 <= len(known) or known.nunique() > MOST_WORDS:
        return False
    return not are_spelt_numbers(words) and not holds_dates(known)


def are_spelt_numbers(words: pd.Series) -> bool:
    """Whether all of some texts that are no numbers are such in another spelling, as 20 % or 1.000,5."""
    return all(isinstance(word, str) and _NUMBER_IN_WORDS.fullmatch(word.strip()) for word in words)


_NAMES_OF_ROWS = ("index", "idx", "row", "number", "no", "nr", "unnamed: 0")
_WORDS_OF_TIME = {"year", "month", "week", "day", "hour", "minute", "second", "date", "time", "t", "step"}
_FEWEST_ROWS = 10


def identifiers(frame: pd.DataFrame, features: Sequence[str]) -> list[str]:
    """Numeric features that only identify rows.

    They are called id, or hold distinct whole numbers and either have the name of a row number or grow by one from row
    to row. A time is none, nor is the only feature.
    """

    def is_identifier(name: str) -> bool:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
        parts = re.findall(r"[^\W_]+", words)
        if parts[-1:] == ["id"]:
            return True
        values = frame[name].to_numpy()
        if len(values) < _FEWEST_ROWS or not (values == np.floor(values)).all() or len(np.unique(values)) < len(values):
            return False
        counts = len(features) > 1 and (np.diff(values) == 1).all() and not _WORDS_OF_TIME.intersection(parts)
        return bool(words.strip() in _NAMES_OF_ROWS or counts)

    return [name for name in features if is_identifier(name)]


def warn_of_identifiers(found: Sequence[str], path: Path, layout: Layout) -> None:
    """Warn of features that look like identifiers of rows, unless dataset.features names them."""
    if layout.features is not None or not found:
        return
    some = found[:MOST_NAMED]
    what = f"column {some[0]} looks like" if len(found) == 1 else f"columns {', '.join(some)} look like"
    warn_once(f"{path}: {what} row numbers or identifiers, which are no features", f"; {layout.left_out(some)}")


def levels(column: pd.Series, form: Form, by_size: bool) -> tuple[np.ndarray, list[object]]:
    """Codes of the values, (n,), -1 for missing ones, and the distinct values in order.

    Values are compared as text: `1`, `1.0` and `01` are three. Words are in alphabetical order; with by_size, values
        that are all numbers are in numerical order.
    """
    import pandas as pd

    def sizes() -> pd.Series:
        return numbers_of(pd.Series(values), form)

    codes, values = pd.factorize(column, sort=True)
    if not by_size or not pd.api.types.is_string_dtype(values) or sizes().isna().any():
        return codes, list(values)
    codes, values = pd.factorize(column.str.strip())  # blanks around a number do not count
    keys = list(zip(sizes(), map(len, values), values, strict=True))
    order = sorted(range(len(values)), key=keys.__getitem__)
    return np.where(codes < 0, -1, np.argsort(order)[codes]), [values[i] for i in order]


def spelt_as(known: pd.Series, other: pd.Series) -> pd.Series:
    """Spell the words of `other`, from a second file, as in `known`, where tools write one value in two ways.

    These are whole numbers with and without `.0`, and `True` and `true`. A value that one file itself writes in two
    ways stays as it is.
    """
    ours, theirs = _by_meaning(known), _by_meaning(other)
    respelt = {spelling: ours[meant] for meant, spelling in theirs.items() if meant in ours}
    return other.map(lambda value: respelt.get(value, value), na_action="ignore")


_WHOLE = re.compile(r"([+-]?(?:0|[1-9][0-9]*))(?:\.0+)?")


def _by_meaning(column: pd.Series) -> dict[str, str]:
    """The spelling of each value that a column of words spells in only one way."""
    spellings: dict[str, list[str]] = {}
    for value in column.dropna().unique():
        spellings.setdefault(meaning(str(value)), []).append(value)
    return {meant: written[0] for meant, written in spellings.items() if len(written) == 1}


def meaning(text: str) -> str:
    """A value as text without what tools write differently: `1.0` as `1`, `True` as `true`, and no blanks around it."""
    text = text.strip()
    number = _WHOLE.fullmatch(text)
    return number[1] if number else text.lower() if text.lower() in ("true", "false") else text


def check_target(column: pd.Series, where: str, layout: Layout) -> None:
    """DataError for a few words among the numbers of a target: they are slips, not classes."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column) or layout.task == "classification":
        return
    numbers = numbers_of(column, layout.form)
    known = column.notna()
    wrong = column[numbers.isna() & known]
    if (problem := spelling_problem(column, layout.form)) is not None:
        raise DataError(f"{where} {'; '.join(problem)}")
    if len(wrong) and numbers.notna().sum() * 2 > known.sum():
        said = f"holds {shown(wrong)}, among numbers"
        raise DataError(f"{where} {said}; mend it, drop it, or set dataset.task=classification")


def target_values(frame: pd.DataFrame, layout: Layout) -> np.ndarray:
    """The targets, (n,), or (n, outputs) for several columns: numbers if all are numbers, else words.

    DataError for dates and durations, whose numbers depend on a unit.
    """
    import pandas as pd

    if timed := [name for name in layout.targets if frame[name].dtype.kind in "mM"]:
        what = f"column {timed[0]} holds {shown(frame[timed[0]].dropna())}, a date or a duration"
        raise DataError(f"{what}; a target is numbers or words: write it as a number, in seconds or days")
    if len(layout.targets) > 1:
        return np.stack([frame[name].to_numpy(dtype=np.float64) for name in layout.targets], axis=1)
    column = frame[layout.targets[0]]
    numbers = numbers_of(column, layout.form)
    if pd.api.types.is_bool_dtype(column) or numbers.isna().any():
        return column.astype(str).to_numpy(dtype=str)
    return numbers.to_numpy(dtype=np.int64 if pd.api.types.is_integer_dtype(numbers) else np.float64)


_MARKS: Mapping[str, bool] = {
    **dict.fromkeys(("test", "true", "1", "1.0", "yes"), True),
    **dict.fromkeys(("train", "training", "false", "0", "0.0", "no"), False),
}


def as_marks(column: pd.Series, where: str) -> np.ndarray:
    """Which rows are test points, (n,), from a column of marks; DataError for other words."""
    words = column.astype(str).str.strip().str.lower()
    if unknown := sorted(set(words) - set(_MARKS)):
        raise DataError(
            f"{where} holds {unknown[0]!r}; of a column that tells test points expected {', '.join(_MARKS)}"
        )
    return words.map(dict(_MARKS)).to_numpy(dtype=bool)
