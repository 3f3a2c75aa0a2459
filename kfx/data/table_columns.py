"""The columns of a table of one's own: numbers, words, what is missing, and which rows are test points."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kfx.config.overrides import typed
from kfx.data.files import warn_once
from kfx.data.own import require_numbers
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd

MOST_FEATURES = 20_000
MOST_SHOWN = 3
MOST_NAMED = 20


@dataclass(frozen=True)
class Layout:
    """How a table is to be read.

    targets, features: columns; no features means all that are nothing else. exclude: those that are left out.
    categorical: features whose values are words or codes, one-hot. test: a column that tells test rows, or None.
    missing: what becomes of missing values.
    """

    targets: tuple[str, ...]
    features: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    test: str | None = None
    task: str = "auto"
    missing: str = "refuse"
    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"

    def left_out(self, names: Sequence[str]) -> str:
        """What to do to leave out features."""
        them = "it" if len(names) == 1 else "them"
        if self.features is not None:
            return f"leave {them} out of dataset.features"
        return f"to leave {them} out, type {typed('dataset.exclude', [*self.exclude, *names])}"


def require_present(frame: pd.DataFrame, path: Path, layout: Layout) -> None:
    """DataError for values that are missing where nothing says what to put there."""
    features = [name for name in frame.columns if name not in (*layout.targets, layout.test)]
    checked = [*layout.targets, *([layout.test] if layout.test else [])]
    checked += features if layout.missing == "refuse" else []
    absent = frame[checked].isna()
    if not absent.any(axis=None):
        if empty := [name for name in features if frame[name].isna().all()]:
            raise DataError(f"{path}: column {empty[0]} is empty; {layout.left_out(empty)}")
        return
    rows = [str(i + 1) for i in np.flatnonzero(absent.any(axis=1))]
    names = [name for name in checked if absent[name].any()]
    of_target = any(name in layout.targets or name == layout.test for name in names)
    remedy = "drop" if of_target else "mean, median or drop"
    more = ", …" if len(rows) > MOST_SHOWN else ""
    raise DataError(
        f"{path}: {len(rows)} rows miss a value, rows {', '.join(rows[:MOST_SHOWN])}{more}, in the columns "
        f"{', '.join(names[:MOST_SHOWN])}{', …' if len(names) > MOST_SHOWN else ''}; set dataset.missing={remedy}"
    )


def numbers_of(column: pd.Series, decimal: str = ".") -> pd.Series:
    """A column as numbers: NaN where it holds none, infinity beyond float64. decimal: the point of numbers in text."""
    import pandas as pd

    if decimal != ".":
        exchanged = str.maketrans({decimal: ".", ".": decimal})
        column = column.map(lambda value: value.translate(exchanged) if isinstance(value, str) else value)
    try:
        return pd.to_numeric(column, errors="coerce")
    except OverflowError:  # of a whole number; as text it is infinite, as others that are too large
        return pd.to_numeric(column.astype(str), errors="coerce")


def make_numbers(frame: pd.DataFrame, names: Sequence[str], path: Path, layout: Layout) -> None:
    """Make float64 of columns, NaN where a value is missing; DataError for what is too large and for words, of which it
    names every column."""
    words: dict[str, str] = {}
    for name in names:
        numbers = numbers_of(frame[name], layout.decimal)
        wrong = np.flatnonzero((numbers.isna() & frame[name].notna()).to_numpy())
        if len(wrong):
            words[name] = f"{str(frame[name].iloc[wrong[0]])[:40]!r} in row {wrong[0] + 1}"
            continue
        found = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
        require_numbers(found, f"{path}: column {name}", missing=True)
        frame[name] = found
    if not words:
        return
    first, shown = next(iter(words)), list(words)[:MOST_NAMED]
    more = f" and {len(words) - len(shown)} more" if len(words) > len(shown) else ""
    if len(words) == 1:
        what = f"column {first} holds {words[first]}, which is no number"
    else:
        what = f"columns {', '.join(shown)}{more} hold words, as {first} {words[first]}"
    if any(name in layout.targets for name in words):
        raise DataError(f"{path}: {what}; a target among several is a number")
    codes = f"for a column of 0 and 1 for each word, type {typed('dataset.categorical', [*layout.categorical, *shown])}"
    raise DataError(f"{path}: {what}; {codes}; {layout.left_out(shown)}")


_NAMES_OF_ROWS = ("index", "idx", "row", "number", "no", "nr", "unnamed: 0")
_WORDS_OF_TIME = {"year", "month", "week", "day", "hour", "minute", "second", "date", "time", "t", "step"}
_FEWEST_ROWS = 10


def identifiers(frame: pd.DataFrame, features: Sequence[str]) -> list[str]:
    """Features, numbers, that tell rows apart and say nothing of them.

    They are called id, or are whole numbers, all different, that are called as rows are or grow by one from row to row;
    not so a time, nor the only feature.
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
    """Warn of features that are none, unless dataset.features names them."""
    if layout.features is not None or not found:
        return
    some = found[:MOST_NAMED]
    what = f"column {some[0]} looks like" if len(found) == 1 else f"columns {', '.join(some)} look like"
    warn_once(f"{path}: {what} row numbers or identifiers, which are no features", f"; {layout.left_out(some)}")


def levels(column: pd.Series, layout: Layout, by_size: bool) -> tuple[np.ndarray, list[object]]:
    """(n,) codes, -1 where a value is missing, and the different values in order.

    Values are apart as they are written: `1`, `1.0` and `01` are three. Words stand in alphabetical order; by_size:
    those that are all numbers stand in the order of their size.
    """
    import pandas as pd

    def sizes() -> pd.Series:
        return numbers_of(pd.Series(values), layout.decimal)

    codes, values = pd.factorize(column, sort=True)
    if not by_size or not pd.api.types.is_string_dtype(values) or sizes().isna().any():
        return codes, list(values)
    codes, values = pd.factorize(column.str.strip())  # blanks about a number are none of it
    keys = list(zip(sizes(), map(len, values), values, strict=True))
    order = sorted(range(len(values)), key=keys.__getitem__)
    return np.where(codes < 0, -1, np.argsort(order)[codes]), [values[i] for i in order]


def spelt_as(known: pd.Series, other: pd.Series) -> pd.Series:
    """`other`, of a second file, with its words spelt as in `known` where tools may write the same value in two ways:
    whole numbers with and without `.0`, `True` and `true`. A value that one file itself writes in two ways stays as it
    is there."""
    ours, theirs = _by_meaning(known), _by_meaning(other)
    respelt = {spelling: ours[meaning] for meaning, spelling in theirs.items() if meaning in ours}
    return other.map(lambda value: respelt.get(value, value), na_action="ignore")


_WHOLE = re.compile(r"([+-]?(?:0|[1-9][0-9]*))(?:\.0+)?")


def _by_meaning(column: pd.Series) -> dict[str, str]:
    """The spelling of each value that a column of words writes in one way."""
    spellings: dict[str, list[str]] = {}
    for value in column.dropna().unique():
        text = str(value).strip()
        number = _WHOLE.fullmatch(text)
        meaning = number[1] if number else text.lower() if text.lower() in ("true", "false") else text
        spellings.setdefault(meaning, []).append(value)
    return {meaning: written[0] for meaning, written in spellings.items() if len(written) == 1}


def as_features(frame: pd.DataFrame, layout: Layout, path: Path, by_size: bool) -> np.ndarray:
    """(n, features): numbers, and of each categorical column a column of 0 and 1 a value, in the order of `levels`."""
    parts: list[np.ndarray] = []
    for name in frame.columns:
        if name in (*layout.targets, layout.test):
            continue
        if name not in layout.categorical:
            parts.append(frame[name].to_numpy(dtype=np.float64)[:, None])
            continue
        codes, values = levels(frame[name], layout, by_size)
        if sum(part.shape[1] for part in parts) + len(values) > MOST_FEATURES:
            many = f"has {len(values)} different values, too many to be one-hot; leave it out"
            raise DataError(f"{path}: column {name} {many}")
        hot = np.eye(len(values))[codes]
        hot[codes < 0] = np.nan
        parts.append(hot)
    return np.concatenate(parts, axis=1)


def check_target(column: pd.Series, where: str, layout: Layout) -> None:
    """DataError for words among the numbers of a target, which are slips and no classes."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column) or layout.task == "classification":
        return
    numbers = numbers_of(column, layout.decimal)
    known = column.notna()
    wrong = np.flatnonzero((numbers.isna() & known).to_numpy())
    if len(wrong) and numbers.notna().sum() * 2 > known.sum():
        shown = f"holds {str(column.iloc[wrong[0]])[:40]!r} in row {wrong[0] + 1}, among numbers"
        raise DataError(f"{where} {shown}; mend it, drop it, or set dataset.task=classification")


def target_values(frame: pd.DataFrame, layout: Layout) -> np.ndarray:
    """Numbers where all of it is numbers, words otherwise; (n,), or (n, outputs) of several columns."""
    import pandas as pd

    if len(layout.targets) > 1:
        return np.stack([frame[name].to_numpy(dtype=np.float64) for name in layout.targets], axis=1)
    column = frame[layout.targets[0]]
    numbers = numbers_of(column, layout.decimal)
    if pd.api.types.is_bool_dtype(column) or numbers.isna().any():
        return column.astype(str).to_numpy(dtype=str)
    return numbers.to_numpy(dtype=np.int64 if pd.api.types.is_integer_dtype(numbers) else np.float64)


_MARKS: Mapping[str, bool] = {
    **dict.fromkeys(("test", "true", "1", "1.0", "yes"), True),
    **dict.fromkeys(("train", "training", "false", "0", "0.0", "no"), False),
}


def as_marks(column: pd.Series, where: str) -> np.ndarray:
    """Which rows are test points."""
    words = column.astype(str).str.strip().str.lower()
    if unknown := sorted(set(words) - set(_MARKS)):
        raise DataError(
            f"{where} holds {unknown[0]!r}; of a column that tells test points expected {', '.join(_MARKS)}"
        )
    return words.map(dict(_MARKS)).to_numpy(dtype=bool)
