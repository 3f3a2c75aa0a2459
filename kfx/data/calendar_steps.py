"""The calendar's step from one time of a series to the next: a number of months, days or business days."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

DAY, _MONTH = np.timedelta64(1, "D"), np.timedelta64(1, "M")


@dataclass(frozen=True)
class Step:
    """The time from one row of a series to the next: a number of `months`, `days` or `business days`, or, without a
    unit, of times that are numbers."""

    unit: str
    count: float

    def __str__(self) -> str:
        return f"{self.count:g} {self.unit.removesuffix('s') if self.count == 1 else self.unit}".rstrip()

    def fits(self, at: np.ndarray) -> bool:
        """Whether each time is one step after the one before. at: (T,), dates or numbers."""
        if (at.dtype.kind == "M") != (self.unit != ""):
            return False
        if self.unit == "business days":
            days = at.astype("M8[D]")
            same_hour = len(np.unique(at - days)) == 1
            return same_hour and bool(np.is_busday(days).all() and (np.busday_count(days[:-1], days[1:]) == 1).all())
        if self.unit == "months":
            return bool((np.diff(_months(at)) == self.count).all()) and _place_in_month(at) is not None
        if (np.abs(sizes(at) - self.count) <= 5e-4 * self.count).all():
            return True
        return self.unit == "" and _are_rounded(at, self.count)

    def is_placed_as(self, at: np.ndarray, others: np.ndarray) -> bool:
        """Whether months have the place of others, (T,) each, in their month, but for few days, and their quarter."""
        if self.unit != "months" or (place := _place_in_month(others)) is None:
            return self.unit != "months"
        is_near = np.abs(place(at.astype("M8[M]")) - at) <= _FEW_DAYS * DAY
        return bool(is_near.all() and (_months(at[:1]) - _months(others[:1])) % self.count == 0)

    def onwards(self, at: np.ndarray, count: int) -> np.ndarray:
        """The next `count` times after the last of `at`, (count,)."""
        ahead, last = np.arange(1, count + 1), at[-1]
        if self.unit == "":
            return last + self.count * ahead
        if self.unit == "days":
            return last + (ahead * self.count * 86_400e6).round().astype("m8[us]")
        if self.unit == "business days":
            return np.busday_offset(last.astype("M8[D]"), ahead, roll="forward") + (last - last.astype("M8[D]"))
        place = _place_in_month(at)
        assert place is not None
        return place((last.astype("M8[M]") + ahead * int(self.count) * _MONTH).astype("M8[M]"))


def _are_rounded(at: np.ndarray, step: float) -> bool:
    """Whether numbers are the multiples of a step, rounded: 1958.083, 1958.167, 1958.25, … are a twelfth apart."""
    digits = next((k for k in range(7) if np.allclose(at, at.round(k), rtol=0, atol=1e-9)), 9)
    error = np.abs(at - at[0] - step * np.arange(len(at))).max()
    return bool(error <= 10.0**-digits <= 0.05 * step)


def sizes(at: np.ndarray) -> np.ndarray:
    """The steps of times, (T − 1,), of dates in days."""
    return np.asarray(np.diff(at) / (DAY if at.dtype.kind == "M" else 1.0))


def _months(at: np.ndarray) -> np.ndarray:
    return at.astype("M8[M]").astype(int)


def _place_in_month(at: np.ndarray) -> Callable[[np.ndarray], np.ndarray] | None:
    """How months, (m,), become dates with the same place in their month as these have: the last day, the same day, or
    the last one if the month is shorter; the first or the last business day."""
    months, days = at.astype("M8[M]"), at.astype("M8[D]")
    place, length = (days - months).astype(int), _length(months)
    hour, day = at[-1] - days[-1], 30 if (place == length - 1).all() else place.max()
    if len(np.unique(at - days)) == 1 and (place == np.minimum(day, length - 1)).all():
        return lambda m: m.astype("M8[D]") + np.minimum(day, _length(m) - 1) + hour
    if (place < _FEW_DAYS).all():
        return lambda m: np.busday_offset(m.astype("M8[D]"), 0, roll="forward") + hour
    if (length - place <= _FEW_DAYS).all():
        return lambda m: np.busday_offset((m + _MONTH).astype("M8[D]"), -1, roll="forward") + hour
    return None


_FEW_DAYS = 5
"""The first or last business day of a month is within so many days of its start or end, holidays included."""


def _length(months: np.ndarray) -> np.ndarray:
    """The numbers of days of months."""
    return ((months + _MONTH).astype("M8[D]") - months.astype("M8[D]")).astype(int)


def step_of(series: Sequence[np.ndarray]) -> Step | None:
    """The one step of all series of times, (T,) each; None if there is none."""
    longest = max(series, key=len)
    if longest.dtype.kind != "M":
        means = [np.median(sizes(longest)), sizes(longest).mean()] if len(longest) > 1 else [1.0]
        offered = [Step("", float(mean)) for mean in means]
    elif len(longest) < 2:
        offered = [Step("days", 1)]
    else:
        months = int(np.diff(_months(longest[:2]))[0])
        offered = [Step("months", months)] if months > 0 else []
        offered += [Step("days", float(np.median(sizes(longest)))), Step("business days", 1)]
    return next((step for step in offered if all(step.fits(at) for at in series)), None)
