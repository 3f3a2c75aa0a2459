"""What a run measured for a number that a paper printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from kfx.files import read_rows
from kfx.report.published import Published


def typed_in(directory: Path) -> list[str]:
    """The overrides that a run was given, as they were typed."""
    path = directory / "overrides.yaml"
    return [str(word) for word in OmegaConf.load(path)] if path.is_file() else []


def measured_as(printed: Published, metrics: Mapping[str, Any], directory: Path) -> float | None:
    """What a run found for a number that a paper printed: of that kernel, at its largest N_I unless one is named; an
    error over the last layers or iterations at the smallest; of a parameter the mean over folds. None where a run does
    not measure it."""
    metric, size = printed.metric, printed.n_interpolation

    def at(rows: Sequence[Mapping[str, Any]], name: str, pick: Callable[..., Any]) -> Mapping[str, Any]:
        own = [row for row in rows if row["metric"] == name and size in (None, row["n_interpolation"])]
        found: Mapping[str, Any] = pick(own, key=lambda row: row["n_interpolation"] or 0, default={})
        return found

    rows = [row for row in metrics.get("evaluation", []) if row["kernel"] == printed.kernel]
    last = [*metrics.get("last_layers", []), *metrics.get("last_iterations", [])]
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
    if printed.statistic == "mean" and size is None and (found_last := _last_of(metric, directory)) is not None:
        return found_last
    if metric == "seconds an iteration" and "timing" in metrics:
        iterations = len(read_rows(directory / "trace.csv"))
        return metrics["timing"]["fit_seconds"] / iterations if iterations else None
    if metric == "fit seconds" and "timing" in metrics:
        return float(metrics["timing"]["fit_seconds"])
    if metric == "iterations to the optimum":
        trace = read_rows(directory / "trace.csv")
        said = trace["told"].fillna(trace["objective"]).to_numpy()
        return 1.0 + int(np.nanargmin(said)) if len(said) and not np.isnan(said).all() else None
    return None


def _parameter(printed: Published, parameters: Mapping[str, Any]) -> float | None:
    alone, folds = ("initial", "initial_folds") if printed.kernel == "initial" else ("final", "folds")
    found = [
        each[printed.metric] for each in parameters.get(folds) or [parameters.get(alone, {})] if printed.metric in each
    ]
    return float(np.mean(found)) if found and printed.statistic == "mean" else None


def _statistic(row: Mapping[str, Any], name: str) -> float | None:
    """None for a deviation that is none: of one value."""
    if name == "sd" and row.get("repeats", 2) < 2:
        return None
    return None if row.get(name) is None else float(row[name])


def _last_of(metric: str, directory: Path) -> float | None:
    """What was measured at the end of the way of a fit, at no N_I: class distances, separability."""
    for path in (directory / "flow.csv", directory / "follow.csv"):
        table = read_rows(path) if path.is_file() else None
        if table is not None and "metric" in table:
            values = table.loc[(table["metric"] == metric) & table["n_interpolation"].isna(), "value"].to_list()
            if values:
                return float(values[-1])
    return None
