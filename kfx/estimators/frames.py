"""Frames with columns of words: each of their values becomes a feature of 0 and 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_MOST_VALUES = 1000


def categories(X: Any) -> dict[str, list[object]]:
    """Return the distinct values of each column of words, or of dtype category, in order; empty if X is no DataFrame.

    Raises ValueError for dates, for more than 1000 values, and for values that would be features of the same name.
    """
    found: dict[str, list[object]] = {}
    features: list[str] = []
    for name, column in _columns(X):
        kind = column.dtype.kind if hasattr(column.dtype, "kind") else "O"
        if kind in "mM":
            raise ValueError(f"column {name} holds dates; make numbers of them, as days since the first, or drop it")
        if str(column.dtype) != "category" and (kind in "biufc" or _holds_numbers(column)):
            features.append(str(name))
            continue
        values = sorted(column.dropna().unique().tolist(), key=lambda value: (str(type(value)), value))
        if not values or len(values) > _MOST_VALUES:
            raise ValueError(f"column {name} holds {len(values)} different words; drop it, or make numbers of it")
        found[str(name)] = values
        features += [f"{name}={value}" for value in values]
    twice = next((feature for feature, count in Counter(features).items() if count > 1), None)
    if found and twice is not None:
        raise ValueError(f"two features are named {twice}: a column or a value of the same name; rename one")
    return found


def as_numbers(X: Any, known: Mapping[str, Sequence[object]]) -> Any:
    """Return X with a column of 0 and 1 for each value of the categories, named `column=value`; X itself without any.

    Raises ValueError for a value, or a missing one, that is none of the known.
    """
    if not known or not hasattr(X, "columns"):
        return X
    import pandas as pd

    parts: dict[str, Any] = {}
    for name, column in _columns(X):
        if str(name) not in known:
            parts[str(name)] = column
            continue
        if column.isna().any():
            raise ValueError(f"column {name} has {int(column.isna().sum())} missing values; fill them or drop the rows")
        values = list(known[str(name)])
        other = [value for value in column.tolist() if value not in values]
        if other:
            raise ValueError(f"column {name} holds {other[0]!r}, which no training row has")
        parts |= {f"{name}={value}": (column == value).astype(float) for value in values}
    return pd.DataFrame({name: np.asarray(part) for name, part in parts.items()}, index=X.index)


def _columns(X: Any) -> list[tuple[str, Any]]:
    return [(name, X[name]) for name in X.columns] if hasattr(X, "columns") and X.columns.is_unique else []


def _holds_numbers(column: Any) -> bool:
    """Whether all values of a column of objects are numbers, or true and false."""
    return all(isinstance(value, (int, float, np.number, np.bool_)) for value in column.dropna())
