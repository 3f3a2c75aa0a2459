"""A person's table as points: the columns that are used, their kinds, and which rows are test points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kfx.config.overrides import typed
from kfx.data.column_kinds import Fault, Kind, Numbers, Words, as_kind, kind_of, told
from kfx.data.files import warn_once
from kfx.data.new_rows import Encoding
from kfx.data.own import Points, as_targets, counted
from kfx.data.row_file import columns, is_parquet, near, require_header, require_names, require_once
from kfx.data.row_file import read as read_rows
from kfx.data.table_columns import (
    MOST_FEATURES,
    MOST_SHOWN,
    Layout,
    as_marks,
    as_numbers,
    check_target,
    holds_words,
    identifiers,
    levels,
    require_numbers,
    require_present,
    spelt_as,
    target_values,
    warn_of_identifiers,
)
from kfx.outcomes import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

_ROWS_FOR_KINDS = 10_000


def read(path: Path, layout: Layout, test_path: Path | None = None) -> Points:
    """The points of a table; those of a second table with the same columns are test points."""
    by_size = not all(map(is_parquet, (path, test_path or path)))
    frame, is_test, like_rows, kinds = _checked(path, layout, test_path, by_size)
    where = f"{path}: column {', '.join(layout.targets)}"
    targets = as_targets(target_values(frame, layout), layout.task, where, partial(_classes, frame, layout, by_size))
    if is_test is not None and (is_test.all() or not is_test.any()):
        raise DataError(f"{path}: all rows are {'test' if is_test.all() else 'training'} points; expected some of each")
    warn_of_identifiers(like_rows, path, layout)
    cells = frame[list(kinds)]
    encoding = Encoding(layout, kinds).fitted(cells)
    weights = None if layout.weights is None else frame[layout.weights].to_numpy(dtype=np.float64)
    return Points(encoding.encode(cells).x, targets, is_test, encoding, cells, weights)


def _checked(
    path: Path, layout: Layout, test_path: Path | None, by_size: bool
) -> tuple[pd.DataFrame, np.ndarray | None, list[str], dict[str, Kind]]:
    """The used columns of a table, above those of a second one; which rows are test points, (n,), if the files say so;
    the names that look like identifiers of rows; and the kinds of the features. by_size: the files hold text."""
    frame, kinds, like_rows = _checked_frame(path, layout, 2, lambda _, column: kind_of(column, layout.form, by_size))
    kinds |= {name: Words(is_listed=True, by_size=by_size) for name in layout.categorical}
    is_test = None
    if test_path is not None:
        exclude = tuple(name for name in layout.exclude if name in columns(test_path, layout.form))
        of_other = replace(layout, test=None, exclude=exclude)
        other, *_ = _checked_frame(test_path, of_other, 1, lambda name, _: kinds.get(name, Numbers()))
        is_test = np.arange(len(frame) + len(other)) >= len(frame)
        frame = _stacked(frame, other, layout, path, test_path)
    if layout.test is not None:
        is_test = as_marks(frame[layout.test], f"{path}: column {layout.test}")
    return frame, is_test, like_rows, {name: kinds[name] for name in frame.columns if name in kinds}


def _classes(frame: pd.DataFrame, layout: Layout, by_size: bool) -> tuple[np.ndarray, list[object]]:
    """Codes and names of the classes in a target. by_size: the file holds text."""
    import pandas as pd

    column = frame[layout.targets[0]]
    if pd.api.types.infer_dtype(column) not in ("integer", "floating"):
        column = column.astype(str)
    return levels(column, layout.form, by_size=layout.task == "auto" or by_size)


def _checked_frame(
    path: Path, layout: Layout, least: int, kind: Callable[[str, pd.Series], Kind | Fault]
) -> tuple[pd.DataFrame, dict[str, Kind], list[str]]:
    """The used columns, numbers and dates converted and missing values treated; the kinds of the features that are not
    listed as categorical; and the names that look like identifiers of rows. kind: of a column by its name and content.
    DataError that tells all that is wrong."""
    of_classes = len(layout.targets) == 1 and layout.task != "regression"
    as_text = (*layout.categorical, *(layout.targets if of_classes else ()))
    used = _used(columns(path, layout.form), layout, path)
    frame = read_rows(path, used, layout.form, as_text=as_text, dates=used, least=least)
    special = {*layout.beside, *layout.categorical}
    found = {name: kind(name, frame[name]) for name in frame.columns if name not in special}

    def features() -> None:
        faults = dict[str, Fault]()
        for name, own in found.items():
            values = own if isinstance(own, Fault) else as_kind(frame[name], own, layout.form)
            if isinstance(values, Fault):
                faults[name] = values
                continue
            frame[name] = values
            if isinstance(own, Numbers):
                require_numbers(frame[name].to_numpy(), f"{path}: column {name}", missing=True)
        if faults:
            raise DataError(f"{path}: {told(faults)}{_ways(faults, layout)}")

    of_target = "a target among several is a number"

    def targets() -> None:
        if len(layout.targets) == 1:
            check_target(frame[layout.targets[0]], f"{path}: column {layout.targets[0]}", layout)
            return
        for name in layout.targets:
            frame[name] = as_numbers(frame[name], f"{path}: column {name}", layout.form, of_target)

    def complete() -> None:
        if layout.missing in ("auto", "refuse"):
            require_present(frame, path, layout)

    _require_all(path, features, targets, complete)
    if layout.weights is not None:
        frame = _with_weights(frame, path, layout)
    like_rows = identifiers(frame, [name for name, own in found.items() if isinstance(own, Numbers)])
    if layout.missing == "drop":
        frame = frame[frame.notna().all(axis=1)].reset_index(drop=True)
        if len(frame) < least:
            raise DataError(f"{path}: {len(frame)} rows have no missing value; set dataset.missing=mean or median")
    elif layout.missing not in ("auto", "refuse"):
        frame = _with_targets(frame, path, layout)
    require_present(frame, path, layout)
    frame = frame.reset_index(drop=True)
    return frame, {name: own for name, own in found.items() if not isinstance(own, Fault)}, like_rows


def _ways(faults: Mapping[str, Fault], layout: Layout) -> str:
    """What to type for columns that hold other things than numbers in another spelling."""
    if not (names := [name for name, fault in faults.items() if not fault.remedy]):
        return ""
    codes = typed("dataset.categorical", [*layout.categorical, *names])
    return f"; for a column of 0 and 1 for each word, type {codes}; {layout.left_out(names)}"


def _require_all(path: Path, *checks: Callable[[], None]) -> None:
    """Make all checks, and raise one DataError for all that fail."""
    wrong = list[str]()
    for check in checks:
        try:
            check()
        except DataError as error:
            wrong.append(str(error).removeprefix(f"{path}: "))
    if wrong:
        raise DataError(f"{path}: {'; and '.join(wrong)}")


def _with_weights(frame: pd.DataFrame, path: Path, layout: Layout) -> pd.DataFrame:
    """The rows but those of weight 0; DataError for weights that are no numbers >= 0."""
    name = str(layout.weights)
    frame[name] = as_numbers(frame[name], f"{path}: column {name}", layout.form, "weights are numbers >= 0")
    return frame[counted(frame[name].fillna(1.0).to_numpy(), f"{path}: column {name}")]


def _with_targets(frame: pd.DataFrame, path: Path, layout: Layout) -> pd.DataFrame:
    """The rows that have a target, said if some have none: there is nothing to learn from, or to measure by."""
    absent = frame[list(layout.targets)].isna().any(axis=1)
    if absent.any() and not absent.all():
        warn_once(f"{path}: {int(absent.sum())} rows have no target", ", and are left out")
        frame = frame[~absent].reset_index(drop=True)
    return frame


def of_words(path: Path, layout: Layout) -> tuple[str, ...]:
    """The features that hold words rather than numbers, by the first 10 000 rows (`holds_words`)."""
    known = columns(path, layout.form)
    used = [name for name in _used(known, layout, path) if name not in layout.beside]
    frame = read_rows(path, used, layout.form, dates=used, most=_ROWS_FOR_KINDS)
    kinds = {name: frame[name].dtype.kind if hasattr(frame[name].dtype, "kind") else "O" for name in used}
    return tuple(name for name in used if kinds[name] not in "biufc" and holds_words(frame[name], layout.form))


def _used(known: Sequence[str], layout: Layout, path: Path) -> list[str]:
    """The columns to read; ConfigError for names that do not exist or have two uses."""
    require_header(path, known, layout.targets)
    if not layout.targets:
        raise ConfigError(f"dataset.target=null: expected a column of {path}: {near('', known)}")
    if layout.test in layout.targets:
        raise ConfigError(f"dataset.test={layout.test}: is the target; expected a column that tells test points")
    if layout.weights is not None and layout.weights in (*layout.targets, layout.test):
        what = "the target" if layout.weights in layout.targets else "the test column"
        raise ConfigError(f"dataset.weights={layout.weights}: is {what}; expected a column of weights")
    special = set(layout.beside)
    features = layout.features
    if features is None:
        features = tuple(name for name in known if name not in {*special, *layout.exclude})
        if "" in features:
            place = list(known).index("") + 1
            no_name = f"column {place} has no name, as the row numbers that pandas writes"
            raise DataError(f"{path}: {no_name}; {layout.left_out([''])}, or list dataset.features")
    named = {"features": layout.features or (), "exclude": layout.exclude}
    own = () if layout.weights is None else (layout.weights,)
    asked = {"target": layout.targets, **named, "categorical": layout.categorical, "weights": own}
    require_names(path, known, asked)
    for name in layout.categorical:
        if name not in features:
            raise ConfigError(f"dataset.categorical={name}: is none of the features; leave it out there")
    for name in features:
        if name in special:
            raise ConfigError(f"dataset.features={name}: is {_use(name, layout)}; leave it out there")
    for name in layout.exclude:
        if name in {*special, *(layout.features or ())}:
            what = _use(name, layout) if name in special else "one of dataset.features"
            raise ConfigError(f"dataset.exclude={name}: is {what}; leave it out there")
    if not features:
        raise DataError(f"{path}: no column is left for the features beside {', '.join(sorted(special))}")
    if len(features) > MOST_FEATURES:
        raise DataError(
            f"{path}: {len(features)} features are too many ({MOST_FEATURES} at most); list dataset.features"
        )
    require_once(path, known, [*special, *features], "features")
    return [name for name in known if name in {*special, *features}]


def _use(name: str, layout: Layout) -> str:
    return "the column of weights" if name == layout.weights else "the target or the test column"


def _stacked(frame: pd.DataFrame, other: pd.DataFrame, layout: Layout, path: Path, test_path: Path) -> pd.DataFrame:
    import pandas as pd

    if missing := set(frame.columns) ^ set(other.columns):
        shown = ", ".join(sorted(missing)[:MOST_SHOWN])
        raise DataError(f"{test_path}: its columns are not those of {path}, which differ in {shown}")
    for name in layout.targets:
        kinds = [target_values(each, layout).dtype.kind in "iuf" for each in (frame, other)]
        if kinds[0] != kinds[1]:
            one, two = ("numbers" if kind else "words" for kind in kinds)
            raise DataError(f"{test_path}: column {name} holds {two}, and {one} in {path}; expected the same")
    if is_parquet(path) != is_parquet(test_path):  # one file may have words where the other has numbers
        for name in (*layout.categorical, *layout.targets[: len(layout.targets) == 1]):
            is_class = name in layout.categorical or layout.task == "classification"
            if is_class and "f" in {each[name].dtype.kind for each in (frame, other)}:
                both = f"{path} and {test_path}: column {name} holds words and fractions"
                raise DataError(f"{both}; save both files as CSV, or both as Parquet")
            frame[name], other[name] = (each[name].map(str, na_action="ignore") for each in (frame, other))
    for name in frame.columns:
        if pd.api.types.infer_dtype(frame[name], skipna=True) == "string":
            other[name] = spelt_as(frame[name], other[name])
    return pd.concat([frame, other[list(frame.columns)]], ignore_index=True)
