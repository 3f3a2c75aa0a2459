"""Forecasts of Gilpin's benchmark of chaotic series: clean, with noise, and with gaps.

The series are read from KFX_DATA_DIR/dysts, with the stored predictions of sixteen methods for the clean ones. The
first five sixths of a series are known, and the rest is forecast. Everything is chosen on the known part.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from zlib import crc32

import numpy as np
import pandas as pd
from forecast_rivals import RIVALS, Forecast
from forecast_rows import Task, table
from series_sets import filled
from table_page import ENOUGH

from kfx import KernelFlowForecaster, KernelFlowRegressor
from kfx.data.backtest import Predictor
from kfx.data.files import cache_folder
from kfx.data.series import gilpin, gilpin_systems
from kfx.data.windows import Trajectory, Windows, smape
from kfx.kernels import RBF

COLUMNS = ("points", "system", "method", "smape", "lags", "seconds", "valid")
KNOWN, PERIODS = 5 / 6, 12
TRAINED = {"optimizer": {"name": "adam", "fall_back": False}}
NOISE, MISSING = 0.05, 0.1
"""The deviation of the noise in deviations of the known values, and the share of these that is missing."""


def kfx(**settings: object) -> Forecast:
    def run(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
        fitted = KernelFlowForecaster(steps=steps, **settings).fit(known)
        return fitted.predict(steps), fitted.windows_.lags

    return run


def trained(objective: str) -> Forecast:
    """The kernel of the best setting is trained, and kept if its backtest improves."""
    return kfx(objective=objective, optimizer={"name": "adam", "iterations": 100})


def one_step(objective: str | None, lags: int = 30) -> Forecast:
    """Windows of `lags` values, and a kernel whose length and λ come from errors of the next step alone.

    objective: trains the length; None for the median distance of two windows. Leave-one-out errors choose λ.
    """

    def run(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
        series = Trajectory(np.arange(len(known), dtype=float), known[:, None])
        windows = Windows(min(lags, len(known) // 5)).fitted([series])
        x, y, _ = windows.cut(series)
        kernel = {"name": "rbf", "ard": False, "initial": "median_distance"}
        train = (
            {"optimizer": {"name": "none", "iterations": 1}}
            if objective is None
            else TRAINED | {"objective": objective}
        )
        fitted = KernelFlowRegressor(kernel, scale=None, **train, device={"name": "cpu", "threads": 1}).fit(x, y[:, 0])
        history = known[None, -windows.reach :, None]
        forecast = windows.forecast(lambda at: fitted.predict(at)[:, None], history, np.zeros((1, 10**4)), steps)
        return forecast[0, :, 0], windows.lags

    return run


def whole_rollout(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
    """Sixty lags, a length of twice their median distance, λ = 1e-10: nothing is chosen."""
    series = Trajectory(np.arange(len(known), dtype=float), known[:, None])
    windows = Windows(min(60, len(known) // 5)).fitted([series])
    x, y, _ = windows.cut(series)
    kernel = RBF(2 * float(np.median(np.linalg.norm(x[::7, None] - x[None, ::7], axis=2))))
    solved = np.linalg.solve(kernel.gram(x) + 1e-10 * np.eye(len(x)), y)
    predict = Predictor(kernel, x, solved)
    forecast = windows.forecast(predict, known[None, -windows.reach :, None], np.zeros((1, 10**4)), steps)
    return forecast[0, :, 0], windows.lags


METHODS: dict[str, Forecast] = {
    "kfx": kfx(),
    "kfx, then trained by rho": trained("rho"),
    "nothing chosen": whole_rollout,
    "one step: untrained": one_step(None),
    "one step: rho": one_step("rho"),
    "one step: e2": one_step("interpolation_error"),
    "one step: nll": one_step("nll"),
    **RIVALS,
}
OWN = [name for name in METHODS if name not in RIVALS]
"""The methods that are kfx's."""
BESIDE = ("kfx", *RIVALS)
"""The methods on series with noise or gaps."""
FILLED = "kfx, gaps filled"
"""kfx on a series whose gaps are filled as for the other methods."""


def series_of(name: str, system: str, points: int) -> tuple[np.ndarray, np.ndarray]:
    """The known values and those to forecast.

    name: gilpin, or with `noisy` white noise on the known values, or with `gaps` a tenth of the known values missing,
    as NaN: half of these singly, half in runs of a hundredth of the known values. The last quarter is whole, and longer
    than any window.
    """
    values = gilpin(system, points).values[:, 0]
    count = round(KNOWN * len(values))
    known, truth = values[:count].copy(), values[count:]
    rng = np.random.default_rng(crc32(system.encode()))
    if name == "noisy":
        known += rng.normal(0, NOISE * known.std(), count)
    if name == "gaps":
        known[places_of_gaps(count, rng)] = np.nan
    return known, truth


def places_of_gaps(count: int, rng: np.random.Generator) -> np.ndarray:
    """A tenth of the places 0, 1, … count − 1, rising."""
    run, early = max(count // 100, 2), count * 3 // 4
    missing = np.zeros(count, dtype=bool)
    while missing.sum() < MISSING * count / 2:
        start = rng.integers(early - run)
        missing[start : start + run] = True
    more = round(MISSING * count) - missing.sum()
    missing[rng.choice(np.flatnonzero(~missing[:early]), max(more, 0), replace=False)] = True
    return np.flatnonzero(missing)


def score(forecast: np.ndarray, truth: np.ndarray, deviation: float, points: int) -> tuple[float, float]:
    """The sMAPE, and the valid time: the periods until the error first exceeds 0.4 deviations of the known values."""
    wrong = ~(np.abs(forecast - truth) <= 0.4 * deviation)  # NaN is wrong
    return float(smape(forecast[:, None], truth[:, None])), (wrong.argmax() if wrong.any() else len(truth)) / points


@lru_cache(maxsize=1)
def stored(points: int) -> dict[str, dict[str, tuple[float, float]]]:
    """The sMAPE and valid time of the stored forecasts, by system and method."""
    path = cache_folder() / "dysts" / f"results_test_univariate__pts_per_period_{points}__periods_12.json.gz"
    with gzip.open(path) as stream:
        found = json.load(stream)
    scores: dict[str, dict[str, tuple[float, float]]] = {}
    for system, own in found.items():
        truth, deviation = np.ravel(own["values"]), float(series_of("gilpin", system, points)[0].std())
        for method, each in own.items():
            if method != "values":
                forecast = np.ravel(each["prediction"])[: len(truth)]
                scores.setdefault(system, {})[method] = score(forecast, truth[: len(forecast)], deviation, points)
    return scores


def systems(points: int) -> list[str]:
    return [system for system in gilpin_systems(points) if system in stored(points)]


def is_kept_back(system: str) -> bool:
    """Whether nothing was chosen on the noisy series of a system: 13 of the 131, by a hash of the name."""
    return int(sha256(system.encode()).hexdigest(), 16) % 7 == 0


def tasks(name: str, of: Iterable[str], methods: Iterable[str], points: int) -> Iterator[Task]:
    """The rows of some systems: of the stored forecasts, if the series are clean, and of methods."""
    for system in of:
        for method, (error, valid) in stored(points)[system].items() if name == "gilpin" else ():
            yield (points, system, method), {"smape": error, "seconds": "", "valid": valid}.copy
        for method in methods:
            yield (points, system, method), lambda s=system, m=method: measured(name, s, m, points)


def measured(name: str, system: str, method: str, points: int) -> dict[str, object]:
    """The cells of a method's row. Gaps are filled, but for kfx."""
    known, truth = series_of(name, system, points)
    deviation = float(np.nanstd(known))
    run = METHODS["kfx" if method == FILLED else method]
    forecast, lags = run(known if method in OWN else filled(known), len(truth))
    # the benchmark scores all values but the last
    error, valid = score(forecast[:-1], truth[:-1], deviation, points)
    return {"smape": error, "lags": lags, "valid": valid}


def errors(name: str, points: int, kept_back: bool | None = None) -> pd.DataFrame:
    """The sMAPE of each method on the systems that all methods have: systems × methods. Methods with few rows are left
    out.

    kept_back: the systems that are kept back, or those that are not; None for all.
    """
    rows = table(name, COLUMNS).query("points == @points")
    rows = rows if kept_back is None else rows[rows["system"].map(is_kept_back) == kept_back]
    found = rows.pivot_table(index="system", columns="method", values="smape")
    return found.loc[:, found.count() >= ENOUGH * found.count().max()].dropna()


def summary(name: str, points: int, kept_back: bool | None = None) -> pd.DataFrame:
    """Median and mean sMAPE, mean rank, systems on which kfx is better, mean valid time, where all methods have it, and
    seconds a system."""
    found = errors(name, points, kept_back)
    each = table(name, COLUMNS).query("points == @points and system in @found.index").groupby("method")
    columns = {"median sMAPE": found.median(), "mean sMAPE": found.mean(), "mean rank": found.rank(axis=1).mean()}
    if "kfx" in found:
        columns["kfx is better on"] = found.gt(found["kfx"], axis=0).sum()
    if each["valid"].count()[found.columns].ge(len(found)).all():
        columns["valid time"] = each["valid"].mean().reindex(found.columns)
    columns["seconds"] = each["seconds"].mean().reindex(found.columns)
    return pd.DataFrame(columns).sort_values("mean rank")
