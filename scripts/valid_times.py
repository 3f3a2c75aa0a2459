"""Valid times of kfx's default and of NG-RC from many origins, all coordinates given: Lorenz' system as it is, and two
maps with noise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
from forecast_rivals import Grid, backtested, fitted, next_generation_reservoir, window_of_delays

from kfx import KernelFlowForecaster
from kfx.data.dynamics import exponent, trajectory

ORIGINS = 20
TOLERANCE = 0.4
"""A forecast is valid until its root mean squared error over the coordinates, in deviations of the known values, first
exceeds this."""
SYSTEMS = {
    "lorenz": (400, 0.025, 0.0, 600, 100),
    "henon": (1000, 1.0, 0.05, 20, 20),
    "ikeda": (1000, 1.0, 0.05, 20, 20),
}
"""Known points, time between two, the deviation of the noise in deviations of the known values, steps of a forecast,
and steps between origins."""
NG_RC: Grid = (
    next_generation_reservoir,
    [(1, 1, degree) for degree in (2, 3, 4)] + list(product((2, 4), (1, 2), (2, 3, 4))),
    (1e-9, 2.5e-6, 1e-4, 1e-2, 1.0, 100.0),
    window_of_delays,
)
"""Two delays, products of two and a ridge of 2.5e-6 are what Gauthier et al. 2021 take for Lorenz' system."""
Run = Callable[[np.ndarray], np.ndarray]
"""Maps the values before an origin, (T, coordinates), to a forecast, (steps, coordinates)."""


def valid_times(system: str, seed: int = 0) -> pd.DataFrame:
    """The valid time of each method, in steps, from each origin; their medians and means in the last rows.

    Noise is on all values that a method sees, and not on those that forecasts are compared with.
    """
    count, dt, noise, steps, apart = SYSTEMS[system]
    rng = np.random.default_rng(seed)
    truth = trajectory(system, count + apart * (ORIGINS - 1) + steps, dt, rng).values
    scale = truth[:count].std(axis=0)
    seen = truth + noise * scale * rng.normal(size=truth.shape)
    runs = methods(seen[:count], steps)
    found = pd.DataFrame(index=range(count, count + apart * ORIGINS, apart), columns=list(runs), dtype=float)
    for at in found.index:
        for name, run in runs.items():
            with np.errstate(over="ignore"):  # a forecast that leaves every range
                error = np.sqrt((((run(seen[:at]) - truth[at : at + steps]) / scale) ** 2).mean(axis=1))
            wrong = ~(error <= TOLERANCE)  # NaN is wrong
            found.loc[at, name] = wrong.argmax() if wrong.any() else steps
    return found


def methods(known: np.ndarray, steps: int) -> dict[str, Run]:
    kfx = KernelFlowForecaster(steps=steps).fit(known)  # NG-RC's choice knows the horizon too
    rollout, setting = fitted(NG_RC, known, steps, backtested)
    print(f"kfx: {kfx.windows_.lags} lags, λ {kfx.regularization_:g}. NG-RC: {setting}")
    return {
        "kfx": lambda past: kfx.predict(steps, series=past),
        "NG-RC": lambda past: rollout(past, steps)[0],
    }


def in_words(system: str) -> str:
    """Medians and means over the origins, in steps and in Lyapunov times."""
    found = valid_times(system)
    per_step = SYSTEMS[system][1] * (exponent(system) or 1.0)
    told = pd.DataFrame({"median": found.median(), "mean": found.mean()})
    told[["median, Lyapunov times", "mean, Lyapunov times"]] = told * per_step
    return f"{system}: {len(found)} origins, steps until the error exceeds {TOLERANCE:g} deviations\n{told.round(2)}"
