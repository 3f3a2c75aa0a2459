"""Numbers that papers printed for an experiment, and what a run measured for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from kfx.config.check import Config
from kfx.files import read_rows
from kfx.running.options import Published


def typed_in(directory: Path) -> list[str]:
    """The overrides that a run was given, as they were typed."""
    path = directory / "overrides.yaml"
    return [str(word) for word in OmegaConf.load(path)] if path.is_file() else []


def applicable(config: Config, typed: Sequence[str]) -> list[Published]:
    """The numbers printed for a run of this config: those whose overrides were all typed, or hold of it, and of one
    metric, kernel, N_I and statistic those with the most."""
    most: dict[tuple[Any, ...], int] = {}
    fitting = [each for each in config.published if all(w in typed or _holds(w, config) for w in each.overrides)]
    for each in fitting:
        place = each.metric, each.kernel, each.n_interpolation, each.statistic
        most[place] = max(most.get(place, 0), len(each.overrides))
    return [e for e in fitting if len(e.overrides) == most[e.metric, e.kernel, e.n_interpolation, e.statistic]]


def _holds(override: str, config: Config) -> bool:
    """Whether `group=option` is what the config chose."""
    group, _, name = override.partition("=")
    return getattr(getattr(config, group, None), "name", None) == name


def measured_as(printed: Published, metrics: Mapping[str, Any], directory: Path) -> float | None:
    """What a run found for a number that a paper printed: of that kernel, at its largest N_I unless one is named; an
    error over the last layers or iterations at the smallest. None where a run does not measure it."""
    metric, size = printed.metric, printed.n_interpolation

    def at(rows: Sequence[Mapping[str, Any]], name: str, pick: Callable[..., Any]) -> Mapping[str, Any]:
        own = [row for row in rows if row["metric"] == name and size in (None, row["n_interpolation"])]
        found: Mapping[str, Any] = pick(own, key=lambda row: row["n_interpolation"] or 0, default={})
        return found

    rows = [row for row in metrics.get("evaluation", []) if row["kernel"] == printed.kernel]
    final = metrics.get("parameters", {}).get("final", {})
    last = [*metrics.get("last_layers", []), *metrics.get("last_iterations", [])]
    if found := at(rows, metric, max):
        return _statistic(found, printed.statistic)
    if metric in final:
        return float(np.mean(final[metric]))
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
    return None


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
