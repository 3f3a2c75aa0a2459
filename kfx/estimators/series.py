"""What a person gives a forecaster: arrays, frames with a column of times, several series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kfx.data.calendar_steps import Step, step_of
from kfx.data.cells import PLAIN
from kfx.data.series import uneven
from kfx.data.times import Dates, apart, read
from kfx.data.windows import Trajectory
from kfx.estimators.frames import as_frame
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd

_TIMES = ("time", "date", "datetime", "timestamp", "ds")
"""Columns of a frame that are times, whatever the case."""


def trajectories(series: object, like: Dates | None = None) -> list[Trajectory]:
    """Series, (T,) or (T, coordinates) each, an array, a frame, or a list of them.

    like: dates of an earlier series, by whose clocks those with a time zone are read.
    A frame's times are its column of that name, or its index of dates; of an array they are 0, 1, 2, … Raises
    ValueError for what is no series of numbers, DataError for times that cannot be read or do not rise.
    """
    given = _each(series)
    found = [_trajectory(each, like) for each in given]
    columns = {tuple(names) for each in given if (names := names_of([each]))}
    if len(columns) > 1:
        raise ValueError(f"the series have different columns: {' and '.join(', '.join(each) for each in columns)}")
    if len({each.values.shape[1] for each in found}) > 1:
        raise ValueError("the series have different numbers of coordinates")
    return found


def _each(series: object) -> Sequence[Any]:
    """The series of a list of them, or the one; frames of Arrow as those of pandas."""
    several = isinstance(series, (list, tuple)) and len(series) > 0 and np.ndim(series[0]) > 0
    return [_plain(each) for each in (series if several else [series])]  # type: ignore[attr-defined]


def _plain(series: Any) -> Any:
    return as_frame(series) if hasattr(series, "column_names") else series


def has_times(series: object) -> bool:
    """Whether a frame, or one of several, has times."""
    return any(_time_column(each) is not None for each in _each(series))


def has_zones(series: object) -> bool:
    """Whether the times of a frame, or of one of several, say their time zones."""
    columns = map(_time_column, _each(series))
    return any(column is not None and _has_zone(column) for column in columns)


def step_of_times(series: object, found: Sequence[Trajectory]) -> Step | None:
    """The one step of the times of frames, None of arrays. found: their `trajectories`. DataError for uneven times."""
    if not has_times(series):
        return None
    if (step := step_of([each.at for each in found])) is None:
        steps, after = uneven(found)
        raise DataError(
            f"the times of a series have {steps}; fill the gaps, such as after {after}, with rows of NaN, or leave "
            "the times out to count rows"
        )
    return step


def names_of(series: object) -> list[str]:
    """The columns of a frame, or of the first of several, that are coordinates; none of arrays."""
    first = series[0] if isinstance(series, (list, tuple)) and len(series) > 0 else series
    return [str(name) for name in getattr(_plain(first), "columns", ()) if not _is_time(name)]


def is_flat(series: Any) -> bool:
    """Whether forecasts are (steps,): the series, or the first of several, is (T,)."""
    first = series[0] if isinstance(series, (list, tuple)) and np.ndim(series[0]) else series
    return np.ndim(_plain(first)) == 1


def _trajectory(given: Any, like: Dates | None) -> Trajectory:
    columns = getattr(given, "columns", None)
    times = [name for name in columns if _is_time(name)] if columns is not None else []
    if len(times) > 1:
        raise ValueError(f"a frame has several columns of times: {', '.join(map(str, times))}; keep one")
    rest = [name for name in columns if name not in times] if columns is not None else []
    part = given[rest] if times else given
    part = part.to_numpy() if hasattr(part, "to_numpy") else part
    if (kind := np.asarray(part).dtype.kind) in "mMc":
        what = "complex numbers" if kind == "c" else "dates or durations; call the column of times time"
        raise ValueError(f"a series holds {what}")
    try:
        values = np.ma.filled(np.ma.array(part, dtype=np.float64, copy=True), np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a series holds what is no number: {error}") from error
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not values.size:
        raise ValueError(f"a series has shape {values.shape}; expected (T,) or (T, coordinates)")
    if np.isinf(values).any():
        raise ValueError("a series holds a value that is infinite")
    time, dates = _times(given, like)
    return Trajectory(np.arange(len(values), dtype=float) if time is None else time, values, dates=dates)


def _is_time(name: object) -> bool:
    return str(name).lower() in _TIMES


def _time_column(given: Any) -> pd.Series | None:
    """The times of a frame: its column of that name, or its index of dates."""
    import pandas as pd

    index = getattr(given, "index", None)
    if names := [name for name in getattr(given, "columns", ()) if _is_time(name)]:
        column, name = given[names[0]], names[0]
    elif isinstance(index, (pd.DatetimeIndex, pd.PeriodIndex)):
        column, name = index, "its index"
    else:
        return None
    dtype = getattr(column, "dtype", None)
    if isinstance(dtype, pd.PeriodDtype):
        return pd.Series(pd.PeriodIndex(column).to_timestamp(), name=name)
    return pd.Series(
        pd.DatetimeIndex(column) if isinstance(dtype, pd.DatetimeTZDtype) else np.asarray(column), name=name
    )


def _has_zone(column: pd.Series) -> bool:
    """Whether times have a time zone, or, as text, an offset from UTC."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column):
        return isinstance(column.dtype, pd.DatetimeTZDtype)
    return pd.api.types.is_string_dtype(column) and bool((apart(column)[1] != "").all())


def _times(given: Any, like: Dates | None) -> tuple[np.ndarray | None, Dates | None]:
    """The times of a frame's rows, (T,), and their dates, if it has some."""
    import pandas as pd

    if (column := _time_column(given)) is None:
        return None, None
    try:
        is_aware = isinstance(column.dtype, pd.DatetimeTZDtype)
        how = like.format if like is not None and is_aware else None
        found = read(column, PLAIN, how, np.zeros(len(column), dtype=int))
    except DataError as error:
        raise DataError(f"the times of a series, {column.name}: {error}") from error
    if isinstance(found, Dates) and like is not None and not is_aware:
        found = found.by_clock_of(like)
    dates = found if isinstance(found, Dates) else None
    time = found.days() if isinstance(found, Dates) else found
    if (np.diff(time) <= 0).any():
        raise DataError(f"the times of a series do not rise: {column.name}")
    return time, dates
