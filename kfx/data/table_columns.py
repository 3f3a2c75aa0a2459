"""The columns of a table of one's own: numbers, words, what is missing, and which rows are test points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfx.data.own import require_numbers
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd

MOST_FEATURES = 20_000
MOST_SHOWN = 3


@dataclass(frozen=True)
class Layout:
    """How a table is to be read.

    targets, features: columns; no features means all that are nothing else. categorical: those whose values are words
    or codes, one-hot. test: a column that tells test rows, or None. missing: what becomes of missing values.
    """

    targets: tuple[str, ...]
    features: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    test: str | None = None
    task: str = "auto"
    missing: str = "refuse"
    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"


def require_present(frame: pd.DataFrame, path: Path, layout: Layout) -> None:
    """DataError for values that are missing where nothing says what to put there."""
    features = [name for name in frame.columns if name not in (*layout.targets, layout.test)]
    checked = [*layout.targets, *([layout.test] if layout.test else [])]
    checked += features if layout.missing == "refuse" else []
    absent = frame[checked].isna()
    if not absent.any(axis=None):
        if empty := [name for name in features if frame[name].isna().all()]:
            raise DataError(f"{path}: column {empty[0]} is empty; leave it out of dataset.features")
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


def as_numbers(column: pd.Series, where: str, remedy: str, decimal: str = ".") -> np.ndarray:
    """(n,), float64, NaN where a value is missing; DataError for words and for what is too large."""
    numbers = numbers_of(column, decimal)
    wrong = (numbers.isna() & column.notna()).to_numpy()
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(f"{where} holds {str(column.iloc[row])[:40]!r} in row {row + 1}, which is no number; {remedy}")
    found = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    require_numbers(found, where, missing=True)
    return found


def levels(column: pd.Series, layout: Layout, by_size: bool) -> tuple[np.ndarray, list[Any]]:
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


def as_target(column: pd.Series, where: str, layout: Layout) -> pd.Series:
    """A target as it stands in the file, of several as numbers; DataError for words among numbers, which are slips and
    no classes."""
    import pandas as pd

    if len(layout.targets) > 1:
        return pd.Series(as_numbers(column, where, "a target among several is a number", layout.decimal))
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column) or layout.task == "classification":
        return column
    numbers = numbers_of(column, layout.decimal)
    known = column.notna()
    wrong = np.flatnonzero((numbers.isna() & known).to_numpy())
    if len(wrong) and numbers.notna().sum() * 2 > known.sum():
        shown = f"holds {str(column.iloc[wrong[0]])[:40]!r} in row {wrong[0] + 1}, among numbers"
        raise DataError(f"{where} {shown}; mend it, drop it, or set dataset.task=classification")
    return column


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
