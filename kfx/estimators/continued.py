"""Forecasts of a recorded run that go on from other values of its series."""

from __future__ import annotations

import bisect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfx.data.row_file_options import changes
from kfx.data.series import require_regular
from kfx.data.series_file import Rows, read
from kfx.data.series_options import OwnSeriesOption
from kfx.data.times import Dates, Step, sizes
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
        mean = Step("" if last.dates is None else "days", windows.unit)
        time, at = last.ahead(step or mean, count)
        written = at.tolist() if last.dates is None else Dates(at, last.dates.format).written()
        try:
            values = onwards(members, last, time)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        table = pd.DataFrame(values, columns=list(parts.coordinates))
        if deviations is not None:
            intervals = deviations.interval(values, late=windows.late(last.values))
            for end, ends in zip(("low", "high"), intervals, strict=True):
                for name, own in zip(parts.coordinates, ends.T, strict=True):
                    table[f"{end}.{name}" if len(parts.coordinates) > 1 else end] = own
        table.insert(0, "time", written)
        table.insert(0, "step", np.arange(1, count + 1))
        table.insert(0, "series", series.name or number)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _step(dataset: Any, parts: SeriesParts) -> Step | None:
    """The step of the run's series; None where it is irregular, or its file has no times."""
    if not getattr(dataset, "time", None) or dataset.elapsed:
        return None
    return require_regular([parts.whole(i) for i in range(len(parts.train))])


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
