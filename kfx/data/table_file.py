"""Read a person's table, CSV, TSV or Parquet, without trusting its content."""

from __future__ import annotations

import contextlib
import csv
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfx.config.nodes import near
from kfx.data.files import require_file
from kfx.data.own import Points, as_targets
from kfx.data.table_columns import (
    MOST_FEATURES,
    MOST_SHOWN,
    Layout,
    as_features,
    as_marks,
    check_target,
    holds_words,
    identifiers,
    levels,
    make_numbers,
    require_present,
    spelt_as,
    target_values,
    warn_of_identifiers,
)
from kfx.outcomes import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", "?", "-")
_SEPARATORS = ",;\t|"
_MOST_CELLS = 200_000_000
_ROWS_FOR_KINDS = 10_000


def read(path: Path, layout: Layout, test_path: Path | None = None) -> Points:
    """The points of a table; those of a second table with the same columns are test points."""
    frame, is_test, like_rows, by_size = checked(path, layout, test_path)
    where = f"{path}: column {', '.join(layout.targets)}"
    targets = as_targets(target_values(frame, layout), layout.task, where, partial(_classes, frame, layout, by_size))
    if is_test is not None and (is_test.all() or not is_test.any()):
        raise DataError(f"{path}: all rows are {'test' if is_test.all() else 'training'} points; expected some of each")
    x, features = as_features(frame, layout, path, by_size)
    warn_of_identifiers(like_rows, path, layout)
    return Points(x, targets, is_test, features)


def checked(
    path: Path, layout: Layout, test_path: Path | None
) -> tuple[pd.DataFrame, np.ndarray | None, list[str], bool]:
    """The used columns of a table, above those of a second one; which rows are test points, (n,), if the files say so;
    the names that look like identifiers of rows; and whether values are ordered by size, since the files hold text."""
    frame, like_rows = _checked_frame(path, layout, least=2)
    is_test = None
    if test_path is not None:
        exclude = tuple(name for name in layout.exclude if name in columns(test_path, layout))
        other, _ = _checked_frame(test_path, replace(layout, test=None, exclude=exclude), least=1)
        is_test = np.arange(len(frame) + len(other)) >= len(frame)
        frame = _stacked(frame, other, layout, path, test_path)
    if layout.test is not None:
        is_test = as_marks(frame[layout.test], f"{path}: column {layout.test}")
    return frame, is_test, like_rows, not all(map(is_parquet, (path, test_path or path)))


def _classes(frame: pd.DataFrame, layout: Layout, by_size: bool) -> tuple[np.ndarray, list[object]]:
    """Codes and names of the classes in a target. by_size: the file holds text."""
    import pandas as pd

    column = frame[layout.targets[0]]
    if pd.api.types.infer_dtype(column) not in ("integer", "floating"):
        column = column.astype(str)
    return levels(column, layout, by_size=layout.task == "auto" or by_size)


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _checked_frame(path: Path, layout: Layout, least: int) -> tuple[pd.DataFrame, list[str]]:
    """The used columns, numbers converted and missing values treated, and the names that look like identifiers of
    rows."""
    frame = _frame(path, layout, least)
    of_numbers = [name for name in frame.columns if name not in {*layout.targets, layout.test, *layout.categorical}]
    make_numbers(frame, of_numbers, path, layout)
    if len(layout.targets) > 1:
        make_numbers(frame, layout.targets, path, layout)
    else:
        check_target(frame[layout.targets[0]], f"{path}: column {layout.targets[0]}", layout)
    like_rows = identifiers(frame, of_numbers)
    if layout.missing == "drop":
        frame = frame[frame.notna().all(axis=1)].reset_index(drop=True)
        if len(frame) < least:
            raise DataError(f"{path}: {len(frame)} rows have no missing value; set dataset.missing=mean or median")
    require_present(frame, path, layout)
    return frame, like_rows


def columns(path: Path, layout: Layout) -> list[str]:
    """The column names, from the first line or the schema."""
    if is_parquet(path):
        names = [str(name) for name in parquet(path).schema_arrow.names]
        return [name for name in names if not name.startswith("__index_level_")]  # the row index that pandas wrote
    return header(path, layout)[0]


def of_words(path: Path, layout: Layout) -> tuple[str, ...]:
    """The features that hold words rather than numbers, by the first 10 000 rows (`holds_words`)."""
    require_file(path, SUFFIXES)
    known = columns(path, layout)
    used = [name for name in _used(known, layout, path) if name not in (*layout.targets, layout.test)]
    if is_parquet(path):
        file = parquet(path)
        require_plain(path, file, used)
        with reading(path):
            some = next(file.iter_batches(_ROWS_FOR_KINDS, columns=used), None)
            frame = file.read(columns=used).to_pandas() if some is None else some.to_pandas()
    else:
        frame = _read_text(path, known, used, layout, _ROWS_FOR_KINDS)
    kinds = {name: frame[name].dtype.kind if hasattr(frame[name].dtype, "kind") else "O" for name in used}
    return tuple(name for name in used if kinds[name] not in "biufc" and holds_words(frame[name], layout.decimal))


# ---- files


def _frame(path: Path, layout: Layout, least: int) -> pd.DataFrame:
    """The used columns in the file's order, words and numbers as they come; DataError for fewer than `least` rows."""
    require_file(path, SUFFIXES)
    known = columns(path, layout)
    used = _used(known, layout, path)
    frame = _read_parquet(path, used) if is_parquet(path) else _read_text(path, known, used, layout)
    if len(frame) < least:
        raise DataError(f"{path}: holds {len(frame)} rows of points; expected at least {least}")
    return frame


def _used(known: Sequence[str], layout: Layout, path: Path) -> list[str]:
    """The columns to read; ConfigError for names that do not exist or have two uses."""
    if all(map(_is_number, known)) and not {*layout.targets} <= set(known):
        raise DataError(f"{path}: its first line holds numbers; expected the names of the columns there")
    if not layout.targets:
        raise ConfigError(f"dataset.target=null: expected a column of {path}: {near('', known)}")
    if layout.test in layout.targets:
        raise ConfigError(f"dataset.test={layout.test}: is the target; expected a column that tells test points")
    special, there = {*layout.targets, *([layout.test] if layout.test else [])}, set(known)
    features = layout.features
    if features is None:
        features = tuple(name for name in known if name not in {*special, *layout.exclude})
        if "" in features:
            place = list(known).index("") + 1
            no_name = f"column {place} has no name, as the row numbers that pandas writes"
            raise DataError(f"{path}: {no_name}; {layout.left_out([''])}, or list dataset.features")
    named = {"features": layout.features or (), "exclude": layout.exclude}
    asked = {"target": layout.targets, **named, "categorical": layout.categorical}
    for key, names in asked.items():
        for name in names:
            if name not in there:
                raise ConfigError(f"dataset.{key}={name}: no column of {path}; it has {near(name, known)}")
    for name in layout.categorical:
        if name not in features:
            raise ConfigError(f"dataset.categorical={name}: is none of the features; leave it out there")
    for name in features:
        if name in special:
            raise ConfigError(f"dataset.features={name}: is the target or the test column; leave it out there")
    for name in layout.exclude:
        if name in {*special, *(layout.features or ())}:
            what = "the target or the test column" if name in special else "one of dataset.features"
            raise ConfigError(f"dataset.exclude={name}: is {what}; leave it out there")
    if not features:
        raise DataError(f"{path}: no column is left for the features beside {', '.join(sorted(special))}")
    if len(features) > MOST_FEATURES:
        raise DataError(
            f"{path}: {len(features)} features are too many ({MOST_FEATURES} at most); list dataset.features"
        )
    twice = [name for name, count in Counter(known).items() if count > 1 and name in {*special, *features}]
    if twice:
        raise DataError(
            f"{path}: {len(twice)} names stand over several columns, as {twice[0]}; rename them, or list "
            "dataset.features without them"
        )
    return [name for name in known if name in {*special, *features}]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def header(path: Path, layout: Layout) -> tuple[list[str], str, int]:
    """The names in the first line that is not blank, the separator, and the number of lines up to there."""
    try:
        with path.open(encoding=encoding(layout), newline="") as stream:
            line = next((line for line in iter(partial(stream.readline, 1 << 26), "") if line.strip()), "")
            if "\0" in line:
                raise DataError(f"{path}: its first line holds a zero byte: no text, or UTF-16; save it as UTF-8")
            separator = layout.separator or _separator(path, line)
            stream.seek(0)
            reader = fields_of(stream, separator)
            lines, names = next(((i, row) for i, row in enumerate(reader, start=1) if row), (0, []))
    except UnicodeError as error:
        raise DataError(_not_in_encoding(path, layout, error)) from error
    except csv.Error as error:
        raise DataError(f"{path}: line 1: {error}") from error
    if not names:
        raise DataError(f"{path}: is empty; expected a line of column names, and a row a point")
    return [name.strip() for name in names], separator, lines


def encoding(layout: Layout) -> str:
    return "utf-8-sig" if layout.encoding.lower() in ("utf-8", "utf8") else layout.encoding


def fields_of(stream: Iterable[str], separator: str) -> Any:
    return csv.reader(stream, delimiter=separator, skipinitialspace=True, strict=True)


def _separator(path: Path, line: str) -> str:
    """The tab for a .tsv file, else the separator that the first line has most of."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max(_SEPARATORS, key=line.count)


def _not_in_encoding(path: Path, layout: Layout, error: UnicodeError) -> str:
    content = path.read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return f"{path}: is UTF-16; set dataset.encoding=utf-16, or save it as UTF-8"
    try:
        content.decode(encoding(layout))
    except UnicodeDecodeError as whole:
        at, byte = content.count(b"\n", 0, whole.start) + 1, content[whole.start]
        remedy = "set dataset.encoding, say to latin-1"
        return f"{path}: line {at} holds the byte {byte:#04x}, which is no {layout.encoding}; {remedy}"
    except UnicodeError:  # an error without a position, such as half a character at the end
        pass
    return f"{path}: is not in {layout.encoding} ({error}); set dataset.encoding"


def _read_text(
    path: Path, known: Sequence[str], used: Sequence[str], layout: Layout, most: int | None = None
) -> pd.DataFrame:
    """The used columns. most: the number of rows to read, without a check of the others."""
    import pandas as pd

    _, separator, lines = header(path, layout)
    count = _require_regular(path, len(known), separator, layout) if most is None else most
    if count * len(used) > _MOST_CELLS:
        raise DataError(f"{path}: {count} rows of {len(used)} columns are too many; list fewer dataset.features")
    places = {known.index(name): name for name in used}
    of_classes = len(layout.targets) == 1 and layout.task != "regression"
    as_text = {*layout.categorical, *(layout.targets if of_classes else ())}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frame = pd.read_csv(
                path,
                sep=separator,
                decimal=layout.decimal,
                encoding=encoding(layout),
                header=None,
                skiprows=lines,
                nrows=most,
                names=[str(i) for i in range(len(known))],
                usecols=[str(i) for i in places],
                dtype={str(i): str for i, name in places.items() if name in as_text},
                index_col=False,
                skipinitialspace=True,
                na_values=list(MISSING),
                keep_default_na=False,
                low_memory=False,
            )
    except (ValueError, Warning, OverflowError) as error:
        if most is not None:  # it says more
            _require_regular(path, len(known), separator, layout)
        raise DataError(f"{path}: {' '.join(str(error).split())}") from error
    return frame.rename(columns={str(i): name for i, name in places.items()})


def _require_regular(path: Path, width: int, separator: str, layout: Layout) -> int:
    """The number of rows; DataError, naming the line, if one has another number of fields than the first."""
    rows, reader = 0, None
    try:
        with path.open(encoding=encoding(layout), newline="") as stream:
            reader = fields_of(stream, separator)
            next(row for row in reader if row)
            for row in reader:
                if row and len(row) != width:
                    raise DataError(f"{path}: line {reader.line_num} has {len(row)} fields, the first line {width}")
                rows += bool(row)
    except UnicodeError as error:
        raise DataError(_not_in_encoding(path, layout, error)) from error
    except csv.Error as error:
        line = reader.line_num if reader is not None else 1
        raise DataError(f"{path}: line {line}: {error}; is a quotation mark not closed?") from error
    return rows


def parquet(path: Path) -> Any:
    require_file(path, SUFFIXES)
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"dataset.path={path}: Parquet needs pyarrow; pip install 'kfx[parquet]'") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: is no Parquet file that can be read ({' '.join(str(error).split())})") from error


def require_plain(path: Path, file: Any, names: Sequence[str]) -> None:
    """Raise DataError for a column of a Parquet file that holds dates, bytes or lists."""
    import pyarrow

    for name in names:
        kind = file.schema_arrow.field(name).type
        if pyarrow.types.is_nested(kind) or pyarrow.types.is_temporal(kind) or pyarrow.types.is_binary(kind):
            raise DataError(f"{path}: column {name} holds {kind}; expected numbers or words")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Within the block, errors of reading a Parquet file become DataError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error


def _read_parquet(path: Path, used: Sequence[str]) -> pd.DataFrame:

    file = parquet(path)
    rows = file.metadata.num_rows
    if rows * len(used) > _MOST_CELLS:
        raise DataError(f"{path}: {rows} rows of {len(used)} columns are too many; list fewer dataset.features")
    require_plain(path, file, used)
    with reading(path):
        frame = file.read(columns=list(used)).to_pandas(ignore_metadata=True, integer_object_nulls=True)
    return frame[list(used)].reset_index(drop=True)


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
