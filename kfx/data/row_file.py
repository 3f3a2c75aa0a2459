"""Files of rows, text or Parquet: the one reader of tables, series and new rows."""

from __future__ import annotations

import contextlib
import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfx.data import text_file
from kfx.data.cells import Form
from kfx.data.files import require_file, warn_once
from kfx.data.text_file import COMPRESSED, MOST_CELLS
from kfx.outcomes import ConfigError, DataError
from kfx.version import to_install

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (*text_file.SUFFIXES, ".parquet")
TAKES = f"a path that ends in {', '.join(SUFFIXES[:-1])} (also with {', '.join(COMPRESSED)}) or {SUFFIXES[-1]}"
_MOST_NAMES = 20
_INDEX = "__index_level_"
"""The beginning of the name of a row index that pandas wrote into a Parquet file."""


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def require(path: Path) -> None:
    """DataError unless the path is a regular file of rows by its name."""
    require_file(path)
    if (SUFFIXES[-1] if is_parquet(path) else text_file.kind(path)) not in SUFFIXES:
        raise DataError(
            f"dataset.path={path}: expected a name that ends in {TAKES.removeprefix('a path that ends in ')}"
        )


def columns(path: Path, form: Form) -> list[str]:
    """The column names, from the first line or the schema."""
    if is_parquet(path):
        return [name for name in map(str, parquet(path).schema_arrow.names) if not name.startswith(_INDEX)]
    require(path)
    return text_file.header(path, form)[0]


def read(
    path: Path,
    names: Sequence[str],
    form: Form,
    *,
    as_text: Sequence[str] = (),
    dates: Sequence[str] = (),
    least: int = 0,
    most: int | None = None,
) -> pd.DataFrame:
    """Columns in the order of `names`, words and numbers as they come, NaN for missing values.

    as_text: columns of words, whose values stay as they are written. dates: columns that may hold dates. least:
    DataError for fewer rows. most: the number of rows to read, without a check of the others.
    """
    require(path)
    if is_parquet(path):
        frame = _read_parquet(path, names, dates, most)
    else:
        frame = text_file.read(path, names, form, as_text, most)
    if len(frame) < least:
        raise DataError(f"{path}: holds {len(frame)} rows of points; expected at least {least}")
    return _without_missing(frame[list(names)], form, as_text, path)


def chunks(
    path: Path, names: Sequence[str], form: Form, size: int, dates: Sequence[str] = ()
) -> Iterator[tuple[pd.DataFrame, Mapping[int, str]]]:
    """Yield columns of `size` rows at a time, and what is wrong with a line, by its place among the rows.

    dates: columns that may hold dates.
    """
    if not is_parquet(path):
        yield from text_file.chunks(path, names, form, size)
        return
    file = parquet(path)
    _require_plain(path, file, names, dates)
    with _reading(path):
        for batch in file.iter_batches(size, columns=list(names)):
            frame = batch.to_pandas(ignore_metadata=True, integer_object_nulls=True)[list(names)]
            yield _without_missing(frame.reset_index(drop=True), form, (), path), {}


def count(path: Path) -> int:
    """The number of rows, or of lines below the first; exact unless a field has several lines."""
    require(path)
    if is_parquet(path):
        rows: int = parquet(path).metadata.num_rows
        return rows
    with text_file.opened_bytes(path) as stream:
        return max(sum(block.count(b"\n") for block in iter(partial(stream.read, 1 << 20), b"")) - 1, 1)


def _without_missing(frame: pd.DataFrame, form: Form, as_text: Sequence[str], path: Path) -> pd.DataFrame:
    """NaN for the words, and numbers, that mean a missing value; says which words of columns of text do."""
    import pandas as pd

    numbers = list(form.missing_numbers)
    for name in frame.columns:
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column):
            gone = column.isin(numbers) if numbers and not pd.api.types.is_bool_dtype(column) else None
        elif column.dtype == object or isinstance(column.dtype, (pd.StringDtype, pd.CategoricalDtype)):
            words = column.astype(object)
            gone = words.map(lambda value: isinstance(value, str) and form.is_missing(value)).astype(bool)
        else:
            gone = None
        if gone is None or not gone.any():
            continue
        said = [word for word in column[gone].unique().tolist() if str(word).strip()]
        if name in as_text and said:
            what = f"the word {said[0]!r} counts as a missing value, in {int(gone.sum())} rows"
            warn_once(f"{path}: column {name}: {what}", "; if it is a word, type 'dataset.missing_words=[]'")
        frame = frame.assign(**{name: column.mask(gone)})
    return frame


# ---- names


def expanded(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Names of columns, with patterns such as `y*` replaced by the columns that match; one that matches none stays."""
    found: list[str] = []
    for name in names:
        of_pattern = [] if name in known else [each for each in known if fnmatchcase(each, name)]
        found += of_pattern or [name]
    return tuple(dict.fromkeys(found))


def near(name: str, known: Sequence[str]) -> str:
    """The columns of a file, and the one that was probably meant."""
    close = difflib.get_close_matches(name, known, n=1)
    more = f", … ({len(known)} columns)" if len(known) > _MOST_NAMES else ""
    return f"{', '.join(known[:_MOST_NAMES])}{more}" + (f" (did you mean {close[0]}?)" if close else "")


def require_names(path: Path, known: Sequence[str], asked: Mapping[str, Sequence[str]]) -> None:
    """ConfigError for a name that is no column. asked: names by the field of `dataset` that holds them."""
    for key, names in asked.items():
        for name in names:
            if name not in known:
                raise ConfigError(f"dataset.{key}={name}: no column of {path}; it has {near(name, known)}")


def require_header(path: Path, known: Sequence[str], named: Sequence[str]) -> None:
    """DataError if the first line holds numbers or dates, none of which is named as a column."""
    from kfx.data.table_columns import is_date

    if all(_is_number(name) or is_date(name) for name in known) and not (named and {*named} <= {*known}):
        raise DataError(f"{path}: its first line holds numbers; expected the names of the columns there")


def require_once(path: Path, known: Sequence[str], used: Sequence[str], key: str) -> None:
    """DataError for a used name that stands over several columns. key: the field that lists columns."""
    twice = [name for name, times in Counter(known).items() if times > 1 and name in used]
    if twice:
        what = f"{len(twice)} names stand over several columns, as {twice[0]}"
        raise DataError(f"{path}: {what}; rename them, or list dataset.{key} without them")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ---- Parquet


def parquet(path: Path) -> Any:
    require(path)
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"dataset.path={path}: Parquet needs pyarrow; {to_install('parquet')}") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: is no Parquet file that can be read ({' '.join(str(error).split())})") from error


def _require_plain(path: Path, file: Any, names: Sequence[str], dates: Sequence[str]) -> None:
    """DataError for a column of a Parquet file that holds bytes or lists, or dates where it may not."""
    import pyarrow

    for name in names:
        kind = file.schema_arrow.field(name).type
        is_date = pyarrow.types.is_temporal(kind) and name not in dates
        if is_date or pyarrow.types.is_nested(kind) or pyarrow.types.is_binary(kind):
            more = f"; of a series, dataset.time={name} names the time" if pyarrow.types.is_temporal(kind) else ""
            raise DataError(f"{path}: column {name} holds {kind}; expected numbers or words{more}")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Within the block, errors of reading a Parquet file become DataError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error


_EXTENSION = b"ARROW:extension:name"


def _read_parquet(path: Path, names: Sequence[str], dates: Sequence[str], most: int | None) -> pd.DataFrame:
    import pyarrow

    file = parquet(path)
    rows = file.metadata.num_rows if most is None else most
    if rows * len(names) > MOST_CELLS:
        raise DataError(f"{path}: {rows} rows of {len(names)} columns are too many; list fewer columns")
    _require_plain(path, file, names, dates)
    for name in dates:
        field = file.schema_arrow.field(name)
        if isinstance(field.type, pyarrow.BaseExtensionType) or _EXTENSION in (field.metadata or {}):
            raise DataError(f"{path}: column {name} holds periods of pandas; save it as dates or as text")
    with _reading(path):
        some = None if most is None else next(file.iter_batches(most, columns=list(names)), None)
        table = file.read(columns=list(names)) if some is None else some
        frame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    return frame[list(names)].reset_index(drop=True)
