"""Read series from a file of rows: a row for each step, or several series in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kfx.config.overrides import typed
from kfx.data import row_file, times
from kfx.data.cells import PLAIN, Form, numbers_of, shown, spelling_problem
from kfx.data.files import warn_once
from kfx.data.table_columns import holds_dates, identifiers, meaning
from kfx.data.windows import Trajectory
from kfx.outcomes import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Rows:
    """How the rows of a file are series: the fields of `dataset` of the same names, and how the file is written.

    columns: the coordinates; all others if there are none. time: the columns that make the time, of several year, then
    quarter or month, then day. series: the column that names the series.
    """

    columns: tuple[str, ...] = ()
    time: tuple[str, ...] = ()
    series: str | None = None
    date_format: str | None = None
    form: Form = PLAIN


@lru_cache(maxsize=4)
def read(file: tuple[str, ...], rows: Rows) -> tuple[tuple[Trajectory, ...], tuple[str, ...]]:
    """The series in the order of their first rows, and the names of their coordinates.

    file: its path first; the rest changes with its content. DataError names the column and row of what cannot be read.
    """
    path = Path(file[0])
    known = row_file.columns(path, rows.form)
    columns = row_file.expanded(rows.columns, known)
    keys = (*rows.time, *([rows.series] if rows.series is not None else []))
    row_file.require_header(path, known, (*columns, *keys))
    asked = {"columns": columns, "time": rows.time, "series": keys[len(rows.time) :]}
    row_file.require_names(path, known, asked)
    names = columns or tuple(name for name in known if name not in keys)
    if twice := [name for name in names if name in keys]:
        raise ConfigError(f"dataset.columns={twice[0]}: is the time or the name of the series; leave it out there")
    if not names:
        raise DataError(f"{path}: has no column of values; name one in dataset.columns")
    if "" in names and not columns:
        _refuse_index(path, known, keys)
    row_file.require_once(path, known, (*names, *keys), "columns")
    frame = row_file.read(path, (*keys, *names), rows.form, as_text=keys, dates=rows.time, least=1)
    for name in names:
        frame[name] = _numbers(frame[name], f"{path}: column {name}", rows)
    groups = _groups(frame, path, rows.series)
    if not columns:
        _warn_of_row_numbers(frame, names, path, groups)
    time = _time(frame, path, rows, groups)
    found = []
    for number in range(groups.max() + 1):
        own = groups == number
        name = str(frame[rows.series][own].iloc[0]) if rows.series is not None else ""
        where = f"{path}" + (f", series {name}" if name else "")
        dates = times.Dates(time.at[own], time.format) if isinstance(time, times.Dates) else None
        at = np.asarray(time)[own] if dates is None else dates.days()
        if (back := np.diff(at) <= 0).any():
            row = int(np.flatnonzero(own)[int(back.argmax()) + 1]) + 1
            said = f"row {row} is not later than the row before; sort the rows by time"
            more = "" if rows.series is not None else ", or name the series of each row in dataset.series"
            if dates is None and at.max() > 1e5:  # 1022024, or 010224
                more += ", or say how dates are written, as dataset.date_format=%d%m%Y"
            raise DataError(f"{where}: column {', '.join(rows.time)}: {said}{more}")
        found.append(Trajectory(at, frame[list(names)][own].to_numpy(dtype=np.float64), name, dates))
    return tuple(found), names


def _refuse_index(path: Path, known: Sequence[str], keys: Sequence[str]) -> None:
    """DataError for a column without a name, which none of the fields names."""
    place, named = list(known).index("") + 1, [name for name in known if name and name not in keys]
    what = f"column {place} has no name, as the row numbers that pandas writes"
    or_time = "" if "" in keys else f", or if it is the time {typed('dataset.time', '')}"
    raise DataError(f"{path}: {what}; type {typed('dataset.columns', named)}{or_time}")


def _warn_of_row_numbers(frame: pd.DataFrame, names: Sequence[str], path: Path, groups: np.ndarray) -> None:
    """Warn of coordinates that grow by the same from row to row, or have a name of row numbers."""
    if len(names) < 2:
        return
    steps = frame[list(names)].groupby(groups).diff().dropna()
    even = [
        name
        for name in names
        if len(steps) and steps[name].min() > 0 and np.ptp(steps[name]) < 1e-9 * steps[name].max()
    ]
    if found := list(dict.fromkeys([*even, *identifiers(frame, names)])):
        rest = typed("dataset.columns", [name for name in names if name not in found])
        what = f"column {found[0]} looks like" if len(found) == 1 else f"columns {', '.join(found)} look like"
        said = f"; to leave {'it' if len(found) == 1 else 'them'} out, type {rest}, or name the time in dataset.time"
        warn_once(f"{path}: {what} row numbers or times, which are no coordinates", said)


def _groups(frame: pd.DataFrame, path: Path, series: str | None) -> np.ndarray:
    """The number of the series of each row, (n,), in the order of their first rows."""
    if series is None:
        return np.zeros(len(frame), dtype=np.int64)
    if (absent := frame[series].isna()).any():
        row = int(absent.to_numpy().argmax()) + 1
        raise DataError(f"{path}: column {series}, which names the series, is empty in row {row}")
    codes: np.ndarray = frame[series].factorize()[0]
    return codes


def _numbers(column: pd.Series, where: str, rows: Rows) -> np.ndarray:
    """Numbers, NaN for missing values; DataError for words and for what is infinite."""
    numbers = numbers_of(column, rows.form)
    wrong = column[numbers.isna() & column.notna()]
    if len(wrong):
        if (problem := spelling_problem(column, rows.form)) is not None:
            raise DataError(f"{where} {'; '.join(problem)}")
        what = "a date; set dataset.time if it is the time" if holds_dates(column) else "no number"
        raise DataError(f"{where} holds {shown(wrong)}, which is {what}")
    found = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isinf(found).any():
        raise DataError(f"{where} holds a value that is infinite")
    return found


_PARTS = {"year": "", "quarter": "Q", "month": "-", "day": "-", "hour": " "}


def _time(frame: pd.DataFrame, path: Path, rows: Rows, groups: np.ndarray) -> np.ndarray | times.Dates:
    """The times of all rows: numbers, (n,), or dates."""
    if not rows.time:
        return np.asarray(frame.groupby(groups).cumcount(), dtype=np.float64)
    column = frame[rows.time[0]]
    if len(rows.time) > 1:
        _require_parts(rows.time)
        column = column.map(meaning, na_action="ignore")
        for name in rows.time[1:]:
            part = frame[name].map(meaning, na_action="ignore")
            column = column + _PARTS[name.lower()] + (part if name.lower() == "quarter" else part.str.zfill(2))
        column = column + (":00" if rows.time[-1].lower() == "hour" else "")
    try:
        return times.read(column, rows.form, rows.date_format, groups)
    except DataError as error:
        raise DataError(f"{path}: column {', '.join(rows.time)} {error}") from error


def _require_parts(names: Sequence[str]) -> None:
    parts = [name.lower() for name in names]
    orders = (["year", "quarter"], *(["year", "month", "day", "hour"][:count] for count in (2, 3, 4)))
    if parts not in orders:
        raise ConfigError(
            f"dataset.time=[{','.join(names)}]: expected columns called year and quarter, or year, month, day and "
            "hour, in this order"
        )
