"""The closing lines of a run: the kernel before and after, errors, printed numbers, notes, and where the results
are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kfx.experiment.config import Config
from kfx.files import Document, TableRow
from kfx.kernels.names import NORM, readable
from kfx.numerics.formatting import number
from kfx.record.findings import Findings, ParameterChange, Place, difference_of, held_out, mean_of, reading_of_rho
from kfx.record.fitted import lengths_of_features

_MOST = 6  # parameters shown
Line = tuple[str, str]
"""What a line is about, and what it says."""


def closing_lines(config: Config, metrics: Document, directory: Path) -> list[str]:
    """The lines that end a run, the most important results first; the record holds all of them too."""
    return [f"{label:<11} {text}" for label, text in closing(config, metrics, directory)]


def closing(config: Config, metrics: Document, directory: Path) -> Iterator[Line]:
    """The closing lines in two columns. metrics: the `metrics.json` of the run in `directory`."""
    found = Findings.of(metrics)
    yield from _parameters(config, found)
    yield from _lengths(metrics, directory)
    yield from _held_out(config, metrics)
    yield from _evaluation(config, found)
    yield from _head(found)
    yield from _random(found)
    yield from _forecasts(config, found)
    yield from _published(config, metrics, directory)
    yield from _stopped(metrics)
    for text in metrics.get("remarks", []):
        yield "note", text
    yield "results", str(relative(directory))
    pictures = sorted(path.name for path in (directory / "figures").glob("*") if path.suffix in (".png", ".pdf"))
    if pictures:
        yield "pictures", f"{relative(directory / 'figures')}: {', '.join(pictures)}"
    if (directory / "report.html").is_file():
        yield "report", str(relative(directory / "report.html"))


def relative(directory: Path) -> Path:
    """The path relative to the current folder, if it is below it."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory


def _change(before: TableRow, after: TableRow, difference: TableRow | None = None) -> str:
    """Before, after and the difference, such as 0.960 ± 0.010 → 0.970 ± 0.009  (+0.010 ± 0.005)."""
    shown = f"{mean_of(before)} → {mean_of(after)}"
    return f"{shown}  ({own})" if (own := difference_of(difference, before)) else shown


def _parameters(config: Config, found: Findings) -> Iterator[Line]:
    norms = [each for each in found.parameters if each.name.endswith(NORM)]
    others = [each for each in found.parameters if not each.name.endswith(NORM) and not each.is_of_features]
    changed = _blocks(norms) if norms else []
    for each in filter(lambda each: each.is_moved, others):
        before, after = each.texts(config.outputs.unit)
        changed.append(f"{readable(each.name, config.kernel)} {f'{before} ' if before else ''}→ {after}")
    if changed:
        more = f", and {len(changed) - _MOST} more" if len(changed) > _MOST else ""
        yield "kernel", ", ".join(changed[:_MOST]) + more
    elif len(others) == len(found.parameters) > 0:
        flows = config.optimizer.moves_points
        yield "kernel", f"unchanged; its points flow, {config.optimizer.iterations} layers" if flows else "unchanged"


def _blocks(norms: list[ParameterChange]) -> list[str]:
    """The norm of all parameters together, if they are too many to be shown."""
    before, after = (
        np.mean([math.hypot(*fold) for fold in zip(*arrays, strict=True)])
        for arrays in ([each.before for each in norms], [each.after for each in norms])
    )
    return [f"‖parameters‖ {before:.4g} → {after:.4g} ({len(norms)} blocks)"]


def _lengths(metrics: Document, directory: Path) -> Iterator[Line]:
    """The features with the shortest lengths, on which the kernel depends most."""
    if (found := lengths_of_features(directory, metrics)) is None:
        return
    names, _, after = found
    mean = np.exp(np.mean(np.log(after), axis=0))
    order = np.argsort(mean)
    shown = ", ".join(f"{names[i]} {mean[i]:.3g}" for i in order[:_MOST])
    more = f"; the longest, {names[order[-1]]}, {mean[order[-1]]:.3g}" if len(mean) > _MOST else ""
    yield "lengths", f"{shown}{more}"


def _held_out(config: Config, metrics: Document) -> Iterator[Line]:
    for name, rows in held_out(metrics, config.objective.name).items():
        failed, batches = metrics["held_out"]["failed"], metrics["held_out"]["batches"]
        note = f"; {failed} of {batches} failed" if failed else ""
        shown = _change(rows["initial"], rows["trained"], rows["change"])
        yield name, f"{shown} on {batches} held-out batches{note}"
    if reading := reading_of_rho(metrics):
        yield "", reading


def _evaluation(config: Config, found: Findings) -> Iterator[Line]:
    """The leading metric at each N_I and λ; below an mse its root and, but for a series, R², that of its forecasts."""
    beside_mse = {"rmse": "rmse"} if config.dataset.is_series else {"rmse": "rmse", "r2": "R²"}
    of_kernels = " (geometric means of the kernels' λ)" if found.places("effective_regularization.0") else ""
    for place in found.places(found.metric):
        if (pair := found.pair(place)) is None:
            continue
        of = _arrow(*(_lambda(row) for row in pair))
        change = _change(*pair, found.changes.get(place))
        yield f"N_I {place.n_interpolation}", f"{found.metric} {change}; λ {of}{of_kernels}"
        if found.metric == "mse":
            own = [at.metric[3:] for at in found.places() if at.metric.startswith("mse.") and at[1:] == place[1:]]
            for target in ["", *own[:_MOST_TARGETS]]:
                names = {f"{metric}{target}": name for metric, name in beside_mse.items()}
                if shown := _beside_mse(found, place, names):
                    yield "", f"{found.target(target[1:])}: {shown}" if target else shown
            if len(own) > _MOST_TARGETS:
                yield "", f"and {len(own) - _MOST_TARGETS} more targets, in evaluation.csv"


_MOST_TARGETS = 6


def _beside_mse(found: Findings, place: Place, names: dict[str, str]) -> str:
    """Metrics before and after training, by the names that are shown, as `rmse 0.16 → 0.11, R² 0.96 → 0.98`."""
    shown = []
    for metric, name in names.items():
        pair = found.pair(place._replace(metric=metric)) or ()
        if pair and None not in (means := [row["mean"] for row in pair]):
            shown.append(f"{name} {' → '.join(map(number, means))}")
    return ", ".join(shown)


def _lambda(row: TableRow) -> str:
    return "one for each fold" if row["regularization"] is None else f"{row['regularization']:g}"


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _head(found: Findings) -> Iterator[Line]:
    """The network's own classifier."""
    accuracy, likely = (found.pair(found.at(name)) for name in ("head_accuracy", "head_log_likelihood"))
    if accuracy is not None and likely is not None:
        means = " → ".join(number(row["mean"]) for row in likely)
        yield "head", f"accuracy {_change(*accuracy)}; log-likelihood a point {means}"


def _random(found: Findings) -> Iterator[Line]:
    """The worst and the best of random kernels, at the trained kernel's largest N_I."""
    if (at := found.at()) is None:
        return
    means = [row["mean"] for kernel, row in found.evaluation[at].items() if kernel.startswith("random")]
    good = [mean for mean in means if mean is not None and math.isfinite(mean)]
    if good:
        span = f"{number(min(good))} to {number(max(good))}"
        yield "random", f"{at.metric} {span} at N_I {at.n_interpolation} ({len(means)} kernels)"


_OF_FORECASTS = {
    "forecast": ("smape", "nrmse", "r2", "valid_lyapunov_times", "valid_time"),
    "attractor": ("modified_hausdorff", "spectral_distance", "lyapunov_exponent"),
}
"""Metrics that stand on a line of the summary, up to four of those that a run has."""


def _forecasts(config: Config, found: Findings) -> Iterator[Line]:
    """The windows, and the errors of forecasts with the largest N_I, before and after training."""
    if not config.dataset.is_series:
        return
    yield "windows", config.dataset.in_words()
    if chosen := config.dataset.backtest_in_words():
        yield "backtest", chosen
    for key, metrics in _OF_FORECASTS.items():
        pairs = [(name, pair) for name in metrics if (pair := found.pair(found.at(name))) is not None]
        shown = [(name.replace("_", " "), _arrow(*(number(row["mean"]) for row in pair))) for name, pair in pairs]
        if parts := [f"{'R²' if name == 'r2' else name} {value}" for name, value in shown]:
            yield key, ", ".join(parts[:4])
            if key == "forecast" and (last := found.pair(found.at("persistence_nrmse"))) is not None:
                yield "last value", f"nrmse {number(last[1]['mean'])}, of a forecast that stays at it"


def _published(config: Config, metrics: Document, directory: Path) -> Iterator[Line]:
    if not config.published:
        return
    from kfx.report.measured import printed_beside
    from kfx.report.naming import described

    for printed, measured in printed_beside(config, metrics, directory):
        if printed.value is not None:  # else a curve without numbers
            beside = f"measured {number(measured)}" if measured is not None else "not measured by a run"
            named = described(printed, printed.metric)
            yield "published", f"{named} {printed.value:g}, {beside} ({printed.source})"


def _stopped(metrics: Document) -> Iterator[Line]:
    several = len(metrics.get("parameters", {}).get("folds", [0])) > 1
    for part, end in metrics.get("flow_stopped", {}).items():
        yield "flow", f"stopped, {f'part {part}, ' if several else ''}layer {end['layer']}: {end['reason']}"
