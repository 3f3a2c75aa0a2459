"""Read a table of one's own, CSV, TSV or Parquet, as if it were hostile."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfx.config.nodes import near
from kfx.data.files import require_file
from kfx.data.own import Points, as_targets, require_numbers
from kfx.outcomes import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
_SEPARATORS = ",;\t|"
_MOST_CELLS = 200_000_000
_MOST_FEATURES = 20_000
_MOST_SHOWN = 3


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


def read(path: Path, layout: Layout, test_path: Path | None = None) -> Points:
    """The points of a table; of a second table, with the same columns, as test points."""
    frame = _frame(path, layout)
    is_test = None
    if test_path is not None:
        other = _frame(test_path, replace(layout, test=None))
        is_test = np.arange(len(frame) + len(other)) >= len(frame)
        frame = _stacked(frame, other, path, test_path)
    if layout.missing == "drop":
        whole = frame.notna().all(axis=1).to_numpy()
        frame = frame[whole].reset_index(drop=True)
        is_test = None if is_test is None else is_test[whole]
        if len(frame) < 2:
            raise DataError(f"{path}: {len(frame)} rows have no missing value; set dataset.missing=mean or median")
    _require_present(frame, path, layout)
    if layout.test is not None:
        is_test = _marked(frame[layout.test], f"{path}: column {layout.test}")
    x, names = _features(frame, layout, path)
    where = f"{path}: column {', '.join(layout.targets)}"
    targets = as_targets(_target_values(frame, layout.targets, path), layout.task, where)
    if is_test is not None and (is_test.all() or not is_test.any()):
        raise DataError(f"{path}: all rows are {'test' if is_test.all() else 'training'} points; expected some of each")
    assert x.shape[1] == len(names)
    return Points(x, targets, is_test)


def columns(path: Path, layout: Layout) -> list[str]:
    """The names in its first line, or schema."""
    if path.suffix.lower() == ".parquet":
        return [str(name) for name in _parquet(path).schema_arrow.names]
    return _header(path, layout)[0]


# ---- files


def _frame(path: Path, layout: Layout) -> pd.DataFrame:
    """The columns that are used, in the file's order, words and numbers as they come."""
    require_file(path, SUFFIXES)
    known = columns(path, layout)
    used = _used(known, layout, path)
    return _read_parquet(path, used) if path.suffix.lower() == ".parquet" else _read_text(path, known, used, layout)


def _used(known: Sequence[str], layout: Layout, path: Path) -> list[str]:
    """The columns to read; ConfigError for names that are not there or stand for several things."""
    if all(map(_is_number, known)):
        raise DataError(f"{path}: its first line holds numbers; expected the names of the columns there")
    if not layout.targets:
        raise ConfigError(f"dataset.target=null: expected a column of {path}: {near('', known)}")
    special, there = {*layout.targets, *([layout.test] if layout.test else [])}, set(known)
    features = layout.features
    if features is None:
        if "" in known:
            place = list(known).index("") + 1
            raise DataError(
                f"{path}: column {place} has no name, as the row numbers that pandas writes; list dataset.features"
            )
        features = tuple(name for name in known if name not in special)
    asked = {"target": layout.targets, "features": features, "categorical": layout.categorical}
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
    if not features:
        raise DataError(f"{path}: no column is left for the features beside {', '.join(sorted(special))}")
    if len(features) > _MOST_FEATURES:
        raise DataError(
            f"{path}: {len(features)} features are too many ({_MOST_FEATURES} at most); list dataset.features"
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


def _header(path: Path, layout: Layout) -> tuple[list[str], str]:
    """The names in the first line, and the separator."""
    try:
        with path.open(encoding=_encoding(layout), newline="") as stream:
            line = stream.readline(1 << 26)
            if "\0" in line:
                raise DataError(f"{path}: its first line holds a zero byte: no text, or UTF-16; save it as UTF-8")
            separator = layout.separator or _separator(path, line)
            stream.seek(0)
            names: list[str] = next(_rows(stream, separator), [])
    except UnicodeError as error:
        raise DataError(_not_in_encoding(path, layout, error)) from error
    except csv.Error as error:
        raise DataError(f"{path}: line 1: {error}") from error
    if not names:
        raise DataError(f"{path}: is empty; expected a line of column names, and a row a point")
    return [name.strip() for name in names], separator


def _encoding(layout: Layout) -> str:
    return "utf-8-sig" if layout.encoding.lower() in ("utf-8", "utf8") else layout.encoding


def _rows(stream: Any, separator: str) -> Any:
    return csv.reader(stream, delimiter=separator, skipinitialspace=True, strict=True)


def _separator(path: Path, line: str) -> str:
    """That of a .tsv, or the one that the first line has most of."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max(_SEPARATORS, key=line.count)


def _not_in_encoding(path: Path, layout: Layout, error: UnicodeError) -> str:
    content = path.read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return f"{path}: is UTF-16; set dataset.encoding=utf-16, or save it as UTF-8"
    try:
        content.decode(_encoding(layout))
    except UnicodeDecodeError as whole:
        at, byte = content.count(b"\n", 0, whole.start) + 1, content[whole.start]
        remedy = "set dataset.encoding, say to latin-1"
        return f"{path}: line {at} holds the byte {byte:#04x}, which is no {layout.encoding}; {remedy}"
    except UnicodeError:  # without a place, as of half a character at the end
        pass
    return f"{path}: is not in {layout.encoding} ({error}); set dataset.encoding"


def _read_text(path: Path, known: Sequence[str], used: Sequence[str], layout: Layout) -> pd.DataFrame:
    import pandas as pd

    separator = _header(path, layout)[1]
    count = _require_regular(path, len(known), separator, layout)
    if count * len(used) > _MOST_CELLS:
        raise DataError(f"{path}: {count} rows of {len(used)} columns are too many; list fewer dataset.features")
    places = {known.index(name): name for name in used}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frame = pd.read_csv(
                path,
                sep=separator,
                decimal=layout.decimal,
                encoding=_encoding(layout),
                header=None,
                skiprows=1,
                names=[str(i) for i in range(len(known))],
                usecols=[str(i) for i in places],
                index_col=False,
                skipinitialspace=True,
                na_values=list(MISSING),
                keep_default_na=False,
                low_memory=False,
            )
    except (ValueError, Warning, OverflowError) as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}") from error
    return frame.rename(columns={str(i): name for i, name in places.items()})


def _require_regular(path: Path, width: int, separator: str, layout: Layout) -> int:
    """How many rows there are; DataError, with the line, where one has not as many fields as the first."""
    rows, reader = 0, None
    try:
        with path.open(encoding=_encoding(layout), newline="") as stream:
            reader = _rows(stream, separator)
            next(reader)
            for row in reader:
                if row and len(row) != width:
                    raise DataError(f"{path}: line {reader.line_num} has {len(row)} fields, the first line {width}")
                rows += bool(row)
    except UnicodeError as error:
        raise DataError(_not_in_encoding(path, layout, error)) from error
    except csv.Error as error:
        line = reader.line_num if reader is not None else 1
        raise DataError(f"{path}: line {line}: {error}; is a quotation mark not closed?") from error
    if rows < 2:
        raise DataError(f"{path}: holds {rows} rows beneath its first line; expected at least 2")
    return rows


def _parquet(path: Path) -> Any:
    require_file(path, SUFFIXES)
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"dataset.path={path}: Parquet needs pyarrow; pip install 'kfx[parquet]'") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: is no Parquet file that can be read ({' '.join(str(error).split())})") from error


def _read_parquet(path: Path, used: Sequence[str]) -> pd.DataFrame:
    import pyarrow

    file = _parquet(path)
    rows = file.metadata.num_rows
    if rows < 2:
        raise DataError(f"{path}: holds {rows} rows; expected at least 2")
    if rows * len(used) > _MOST_CELLS:
        raise DataError(f"{path}: {rows} rows of {len(used)} columns are too many; list fewer dataset.features")
    for name in used:
        kind = file.schema_arrow.field(name).type
        if pyarrow.types.is_nested(kind) or pyarrow.types.is_temporal(kind) or pyarrow.types.is_binary(kind):
            raise DataError(f"{path}: column {name} holds {kind}; expected numbers or words")
    try:
        frame = file.read(columns=list(used)).to_pandas()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    return frame[list(used)].reset_index(drop=True)


def _stacked(frame: pd.DataFrame, other: pd.DataFrame, path: Path, test_path: Path) -> pd.DataFrame:
    import pandas as pd

    if missing := set(frame.columns) ^ set(other.columns):
        shown = ", ".join(sorted(missing)[:_MOST_SHOWN])
        raise DataError(f"{test_path}: its columns are not those of {path}, which differ in {shown}")
    return pd.concat([frame, other[list(frame.columns)]], ignore_index=True)


# ---- columns


def _require_present(frame: pd.DataFrame, path: Path, layout: Layout) -> None:
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
    more = ", …" if len(rows) > _MOST_SHOWN else ""
    raise DataError(
        f"{path}: {len(rows)} rows miss a value, rows {', '.join(rows[:_MOST_SHOWN])}{more}, in the columns "
        f"{', '.join(names[:_MOST_SHOWN])}{', …' if len(names) > _MOST_SHOWN else ''}; set dataset.missing={remedy}"
    )


def _numbers(column: pd.Series, where: str, remedy: str) -> np.ndarray:
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    wrong = (numbers.isna() & column.notna()).to_numpy()
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(f"{where} holds {str(column.iloc[row])[:40]!r} in row {row + 1}, which is no number; {remedy}")
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


def _features(frame: pd.DataFrame, layout: Layout, path: Path) -> tuple[np.ndarray, list[str]]:
    """(n, features), and what each is called."""
    import pandas as pd

    parts: list[np.ndarray] = []
    names: list[str] = []
    for name in frame.columns:
        if name in (*layout.targets, layout.test):
            continue
        column, where = frame[name], f"{path}: column {name}"
        if name not in layout.categorical:
            numbers = _numbers(column, where, "add it to dataset.categorical, or leave it out of dataset.features")
            require_numbers(numbers, where, missing=True)
            parts.append(numbers[:, None])
            names.append(name)
            continue
        codes, levels = pd.factorize(column, sort=True)
        if len(names) + len(levels) > _MOST_FEATURES:
            raise DataError(f"{where} has {len(levels)} different values, too many to be one-hot; leave it out")
        hot = np.eye(len(levels))[codes]
        hot[codes < 0] = np.nan
        parts.append(hot)
        names += [f"{name}={level}" for level in levels]
    return np.concatenate(parts, axis=1), names


def _target_values(frame: pd.DataFrame, targets: Sequence[str], path: Path) -> np.ndarray:
    """Numbers where all of it is numbers, words otherwise; (n,), or (n, outputs) of several columns."""
    if len(targets) > 1:
        columns = [
            _numbers(frame[name], f"{path}: column {name}", "a target among several is a number") for name in targets
        ]
        return np.stack(columns, axis=1)
    import pandas as pd

    column = frame[targets[0]]
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return column.astype(str).to_numpy(dtype=str)
    return column.to_numpy(dtype=np.float64)


_MARKS: Mapping[str, bool] = {
    **dict.fromkeys(("test", "true", "1", "1.0", "yes"), True),
    **dict.fromkeys(("train", "training", "false", "0", "0.0", "no"), False),
}


def _marked(column: pd.Series, where: str) -> np.ndarray:
    """Which rows are test points."""
    words = column.astype(str).str.strip().str.lower()
    if unknown := sorted(set(words) - set(_MARKS)):
        raise DataError(
            f"{where} holds {unknown[0]!r}; of a column that tells test points expected {', '.join(_MARKS)}"
        )
    return words.map(dict(_MARKS)).to_numpy(dtype=bool)
