"""Forecasts of real series from rolling origins, by kfx, by statistical methods, and by rivals with kfx's own choice.

Each series of `series_sets` is forecast from five origins: over two seasons, or over eight steps where there is no
season. A method is given what is known at the origin, and the season. The same with a tenth of the values missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from zlib import crc32

import numpy as np
import pandas as pd
from forecast_rivals import (
    Grid,
    after,
    backtested,
    echo_state_network,
    fitted,
    next_generation_reservoir,
    no_window,
    transformed,
    window_of_delays,
)
from forecast_rows import Task, table
from series_sets import filled, names, series
from table_page import ENOUGH

from kfx import KernelFlowForecaster

COLUMNS = ("series", "origin", "method", "mase", "worst", "coverage", "seconds")
ORIGINS, STEPS, LEVEL, MISSING = 5, 8, 0.95, 0.1
Found = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]
"""A forecast, and the lower and upper ends of its 95 % intervals, if the method has them: (steps,) each."""
Method = Callable[[np.ndarray, int, int], Found]
"""Maps the known values, (T,), a number of steps and the season, 1 for none, to a forecast."""


def kfx(**settings: object) -> Method:
    def run(known: np.ndarray, steps: int, season: int) -> Found:
        return KernelFlowForecaster(steps=steps, season=season, **settings).fit(known).predict(steps, interval=LEVEL)

    return run


def statistical(model: str) -> Method:
    """A model of the package statsforecast, which chooses its form and parameters by itself."""

    def run(known: np.ndarray, steps: int, season: int) -> Found:
        from statsforecast import models

        settings = {"season_length": season}
        if model == "AutoARIMA":  # as auto.arima of R decides
            settings["approximation"] = len(known) > 150 or season > 12
        percent = round(100 * LEVEL)
        found = getattr(models, model)(**settings).forecast(y=known, h=steps, level=[percent])
        return found["mean"], found[f"lo-{percent}"], found[f"hi-{percent}"]

    return run


def theta(known: np.ndarray, steps: int, season: int) -> Found:
    """The Theta method of the package statsmodels, whose test finds the season of short series too."""
    from statsmodels.tsa.forecasting.theta import ThetaModel

    fitted = ThetaModel(known, period=season, deseasonalize=season > 1).fit()
    low, high = fitted.prediction_intervals(steps, alpha=1 - LEVEL).to_numpy().T
    return fitted.forecast(steps).to_numpy(), low, high


def seasonal_naive(known: np.ndarray, steps: int, season: int) -> Found:
    return np.resize(known[-season:], steps), None, None


def by_backtest(grid: Callable[[int], Grid]) -> Method:
    """Forecasts with the setting that is best in kfx's backtest, among transformations of the series too.

    grid: of a season. Logarithms are offered for positive series, and windows of which the backtest has room for two
    beside a block.
    """

    def run(known: np.ndarray, steps: int, season: int) -> Found:
        fit, settings, penalties, reach_of = grid(season)
        logs, reach = (0, 1) if known.min() > 0 else (0,), after(reach_of)
        offered = [(*each, *setting) for each in product(logs, sorted({0, 1, season})) for setting in settings]
        offered = [setting for setting in offered if reach(setting) <= 0.4 * len(known) - 1]
        rollout, _ = fitted((transformed(fit), offered, penalties, reach), known[:, None], steps, backtested)
        return rollout(known[:, None], steps)[0, :, 0], None, None

    return run


def of_delays(season: int) -> Grid:
    """Few delays with their products, or a season of them without."""
    settings = [*product((1, 2, 4), (1,), (1, 2)), (season + 1, 1, 1)]
    return next_generation_reservoir, settings, (1e-3, 0.1, 1.0, 10.0, 100.0), window_of_delays


def of_reservoirs(season: int) -> Grid:
    settings = list(product((0.6, 1.2), (0.3, 1.0), (0.3,)))
    return echo_state_network, settings, (1e-3, 0.1, 1.0, 10.0, 100.0), no_window


METHODS: dict[str, Method] = {
    "kfx": kfx(),
    "kfx, then trained by rho": kfx(objective="rho", optimizer={"name": "adam", "iterations": 100}),
    "seasonal naive": seasonal_naive,
    "Theta": theta,
    "ETS": statistical("AutoETS"),
    "ARIMA": statistical("AutoARIMA"),
    "NG-RC": by_backtest(of_delays),
    "echo state network": by_backtest(of_reservoirs),
}
FILLED = "kfx, gaps filled"
"""kfx on a series whose gaps are filled as for the other methods."""
WITH_GAPS = ("kfx", FILLED, "seasonal naive", "Theta", "ETS", "NG-RC")
"""The methods on series with gaps."""


def horizon(season: int) -> int:
    return 2 * season if season > 1 else STEPS


def origins(count: int, steps: int) -> list[int]:
    """Five first steps of forecasts, evenly over the last third of a series, or over its last one and a half horizons
    where these are longer."""
    last = count - steps
    return [int(at) for at in np.linspace(min(2 * count // 3, last - steps // 2), last, ORIGINS)]


def with_gaps(name: str, values: np.ndarray) -> np.ndarray:
    """The values, (T,), of a series, of which a tenth are missing: NaN."""
    missing = np.random.default_rng(crc32(name.encode())).random(len(values)) < MISSING
    return np.where(missing, np.nan, values)


def measured(name: str, origin: int, method: str, has_gaps: bool) -> dict[str, object]:
    """The cells of a method's row. has_gaps: some of the known values are missing, and filled but for kfx.

    mase: the mean absolute error in units of that of the seasonal naive forecast of the next step, on the known part.
    worst: the largest error in units of the seasonal naive forecast's. coverage: the share of the values that lie in
    the 95 % intervals. All three are of the whole series.
    """
    own = series(name)
    known, truth = own.values[:origin], own.values[origin : origin + horizon(own.season)]
    given = with_gaps(name, own.values)[:origin] if has_gaps else known
    given = given if method == "kfx" else filled(given)
    forecast, low, high = METHODS["kfx" if method == FILLED else method](given, len(truth), own.season)
    errors = np.nan_to_num(np.abs(forecast - truth), nan=np.inf)
    scale = np.abs(known[own.season :] - known[: -own.season]).mean()
    naive = np.abs(seasonal_naive(known, len(truth), own.season)[0] - truth).max()
    inside = "" if low is None else float(((low <= truth) & (truth <= high)).mean())
    return {"mase": float(errors.mean() / scale), "worst": float(errors.max() / naive), "coverage": inside}


def tasks(of: Iterable[str], methods: Iterable[str], has_gaps: bool) -> Iterator[Task]:
    for name in of:
        own = series(name)
        for origin in origins(len(own.values), horizon(own.season)):
            for method in methods:
                yield (name, origin, method), lambda n=name, o=origin, m=method: measured(n, o, m, has_gaps)


def rows(of: Iterable[str], file: str = "real") -> pd.DataFrame:
    """The rows of the series and origins that all methods have. Methods with few rows are left out."""
    found = table(file, COLUMNS)
    found = found[found["series"].isin(list(of))]
    of_method = found.groupby("method")["mase"].transform("count")
    found = found[of_method >= ENOUGH * of_method.max()]
    counts = found.groupby(["series", "origin"])["method"].transform("nunique")
    return found[counts == found["method"].nunique()]


def errors(of: Iterable[str], file: str = "real") -> pd.DataFrame:
    """The mean over origins of each method's MASE: series × methods."""
    return rows(of, file).pivot_table(index="series", columns="method", values="mase")


def geometric(found: pd.DataFrame) -> pd.Series:
    """The geometric mean over series."""
    return np.exp(np.log(found).mean())


def summary(kind: str, file: str = "real") -> pd.DataFrame:
    """Geometric mean MASE over the series, mean rank, series on which kfx is better, the largest error, how many
    forecasts have more than ten times seasonal naive's, the mean coverage, and seconds a forecast."""
    own = rows(names(kind), file)
    found, each = errors(names(kind), file), own.groupby("method")
    columns = {"MASE": geometric(found), "mean rank": found.rank(axis=1).mean()}
    if "kfx" in found:
        columns["kfx is better on"] = found.gt(found["kfx"], axis=0).sum()
    columns |= {
        "worst": each["worst"].max(),
        "beyond 10": each["worst"].apply(lambda worst: int((worst > 10).sum())),
        "coverage": each["coverage"].mean(),
        "seconds": each["seconds"].mean(),
    }
    return pd.DataFrame(columns).sort_values("MASE")
