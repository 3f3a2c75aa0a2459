"""Forecasts of a recorded run that go on from other values of its series."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfx.data.calendar_steps import Step, sizes
from kfx.data.row_file_options import changes
from kfx.data.series import require_regular
from kfx.data.series_file import Rows, read
from kfx.data.series_options import OwnSeriesOption
from kfx.data.times import Dates
from kfx.data.windows import SeriesParts, Trajectory
from kfx.estimators.recorded import Model
from kfx.evaluation.ensemble import onwards, with_others
from kfx.evaluation.rollout_option import other_members
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd

_USUAL_STEPS = 100


def forecast_onwards(model: Model, path: Path, steps: int | None) -> pd.DataFrame:
    """Forecast `steps` values after the last row of each series in a file: `series`, `step`, `time`, a column for
    each coordinate, and `low` and `high`, the ends of the interval of 95 %, of several coordinates each `low.<name>`.
    If a coordinate is called as another column, all are `forecast.<name>`, `low.<name>` and `high.<name>`.

    The file has the columns of the run's own series, or a column for each coordinate of a system. steps: None for 100.
    Times go on as those of the run, and are written as the file writes them. DataError for a file that cannot be read,
    or a series with fewer values in a row than a window of the run needs, or other steps than the run's.
    """
    import pandas as pd

    dataset, parts = model.config.dataset, model.data.series
    assert parts is not None
    windows, count = parts.windows, steps or _USUAL_STEPS
    if isinstance(dataset, OwnSeriesOption):
        found, _ = dataset.series_of(path, parts.coordinates)
    else:
        found, _ = read(changes(path), Rows(parts.coordinates))  # of a system, without times: those of the run's steps
        found = [replace(series, time=series.time * windows.unit) for series in found]
    step = _step(dataset, parts)
    others, deviations = other_members(model.config)

    def predicted(x: np.ndarray) -> np.ndarray:
        return np.asarray(model.predictor(x)[0] / windows.scale)

    members = with_others(windows, predicted, others, parts.train)
    tables = []
    for number, series in enumerate(found):
        where = f"{path}" + (f", series {series.name or number}" if len(found) > 1 else "")
        least = max(windows.reach, 2)
        last = _evenly_last(series, step, least, where)
        if step is not None and any(member.windows.periods for member in members):
            _require_place(last, step, parts.train[0], where)
        mean = Step("" if last.dates is None else "days", windows.unit)
        time, at = last.ahead(step or mean, count)
        written = at.tolist() if last.dates is None else Dates(at, last.dates.format).written()
        try:
            values = onwards(members, last, time)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        intervals = () if deviations is None else deviations.interval(values, late=windows.late(last.values))
        columns = _columns(parts.coordinates, len(intervals) > 0)
        found_at = {"series": series.name or number, "step": np.arange(1, count + 1), "time": written}
        of_all = dict(zip(columns, np.concatenate([values, *intervals], axis=1).T, strict=True))
        tables.append(pd.DataFrame(found_at | of_all))
    return pd.concat(tables, ignore_index=True)


def _columns(coordinates: Sequence[str], have_ends: bool) -> list[str]:
    """The columns of the forecasts, of their lower and of their upper ends."""
    several = len(coordinates) > 1
    ends = [f"{end}.{name}" if several else end for end in ("low", "high") for name in coordinates] if have_ends else []
    found = [*coordinates, *ends]
    if len({"series", "step", "time", *found}) == len(found) + 3:
        return found
    return [f"{kind}.{name}" for kind in ("forecast", "low", "high")[: 3 if have_ends else 1] for name in coordinates]


def _step(dataset: Any, parts: SeriesParts) -> Step | None:
    """The step of the run's series; None where it is irregular, or its file has no times."""
    if not getattr(dataset, "time", None) or dataset.elapsed:
        return None
    return require_regular([parts.whole(i) for i in range(len(parts.train))])


def _require_place(series: Trajectory, step: Step, own: Trajectory, where: str) -> None:
    """DataError for months with another day than the run's: they may be a month off."""
    if not step.is_placed_as(series.at, own.at):
        first, expected = series.written()[0], own.written()[0]
        said = "windows of the run see the place in the season, so that dates have to have the same day of the month"
        raise DataError(f"{where}: has {first}, where the run has {expected}; {said}")


def _evenly_last(series: Trajectory, step: Step | None, least: int, where: str) -> Trajectory:
    """The last rows of a series that have the run's step; DataError if these are fewer than `least` and than all."""
    if step is None:
        return series
    last = series[-least:]
    if not step.fits(last.at):
        found = sizes(last.at)
        unit = "" if last.dates is None else " days"
        said = f"its last {len(last)} rows have steps from {found.min():g} to {found.max():g}{unit}"
        raise DataError(f"{where}: {said}; expected those of the run, {step}")
    first = bisect.bisect_left(range(len(series) - len(last)), True, key=lambda row: step.fits(series.at[row:]))
    return series[first:]
