"""Data sets of series: files of one's own and of a benchmark, cut into windows and split in time."""

from __future__ import annotations

import difflib
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kfx.data.calendar_steps import Step, sizes, step_of
from kfx.data.dataset import Dataset
from kfx.data.files import cache_folder, require_file, warn_once
from kfx.data.windows import SeriesParts, Trajectory, Windows
from kfx.outcomes import DataError

GILPIN = "series of Gilpin 2021's forecasting benchmark, from github.com/williamgilpin/dysts, folder dysts/data"


def split(
    trajectories: Sequence[Trajectory], n_train: int | None, n_test: int | None, fraction: float
) -> tuple[tuple[Trajectory, ...], tuple[Trajectory, ...]]:
    """Split each series in time: its first `n_train` steps, or all before the test steps, and the `n_test` after them,
    or a last `fraction`. DataError if one is too short."""
    train, test = [], []
    for each in trajectories:
        tested = max(round(fraction * len(each)), 1) if n_test is None else n_test
        trained = len(each) - tested if n_train is None else n_train
        if len(each) < 3:
            raise DataError(f"a series has {len(each)} steps in all; at least 3 are needed")
        if trained < 2 or trained + tested > len(each):
            sizes = {"n_train": n_train, "n_test": n_test}
            asked = ", ".join(f"dataset.{key}={size}" for key, size in sizes.items() if size is not None)
            raise DataError(f"{asked or 'dataset'}: a series has {len(each)} steps in all; ask for fewer")
        train.append(each[:trained])
        test.append(each[trained : trained + tested])
    return tuple(train), tuple(test)


def as_dataset(
    name: str,
    windows: Windows,
    train: Sequence[Trajectory],
    test: Sequence[Trajectory],
    coordinates: Sequence[str],
    exponent: float | None,
) -> Dataset:
    """Cut windows from both parts. The windows of the test part lie wholly in it, so that a gap of one window separates
    their targets from those of training. DataError if a part has none."""
    fitted = windows.fitted(train)
    parts = []
    for what, series in (("training", train), ("test", test)):
        cut = [fitted.cut(each) for each in series if len(each) > fitted.reach]
        x, y = (np.concatenate(kind) for kind in list(zip(*cut, strict=True))[:2]) if cut else (np.empty((0, 1)),) * 2
        if len(x) < (2 if what == "training" else 1):
            longest, least = max(map(len, series)), "two windows" if what == "training" else "window"
            raise DataError(
                f"dataset {name}: the {what} series of {longest} steps hold no {least} of "
                f"{fitted.reach} steps and their target without a missing value; take fewer lags, or more steps"
            )
        parts += [x, y * fitted.scale]
    x_train, y_train, x_test, y_test = parts
    if fitted.differences.logarithm:
        said = "; those of forecasts, as smape and r2, are of values"
        warn_once(f"dataset {name}: errors of one step, as mse, mae and nlpd, are of {fitted.differences}", said)
    features = fitted.names(coordinates)
    whole = SeriesParts(fitted, tuple(train), tuple(test), tuple(coordinates), exponent)
    return Dataset(name, x_train, y_train, x_test, y_test, features=features, series=whole)


def require_windows(windows: Windows, test: Sequence[Trajectory]) -> int:
    """The number of windows in the test series; DataError if there are none."""
    if count := sum(len(windows.cut(each)[0]) for each in test):
        return count
    raise DataError(
        f"dataset.lags={windows.lags}: the test series of {max(map(len, test))} steps hold no window of "
        f"{windows.reach} steps and their target; take fewer lags, or more test steps"
    )


def with_noise(trajectories: Sequence[Trajectory], noise: float, rng: np.random.Generator) -> list[Trajectory]:
    """The series with normal noise added, `noise` times each coordinate's standard deviation."""
    found = []
    for each in trajectories:
        scale = noise * np.nanstd(each.values, axis=0)
        found.append(replace(each, values=each.values + scale * rng.standard_normal(each.values.shape)))
    return found


def require_regular(trajectories: Sequence[Trajectory]) -> Step:
    """The one step of all series; DataError if there is none."""
    if (step := step_of([each.at for each in trajectories])) is not None:
        return step
    found, after = uneven(trajectories)
    are_numbers = trajectories[0].dates is None
    how = ", or if the numbers are dates, say how they are written, as dataset.date_format=%Y%j" if are_numbers else ""
    raise DataError(
        f"dataset.time: {found}; set dataset.elapsed=true to make the times features, fill the gaps, such as after "
        f"{after}, with empty rows, or leave dataset.time out to count rows{how}"
    )


def uneven(trajectories: Sequence[Trajectory]) -> tuple[str, object]:
    """How the steps of series differ, and the time before the largest."""
    steps = np.concatenate([sizes(each.at) for each in trajectories])
    unit = "" if trajectories[0].dates is None else " days"
    gapped = max((each for each in trajectories if len(each) > 1), key=lambda each: sizes(each.at).max())
    how = f"of {steps.min():g}" if steps.min() == steps.max() else f"from {steps.min():g} to {steps.max():g}"
    return f"steps {how}{unit}", gapped.written()[int(sizes(gapped.at).argmax())]


# ---- Gilpin's benchmark


def gilpin_path(points_per_period: int) -> Path:
    """The file of the benchmark's test series; DataError says what to put where."""
    path = cache_folder() / "dysts" / f"test_univariate__pts_per_period_{points_per_period}__periods_12.json.gz"
    if not path.is_file():
        raise DataError(f"{path} is missing: put {path.name} there, {GILPIN}, compressed by gzip")
    return path


@lru_cache(maxsize=2)
def _gilpin(path: Path) -> dict[str, Any]:
    try:
        with gzip.open(path) as stream:
            content = stream.read(1 << 28)
        found = json.loads(content)
        return {name: found[name] for name in sorted(found)}
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); put the original file there") from error


def gilpin(system: str, points_per_period: int) -> Trajectory:
    """A series of the benchmark; DataError names the systems if there is none of this name."""
    path = gilpin_path(points_per_period)
    systems = _gilpin(path)
    if system not in systems:
        close = difflib.get_close_matches(system, systems, n=3, cutoff=0.4) or list(systems)[:5]
        raise DataError(
            f"dataset.system={system}: expected one of the {len(systems)} systems of {path.name}, such as "
            f"{', '.join(close)}"
        )
    try:
        values = np.asarray(systems[system]["values"], dtype=np.float64).reshape(-1, 1)
        time = np.arange(len(values)) * float(systems[system]["dt"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {system} cannot be read ({error}); put the original file there") from error
    return Trajectory(time, values)


def gilpin_systems(points_per_period: int) -> list[str]:
    """The names of the benchmark's systems."""
    require_file(gilpin_path(points_per_period))
    return list(_gilpin(gilpin_path(points_per_period)))
