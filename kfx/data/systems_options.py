"""Options of data sets of chaotic series: systems by their formulas, and Gilpin's benchmark."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kfx.config.choices import SYSTEMS
from kfx.config.fields import Several, number, ranged
from kfx.config.option import option
from kfx.data.series_options import SeriesData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kfx.data.windows import Trajectory


@option("dataset", "dynamics", "A trajectory of a chaotic flow or map, by its formula")
class DynamicsOption(SeriesData):
    quick = ("dataset.n_train=200", "dataset.n_test=80")

    n_train: int = number(500, "whole >= 2 and <= 100000", "number of first steps to train on")
    n_test: int = number(1000, "whole >= 1 and <= 100000", "number of steps after them to test on")
    system: str = ranged(
        "lorenz",
        f"one of {', '.join(SYSTEMS)}, or a system of the package dysts, as Aizawa",
        lambda v: isinstance(v, str) and v != "",
        "name of the system",
    )
    points_per_period: int = number(100, "whole >= 2 and <= 10000", "with a flow of dysts: number of steps in a period")
    dt: float | None = number(None, "> 0 and <= 10", "time between two points of a flow", null="the system's usual one")
    start: int = number(0, "whole >= 0", "number of the random point near the attractor from which it starts")
    gaps: int = number(
        1,
        "whole >= 1 and <= 100",
        "largest number of steps between two points; each is drawn uniformly from 1 to this (irregular sampling)",
    )

    def may_be_irregular(self) -> bool:
        return self.gaps > 1

    def trajectories(self) -> tuple[Sequence[Trajectory], Sequence[str], float | None]:
        from kfx.data import dynamics

        count = self.n_train + self.n_test
        found = _trajectory(self.system, count, self.dt, self.start, self.points_per_period, self.gaps)
        return [found], dynamics.coordinates(self.system), dynamics.exponent(self.system)


@lru_cache(maxsize=4)
def _trajectory(system: str, count: int, dt: float | None, start: int, points_per_period: int, gaps: int) -> Trajectory:
    import numpy as np

    from kfx.data import dynamics
    from kfx.data.windows import Trajectory

    rng = np.random.default_rng(start)
    kept = np.cumsum(rng.integers(1, gaps + 1, count)) - 1 if gaps > 1 else np.arange(count)
    whole = dynamics.trajectory(system, int(kept[-1]) + 1, dt, np.random.default_rng(start), points_per_period)
    return Trajectory(whole.time[kept], whole.values[kept])


@option("dataset", "gilpin", "A chaotic series of Gilpin's forecasting benchmark: 1000 steps, then 200 to forecast")
class GilpinOption(SeriesData):
    quick = ("dataset.n_train=200", "dataset.n_test=80")

    n_train: int | None = number(
        1000, "whole >= 2", "number of first steps to train on", null="all before the test steps"
    )
    n_test: int | None = number(
        200, "whole >= 1", "number of steps after them to test on", null="a fifth of the series"
    )
    system: str = ranged("Lorenz", "a system's name", lambda v: isinstance(v, str) and v != "", "name of the system")
    points_per_period: Several = ranged(100, "100 or 15", lambda v: v in (15, 100), "number of steps in a period")

    def paths(self) -> list[Path]:
        from kfx.data.series import gilpin_path

        return [gilpin_path(self.points_per_period)]

    def trajectories(self) -> tuple[Sequence[Trajectory], Sequence[str], float | None]:
        from kfx.data.series import gilpin

        return [gilpin(self.system, self.points_per_period)], ("x",), None
