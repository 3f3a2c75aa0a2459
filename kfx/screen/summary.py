"""The closing lines of a run: the kernel before and after, errors, printed numbers, notes, and where the results
are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kfx.experiment.config import Config
from kfx.files import Document, TableRow
from kfx.kernels.names import readable
from kfx.kernels.parameters import NORM
from kfx.numerics.formatting import number, spread
from kfx.record.fitted import lengths_of_features
from kfx.report.results import ParameterChange, Results, results

_WIDTH = 12
_MOST = 6  # parameters shown
_OF_HEAD = ("head_accuracy", "head_log_likelihood")


def closing_lines(config: Config, metrics: Document, directory: Path) -> list[str]:
    """The lines that end a run, the most important results first; the record holds all of them too."""
    found = results(config, metrics, directory)
    lines = [
        *_parameters(config, found.parameters),
        *_lengths(metrics, directory),
        *_held_out(config.objective.name, metrics.get("held_out")),
        *_evaluation(found, metrics.get("evaluation_change", [])),
        *_forecasts(config, found),
        *_published(found),
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


def change(before: TableRow, after: TableRow, difference: TableRow | None) -> str:
    """Before, after and the difference, such as 0.9600 ± 0.0100 → 0.9700 ± 0.0090 (+0.0100 ± 0.0050)."""
    shown = " → ".join(spread(each["mean"], each.get("sd")) for each in (before, after))
    mean = math.nan if difference is None or difference["mean"] is None else difference["mean"]
    if difference is None or math.isnan(mean):
        return shown
    return f"{shown}  ({'+' if mean >= 0 else '−'}{spread(abs(mean), difference.get('sd'), before['mean'])})"


def _parameters(config: Config, parameters: Sequence[ParameterChange]) -> list[str]:
    if not parameters:
        return []
    changed = _blocks([each for each in parameters if each.name.endswith(NORM)])
    for each in parameters:
        if each.name.endswith(NORM) or not each.is_moved or _is_of_features(each):
            continue
        before, after = each.means
        over, folds, size = "", len(each.after), each.after[0].size
        if folds > 1:
            over = f" ± {np.std([a.mean() for a in each.after], ddof=1):.2g} ({folds} {config.outputs.unit}s)"
        start = "→ " if before is None else f"{before:.4g} → "
        of = f" (mean of {size})" if size > 1 else ""
        changed.append(f"{readable(each.name, config.kernel)} {start}{after:.4g}{over}{of}")
    if not changed and any(map(_is_of_features, parameters)):
        return []
    if not changed:
        flows = config.optimizer.moves_points
        said = f"unchanged; its points flow, {config.optimizer.iterations} layers" if flows else "unchanged"
        return [_line("kernel", said)]
    more = f", and {len(changed) - _MOST} more" if len(changed) > _MOST else ""
    return [_line("kernel", ", ".join(changed[:_MOST]) + more)]


def _is_of_features(change: ParameterChange) -> bool:
    return change.name == "lengths" and change.after[0].ndim > 0


def _lengths(metrics: Document, directory: Path) -> list[str]:
    """The features with the shortest lengths, on which the kernel depends most."""
    found = lengths_of_features(directory, metrics.get("parameters", {}))
    if found is None:
        return []
    mean = np.exp(np.mean(np.log(found[1]), axis=0))
    names = metrics.get("features") or [f"feature {i}" for i in range(len(mean))]
    order = np.argsort(mean)
    shown = ", ".join(f"{names[i]} {mean[i]:.3g}" for i in order[:_MOST])
    more = f"; the longest, {names[order[-1]]}, {mean[order[-1]]:.3g}" if len(mean) > _MOST else ""
    return [_line("lengths", f"{shown}{more}")]


def _blocks(norms: Sequence[ParameterChange]) -> list[str]:
    """The norm of all parameters together, if they are too many to be shown."""
    if not norms:
        return []
    before, after = (
        np.mean([math.hypot(*fold) for fold in zip(*arrays, strict=True)])
        for arrays in ([each.before for each in norms], [each.after for each in norms])
    )
    return [f"‖parameters‖ {before:.4g} → {after:.4g} ({len(norms)} blocks)"]


def _held_out(objective: str, measured: Document | None) -> list[str]:
    if measured is None:
        return []
    failed, batches = measured["failed"], measured["batches"]
    note = f"; {failed} of {batches} failed" if failed else ""
    lines = []
    for name in ("objective", "rho") if objective != "rho" else ("rho",):
        shown = change(*(measured[name][when] for when in ("initial", "trained", "change")))
        lines.append(_line(objective if name == "objective" else "rho", f"{shown} on {batches} held-out batches{note}"))
    return lines


def _evaluation(found: Results, changes: Sequence[TableRow]) -> list[str]:
    metric = "accuracy" if any(place[0] == "accuracy" for place in found.evaluation) else "mse"
    differences = {
        (row["n_interpolation"], row["configured_regularization"]): row for row in changes if row["metric"] == metric
    }
    own = {place[1:]: kernels for place, kernels in found.evaluation.items() if place[0] == metric}
    lines = []
    for place, kernels in own.items():
        if not {"initial", "trained"} <= kernels.keys():
            continue
        pair = kernels["initial"], kernels["trained"]
        values = [row["regularization"] for row in pair]
        named = ["one for each fold" if value is None else f"{value:g}" for value in values]
        of = f"λ {named[0]}" if named[0] == named[1] else f"λ {named[0]} → {named[1]}"
        lines.append(_line(f"N_I {place[0]}", f"{metric} {change(*pair, differences.get(place))}; {of}"))
        if metric == "mse":
            lines += _beside_mse(found, place)
    heads = {metric: kernels for (metric, *_), kernels in reversed(found.evaluation.items())}  # the first of each
    if "trained" in heads.get("head_accuracy", {}):
        accuracy, likely = ([heads[name][k] for k in ("initial", "trained")] for name in _OF_HEAD)
        means = " → ".join(number(row["mean"]) for row in likely)
        said = f"accuracy {change(accuracy[0], accuracy[1], None)}; log-likelihood a point {means}"
        lines.append(_line("head", said))
    of_trained = [place for place, kernels in own.items() if "trained" in kernels]
    if of_trained:  # at the trained kernel's largest N_I, with the first λ
        place = max(of_trained, key=lambda place: place[0])
        random = [row["mean"] for kernel, row in own[place].items() if kernel.startswith("random")]
        good = [mean for mean in random if mean is not None and math.isfinite(mean)]
        if good:
            shown = f"{metric} {number(min(good))} to {number(max(good))} at N_I {place[0]}"
            lines.append(_line("random", f"{shown} ({len(random)} kernels)"))
    return lines


def _beside_mse(found: Results, place: tuple[int, float | str | None]) -> list[str]:
    """The root of the mse, and the share of the variance that is predicted, where the targets vary."""
    shown = []
    for name, metric in (("rmse", "rmse"), ("R²", "r2")):
        kernels = found.evaluation.get((metric, *place), {})
        means = [kernels.get(kernel, {}).get("mean") for kernel in ("initial", "trained")]
        if None not in means:
            shown.append(f"{name} {' → '.join(map(number, means))}")
    return [_line("", ", ".join(shown))] if shown else []


def _forecasts(config: Config, found: Results) -> list[str]:
    """The windows, and the errors of forecasts with the largest N_I, before and after training."""
    if not config.dataset.is_series:
        return []
    parts, lines = [], [_line("windows", config.dataset.in_words())]
    for metric in ("smape", "nrmse", "valid_lyapunov_times", "valid_time"):
        own = [(place[1], kernels) for place, kernels in found.evaluation.items() if place[0] == metric]
        if own and {"initial", "trained"} <= (kernels := max(own, key=lambda each: each[0])[1]).keys():
            pair = [number(kernels[name]["mean"]) for name in ("initial", "trained")]
            parts.append(f"{metric.replace('_', ' ')} {pair[0] if pair[0] == pair[1] else ' → '.join(pair)}")
    return [*lines, _line("forecast", ", ".join(parts[:3]))] if parts else lines


def _published(found: Results) -> list[str]:
    lines = []
    for printed, measured in found.published:
        if printed.value is None:
            continue  # a curve without numbers
        beside = f"measured {number(measured)}" if measured is not None else "not measured by a run"
        of = "" if printed.kernel == "trained" else f" of the {printed.kernel} kernel"
        of += "" if printed.n_interpolation is None else f" at N_I {printed.n_interpolation}"
        of += "" if printed.statistic == "mean" else f", {printed.statistic}"
        of += "" if printed.window is None else f", {printed.window[0]} to {printed.window[1]}"
        lines.append(_line("published", f"{printed.metric}{of} {printed.value:g}, {beside} ({printed.source})"))
    return lines


def _stopped(metrics: Document) -> list[str]:
    several = len(metrics.get("parameters", {}).get("folds", [0])) > 1
    return [
        _line("flow", f"stopped, {f'part {part}, ' if several else ''}layer {end['layer']}: {end['reason']}")
        for part, end in metrics.get("flow_stopped", {}).items()
    ]
