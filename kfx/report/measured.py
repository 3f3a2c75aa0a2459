"""Find in a run's record the value for a number that a paper prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kfx.config.published import Published, Quantity, of_most_overrides
from kfx.experiment.config import Config
from kfx.files import Document, TableRow
from kfx.outcomes import Event, Status
from kfx.record.columns import TRACE_COLUMNS
from kfx.record.reading import read_table, typed_words

_UNDEFINED = (Event.NOT_POSITIVE_DEFINITE, Event.RHO_OUT_OF_RANGE, Event.DIVERGED, Event.REINITIALIZED)
"""Events of iterations whose objective is undefined, or ρ outside [0, 1]."""
_OF_FOLDS: dict[str, Callable[[list[float]], float]] = {"mean": np.mean, "min": min, "max": max}
_PARTS = ("kernel", "pullback", "objective")
SHARES = {f"share of the {part}": f"{part}_seconds" for part in _PARTS}
SECONDS = {f"{part} seconds an iteration": f"{part}_seconds" for part in _PARTS}
"""Metrics that are the share of the fit's time, or the mean, of a column of the trace."""


def measured_as(printed: Quantity, metrics: Document, directory: Path) -> float | None:
    """The value that a run measured for a printed number; None if it does not measure it.

    It is that of the number's kernel, at the largest N_I unless one is named; for an error over the last layers or
    iterations at the smallest N_I; for a parameter the mean, or an extreme, over folds.
    """
    metric, size, is_trained = printed.metric, printed.n_interpolation, printed.kernel == "trained"

    def at(rows: Sequence[TableRow], name: str, pick: Callable[..., Any]) -> TableRow:
        own = [row for row in rows if row["metric"] == name and size in (None, row["n_interpolation"])]
        found: TableRow = pick(own, key=lambda row: row["n_interpolation"] or 0, default={})
        return found

    if printed.window is not None:
        of_fit = metrics.get("windows", []) if is_trained else []
        within = [row for row in of_fit if row["window"] == printed.window]
        return _statistic(at(within, metric, min), printed.statistic)
    rows = [row for row in metrics.get("evaluation", []) if row["kernel"] == printed.kernel]
    last = [*metrics.get("last_layers", []), *metrics.get("last_iterations", [])] if is_trained else []
    if found := at(rows, metric, max):
        return _statistic(found, printed.statistic)
    if (value := _parameter(printed, metrics.get("parameters", {}))) is not None:
        return value
    if metric == "held_out_rho" and "held_out" in metrics:
        return _statistic(metrics["held_out"]["rho"][printed.kernel], printed.statistic)
    if found := at(last, metric, min):
        return _statistic(found, printed.statistic)
    if metric == "error" and (found := at(rows, "accuracy", max)):
        value = _statistic(found, printed.statistic)
        return 1 - value if value is not None and printed.statistic == "mean" else value
    takes_last = is_trained and printed.statistic == "mean" and size is None
    if takes_last and (found_last := _last_of(metric, directory)) is not None:
        return found_last
    return _of_the_fit(metric, metrics, directory)


def _of_the_fit(metric: str, metrics: Document, directory: Path) -> float | None:
    """Times, memory and similar measures of the fit."""
    trace = read_table(directory / "trace.csv", TRACE_COLUMNS)
    if trace.empty or "fit_seconds" not in metrics.get("timing", {}):
        return None
    took = float(metrics["timing"]["fit_seconds"])
    if metric in SHARES:
        column = f"diagnostic.{SHARES[metric]}"
        return float(trace[column].sum() / trace["seconds"].iloc[-1]) if column in trace else None
    memory = metrics.get("memory", {})
    if metric in SECONDS:
        column = f"diagnostic.{SECONDS[metric]}"
        return float(trace[column].mean()) if column in trace else None
    match metric:
        case "fit seconds":
            return took
        case "seconds an iteration":
            return took / len(trace)
        case "kernel evaluations":
            return float(trace["kernel_evaluations"].iloc[-1])
        case "MB of the fit" if {"fit_bytes", "load_bytes"} <= memory.keys():
            return (memory["fit_bytes"] - memory["load_bytes"]) / 1e6
        case "crossings" if "diagnostic.crossings" in trace:
            return float(trace["diagnostic.crossings"].iloc[-1])
        case "undefined objectives":
            events = trace["event"].fillna("").str.split(";")  # an iteration may have several
            return float(sum(not set(own).isdisjoint(_UNDEFINED) for own in events))
        case "iterations to the optimum":
            said = trace["told"].fillna(trace["objective"]).to_numpy()
            return None if np.isnan(said).all() else 1.0 + int(np.nanargmin(said))
    return None


def _parameter(printed: Quantity, parameters: Document) -> float | None:
    alone, folds = ("initial", "initial_folds") if printed.kernel == "initial" else ("final", "folds")
    found = [
        each[printed.metric]
        for each in parameters.get(folds) or [parameters.get(alone, {})]
        if each.get(printed.metric) is not None
    ]
    of_folds = _OF_FOLDS.get(printed.statistic)
    return float(of_folds(found)) if found and of_folds else None


def _statistic(row: TableRow, name: str) -> float | None:
    """A row's mean, deviation or extreme; None for the standard deviation of one repeat."""
    if name == "sd" and row.get("repeats", 2) < 2:
        return None
    return None if row.get(name) is None else float(row[name])


def _last_of(metric: str, directory: Path) -> float | None:
    """A value at the end of a fit that has no N_I: class distances, separability."""
    for path in (directory / "flow.csv", directory / "follow.csv"):
        table = read_table(path, ("metric", "n_interpolation", "value"))
        values = table.loc[(table["metric"] == metric) & table["n_interpolation"].isna(), "value"].to_list()
        if values:
            return float(values[-1])
    return None


def applicable(config: Config, typed: Sequence[str]) -> list[Published]:
    """The printed numbers that apply to a run of this config.

    Their overrides were all typed, or are what the config chose; of those with the same metric, kernel, N_I and
    statistic the one with the most overrides.
    """
    fitting = [each for each in config.published if all(w in typed or _holds(w, config) for w in each.overrides)]
    return of_most_overrides(fitting)


def _holds(override: str, config: Config) -> bool:
    """Whether the config has chosen `group=option`."""
    group, _, name = override.partition("=")
    return getattr(getattr(config, group, None), "name", None) == name


def printed_beside(config: Config, metrics: Document, directory: Path) -> list[tuple[Published, float | None]]:
    """What papers print for a completed run, each with what it measured: without a deviation over runs, which one run
    does not have, and a curve that was not measured."""
    if metrics.get("status") != Status.COMPLETED:
        return []
    found = [(each, measured_as(each, metrics, directory)) for each in applicable(config, typed_words(directory))]
    return [
        (printed, measured)
        for printed, measured in found
        if measured is not None or (printed.statistic == "mean" and printed.value is not None)
    ]
