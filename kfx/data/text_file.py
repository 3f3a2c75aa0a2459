"""Read a text file of rows, CSV or TSV, plain or compressed, without trusting its content."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import lzma
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from kfx.data.cells import Form
from kfx.files import as_written
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd

MOST_CELLS = 200_000_000
_SEPARATORS = ",;\t|"
_LONGEST_LINE = 1 << 26
_LINES_FOR_SEPARATOR = 20
_BLANK = " \t\r\n"
_BYTE_ORDER = "\ufeff"


def _member(path: Path) -> IO[bytes]:
    archive = zipfile.ZipFile(path)
    if len(names := archive.namelist()) != 1:
        raise DataError(f"{path}: holds {len(names)} files; expected a .zip of one")
    return archive.open(names[0])


def _plain(path: Path) -> IO[bytes]:
    return path.open("rb")


_DECOMPRESSED: Mapping[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zip": _member,
}
SUFFIXES = (".csv", ".tsv", ".txt")
COMPRESSED = tuple(_DECOMPRESSED)


def kind(path: Path) -> str:
    """The ending of a name, without that of a compression: .csv for x.csv.gz."""
    return Path(path.stem if path.suffix.lower() in COMPRESSED else path.name).suffix.lower()


def opened_bytes(path: Path) -> IO[bytes]:
    """The content of a file, decompressed."""
    stream: IO[bytes] = _DECOMPRESSED.get(path.suffix.lower(), _plain)(path)
    return stream


@contextlib.contextmanager
def opened(path: Path, form: Form) -> Iterator[TextIO]:
    """The text of a file; within the block a damaged file, or one in another encoding, is a DataError."""
    try:
        with opened_bytes(path) as raw, io.TextIOWrapper(raw, encoding=form.encoding, newline="") as stream:
            yield stream
    except UnicodeError as error:
        raise DataError(_not_in_encoding(path, form, error)) from error
    except (OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())}); is it damaged?") from error


def _not_in_encoding(path: Path, form: Form, error: UnicodeError) -> str:
    with opened_bytes(path) as stream:
        content = stream.read(1 << 30)
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return f"{path}: is UTF-16; set dataset.encoding=utf-16, or save it as UTF-8"
    try:
        content.decode(form.encoding)
    except UnicodeDecodeError as whole:
        at, byte = content.count(b"\n", 0, whole.start) + 1, content[whole.start]
        remedy = "set dataset.encoding, say to latin-1"
        return f"{path}: line {at} holds the byte {byte:#04x}, which is no {form.encoding}; {remedy}"
    except UnicodeError:  # an error without a position, such as half a character at the end
        pass
    return f"{path}: is not in {form.encoding} ({error}); set dataset.encoding"


def _lines(path: Path, stream: TextIO) -> Iterator[str]:
    number = 0
    while line := stream.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise DataError(f"{path}: line {number} has more than {_LONGEST_LINE} characters; is it a text file?")
        yield line.removeprefix(_BYTE_ORDER) if number == 1 else line


def _records(path: Path, stream: TextIO, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank: the number of the last physical line, from 1, and the fields.

    DataError for a blank line between others of one column, which may be a missing value.
    """
    last, width, before, blank = "", 0, 0, 0

    def lines() -> Iterator[str]:
        nonlocal last
        for line in _lines(path, stream):
            last = line
            yield line

    reader = csv.reader(lines(), delimiter=separator, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            is_one_line, before = reader.line_num == before + 1, reader.line_num
            if is_one_line and not last.strip(_BLANK.replace(separator, "")):
                blank = before
                continue
            if width == 1 and blank:
                raise DataError(f"{path}: line {blank} is blank; write NA for a missing value, or take it out")
            width, blank = width or len(row), 0
            yield before, row
    except csv.Error as error:
        line = max(reader.line_num, 1)
        raise DataError(f"{path}: line {line}: {error}; is a quotation mark not closed?") from error


def header(path: Path, form: Form) -> tuple[list[str], str]:
    """The names in the first line that is not blank, and the separator."""
    with opened(path, form) as stream:
        some = [
            line for line, _ in zip(filter(str.strip, _lines(path, stream)), range(_LINES_FOR_SEPARATOR), strict=False)
        ]
        if some and "\0" in some[0]:
            raise DataError(f"{path}: its first line holds a zero byte: no text, or UTF-16; save it as UTF-8")
        separator = form.separator or _separator(path, some)
        stream.seek(0)
        _, names = next(_records(path, stream, separator), (0, []))
    if not names:
        raise DataError(f"{path}: is empty; expected a line of column names, and a row a point")
    return [name.strip() for name in names], separator


def _separator(path: Path, lines: Sequence[str]) -> str:
    """The tab of a .tsv file, else the one separator with which the first lines have equally many fields.

    Separators within quotation marks do not count. DataError if there are several. Without one the best of them, so
    that the line that differs is named.
    """
    if kind(path) == ".tsv":
        return "\t"
    widths = {mark: _widths(lines, mark) for mark in _SEPARATORS}
    several = {mark: found for mark, found in widths.items() if found and found[0] > 1}
    whole = [mark for mark, found in several.items() if len(set(found)) == 1]
    if len(whole) > 1:
        marks = " or ".join(repr(mark) for mark in whole)
        raise DataError(f"{path}: its fields may be separated by {marks}; set dataset.separator")
    best = sorted(several, key=lambda mark: (several[mark].count(several[mark][0]), several[mark][0]))
    return whole[0] if whole else best[-1] if best else ","


def _widths(lines: Sequence[str], separator: str) -> list[int]:
    found = []
    with contextlib.suppress(csv.Error):  # also of a field in quotation marks that the last of the lines cuts
        for row in csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True):
            found += [len(row)] if row else []
    return found


def read(path: Path, names: Sequence[str], form: Form, as_text: Sequence[str], most: int | None) -> pd.DataFrame:
    """Columns as numbers where all values are, else as text; those of `as_text` always as text.

    most: the number of rows to read, without a check of the others. DataError, naming the line, for one with another
    number of fields than the first.
    """
    import pandas as pd

    known, separator = header(path, form)
    count = _require_regular(path, len(known), separator, form) if most is None else most
    if count * len(names) > MOST_CELLS:
        raise DataError(f"{path}: {count} rows of {len(names)} columns are too many; list fewer columns")
    places = {str(known.index(name)): name for name in names}
    text = [place for place, name in places.items() if name in as_text]
    missing = {place: [""] if place in text else list(form.missing) for place in places}
    try:
        with opened(path, form) as stream, warnings.catch_warnings():
            warnings.simplefilter("error")
            next(_records(path, stream, separator))
            frame = pd.read_csv(
                stream,
                sep=separator,
                decimal=form.decimal,
                header=None,
                nrows=most,
                names=[str(i) for i in range(len(known))],
                usecols=list(places),
                dtype=str if form.thousands else dict.fromkeys(text, str),
                index_col=False,
                skipinitialspace=True,
                na_values=missing,
                keep_default_na=False,
                low_memory=False,
                **as_written(pd.__version__),
            )
    except (ValueError, Warning, OverflowError) as error:
        if most is not None:  # it says more
            _require_regular(path, len(known), separator, form)
        raise DataError(f"{path}: {' '.join(str(error).split())}") from error
    if most is None and len(frame) != count:  # two readers that do not agree: neither is to be believed
        raise DataError(f"{path}: holds {count} rows or {len(frame)}; are quotation marks within a field?")
    for place in frame.select_dtypes(exclude="number").columns:  # blanks at the end, which the reader keeps
        if not pd.api.types.is_bool_dtype(frame[place]):
            words = frame[place].map(lambda value: value.strip() if isinstance(value, str) else value)
            frame[place] = words.mask(words.isin(missing[place]))
    return frame.rename(columns=places)


def _require_regular(path: Path, width: int, separator: str, form: Form) -> int:
    """The number of rows; DataError, naming the line, if one has another number of fields than the first."""
    count = 0
    with opened(path, form) as stream:
        for line, row in _records(path, stream, separator):
            if len(row) != width:
                said = f"line {line} has {len(row)} fields, the first line {width}"
                one = "; for one column with decimal commas, type 'dataset.separator=\";\"' 'dataset.decimal=\",\"'"
                more = one if width == 1 and separator == "," else ""
                raise DataError(f"{path}: {said}, separated by {separator!r} (dataset.separator){more}")
            count += 1
            if count * width > 10 * MOST_CELLS:
                raise DataError(f"{path}: has more than {count} rows of {width} columns, which are too many")
    return count - 1


def chunks(path: Path, names: Sequence[str], form: Form, size: int) -> Iterator[tuple[pd.DataFrame, Mapping[int, str]]]:
    """Yield rows as text, missing values as None, and what is wrong with a line, by its place among the rows."""
    import pandas as pd

    known, separator = header(path, form)
    places = [known.index(name) for name in names]
    rows, broken = list[list[str | None]](), dict[int, str]()
    with opened(path, form) as stream:
        lines = _records(path, stream, separator)
        next(lines)
        for _, row in lines:
            if len(row) != len(known):
                broken[len(rows)] = f"its line has {len(row)} fields, the first line {len(known)}"
                rows.append([None] * len(names))
            else:
                rows.append([None if form.is_missing(row[i]) else row[i].strip() for i in places])
            if len(rows) == size:
                yield pd.DataFrame(rows, columns=list(names), dtype=object), broken
                rows, broken = [], {}
    if rows:
        yield pd.DataFrame(rows, columns=list(names), dtype=object), broken
