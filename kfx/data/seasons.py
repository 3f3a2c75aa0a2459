"""The season of a series: from the calendar of its times, or from its autocorrelation."""

from __future__ import annotations

import numpy as np

from kfx.config.choices import PERIODS
from kfx.data.calendar_steps import Step, step_of
from kfx.data.windows import Trajectory

_OF_DAYS = {7.0: 52, 1.0: 7, 1 / 24: 24, 1 / 48: 48, 1 / 96: 96}
_OF_YEARS = {1 / 12: 12, 1 / 4: 4, 1 / 52: 52}
_LEAST_CORRELATION = 0.4
_AS_HIGH = 0.8
"""Of the peaks of an autocorrelation that are about as high as the highest, the first is the season: the others are its
multiples."""


def season_of(series: Trajectory) -> int:
    """The number of steps of a season, ≥ 2: 12 of months, 4 of quarters, 7 of days, 24 of hours, 52 of weeks, or the
    place of the first peak of the autocorrelation of the series' changes; 1 for none."""
    return season_of_calendar(series) or _of_autocorrelation(series.values)


def season_of_calendar(series: Trajectory) -> int:
    """Those of the calendar, 1 of uneven times, 0 where it knows none."""
    step = step_of([series.at]) if len(series) > 2 else None
    return 1 if step is None else _of_calendar(step, series.at)


def says_when(series: Trajectory) -> bool:
    """Whether times are dates, or years as numbers: others may begin anew in another series."""
    return series.dates is not None or season_of_calendar(series) > 1


_AS_LONG = 0.01


def period_of(series: Trajectory, season: int) -> float | None:
    """The time that a season of so many steps takes: that of the calendar's year, week or day, as 52 weeks are a year,
    or the mean of the series; None if it is shorter."""
    if len(series) <= season:
        return None
    mean = float((series.time[season:] - series.time[:-season]).mean())
    years = (1.0,) if season_of_calendar(series) == season else ()
    known = PERIODS.values() if series.dates is not None else years
    return next((period for period in known if abs(mean / period - 1) < _AS_LONG), mean)


def _of_calendar(step: Step, at: np.ndarray) -> int:
    if step.unit == "months":
        return 12 // int(step.count) if step.count in (1, 2, 3, 4, 6) else 0
    if step.unit == "business days":
        return 5
    years = _OF_YEARS if step.unit == "" and at[0] > 1000 and at[-1] < 3000 else {}
    known = _OF_DAYS if step.unit == "days" else years
    return next((season for count, season in known.items() if np.isclose(step.count, count, rtol=0.05)), 0)


def _of_autocorrelation(values: np.ndarray) -> int:
    """values: (T, coordinates); the autocorrelations of several are averaged. A missing value counts as the mean."""
    with np.errstate(all="ignore"):
        logarithms = np.log(values)
    changes = np.diff(values if not (values > 0).all() else logarithms, axis=0)
    there = np.isfinite(changes)
    mean = np.where(there, changes, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    changes = np.where(there, changes - mean, 0.0)
    most = len(changes) // 3
    if most < 3 or not changes.any(axis=0).all():
        return 1
    spectrum = np.abs(np.fft.rfft(changes, 2 * len(changes), axis=0)) ** 2
    products = np.fft.irfft(spectrum, axis=0)[: most + 1]
    found = (products / products[0]).mean(axis=1)
    inner = found[2:most]
    peaks = 2 + np.flatnonzero((inner > found[1 : most - 1]) & (inner >= found[3 : most + 1]))
    if not len(peaks) or found[peaks].max() < _LEAST_CORRELATION:
        return 1
    return int(peaks[found[peaks] >= _AS_HIGH * found[peaks].max()][0])
