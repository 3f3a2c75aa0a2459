"""Compare recorded runs: tables of means over seeds, and whether two runs agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kfx.config.metrics import Better, known_better, main_metric
from kfx.config.nodes import leaves
from kfx.config.registry import OPTIONS
from kfx.data.members import SEEN
from kfx.experiment.identity import content
from kfx.files import Document, TableRow
from kfx.numerics.significance import p_of_being_worse
from kfx.outcomes import ConfigError, RecordError, Status
from kfx.record.columns import REJECTED, untimed
from kfx.record.findings import Findings
from kfx.record.reading import Run, read_environment, typed_words
from kfx.record.search import each_of, runs_below

KEPT = ("initial_kept", "one_length_kept", "smooth_kept", "fits")
"""Columns that count fits."""


@dataclass(frozen=True)
class Compared:
    """One run in a comparison: its config with dotted keys, its seed, and its measurements.

    chosen: of its settings those that a backtest chose, which depend on the data of the seed.
    """

    directory: Path
    settings: Document
    seed: int
    measured: dict[str, float]
    chosen: frozenset[str] = frozenset()


def gather(
    paths: Iterable[Path], metric: str | None, kernel: str, n_interpolation: int | None
) -> tuple[list[Run], str, list[Compared], list[str]]:
    """The completed runs at and below the paths, the metric that is compared, what each run measured, and a message for
    each run that is left out.

    metric: None for the accuracy of classes, else the mse. ConfigError if there is no run to show.
    """
    runs, left_out = read(paths)
    metric = metric or main_metric({row["metric"] for run in runs for row in run.metrics.get("evaluation", [])})
    found, unmeasured = measured(runs, metric, kernel, n_interpolation)
    left_out += unmeasured
    if not found:
        more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        raise ConfigError(f"kfx compare: no run to show: {left_out[0] if left_out else 'none was given'}{more}")
    return runs, metric, found, left_out


def read(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The completed runs at and below the paths, and a message for each run that is left out; ConfigError for a path
    without a run."""
    below = {path: [run.directory for run in runs_below([path])] for path in paths}
    if empty := [path for path, directories in below.items() if not directories]:
        raise ConfigError(f"kfx compare {empty[0]}: holds no run")
    runs, errors = each_of(itertools.chain(*below.values()), _completed)
    return runs, list(map(str, errors))


def _completed(run: Run) -> Run:
    run.require_unchanged(["environment.json", "trace.csv"])
    if run.metrics["status"] != Status.COMPLETED:
        raise RecordError(f"{run.directory}: {run.metrics['status']}")
    return run


def measured(
    runs: Iterable[Run], metric: str, kernel: str, n_interpolation: int | None
) -> tuple[list[Compared], list[str]]:
    """What each run measured, and a message for each run that did not measure it."""
    found, left_out = [], []
    for run in runs:
        try:
            found.append(_measured(run, metric, kernel, n_interpolation))
        except (ConfigError, RecordError) as error:
            left_out.append(str(error))
    return found, left_out


def _measured(run: Run, metric: str, kernel: str, n_interpolation: int | None) -> Compared:
    results = Findings.of(run.metrics)
    offered = sorted({place.metric for place in results.places(kernel=kernel)})
    if metric not in offered:
        raise ConfigError(f"--metric {metric}: {run.directory} measured {', '.join(offered) or f'no kernel {kernel}'}")
    sizes = sorted({place.n_interpolation for place in results.places(kernel=kernel)})
    size = sizes[-1] if n_interpolation is None else n_interpolation
    if size not in sizes:
        raise ConfigError(f"--n-interpolation {size}: {run.directory} has {', '.join(map(str, sizes))}")
    found = leaves(content(run.config), into_lists=False)
    settings = {key: _hashable(value) for key, value in found if value != {}}
    if settings.get("dataset.path"):  # a file is identified by its content, not by its path
        told = read_environment(run.directory).get("data_sha256", {})
        settings["dataset.path"] = Path(str(settings["dataset.path"])).name
        settings["data"] = ", ".join(map(str, told.values()))
    settings["n_interpolation"] = size
    rho, objective = run.metrics.get("rho", {}), run.metrics.get("held_out", {}).get("objective", {})
    kept = run.metrics.get("fall_back", {}) if kernel == "trained" else {}
    own, rejected = (_mean(results.row(metric, name, size)) for name in (kernel, REJECTED))
    return Compared(
        run.directory,
        settings,
        settings.pop("seed"),
        {
            "value": own,
            "reached": rejected if kept and not math.isnan(rejected) else own,
            **{name: kept.get(name, 0) for name in KEPT},
            "rho_initial": _number(rho.get("initial")),
            "rho_final": _number(rho.get("final")),
            "objective_initial": _mean(objective.get("initial")),
            "objective_final": _mean(objective.get("trained")),
            "seconds": _number(run.metrics.get("timing", {}).get("fit_seconds")),
            "kernel_evaluations": float(run.trace["kernel_evaluations"].iloc[-1]) if len(run.trace) else math.nan,
        },
        _chosen(run, settings),
    )


def _chosen(run: Run, settings: Document) -> frozenset[str]:
    """The settings of a run that a backtest chose, or that follow from these."""
    if not any(key.startswith("dataset.deviations.") for key in settings):
        return frozenset()
    typed = {word.lstrip("+").split("=")[0] for word in typed_words(run.directory)}
    length = getattr(OPTIONS["kernel"].get(run.config.kernel.name), "length", None)
    own = {"dataset.others", f"kernel.{length}", "sampler.batch_size", *(f"dataset.{key}" for key in SEEN)}
    if settings.get("evaluation.n_interpolation") is None:
        own.add("n_interpolation")  # all windows, whose number follows from their length, as that of a batch does
    return frozenset(key for key in settings if key in own or key.startswith("dataset.deviations.")) - typed


def _mean(row: TableRow | None) -> float:
    return math.nan if row is None else _number(row["mean"])


def _number(value: float | None) -> float:
    """NaN for null, because JSON has no NaN."""
    return math.nan if value is None else value


def _hashable(value: object) -> Any:
    if not isinstance(value, list):
        return value
    return tuple(str(each) if isinstance(each, (dict, list)) else each for each in value)


def table(runs: Sequence[Compared], by: Sequence[str], metric: str, mix: bool, better: Better) -> pd.DataFrame:
    """Mean and standard deviation over seeds for each combination of the keys `by`, best first.

    The column `<metric>_p` is the p-value of a one-tailed test that the row is worse than the best one, see
    `p_of_being_worse`; NaN for a metric of which no values are better. `initial_kept`, `one_length_kept` and
    `smooth_kept` count the fits, of `fits`, that ended with another kernel than training reached, because that has
    larger errors at points left out, and `<metric>_reached` is the metric of the kernels that training reached. A group
    name stands for its option: `kernel` for `kernel.name`.
    ConfigError if the runs of one row differ in more than their seed, unless `mix`.
    """
    if not by:
        raise ConfigError("--by: expected one or more config keys")
    keys = [key if any(key in run.settings for run in runs) else f"{key}.name" for key in by]
    for key, given in zip(keys, by, strict=True):
        if not any(key in run.settings for run in runs):
            of_seeds = given == "seed" and "rows are means over seeds; name other keys, as kernel"
            raise ConfigError(f"--by {given}: {of_seeds or 'no run has such a key'}")
    settings = pd.DataFrame([{name: _shown(run, key) for name, key in zip(by, keys, strict=True)} for run in runs])
    found = pd.DataFrame([run.measured for run in runs]).rename(
        columns={"value": metric, "reached": f"{metric}_reached"}
    )
    groups = settings.astype(str).groupby(list(by), sort=False)
    if not mix:
        _refuse_other_targets(keys, runs)
        for places in groups.indices.values():
            _refuse_mixtures({str(k): v for k, v in settings.iloc[places[0]].items()}, keys, [runs[i] for i in places])
    rows, losses, seeds = [], [], []
    for _, members in groups:
        own = found.loc[members.index]
        row = settings.loc[members.index[0]].to_dict() | {"n": len(own)}
        for name in own:
            if name in KEPT:
                row[name] = int(own[name].sum())
                continue
            sd = own[name].std(skipna=False)
            row |= {name: own[name].mean(skipna=False), f"{name}_sd": sd, f"{name}_se": sd / math.sqrt(len(own))}
        rows.append(row)
        losses.append(_loss(own[metric].to_numpy(dtype=float), better))
        seeds.append([runs[i].seed for i in members.index])
    frame = pd.DataFrame(rows)
    frame[f"{metric}_p"] = math.nan if better is None else p_of_being_worse(losses, seeds)
    order = pd.Series([loss.mean() for loss in losses]).sort_values(kind="stable").index
    frame = frame.loc[order].reset_index(drop=True)
    frame.attrs["other_objective"] = any(run.settings.get("objective.name") != "rho" for run in runs)
    frame.attrs["title"] = " · ".join(
        f"{name} {', '.join(sorted({str(run.settings.get(key)) for run in runs}))}"
        for name, key in (("data set", "dataset.name"), ("kernel", "kernel.name"), ("N_I", "n_interpolation"))
    )
    return frame


def _shown(run: Compared, key: str) -> object:
    """A setting of a row; text for null, and where a run has no such key, which pandas would count as missing."""
    value = run.settings.get(key, "-")
    return "null" if value is None else value


def better_in(runs: Iterable[Run], metric: str) -> Better:
    """Which values of a metric are better, by kfx or else by the runs' records."""
    stated: dict[str, Better] = {}
    for run in runs:
        stated |= run.metrics.get("better", {})
    return known_better(metric, stated)


def _loss(values: np.ndarray, better: Better) -> np.ndarray:
    """Values of which smaller ones are better."""
    if isinstance(better, (int, float)):
        return np.abs(values - better)
    return -values if better == "larger" else values


def over_sizes(runs: Sequence[Run], by: Sequence[str], metric: str, kernel: str, mix: bool) -> pd.DataFrame:
    """`table` for each number of interpolation points in the runs, with that number as a column."""
    better, frames = better_in(runs, metric), []
    places = [place for run in runs for place in Findings.of(run.metrics).places(metric, kernel)]
    for size in sorted({place.n_interpolation for place in places}):
        found, _ = measured(runs, metric, kernel, size)
        frames.append(table(found, by, metric, mix, better).assign(n_interpolation=size))
    whole = pd.concat(frames, ignore_index=True)
    whole.attrs["title"] = frames[0].attrs["title"].rsplit(" · ", 1)[0]
    return whole


def _refuse_other_targets(keys: Sequence[str], runs: Sequence[Compared]) -> None:
    """ConfigError where rows, which are compared with each other, are of other data or targets, unless the keys are of
    the data."""
    if any(key == "data" or key.startswith("dataset.") for key in keys):
        return
    for name in ("dataset.name", "data", "dataset.target"):
        given = [run.settings.get(name) for run in runs]
        shown = (each[0] if isinstance(each, (list, tuple)) and len(each) == 1 else each for each in given)
        found = {str(each)[:40] for each in shown}  # of data a checksum
        if len(found) > 1:
            raise ConfigError(
                f"--by {', '.join(keys)}: rows differ in {name} ({', '.join(sorted(found))}), whose numbers do not "
                f"compare; leave some runs out, add --by {name}, or --mix to compare them"
            )


def _refuse_mixtures(row: Document, keys: Sequence[str], members: Sequence[Compared]) -> None:
    shown = ", ".join(f"{k}={v}" for k, v in row.items())
    chosen = frozenset.intersection(*(run.chosen for run in members))
    for name in sorted({name for run in members for name in run.settings} - set(keys) - chosen):
        found = {str(run.settings.get(name)) for run in members}
        if len(found) > 1:
            raise ConfigError(
                f"{shown}: its runs differ in {name} ({', '.join(sorted(found))}); add --by {name}, or --mix to average"
            )
    seeds = [run.seed for run in members]
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise ConfigError(f"{shown}: two runs have seed {twice}; leave one out, or --mix to count both")


def same_results(a: Run, b: Run, tolerance: float) -> tuple[bool, str]:
    """Whether two runs agree in trace, evaluation and final parameters, times aside; and a line that says how closely.

    a: the recorded one; metrics that it has not, of a later version, do not count. NaN agrees only with NaN; names,
    events and the number of rows must be equal. tolerance: the largest relative
    difference of two numbers that count as equal.
    """
    tables = {
        "trace": (untimed(a.trace), untimed(b.trace)),
        "evaluation": (_shared_rows(a, b), _shared_rows(b, a, of=a)),
    }
    largest = 0.0
    for name, (first, second) in tables.items():
        if len(first) != len(second):
            return False, f"{len(first)} and {len(second)} rows of {name}"
        if list(first) != list(second):
            odd = set(map(str, first)) ^ set(map(str, second))
            return False, f"the {name} has other columns: {', '.join(sorted(odd)) or 'in another order'}"
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
                far = f"largest relative difference {difference:.1e}, tolerance {tolerance:.0e}"
                return False, f"{name}, {column}: {far}"
            largest = max(largest, difference)
    for key in ("status", "parameters", "held_out", "flow_stopped"):
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
            largest = max(largest, difference)
    if not largest:
        return True, "trace, evaluation and parameters agree bit for bit"
    return True, f"largest relative difference {largest:.1e}, tolerance {tolerance:.0e}"


def _shared_rows(run: Run, other: Run, *, of: Run | None = None) -> pd.DataFrame:
    """The evaluation, without the kernel that was not kept where the other has none. of: the run whose metrics count;
    None for all."""
    table = run.evaluation
    if of is not None and len(of.evaluation):  # a damaged one has no rows
        table = table[table["metric"].isin(of.evaluation["metric"])].reset_index(drop=True)
    if (other.evaluation["kernel"] == REJECTED).any():
        return table
    return table[table["kernel"] != REJECTED].reset_index(drop=True)


def _relative_difference(x: np.ndarray, y: np.ndarray) -> float:
    """The largest |x − y| / |x|; infinite if only one of the two is finite."""
    agree = (x == y) | (np.isnan(x) & np.isnan(y))
    if not np.all(np.isfinite(x[~agree]) & np.isfinite(y[~agree])):
        return math.inf
    return float(np.max(np.abs(x - y)[~agree] / np.maximum(np.abs(x[~agree]), 1e-12), initial=0.0))
