"""Cells of a file of rows: how numbers and missing values are written, and columns of them as numbers."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from kfx.config.overrides import typed

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", "?", "-")
"""Words that mean a missing value, unless `dataset.missing_words` lists others; an empty cell always does."""
_BLANKS, _APOSTROPHES = " \u00a0\u2009\u202f", "'\u2019"


@dataclass(frozen=True)
class Form:
    """How a file of rows is written: the fields of `dataset` of the same names. separator: None to detect it."""

    separator: str | None = None
    decimal: str = "."
    thousands: str | None = None
    encoding: str = "utf-8"
    missing_words: tuple[str, ...] = MISSING

    @cached_property
    def missing(self) -> frozenset[str]:
        """The words for a missing value, and the empty one."""
        return frozenset({"", *self.missing_words})

    @cached_property
    def missing_numbers(self) -> frozenset[float]:
        """The numbers among the words, which count however they are written: -999 also as -999.00 or -9.99e2."""
        return frozenset(number for word in self.missing_words if math.isfinite(number := self.number(word)))

    @property
    def is_plain(self) -> bool:
        """Whether numbers have a decimal point and no thousands marks."""
        return self.decimal == "." and self.thousands is None

    def number(self, text: str) -> float:
        """The number that a text is in this form, NaN for none."""
        with contextlib.suppress(ValueError):
            return float(_with_point(text, self))
        return math.nan

    def is_missing(self, text: str) -> bool:
        is_word = text.strip() in self.missing
        return is_word or (bool(self.missing_numbers) and self.number(text) in self.missing_numbers)


PLAIN = Form()


@lru_cache(maxsize=64)
def _grouped(decimal: str, thousands: str) -> tuple[re.Pattern[str], str]:
    """The pattern of a number whose thousands are marked, also as in 12,34,567, and the characters of the mark."""
    marks = next((each for each in (_BLANKS, _APOSTROPHES) if thousands in each), thousands)
    mark, point = f"[{re.escape(marks)}]", re.escape(decimal)
    groups = rf"[1-9]\d{{,2}}(?:{mark}\d{{3}})+|[1-9]\d?(?:{mark}\d\d)+{mark}\d{{3}}"
    return re.compile(rf"[+-]?(?:{groups})(?:{point}\d*)?(?:[eE][+-]?\d+)?", re.ASCII), marks


def _with_point(text: str, form: Form) -> str:
    """A number as text with a decimal point and no marks; what is no number in this form stays none."""
    text = text.strip()
    if form.thousands is not None:
        pattern, marks = _grouped(form.decimal, form.thousands)
        if pattern.fullmatch(text):
            text = text.translate(dict.fromkeys(map(ord, marks)))
    return text if form.decimal == "." else text.translate({ord(form.decimal): ".", ord("."): form.decimal})


def numbers_of(column: pd.Series, form: Form = PLAIN) -> pd.Series:
    """A column as numbers: NaN for anything else, infinity beyond float64. form: of the numbers in text."""
    import pandas as pd

    if column.dtype.kind in "mM":  # dates and durations, which count in any unit
        return pd.Series(float("nan"), index=column.index)
    if not form.is_plain and not pd.api.types.is_numeric_dtype(column):
        column = column.map(lambda value: _with_point(value, form) if isinstance(value, str) else value)
    try:
        return pd.to_numeric(column, errors="coerce")
    except OverflowError:  # too large a whole number; as text it becomes infinite
        return pd.to_numeric(column.astype(str), errors="coerce")


_OTHERS = [(point, mark) for mark in (None, ",", ".", " ", "'") for point in ".," if point != mark]


def _other_spelling(column: pd.Series, words: pd.Series, form: Form) -> str | None:
    """What to type if all values of a column are numbers with other marks than the form has; of a 1,037 that has two
    meanings both. words: the values that are none now."""
    found: dict[float, str] = {}
    for decimal, thousands in _OTHERS:
        other = replace(form, decimal=decimal, thousands=thousands)
        if not numbers_of(column.dropna(), other).isna().any():
            marks = {"decimal": decimal, "thousands": thousands}
            said = [
                typed(f"dataset.{key}", mark) for key, mark in marks.items() if mark not in (None, getattr(form, key))
            ]
            found.setdefault(float(numbers_of(words[:1], other).iloc[0]), " ".join(said))
    if len(found) > 1:
        return "type " + ", or ".join(f"{said} if it is {value:.15g}" for value, said in found.items())
    return f"to read it, type {next(iter(found.values()))}" if found else None


def spelling_problem(column: pd.Series, form: Form) -> tuple[str, str] | None:
    """What is wrong with a column whose values are all numbers with other marks than the form has, and what to type."""
    words = column[numbers_of(column, form).isna() & column.notna()]
    remedy = _other_spelling(column, words, form) if len(words) else None
    if remedy is None:
        return None
    what = "point" if form.decimal == "." else "comma"
    return f"holds {shown(words)}, which is no number with a decimal {what}", remedy


def shown(words: pd.Series) -> str:
    """The first of some values with its row, from 1, in a message."""
    return f"{str(words.iloc[0])[:40]!r} in row {int(words.index[0]) + 1}"
