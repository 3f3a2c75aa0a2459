"""What a person gives an estimator: frames of numbers, words and dates, arrays with missing values, weights."""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kfx.data.column_kinds import Fault, kind_of, told
from kfx.data.new_rows import Encoding
from kfx.data.own import looks_channels_last
from kfx.data.table_columns import Layout


def encoding_of(X: Any) -> Encoding:
    """Return how the columns of a frame or an array, (n, features), become features, by its rows. X: as `as_frame`
    returns it.

    Raises ValueError that tells all columns that cannot be read, DataError if no feature is left.
    """
    frame = _named(X)
    found = {name: kind_of(frame[name]) for name in frame.columns}
    if faults := {name: kind for name, kind in found.items() if isinstance(kind, Fault)}:
        way = "convert them, drop them, or give them the dtype category, with a feature for each value"
        raise ValueError(f"X: {told(faults)}; {way}")
    kinds = {name: kind for name, kind in found.items() if not isinstance(kind, Fault)}
    return Encoding(Layout((), missing="auto"), kinds).fitted(frame)


def is_table(X: Any) -> bool:
    """Return whether X, as `as_frame` returns it, is a frame whose columns may have kinds."""
    return hasattr(X, "columns") and X.columns.is_unique and len(X) > 1 and X.shape[1] > 0


def encoded(X: Any, encoding: Encoding) -> np.ndarray:
    """Return the features of the rows of X, (n, features), NaN for missing values. X: as for `encoding_of`.

    What no training row has is said in a warning. Raises ValueError, naming the row, for a value that cannot be read.
    """
    chunk = encoding.encode(_named(X))
    if chunk.problems:
        (row, what), *more = chunk.problems.items()
        raise ValueError(f"X: row {row}: {what}" + (f", and so {len(more)} more rows" if more else ""))
    for what in dict.fromkeys(chunk.unknown.values()):
        warnings.warn(what, stacklevel=5)
    return chunk.x


def _named(X: Any) -> Any:
    """A frame or an array, (n, features), as a frame with texts as names and rows from 0."""
    import pandas as pd

    frame = X if hasattr(X, "columns") else pd.DataFrame(X)
    return frame.set_axis(list(map(str, frame.columns)), axis=1).reset_index(drop=True)


def as_frame(X: Any) -> Any:
    """Return a frame of another library, as polars or Arrow, as a DataFrame of pandas, with NumPy's types in place of
    Arrow's; an array with NaN where it is masked or holds None; all else as it is."""
    import pandas as pd

    if isinstance(X, np.ma.MaskedArray):
        return np.ma.filled(X.astype(np.float64), np.nan)
    if isinstance(X, np.ndarray):
        return X if X.dtype != object else np.where(pd.isna(X), np.nan, X)
    if not isinstance(X, pd.DataFrame):
        names = getattr(X, "column_names", getattr(X, "columns", None))
        return X if names is None else pd.DataFrame({name: _column(X[name]) for name in names})
    if not any(isinstance(dtype, pd.ArrowDtype) for dtype in X.dtypes):
        return X
    return pd.concat([_without_arrow(X.iloc[:, i]) for i in range(X.shape[1])], axis=1)


def _column(given: Any) -> Any:
    """A column of Arrow or polars as an array, or with a time zone as a Series."""
    import pandas as pd

    zone = getattr(getattr(given, "type", None), "tz", None) or getattr(
        getattr(given, "dtype", None), "time_zone", None
    )
    values = np.asarray(given)  # in UTC
    return values if zone is None else pd.Series(values).dt.tz_localize("UTC").dt.tz_convert(zone)


def _without_arrow(column: Any) -> Any:
    """A column with a type of pandas or NumPy in place of one of Arrow's, but of numbers."""
    import pandas as pd

    if not isinstance(column.dtype, pd.ArrowDtype) or column.dtype.kind in "iufb":
        return column
    cells = column.astype(object).where(column.notna(), None)
    return pd.to_datetime(cells) if column.dtype.kind == "M" else cells.infer_objects()


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


def counted(X: Any, y: Any, sample_weight: ArrayLike | None) -> tuple[Any, Any, np.ndarray | None]:
    """Return the rows of X and y, as given to `fit`, of weights above 0, and these weights: None if they are equal,
    since only ratios matter, and without any. ValueError for weights that are no finite numbers ≥ 0, and if fewer than
    two are above 0."""
    if sample_weight is None:
        return X, y, None
    from sklearn.utils import _safe_indexing, check_consistent_length
    from sklearn.utils.validation import _check_sample_weight

    x = as_frame(X)
    check_consistent_length(x, y)
    weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
    counts = weights > 0
    if counts.sum() < 2:
        raise ValueError(f"sample_weight: {counts.sum()} of {len(x)} weights are above 0; expected two or more")
    own = weights[counts]
    x, y = (x, y) if counts.all() else (_safe_indexing(x, counts), _safe_indexing(y, counts))
    return x, y, own if own.min() < own.max() else None


def require_targets(y: Any, *, numbers: bool = False) -> None:
    """ValueError for targets of which some are masked or missing, for classes of several types, and with `numbers` for
    dates and durations, whose numbers depend on a unit."""
    if isinstance(y, np.ma.MaskedArray) and np.ma.is_masked(y):
        raise ValueError(f"y has {y.size - y.count()} masked values; leave these rows out")
    try:
        values = np.asarray(y)
    except ValueError:
        return  # scikit-learn tells rows of several lengths, as it does None
    if values.dtype == object and y is not None:
        import pandas as pd

        if missing := int(pd.isna(values).sum()):
            raise ValueError(f"y has {missing} missing {'value' if missing == 1 else 'values'}; leave these rows out")
        types = {type(v.item() if isinstance(v, np.generic) else v).__name__ for v in values.flat}
        if not numbers and values.ndim == 1 and len(types) > 1 and "str" in types:
            raise ValueError(f"y holds classes of several types, {', '.join(sorted(types))}; give one type")
    if not numbers:
        return
    times = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
    if values.dtype.kind in "mM" or (values.dtype == object and any(isinstance(v, times) for v in values.flat)):
        raise ValueError("y holds dates or durations, whose numbers depend on a unit; give numbers, such as days")


def folded(x: np.ndarray, image_shape: Sequence[int] | None) -> np.ndarray:
    """Points x, (n, features) or (n, channels, height, width), with `image_shape` as images; ValueError for other
    shapes."""
    if not x.flags.writeable or min(x.strides) < 0:  # torch warns of the former and refuses the latter
        x = x.copy()
    if x.ndim not in (2, 4):
        raise ValueError(f"X has shape {x.shape}; expected (n, features) or (n, channels, height, width)")
    if image_shape is not None:
        shape = tuple(np.atleast_1d(image_shape).tolist())
        fits = math.prod(shape) == x.shape[1] if x.ndim == 2 else shape == x.shape[1:]
        if len(shape) != 3 or not fits:
            of = f"{x.shape[1]} features" if x.ndim == 2 else f"X, which has shape {x.shape}"
            raise ValueError(f"image_shape={shape}: expected (channels, height, width) of {of}")
        return x.reshape(-1, *shape)
    if x.ndim == 4 and looks_channels_last(x.shape[1:]):
        raise ValueError(
            f"X has shape {x.shape}, which looks like (n, height, width, channels); give np.moveaxis(X, -1, 1), or "
            f"image_shape={x.shape[1:]} for (n, channels, height, width)"
        )
    return x
