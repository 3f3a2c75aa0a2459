"""What options of files of rows share: the path, and how numbers and missing values are written."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kfx.config.fields import FieldError, Several, ranged, word
from kfx.config.option import Option, Settings
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    from kfx.data.cells import Form

FILES_OF_ROWS = ".csv, .tsv, .txt (also with .gz, .bz2, .xz or .zip) or .parquet"


class FromFile:
    """A mixin for data sets that are read from a file named in their field `path`."""

    from_path = True
    path: str | None

    def file(self) -> Path:
        """The path of the file; ConfigError if none is named."""
        if self.path is None:
            own: Option = self  # type: ignore[assignment]  # a mixin of options
            takes = own.fields()["path"].metadata["takes"]
            raise ConfigError(f"dataset.path=null: dataset={own.name} is read from a file; expected {takes}")
        return Path(self.path).expanduser()

    def paths(self) -> list[Path]:
        return [self.file()]

    def with_absolute_paths(self, node: Settings) -> Settings:
        return {**node, "path": str(self.file().absolute())}

    def without_places(self, node: Settings) -> Settings:
        return {**node, "path": self.file().name}


def path_of(endings: str) -> str | None:
    """The field `path` of a file whose name ends so."""
    takes = f"a path that ends in {endings}"
    meaning = "path of the file, relative to the current folder; must be given"
    return ranged(None, takes, lambda v: v is None or bool(v.strip()), meaning)


def _is_encoding(name: str) -> bool:
    try:
        return codecs.lookup(name)._is_text_encoding
    except LookupError:
        return False


@dataclass
class RowFile:
    """The fields of a text file with a row a line; of Parquet those of words alone."""

    implied_by_rows: ClassVar[Settings] = {"thousands": None, "missing_words": None}

    separator: str | None = ranged(
        None,
        "one character",
        lambda v: len(v) == 1,
        "character between the fields of a text file",
        null="the one that the lines show",
    )
    decimal: str = word(". | ,", "decimal mark of numbers in text")
    thousands: str | None = ranged(
        None,
        "one of , . ' _ or a blank, or null for none",
        lambda v: v in (None, ",", ".", "'", "\u2019", "_", " ", "\u00a0", "\u202f"),
        "thousands mark of numbers in text, as in 1,037; numbers may leave it out",
    )
    encoding: str = ranged("utf-8", "the name of an encoding", _is_encoding, "character encoding of a text file")
    missing_words: Several = ranged(
        None,
        "a list of words",
        lambda v: isinstance(v, list) and all(isinstance(word, (str, int, float)) for word in v),
        "words, or numbers, that mean a missing value; an empty cell always does",
        null="NA, N/A, n/a, #N/A, <NA>, NaN, nan, null, NULL, None, ? and -",
    )

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]  # of the option
        if self.thousands == self.decimal:
            raise FieldError("thousands", self.thousands, f"another mark than decimal={self.decimal}")

    def form(self) -> Form:
        """How the file is written."""
        from kfx.data.cells import MISSING, Form

        words = MISSING if self.missing_words is None else tuple(map(str, self.missing_words))
        return Form(self.separator, self.decimal, self.thousands, self.encoding, words)


def changes(path: Path) -> tuple[str, ...]:
    """A file's path, size and times, which change with its content; DataError if it is missing."""
    from kfx.data.files import require_file

    require_file(path)
    state = path.stat()
    return str(path), *map(str, (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=8)
def _columns(file: tuple[str, ...], form: Form) -> tuple[str, ...]:
    from kfx.data.row_file import columns

    return tuple(columns(Path(file[0]), form))


def matching(names: Sequence[str], path: Path, form: Form) -> tuple[str, ...]:
    """Names of columns, with patterns such as `y*` replaced by the columns of the file that match."""
    from kfx.data.row_file import expanded

    if not any(mark in name for name in names for mark in "*?["):
        return tuple(names)
    return expanded(names, _columns(changes(path), form))
