"""The kinds of a table's columns, numbers, words and dates: how each is read, and which features it becomes."""

from __future__ import annotations

import datetime
import numbers
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from kfx.data import times
from kfx.data.cells import PLAIN, Form, numbers_of, shown, spelling_problem
from kfx.data.table_columns import MOST_NAMED, MOST_SHOWN, MOST_WORDS, are_spelt_numbers, is_date, levels, meaning

if TYPE_CHECKING:
    import pandas as pd

FEWEST_ROWS = 10
"""Training rows from which a word of a column with more than `MOST_WORDS` different ones has a feature, and missing
numbers have a mark."""
_MOST_CATEGORIES = 1000
_TIMES = (datetime.date, datetime.time)
_CELLS = (str, numbers.Number, np.generic, *_TIMES)


@dataclass(frozen=True)
class Numbers:
    """Numbers, and durations, in seconds. is_flag: zeros and ones alone, which may be written as true and false."""

    is_flag: bool = False
    expected: ClassVar[str] = "which is no number"

    def fitted(self, column: pd.Series, form: Form) -> Numbers:
        return self

    def names(self, name: str) -> tuple[str, ...]:
        return (name,)

    def features(self, column: pd.Series, form: Form) -> np.ndarray:
        """The feature, (n, 1), NaN where a value is missing or no number."""
        return self.read(column, form)[:, None]

    def read(self, column: pd.Series, form: Form) -> np.ndarray:
        """The numbers, (n,), NaN where a value is missing or no number."""
        if column.dtype.kind == "m":
            column = column.dt.total_seconds()
        if self.is_flag:
            column = column.map(lambda value: _FLAGS.get(str(value).strip().lower(), value), na_action="ignore")
        return numbers_of(column, form).to_numpy(dtype=np.float64, na_value=np.nan)


_FLAGS = {"true": 1, "false": 0}


@dataclass(frozen=True)
class Words:
    """Words or codes, each of which becomes a feature of 0 and 1.

    is_listed: every value has a feature; else the `MOST_WORDS` most frequent, and the others are one category. by_size:
    as of `levels`. known: the values with a feature, in order. rest: the number of different words of the training rows
    that are the other category.
    """

    is_listed: bool = False
    by_size: bool = False
    known: tuple[object, ...] = ()
    rest: int = 0
    expected: ClassVar[str] = ""

    def fitted(self, column: pd.Series, form: Form) -> Words:
        """With the words of training rows."""
        codes, values = levels(column, form, self.by_size)
        if self.is_listed:
            return replace(self, known=tuple(values), rest=0)
        counts = np.bincount(codes[codes >= 0], minlength=len(values))
        often = np.argsort(-counts, kind="stable")[:MOST_WORDS]
        known = tuple(values[i] for i in sorted(often[counts[often] >= FEWEST_ROWS]))
        return replace(self, known=known, rest=len(values) - len(known))

    def names(self, name: str) -> tuple[str, ...]:
        return (*(f"{name}={value}" for value in self.known), *([f"{name} is other"] if self.rest else []))

    def features(self, column: pd.Series, form: Form) -> np.ndarray:
        """The features, (n, words), NaN where a value is missing, 0 for a word that no training row has."""
        codes, absent = self._codes(column), column.isna().to_numpy()
        if self.rest:
            codes[codes < 0] = len(self.known)
        found = (codes[:, None] == np.arange(len(self.known) + bool(self.rest))).astype(np.float64)
        found[absent] = np.nan
        return found

    def _codes(self, column: pd.Series) -> np.ndarray:
        """The places of the values in the known ones, (n,), −1 for others; as tools write one value in two ways, `1`
        and `1.0`, a value is compared as it is written and then by its meaning."""
        codes = {str(value): code for code, value in enumerate(self.known)}
        meanings = [meaning(text) for text in codes]
        times_of = Counter(meanings)
        by_meaning = {m: code for m, code in zip(meanings, codes.values(), strict=True) if times_of[m] == 1}
        places, values = column.astype(object).factorize()
        texts = map(str, values)
        of_values = [codes[text] if text in codes else by_meaning.get(meaning(text), -1) for text in texts]
        return np.array([*of_values, -1], dtype=np.int64)[places]


@dataclass(frozen=True)
class Dates:
    """Dates and times of day.

    format: how texts are written but for a time zone, as of `times.Dates`. zone: the time zone of the training rows, in
    which parts are counted: the one offset of texts, UTC for several; None for dates without one. first: the first of
    the training rows. unit: of the time since then, seconds if the training rows are of one day.
    """

    format: str = times.ISO
    zone: datetime.tzinfo | None = None
    first: np.datetime64 = field(default_factory=lambda: np.datetime64(0, "us"))
    unit: str = "days"
    expected: ClassVar[str] = "which is no date as in the training rows"

    def fitted(self, column: pd.Series, form: Form) -> Dates:
        """With the first date of training rows."""
        at = self._read_here(column, form)
        if np.isnat(at).all():
            return self
        at = at[~np.isnat(at)]
        is_one_day = (at.astype("M8[D]") == at[0].astype("M8[D]")).all()
        return replace(self, first=at.min(), unit="seconds" if is_one_day else "days")

    def names(self, name: str) -> tuple[str, ...]:
        parts = [f"{part}.{wave}" for part in _PARTS for wave in ("sin", "cos")]
        return tuple(f"{name}.{part}" for part in (self.unit, *parts))

    def features(self, column: pd.Series, form: Form) -> np.ndarray:
        """The time since the first training date, and sine and cosine of each part of the calendar, (n, 9), NaN where a
        value is missing or no date."""
        at = self._read_here(column, form)
        found = np.full((len(at), 1 + 2 * len(_PARTS)), np.nan)
        known, at = ~np.isnat(at), at[~np.isnat(at)]
        found[known, 0] = (at - self.first) / np.timedelta64(1, "D" if self.unit == "days" else "s")
        day, month, year = (at.astype(f"M8[{unit}]") for unit in "DMY")
        of_parts = (
            (month - year).astype(int),
            (day.astype(int) + 3) % 7,
            (day - year).astype(int),
            (at - day) / np.timedelta64(1, "h"),
        )
        for i, (values, period) in enumerate(zip(of_parts, _PARTS.values(), strict=True)):
            angle = 2 * np.pi * values / period
            found[known, 1 + 2 * i], found[known, 2 + 2 * i] = np.sin(angle), np.cos(angle)
        return found

    def read(self, column: pd.Series, form: Form) -> np.ndarray:
        """The dates, (n,), in UTC if the training rows have a time zone; NaT where a value is missing or no date, where
        it has a zone and the training rows have none or the other way round, and for a day where they are of none."""
        import pandas as pd

        nothing = np.full(len(column), "NaT", dtype="M8[us]")
        if isinstance(column.dtype, pd.PeriodDtype):
            column = column.dt.to_timestamp()
        have_days = self.format == times.ISO or any(year in self.format for year in ("%Y", "%y", "%G"))
        if isinstance(column.dtype, pd.DatetimeTZDtype):
            return nothing if self.zone is None else column.dt.tz_convert(None).to_numpy("M8[us]")
        if pd.api.types.is_datetime64_dtype(column):
            return column.to_numpy("M8[us]") if have_days and self.zone is None else nothing
        bare, offsets = times.apart(column)
        at = times.parsed(bare, self.format)
        at = np.where(_in_two_centuries(at, self.format), np.datetime64("NaT"), at)
        if have_days and self.format != times.ISO:
            at = np.where(np.isnat(at), times.parsed(bare, times.ISO), at)
        is_as_trained = (offsets != "").to_numpy() == (self.zone is not None)
        return np.where(is_as_trained, at - times.ahead_of_utc(offsets), np.datetime64("NaT"))

    def other_reading(self, column: pd.Series) -> str | None:
        """Another format, with which all values of a column are dates, where some are not with that of the training
        rows: then days and months of the others are exchanged."""
        there = column.dropna()
        absent = np.isnat(self.read(there, PLAIN))
        if absent.all() or not absent.any():
            return None
        return next((dates.format for dates in times.readings(there, np.zeros(len(there), dtype=int))), None)

    def _read_here(self, column: pd.Series, form: Form) -> np.ndarray:
        """The dates, (n,), by clocks in the training rows' time zone."""
        import pandas as pd

        at = self.read(column, form)
        if self.zone is None:
            return at
        return pd.Series(at).dt.tz_localize("UTC").dt.tz_convert(self.zone).dt.tz_localize(None).to_numpy("M8[us]")


_PARTS: Mapping[str, float] = {"month": 12, "weekday": 7, "day_of_year": 365.25, "hour": 24}
"""Parts of a date with their periods."""

Kind = Numbers | Words | Dates


class Fault(NamedTuple):
    """Why a column cannot be read: what it holds, and, of numbers in another spelling, what to type."""

    what: str
    remedy: str = ""


def kind_of(column: pd.Series, form: Form = PLAIN, by_size: bool = False) -> Kind | Fault:
    """The kind of a column, or what is wrong with it. column: with the index 0, 1, …; by_size: as of `levels`.

    A few words among numbers, or other texts among dates, are slips, numbers with other marks than the form has have
    another meaning, and a date may have two: they are faults.
    """
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return Words(is_listed=len(column.cat.categories) <= _MOST_CATEGORIES, by_size=by_size)
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        return Dates(zone=column.dt.tz)
    if column.dtype.kind == "M" or isinstance(column.dtype, pd.PeriodDtype):
        return Dates()
    if column.dtype.kind in "biufm":
        return Numbers(is_flag=column.dtype.kind != "m" and bool(column.dropna().isin([0, 1]).all()))
    known = column.dropna()
    other = next((type(value).__name__ for value in known if not isinstance(value, _CELLS)), None)
    if other or column.dtype.kind == "c":
        return Fault(f"holds {other or column.dtype}; expected numbers, words or dates")
    return _of_texts(column, known, form, by_size)


def _of_texts(column: pd.Series, known: pd.Series, form: Form, by_size: bool) -> Kind | Fault:
    found = numbers_of(known, form)
    if not found.isna().any():
        return Numbers(is_flag=bool(found.isin([0, 1]).all()))
    words, many = known[found.isna()], known.nunique() > MOST_WORDS
    are_dates = known.map(lambda value: isinstance(value, _TIMES) or is_date(str(value)))
    if are_dates.all() or (many and are_dates.mean() > 0.5):
        return _dates(known, are_dates)
    if (problem := spelling_problem(column, form)) is not None:
        return Fault(*problem)
    if len(words) * 2 <= len(known) or are_spelt_numbers(words):
        return Fault(f"holds {shown(words)}, which is no number")
    return Words(is_listed=not many, by_size=by_size)


def _dates(known: pd.Series, are_dates: pd.Series) -> Dates | Fault:
    if not are_dates.all():
        return Fault(f"holds {shown(known[~are_dates])}, which is no date")
    bare, offsets = times.apart(known)
    different = offsets.unique()
    if "" in different and len(different) > 1:
        return Fault(f"holds {shown(known)}, some with a time zone and some without")
    if known.map(lambda value: isinstance(value, datetime.date)).all():
        return Dates(zone=_zone_of(different))
    found = list(times.readings(bare, np.zeros(len(bare), dtype=int)))
    if not found:
        return Fault(f"holds {shown(known)} and other dates, which have no reading in common")
    differ = np.any([dates.at != found[0].at for dates in found], axis=0)
    if differ.any():
        days = sorted({str(dates.at[differ][0].astype("M8[D]")) for dates in found})
        return Fault(f"holds {shown(known[differ])}, which may be {' or '.join(days)}; write the year first")
    if (late := _in_two_centuries(found[0].at, found[0].format)).any():
        year = found[0].at[late][0].astype("M8[Y]")
        years = f"{year - 100} or {year}"
        return Fault(f"holds {shown(known[late])}, which may be of {years}; write years with four digits")
    return Dates(found[0].format, _zone_of(different))


def _zone_of(offsets: Iterable[str]) -> datetime.tzinfo | None:
    """The time zone of dates with these different offsets, as `times.apart` gives them."""
    ahead = {times.offset(each) for each in offsets if each}
    return None if not ahead else datetime.timezone(ahead.pop()) if len(ahead) == 1 else datetime.UTC


def _in_two_centuries(at: np.ndarray, how: str) -> np.ndarray:
    """Whether dates, (n,), are to come by more than a year, and of the last century as well, by years of two digits."""
    late: np.ndarray = at > np.datetime64("now") + np.timedelta64(366, "D")
    return late & ("%y" in how)


def as_kind(column: pd.Series, kind: Kind, form: Form) -> pd.Series | Fault:
    """A column with its cells converted: numbers to float64, dates to datetime64, words to text; or what is wrong."""
    import pandas as pd

    if isinstance(kind, Words):
        return column.astype(object).map(str, na_action="ignore")
    found = pd.Series(kind.read(column, form), index=column.index)
    if isinstance(kind, Dates) and kind.zone is not None:
        found = found.dt.tz_localize("UTC")
    wrong = column[found.isna() & column.notna()]
    return Fault(f"holds {shown(wrong)}, {kind.expected}") if len(wrong) else found


def told(faults: Mapping[str, Fault]) -> str:
    """What is wrong with columns, by their names, in one line."""
    some, others = list(faults)[:MOST_SHOWN], list(faults)[MOST_SHOWN:]
    said = [f"column {name} {'; '.join(filter(None, faults[name]))}" for name in some]
    if others:
        said.append(f"and the like in {', '.join(others[:MOST_NAMED])}{', …' if len(others) > MOST_NAMED else ''}")
    return "; ".join(said)
