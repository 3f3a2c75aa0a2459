"""Frames with columns of words: each of their values becomes a feature of 0 and 1."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kfx.data.new_rows import Encoding
from kfx.data.table_columns import MOST_WORDS, Layout, holds_dates, numbers_of

_MOST_VALUES = 1000


def categories(X: Any) -> dict[str, list[object]]:
    """Return the values of each column of words, in order, and those that a column of dtype category has; empty if X is
    no frame. X: as `as_frame` returns it.

    Raises ValueError for dates, for too many values, and for values that would be features of the same name.
    """
    found: dict[str, list[object]] = {}
    features: list[str] = []
    for name, column in _columns(X):
        is_category = str(column.dtype) == "category"
        if str(column.dtype)[:6] in ("dateti", "timede", "period") or (not is_category and holds_dates(column)):
            way = "make numbers of them, as days since the first, drop it, or give it the dtype category"
            raise ValueError(f"column {name} holds dates; {way}")
        if not is_category and not numbers_of(column).isna().gt(column.isna()).any():
            features.append(str(name))
            continue
        there = column.dropna().unique().tolist()
        values = [each for each in column.cat.categories if each in there] if is_category else sorted(there, key=_order)
        if len(values) > (_MOST_VALUES if is_category else MOST_WORDS):
            way = "" if is_category else ", make numbers of it, or give it the dtype category"
            raise ValueError(f"column {name} holds {len(values)} different words; drop it{way}")
        found[str(name)] = values
        features += [f"{name}={value}" for value in values]
    twice = next((feature for feature, count in Counter(features).items() if count > 1), None)
    if found and twice is not None:
        raise ValueError(f"two features are named {twice}: a column or a value of the same name; rename one")
    return found


def as_numbers(X: Any, known: Mapping[str, Sequence[object]]) -> Any:
    """Return X with a column of 0 and 1 for each value of the categories, named `column=value`; X itself without any.
    X: as `as_frame` returns it.

    A value that is none of the known is 0 in all columns, with a warning. Raises ValueError for missing values.
    """
    if not known or not hasattr(X, "columns"):
        return X
    import pandas as pd

    parts: dict[str, Any] = {}
    encoding = Encoding(Layout(()), (), known, frozenset())
    for name, column in _columns(X):
        if str(name) not in known:
            parts[str(name)] = column
            continue
        if column.isna().any():
            raise ValueError(f"column {name} has {int(column.isna().sum())} missing values; fill them or drop the rows")
        codes = encoding.codes(str(name), column)
        if (codes < 0).any():
            other = min(map(repr, column[codes < 0].tolist()))
            warnings.warn(f"column {name} holds {other}, which no training row has; it counts as none", stacklevel=4)
        parts |= {f"{name}={value}": (codes == i).astype(float) for i, value in enumerate(known[str(name)])}
    return pd.DataFrame({name: np.asarray(part) for name, part in parts.items()}, index=X.index)


def as_frame(X: Any) -> Any:
    """Return a frame of another library, as polars or Arrow, as a DataFrame of pandas, with NumPy's types in place of
    Arrow's; a masked array with NaN where it is masked; all else as it is."""
    import pandas as pd

    if isinstance(X, np.ma.MaskedArray):
        return np.ma.filled(X.astype(np.float64), np.nan)
    if isinstance(X, np.ndarray):
        return X
    if not isinstance(X, pd.DataFrame):
        names = getattr(X, "column_names", getattr(X, "columns", None))
        return X if names is None else pd.DataFrame({name: np.asarray(X[name]) for name in names})
    of_arrow = [isinstance(dtype, pd.ArrowDtype) and dtype.kind not in "iufb" for dtype in X.dtypes]
    if not any(of_arrow):
        return X
    columns = [
        X.iloc[:, i].astype(X.dtypes.iloc[i].numpy_dtype if yes else X.dtypes.iloc[i]) for i, yes in enumerate(of_arrow)
    ]
    return pd.concat(columns, axis=1)


def with_columns_of(X: Any, columns: Sequence[object]) -> Any:
    """Return X, a frame with these columns or an array, (n, columns), as a DataFrame with them; ValueError for a frame
    with others, or with the same in another order."""
    import pandas as pd

    frame = X if hasattr(X, "columns") else pd.DataFrame(np.asarray(X, dtype=object), columns=list(columns))
    if list(frame.columns) != list(columns):
        raise ValueError(
            f"X has the columns {', '.join(map(str, frame.columns))}; the fit had {', '.join(map(str, columns))}"
        )
    return frame


def _columns(X: Any) -> list[tuple[str, Any]]:
    return [(name, X[name]) for name in X.columns] if hasattr(X, "columns") and X.columns.is_unique else []


def _order(value: object) -> tuple[str, Any]:
    return str(type(value)), value
