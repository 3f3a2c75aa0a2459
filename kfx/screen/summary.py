"""The closing lines of a run: the kernel before and after, errors, printed numbers, notes, and where the results
are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kfx.experiment.config import Config
from kfx.kernels.names import readable
from kfx.kernels.parameters import NORM
from kfx.numerics.formatting import number
from kfx.report.measured import applicable, measured_as, typed_in

_WIDTH = 12
_MOST = 6  # parameters shown


def closing_lines(cfg: Config, metrics: Mapping[str, Any], directory: Path) -> list[str]:
    """The lines that end a run, the most important results first; the record holds all of them too."""
    lines = [
        *_parameters(cfg, metrics),
        *_held_out(cfg.objective.name, metrics.get("held_out")),
        *_evaluation(metrics.get("evaluation", []), metrics.get("evaluation_change", [])),
        *_published(cfg, metrics, directory),
        *_stopped(metrics),
        *(_line("note", text) for text in metrics.get("remarks", [])),
        _line("results", str(relative(directory))),
    ]
    pictures = sorted(path for path in (directory / "figures").glob("*") if path.suffix in (".png", ".pdf"))
    if pictures:
        lines.append(_line("pictures", f"{relative(directory / 'figures')}: {', '.join(p.name for p in pictures)}"))
    if (directory / "report.html").is_file():
        lines.append(_line("report", str(relative(directory / "report.html"))))
    return lines


def relative(directory: Path) -> Path:
    """The path relative to the current folder, if it is below it."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory


def _line(label: str, text: str) -> str:
    return f"{label:<{_WIDTH - 1}} {text}"


def change(before: Mapping[str, Any], after: Mapping[str, Any], difference: Mapping[str, Any] | None) -> str:
    """Before, after and the difference, such as 0.9600 ± 0.0100 → 0.9700 ± 0.0090 (+0.0100 ± 0.0050)."""
    shown = f"{_spread(before)} → {_spread(after)}"
    if difference is None or difference["mean"] is None or math.isnan(difference["mean"]):
        return shown
    sign = "+" if difference["mean"] >= 0 else "−"
    return f"{shown}  ({sign}{_spread({**difference, 'mean': abs(difference['mean'])}, before['mean'])})"


def _spread(value: Mapping[str, Any], beside: float | None = None) -> str:
    sd, beside = value.get("sd"), value["mean"] if beside is None else beside
    return number(value["mean"], beside) + (f" ± {number(sd, beside)}" if sd and math.isfinite(sd) else "")


def _parameters(cfg: Config, metrics: Mapping[str, Any]) -> list[str]:
    parameters = metrics.get("parameters", {})
    if "final" not in parameters:
        return []
    finals: Sequence[Mapping[str, Any]] = parameters.get("folds") or [parameters["final"]]
    starts: Sequence[Mapping[str, Any]] = parameters.get("initial_folds") or [parameters["initial"]] * len(finals)
    changed = _blocks(starts, finals)
    for name in finals[0]:
        if name.endswith(NORM):
            continue
        before = [np.asarray(start[name], dtype=float) for start in starts if name in start]
        after = [np.asarray(final[name], dtype=float) for final in finals]
        if before and all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
            continue
        means = np.array([a.mean() for a in after])
        of = f" (mean of {after[0].size})" if after[0].size > 1 else ""
        over = f" ± {means.std(ddof=1):.2g} ({len(means)} folds)" if len(means) > 1 else ""
        start = f"{np.mean([b.mean() for b in before]):.4g} → " if before else "→ "
        changed.append(f"{readable(name, cfg.kernel)} {start}{means.mean():.4g}{over}{of}")
    if not changed:
        flows = cfg.optimizer.moves_points
        return [
            _line("kernel", f"unchanged; its points flow, {cfg.optimizer.iterations} layers" if flows else "unchanged")
        ]
    more = f", and {len(changed) - _MOST} more" if len(changed) > _MOST else ""
    return [_line("kernel", ", ".join(changed[:_MOST]) + more)]


def _blocks(starts: Sequence[Mapping[str, Any]], finals: Sequence[Mapping[str, Any]]) -> list[str]:
    """The norm of all parameters together, if they are too many to be shown."""
    names = [name for name in finals[0] if name.endswith(NORM)]
    if not names:
        return []
    before, after = (np.mean([math.hypot(*(each[name] for name in names)) for each in of]) for of in (starts, finals))
    return [f"‖parameters‖ {before:.4g} → {after:.4g} ({len(names)} blocks)"]


def _held_out(objective: str, measured: Mapping[str, Any] | None) -> list[str]:
    if measured is None:
        return []
    lines = []
    for name in ("objective", "rho") if objective != "rho" else ("rho",):
        each = measured[name]
        failed = measured["failed"]
        note = f"; {failed} of {measured['batches']} failed" if failed else ""
        shown = change(each["initial"], each["trained"], each["change"])
        lines.append(
            _line(
                objective if name == "objective" else "rho", f"{shown} on {measured['batches']} held-out batches{note}"
            )
        )
    return lines


def _evaluation(rows: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]) -> list[str]:
    metric = "accuracy" if any(row["metric"] == "accuracy" for row in rows) else "mse"

    def at(row: Mapping[str, Any]) -> tuple[Any, Any]:
        return row["n_interpolation"], row["configured_regularization"]

    by: dict[tuple[str, str], dict[Any, Mapping[str, Any]]] = {}
    for row in rows:
        by.setdefault((row["kernel"], row["metric"]), {})[at(row)] = row
    differences = {at(row): row for row in changes if row["metric"] == metric}
    lines = []
    initial, trained = by.get(("initial", metric), {}), by.get(("trained", metric), {})
    for place, after in trained.items():
        if place not in initial:
            continue
        size = place[0]
        shown = change(initial[place], after, differences.get(place))
        values = [row["regularization"] for row in (initial[place], after)]
        named = ["one for each fold" if value is None else f"{value:g}" for value in values]
        of = f"λ {named[0]}" if named[0] == named[1] else f"λ {named[0]} → {named[1]}"
        lines.append(_line(f"N_I {size}", f"{metric} {shown}; {of}"))
    if ("trained", "head_accuracy") in by:
        pair = [next(iter(by[kernel, "head_accuracy"].values())) for kernel in ("initial", "trained")]
        likely = [by[kernel, "head_log_likelihood"].values() for kernel in ("initial", "trained")]
        means = [number(next(iter(values))["mean"]) for values in likely]
        said = f"accuracy {change(pair[0], pair[1], None)}; log-likelihood a point {means[0]} → {means[1]}"
        lines.append(_line("head", said))
    random = {kernel: found for (kernel, name), found in by.items() if kernel.startswith("random") and name == metric}
    if random and trained:  # at the trained kernel's largest N_I, with the first λ
        place = max(trained, key=lambda place: place[0])
        good = [found[place]["mean"] for found in random.values() if math.isfinite(found[place]["mean"] or math.nan)]
        if good:
            shown = f"{metric} {number(min(good))} to {number(max(good))} at N_I {place[0]}"
            lines.append(_line("random", f"{shown} ({len(random)} kernels)"))
    return lines


def _published(cfg: Config, metrics: Mapping[str, Any], directory: Path) -> list[str]:
    lines = []
    for printed in applicable(cfg, typed_in(directory)) if metrics.get("status") == "completed" else []:
        measured = measured_as(printed, metrics, directory)
        if printed.value is None or (measured is None and printed.statistic != "mean"):
            continue  # a curve without numbers, or a deviation over several runs
        beside = f"measured {number(measured)}" if measured is not None else "not measured by a run"
        of = "" if printed.kernel == "trained" else f" of the {printed.kernel} kernel"
        of += "" if printed.n_interpolation is None else f" at N_I {printed.n_interpolation}"
        of += "" if printed.statistic == "mean" else f", {printed.statistic}"
        of += "" if printed.window is None else f", {printed.window[0]} to {printed.window[1]}"
        lines.append(_line("published", f"{printed.metric}{of} {printed.value:g}, {beside} ({printed.source})"))
    return lines


def _stopped(metrics: Mapping[str, Any]) -> list[str]:
    several = len(metrics.get("parameters", {}).get("folds", [0])) > 1
    return [
        _line("flow", f"stopped, {f'part {part}, ' if several else ''}layer {end['layer']}: {end['reason']}")
        for part, end in metrics.get("flow_stopped", {}).items()
    ]
