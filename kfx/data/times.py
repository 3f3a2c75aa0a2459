"""Times of series: numbers, or dates by one reading of a whole column."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from kfx.config.overrides import typed
from kfx.data.calendar_steps import DAY, step_of
from kfx.data.cells import Form, numbers_of, shown
from kfx.outcomes import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

ISO = "ISO8601"
"""Of dates that are not all written in the same way, but all as the standard has it."""
IN_UTC = "ISO8601+00:00"
"""Of dates with several offsets from UTC, which are read and written in UTC."""


@dataclass(frozen=True)
class Dates:
    """Dates of a series.

    at: (T,), datetime64. format: how they are written, as of strftime, with %q a quarter, and %-d, %-m, %-H and %-I
    without a zero in front.
    """

    at: np.ndarray
    format: str

    def __getitem__(self, part: slice) -> Dates:
        return Dates(self.at[part], self.format)

    def days(self) -> np.ndarray:
        """Days since 1970, (T,), so that the same time of the year or the week is the same in every series."""
        return np.asarray((self.at - np.datetime64(0, "D")) / DAY, dtype=np.float64)

    def by_clock_of(self, other: Dates) -> Dates:
        """The same instants by the clock of other dates, if both say their zone."""
        import pandas as pd

        zones = zone_of(other.format), zone_of(self.format)
        ahead = ahead_of_utc(pd.Series(zones))
        return Dates(self.at + ahead[0] - ahead[1], other.format) if all(zones) else self

    def written(self) -> list[str]:
        """The dates as the file writes them."""
        import pandas as pd

        index = pd.DatetimeIndex(self.at)
        if self.format in (ISO, IN_UTC):
            return [each.isoformat(sep=" ") + self.format.removeprefix(ISO) for each in index]
        fields = {"%q": index.quarter, "%-d": index.day, "%-m": index.month, "%-H": index.hour}
        fields["%-I"] = (index.hour + 11) % 12 + 1
        used = {code: values.tolist() for code, values in fields.items() if code in self.format}
        return [each.strftime(self._with(used, i)) for i, each in enumerate(index)]

    def _with(self, fields: Mapping[str, Sequence[int]], i: int) -> str:
        """The format with the fields of one date filled in."""
        form = self.format
        for code, values in fields.items():
            form = form.replace(code, str(values[i]))
        return form

    def spelt_as(self, column: pd.Series) -> Dates:
        """The same dates, written without zeros in front where the column, (T,), has none."""
        short = Dates(self.at, re.sub("%([dmHI])", r"%-\1", self.format))
        some = slice(1000)
        texts = column[some].astype(str).str.strip().tolist()
        return short if self[some].written() != texts and short[some].written() == texts else self


def _formats() -> Iterator[str]:
    """Formats of dates, those with the year first before the others."""
    yield from ("%YQ%q", "%Y-Q%q", "%Y Q%q", "%Y:Q%q", "%Y:%q", "Q%q %Y", "Q%q-%Y", "Q%q/%Y", "%qQ%Y", "%q/%Y")
    yield from ("%G-W%V-%u", "%GW%V%u", "%G-W%V", "%GW%V", "%YM%m", "%Y-M%m", "%Y:%m", "%Y%m%d")
    for mark in "-/. ":
        numbers = "%Y %m %d", "%Y %m", "%m %Y", "%d %m %Y", "%m %d %Y", "%d %m %y", "%m %d %y", "%y %m %d"
        yield from (part.replace(" ", mark) for part in numbers)
        for name in ("%b", "%B"):
            words = "%Y {b}", "%Y {b} %d", "{b} %Y", "{b} %y", "%d {b} %Y", "%d {b} %y", "{b} %d %Y"
            yield from (part.format(b=name).replace(" ", mark) for part in words)
    for name in ("%b", "%B"):
        yield from (f"{name} %d, %Y", f"{name} %d,%Y", f"%d. {name} %Y", f"{name}, %Y")


_HOURS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p")
_OF_DIGITS = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_OFFSET = re.compile(r"(?<=\d)(?: ?Z| ?UTC| ?[+-]\d\d:\d\d|(?:(?<=:\d\d)|(?<=[.]\d{3})|(?<=[.]\d{6})) ?[+-]\d{4})$")
_OFFSET_OF_FORMAT = re.compile(r"(?<=[MSfp])(?: ?Z| ?UTC| ?[+-]\d\d:?\d\d)$")
_WITH_HOUR = re.compile(r"(?:(.+)([ T]))?(\d\d?:\d\d.*)")


def read(column: pd.Series, form: Form, date_format: str | None, groups: np.ndarray) -> np.ndarray | Dates:
    """Times as numbers, (T,), or as dates.

    date_format: that of `dataset`, or None to find the one that all values have, with which they rise in each series,
    and, of several, with which they have one step. groups: the number of the series of each row, (T,). DataError for a
    value that is no time, and for dates that have two readings.
    """
    import pandas as pd

    if isinstance(column.dtype, pd.DatetimeTZDtype):
        if date_format is not None:
            zone = zone_of(date_format)
            here = (column.dt.tz_convert(None) if zone else column.dt.tz_localize(None)).to_numpy("M8[us]")
            ahead = ahead_of_utc(pd.Series([zone]))[0]
            return Dates(_require_all(here + ahead, column), date_format)
        dates = _with_offsets(column.dt.tz_convert(None), column.dt.tz_localize(None), ISO, groups)
        return Dates(_require_all(dates.at, column), dates.format)
    if pd.api.types.is_datetime64_dtype(column) or _holds_dates(column):
        at = _require_all(pd.to_datetime(column).to_numpy("M8[us]"), column)
        return Dates(at, "%Y-%m-%d" if (at == at.astype("M8[D]")).all() else ISO)
    if date_format is not None:
        try:
            at = parsed(column, date_format)
        except (ValueError, KeyError, re.error) as error:
            how = "expected codes of strftime, as %d.%m.%Y, or %q and %Y"
            raise ConfigError(f"dataset.date_format={date_format}: {how}; {' '.join(str(error).split())}") from error
        bare, offsets = apart(column)
        zone = zone_of(date_format)
        if zone and (naive := offsets == "").any():
            raise DataError(
                f"holds {shown(column[naive])} without its offset from UTC; expected dates with one, as {zone}"
            )
        if np.isnat(at).any() and (offsets != "").any():  # which may differ by season, or from the format's
            at = parsed(bare, date_format.removesuffix(zone))
            at = at + (ahead_of_utc(pd.Series([zone]))[0] - ahead_of_utc(offsets) if zone else np.timedelta64(0))
        if date_format != IN_UTC or not np.isnat(at).any():
            return Dates(_require_all(at, column, f" as dataset.date_format={date_format}"), date_format)
    numbers = numbers_of(column, form)
    if not (numbers.isna() & column.notna()).any():
        return _of_numbers(numbers, column)
    found = list(readings(column, groups, in_utc=date_format == IN_UTC))
    if not found:
        _require_all(parsed(column, ISO), column)
        raise DataError(f"holds {shown(column)}, which is no time{_HOW}")
    for is_good in (_rises, lambda series: step_of(series) is not None):
        good = [dates for dates in found if is_good(_split(dates.at, groups))]
        found = good or found
    if any(not np.array_equal(dates.at, found[0].at) for dates in found):
        raise DataError(_question(column, found))
    return found[0].spelt_as(column)


def zone_of(date_format: str) -> str:
    """The zone that a format of dates says, as Z or -05:00; empty for none."""
    return "Z" if date_format == IN_UTC else (_OFFSET_OF_FORMAT.findall(date_format) or [""])[0]


def _question(column: pd.Series, found: Sequence[Dates]) -> str:
    differ = np.flatnonzero(np.any([dates.at != found[0].at for dates in found], axis=0))
    ways = [
        f"{typed('dataset.date_format', dates.format)} if it is {dates.at[differ[0]].astype('M8[D]')}"
        for dates in found
    ]
    return f"holds {shown(column.iloc[differ])}, which may be read in {len(ways)} ways; type {', or '.join(ways)}"


_HOW = "; say how dates are written, as dataset.date_format=%d.%m.%Y"


def _rises(series: Sequence[np.ndarray]) -> bool:
    return all((at[1:] > at[:-1]).all() for at in series)


def _split(at: np.ndarray, groups: np.ndarray) -> list[np.ndarray]:
    return [at[groups == group] for group in np.unique(groups)]


def _holds_dates(column: pd.Series) -> bool:
    import datetime

    return column.dtype == object and all(isinstance(value, datetime.date) for value in column.dropna())


def _of_numbers(numbers: pd.Series, column: pd.Series) -> np.ndarray | Dates:
    """Numbers, or dates such as 20200131 or 202001, if all of them are within the years 1900 to 2100."""
    import pandas as pd

    values = _require_all(numbers.to_numpy(dtype=np.float64, na_value=np.nan), column)
    texts = pd.Series([f"{value:.0f}" for value in values], index=column.index)
    how = _OF_DIGITS.get(len(texts.iloc[0])) if len(texts) else None
    if how is None or (values != np.floor(values)).any() or texts.str.len().nunique() > 1:
        return values
    at = parsed(texts, how)
    is_date = (at >= np.datetime64("1900")) & (at < np.datetime64("2101"))
    if is_date.all():
        return Dates(at, how)
    if is_date.mean() > 0.5 and len(np.unique(np.diff(values))) > 1:
        raise DataError(f"holds {shown(texts[~is_date])}, which is no date, unlike the other values")
    return values


def _with_offsets(utc: pd.Series, local: pd.Series, how: str, groups: np.ndarray) -> Dates:
    """Dates in UTC, or in local time if they have one step there alone, as days with an hour less in spring, or fewer
    different hours, as months. how: the format of local time."""
    here, there = local.to_numpy("M8[us]"), utc.to_numpy("M8[us]")
    even, even_in_utc = (step_of(_split(at, groups)) is not None for at in (here, there))
    if even and (not even_in_utc or _hours(here) < _hours(there) or _hours(here) == 1):
        return Dates(here, how)
    return Dates(there, IN_UTC)


def _hours(at: np.ndarray) -> int:
    """The number of different times of the day."""
    return len(np.unique(at - at.astype("M8[D]")))


def readings(column: pd.Series, groups: np.ndarray, in_utc: bool = False) -> Iterator[Dates]:
    """The ways in which all values of a column are dates. groups: the number of the series of each row, (T,). in_utc:
    of those with an offset."""
    import pandas as pd

    if column.isna().any():
        return
    texts = column.astype(str).str.strip()
    bare, offsets = apart(column)
    for how in _candidates(bare.iloc[0]):
        if np.isnat(at := parsed(bare, how)).any():
            continue
        if in_utc:
            yield Dates(at - ahead_of_utc(offsets), IN_UTC)
        elif offsets.nunique() == 1:
            yield Dates(at, how + offsets.iloc[0])
        else:
            yield _with_offsets(pd.Series(at - ahead_of_utc(offsets)), pd.Series(at), how, groups)
        if how.startswith("%Y"):  # a date that begins with its year has one reading
            return
    if not np.isnat(at := parsed(texts, ISO)).any():
        yield Dates(at, ISO)


def apart(column: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Dates as text without their time zone, (T,), and their zones as they are written, (T,), empty for none."""
    import pandas as pd

    texts = column.astype(object).where(column.notna(), "").astype(str).str.strip()
    offsets = texts.str.extract(f"({_OFFSET.pattern})", expand=False).fillna("")
    bare = [text.removesuffix(each) for text, each in zip(texts, offsets, strict=True)]
    return pd.Series(bare, index=texts.index, dtype=object), offsets


def ahead_of_utc(offsets: pd.Series) -> np.ndarray:
    """How far clocks are ahead of UTC, (T,), timedelta64, in zones as `apart` gives them; 0 without a zone."""
    return np.asarray(
        offsets.map({each: np.timedelta64(offset(each), "us") for each in offsets.unique()}), dtype="m8[us]"
    )


def offset(text: str) -> datetime.timedelta:
    """How far clocks are ahead of UTC in a zone as it is written: +02:00, -0330, Z, UTC."""
    digits = re.sub(r"\D", "", text)
    size = datetime.timedelta(hours=int(digits[:2]), minutes=int(digits[2:])) if digits else datetime.timedelta()
    return -size if "-" in text else size


@lru_cache(maxsize=64)
def _candidates(text: str) -> list[str]:
    """The formats with which a text is a date, an hour, or both."""
    import pandas as pd

    match = _WITH_HOUR.fullmatch(text)
    day, mark, hour = match.groups() if match is not None else (text, "", "")
    days = (
        [how for how in dict.fromkeys(_formats()) if not np.isnat(parsed(pd.Series([day]), how)).any()] if day else [""]
    )
    hours = [how for how in _HOURS if not np.isnat(parsed(pd.Series([hour]), how)).any()] if hour else [""]
    return [f"{how}{mark or ''}{of_hour}" for how in days for of_hour in hours]


def parsed(column: pd.Series, how: str) -> np.ndarray:
    """Dates by a format, (T,); NaT for anything else."""
    import pandas as pd

    texts, how = column.astype(str).str.strip(), how.replace("%-", "%")
    if "%q" in how:
        pattern = (
            re.escape(how).replace("%q", "(?P<q>[1-4])").replace("%Y", r"(?P<y>\d{4})").replace("%y", r"(?P<y>\d\d)")
        )
        parts = texts.str.extract(f"^{pattern}$")
        months = pd.to_numeric(parts["q"], errors="coerce") * 3 - 2
        texts, how = parts["y"].str.cat(months.map("{:02.0f}".format), "-"), ("%Y" if "%Y" in how else "%y") + "-%m"
    elif "%V" in how and not any(day in how for day in ("%u", "%w", "%a", "%A")):
        texts, how = texts + "-1", how + "-%u"
    how = ISO if how == IN_UTC else how
    in_utc = how == ISO or "%z" in how
    found = pd.to_datetime(texts, format=how, errors="coerce", utc=in_utc)
    at: np.ndarray = (found.dt.tz_convert(None) if in_utc else found).to_numpy("M8[us]")
    return at


def _require_all(times: np.ndarray, column: pd.Series, more: str = _HOW) -> np.ndarray:
    """The times; DataError for the first value that is none."""
    if (absent := np.isnat(times) if times.dtype.kind == "M" else np.isnan(times)).any():
        first = column[absent]
        if first.isna().iloc[0]:
            raise DataError(f"row {int(first.index[0]) + 1} holds no value")
        raise DataError(f"holds {shown(first)}, which is no time{more}")
    return times
