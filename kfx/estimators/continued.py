"""Forecasts of a recorded run that go on from other values of its series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kfx.data.own_options import changes
from kfx.data.series import read
from kfx.estimators.recorded import Model
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd

_USUAL_STEPS = 100


def forecast_onwards(model: Model, path: Path, steps: int | None) -> pd.DataFrame:
    """Forecast `steps` values after the last row of each series in a file: `series`, `step`, `time` and a column for
    each coordinate.

    The file has the columns of the run's own series, or a column for each coordinate of a system. steps: None for 100.
    The time goes on by the mean step. DataError for a file that cannot be read, or a series that is too short or has a
    missing value among its last ones.
    """
    import pandas as pd

    dataset, parts = model.config.dataset, model.data.series
    assert parts is not None
    windows, count = parts.windows, steps or _USUAL_STEPS
    columns = [getattr(dataset, name, usual) for name, usual in (("time", None), ("series", None), ("separator", ","))]
    found, _ = read(changes(path), parts.coordinates, *columns)
    tables = []
    for number, series in enumerate(found):
        where = f"{path}" + (f", series {number}" if len(found) > 1 else "")
        last = series[-windows.reach :]
        if len(last) < windows.reach or not np.isfinite(last.values).all():
            raise DataError(f"{where}: its last {windows.reach} values must be there, a window of the run")
        step = float(np.diff(series.time).mean()) if len(series) > 1 else 1.0
        time = np.concatenate([last.time, last.time[-1] + step * np.arange(1, count + 1)])

        def predicted(x: np.ndarray) -> np.ndarray:
            return np.asarray(model.estimator._predicted(x, False)[0] / windows.scale)

        values = windows.forecast(predicted, last.values[None], time[None], count)[0]
        table = pd.DataFrame(values, columns=list(parts.coordinates))
        table.insert(0, "time", time[-count:])
        table.insert(0, "step", np.arange(1, count + 1))
        table.insert(0, "series", number)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
