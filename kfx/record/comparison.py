"""Compare recorded runs: tables of means over seeds, and whether two runs agree."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kfx.config.nodes import leaves
from kfx.experiment.identity import content
from kfx.files import Document
from kfx.outcomes import ConfigError, RecordError, Status
from kfx.record.columns import untimed
from kfx.record.reading import Run, load_run, read_environment
from kfx.record.search import runs_below


@dataclass(frozen=True)
class Compared:
    """One run in a comparison: its config with dotted keys, its seed, and its measurements."""

    directory: Path
    settings: Document
    seed: int
    measured: dict[str, float]


def collect(
    paths: Iterable[Path], metric: str, kernel: str, n_interpolation: int | None
) -> tuple[list[Compared], list[str]]:
    """The completed runs at and below the paths, and a message for each run that is left out."""
    runs, left_out, seen = [], [], set()
    for path in paths:
        found = runs_below([path])
        if not found:
            raise ConfigError(f"kfx compare {path}: holds no run")
        for item in found:
            if item.directory in seen:
                continue
            seen.add(item.directory)
            if item.status != Status.COMPLETED:
                left_out.append(f"{item.directory}: {item.status}")
                continue
            try:
                runs.append(_read(item.directory, metric, kernel, n_interpolation))
            except (ConfigError, RecordError) as error:  # one damaged run must not spoil the table of the others
                left_out.append(str(error))
            except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
                left_out.append(f"{item.directory}: its record is damaged ({type(error).__name__}: {error})")
    return runs, left_out


def _read(directory: Path, metric: str, kernel: str, n_interpolation: int | None) -> Compared:
    run = load_run(directory)
    rows = [r for r in run.metrics["evaluation"] if r["kernel"] == kernel]
    offered = sorted({r["metric"] for r in rows})
    if not rows or metric not in offered:
        raise ConfigError(f"--metric {metric}: {directory} measured {', '.join(offered) or f'no kernel {kernel}'}")
    largest = max(r["n_interpolation"] for r in rows) if n_interpolation is None else n_interpolation
    chosen = [r for r in rows if r["metric"] == metric and r["n_interpolation"] == largest]
    if not chosen:
        sizes = sorted({r["n_interpolation"] for r in rows})
        raise ConfigError(f"--n-interpolation {largest}: {directory} has {', '.join(map(str, sizes))}")
    found = leaves(content(run.config), into_lists=False)
    settings = {key: _hashable(value) for key, value in found if value != {}}
    if settings.get("dataset.path"):  # a file is identified by its content, not by its path
        told = read_environment(directory).get("data_sha256", {})
        settings["dataset.path"] = Path(str(settings["dataset.path"])).name
        settings["data"] = ", ".join(map(str, told.values()))
    settings["n_interpolation"] = largest
    rho, objective = run.metrics.get("rho", {}), run.metrics.get("held_out", {}).get("objective", {})
    return Compared(
        directory,
        settings,
        settings.pop("seed"),
        {
            "value": _number(chosen[0]["mean"]),
            "rho_initial": _number(rho.get("initial")),
            "rho_final": _number(rho.get("final")),
            "objective_initial": _number(objective.get("initial", {}).get("mean")),
            "objective_final": _number(objective.get("trained", {}).get("mean")),
            "seconds": run.metrics["timing"]["fit_seconds"],
            "kernel_evaluations": float(run.trace["kernel_evaluations"].iloc[-1]),
        },
    )


def _number(value: float | None) -> float:
    """NaN for null, because JSON has no NaN."""
    return math.nan if value is None else value


def _hashable(value: object) -> Any:
    if not isinstance(value, list):
        return value
    return tuple(str(each) if isinstance(each, (dict, list)) else each for each in value)


def table(runs: Sequence[Compared], by: Sequence[str], metric: str, mix: bool) -> pd.DataFrame:
    """Mean and standard deviation over seeds for each combination of the keys `by`, best first.

    The column `<metric>_p` is the p-value of Welch's one-tailed test that the row is worse than the best one. A group
    name stands for its option: `kernel` for `kernel.name`. ConfigError if the runs of one row differ in more than their
    seed, unless `mix`.
    """
    keys = [key if any(key in run.settings for run in runs) else f"{key}.name" for key in by]
    for key, given in zip(keys, by, strict=True):
        if not any(key in run.settings for run in runs):
            raise ConfigError(f"--by {given}: no run has such a key")
    settings = pd.DataFrame([{name: run.settings.get(key) for name, key in zip(by, keys, strict=True)} for run in runs])
    measured = pd.DataFrame([run.measured for run in runs]).rename(columns={"value": metric})
    groups = settings.astype(str).groupby(list(by), sort=False)
    if not mix:
        for places in groups.indices.values():
            _refuse_mixtures({str(k): v for k, v in settings.iloc[places[0]].items()}, keys, [runs[i] for i in places])
    rows, values = [], []
    for _, members in groups:
        own = measured.loc[members.index]
        row = settings.loc[members.index[0]].to_dict() | {"n": len(own)}
        for name in own:
            sd = own[name].std(skipna=False)
            row |= {name: own[name].mean(skipna=False), f"{name}_sd": sd, f"{name}_se": sd / math.sqrt(len(own))}
        rows.append(row)
        values.append(own[metric].to_numpy(dtype=float))
    frame, more_is_better = pd.DataFrame(rows), metric.endswith(("accuracy", "log_likelihood"))
    frame[f"{metric}_p"] = _p_of_being_worse(values, more_is_better)
    frame = frame.sort_values(metric, ascending=not more_is_better, ignore_index=True, kind="stable")
    frame.attrs["other_objective"] = any(run.settings.get("objective.name") != "rho" for run in runs)
    frame.attrs["title"] = " · ".join(
        f"{name} {', '.join(sorted({str(run.settings.get(key)) for run in runs}))}"
        for name, key in (("data set", "dataset.name"), ("kernel", "kernel.name"), ("N_I", "n_interpolation"))
    )
    return frame


def _p_of_being_worse(values: Sequence[np.ndarray], more_is_better: bool) -> list[float]:
    """The p-value of Welch's one-tailed test that a row is worse than the best one, for each row; 1 for the best.

    NaN if one of the two has fewer than two values, or neither varies.
    """
    from scipy.stats import ttest_ind

    means = np.array([each.mean() for each in values])
    if not np.isfinite(means).any():
        return [math.nan] * len(values)
    best = values[int(np.nanargmax(means) if more_is_better else np.nanargmin(means))]
    worse = "less" if more_is_better else "greater"

    def p(each: np.ndarray) -> float:
        if min(len(each), len(best)) < 2 or not np.isfinite(each).all():
            return math.nan
        if each is best:
            return 1.0
        with warnings.catch_warnings():  # warnings about values that hardly vary
            warnings.simplefilter("ignore", RuntimeWarning)
            return float(ttest_ind(each, best, equal_var=False, alternative=worse).pvalue)

    return [p(each) for each in values]


def over_sizes(paths: Sequence[Path], by: Sequence[str], metric: str, kernel: str, mix: bool) -> pd.DataFrame:
    """`table` for each number of interpolation points in the completed runs, with that number as a column."""
    found = [item.directory for item in runs_below(paths) if item.status == Status.COMPLETED]
    rows = [row for directory in found for row in load_run(directory).metrics["evaluation"]]
    frames = []
    for size in sorted({row["n_interpolation"] for row in rows if row["metric"] == metric}):
        runs, _ = collect(paths, metric, kernel, size)
        if runs:
            frames.append(table(runs, by, metric, mix).assign(n_interpolation=size))
    whole = pd.concat(frames, ignore_index=True)
    whole.attrs["title"] = frames[0].attrs["title"].rsplit(" · ", 1)[0]
    return whole


def _refuse_mixtures(row: Document, keys: Sequence[str], members: Sequence[Compared]) -> None:
    names = {name for run in members for name in run.settings}
    for name in sorted(names - set(keys)):
        found = {str(run.settings.get(name)) for run in members}
        if len(found) > 1:
            shown = ", ".join(f"{k}={v}" for k, v in row.items())
            raise ConfigError(
                f"{shown}: its runs differ in {name} ({', '.join(sorted(found))}); add --by {name}, or --mix to average"
            )
    seeds = [run.seed for run in members]
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        shown = ", ".join(f"{k}={v}" for k, v in row.items())
        raise ConfigError(f"{shown}: two runs have seed {twice}; leave one out, or --mix to count both")


def same_results(a: Run, b: Run, tolerance: float) -> tuple[bool, str]:
    """Whether two runs agree in trace, evaluation and final parameters, times aside; and a line that says how closely.

    NaN agrees only with NaN; names, events and the number of rows must be equal. tolerance: the largest relative
    difference of two numbers that count as equal.
    """
    pairs = [
        ("trace", untimed(a.trace), untimed(b.trace)),
        ("evaluation", a.evaluation, b.evaluation),
    ]
    largest, exact = 0.0, True
    for name, first, second in pairs:
        if len(first) != len(second):
            return False, f"{len(first)} and {len(second)} rows of {name}"
        if list(first) != list(second):
            odd = set(map(str, first)) ^ set(map(str, second))
            return False, f"the {name} has other columns: {', '.join(sorted(odd)) or 'in another order'}"
        exact = exact and first.equals(second)
        for column in first:
            x, y = first[column], second[column]
            if not (pd.api.types.is_numeric_dtype(x) and pd.api.types.is_numeric_dtype(y)):
                differing = np.flatnonzero(x.astype(str).to_numpy() != y.astype(str).to_numpy())
                if len(differing):
                    row = differing[0]
                    return False, f"{name} row {row}, {column}: {x[row]!s} and {y[row]!s}"
                continue
            difference = _relative_difference(x.to_numpy(dtype=float), y.to_numpy(dtype=float))
            if difference > tolerance:
                return (
                    False,
                    f"{name}, {column}: largest relative difference {difference:.1e}, tolerance {tolerance:.0e}",
                )
            largest = max(largest, difference)
    if a.metrics["status"] != b.metrics["status"]:
        return False, f"status: {a.metrics['status']} and {b.metrics['status']}"
    for key in ("parameters", "held_out", "flow_stopped"):
        found = (leaves(run.metrics.get(key), key) for run in (a, b))
        one, other = ({path: leaf for path, leaf in each if leaf not in ({}, [])} for each in found)
        for path in sorted(one | other):
            if (own := one.get(path)) == (repeated := other.get(path)):
                continue
            numbers = isinstance(own, (int, float)) and isinstance(repeated, (int, float))
            difference = (
                _relative_difference(np.array([own], float), np.array([repeated], float)) if numbers else math.inf
            )
            if difference > tolerance:
                return False, f"{path}: {own} and {repeated}"
            exact, largest = False, max(largest, difference)
    if exact:
        return True, "trace, evaluation and parameters agree bit for bit"
    return True, f"largest relative difference {largest:.1e}, tolerance {tolerance:.0e}"


def _relative_difference(x: np.ndarray, y: np.ndarray) -> float:
    """The largest |x − y| / |x|; infinite if only one of the two is finite."""
    agree = (x == y) | (np.isnan(x) & np.isnan(y))
    if not np.all(np.isfinite(x[~agree]) & np.isfinite(y[~agree])):
        return math.inf
    return float(np.max(np.abs(x - y)[~agree] / np.maximum(np.abs(x[~agree]), 1e-12), initial=0.0))
