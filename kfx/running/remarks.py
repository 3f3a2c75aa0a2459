"""Find what is worth a note about a fit and its evaluation.

Notes follow from numbers alone. `notes.remark` delivers them: a run prints and records them, an estimator keeps them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from kfx.data.dataset import predicted_labels
from kfx.evaluation.scoring import constant_prediction
from kfx.files import TableRow, read_rows
from kfx.kernels.base import Kernel
from kfx.kernels.names import readable
from kfx.numerics.arrays import in_numpy, some_of
from kfx.numerics.formatting import number, spread
from kfx.numerics.round_off import is_constant
from kfx.numerics.weighting import weighted
from kfx.outcomes import Event, NumericalError

if TYPE_CHECKING:
    import pandas as pd

    from kfx.evaluation.options import Split
    from kfx.running.context import Notes, RunContext
    from kfx.running.refitted import Prepared

_ERRORS = 2.0
"""A paired difference of an objective of more standard errors than this is taken for more than chance."""
_LEAST_CHANGE = 0.01
"""The smallest relative change of an objective worth a note."""
_MEAN_SQUARES = 5 / 6
"""The largest share of the targets' squares that their mean may have without a note."""
_NEAR_ONE_MINUS_P, _COUPLED = 0.05, 0.3
_MOST_PARAMETERS, _MOST_LEFT_OUT = 16, 500
_LAMBDA = "regularization"
_MOST_NAMED = 5


def of_fit(context: RunContext, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> None:
    """Note problems of targets, parameters and held-out batches, if anything was fitted."""
    pairs = [pair for pair in zip(starts, fitted, strict=True) if pair[0] is not pair[1]]
    if not pairs:
        return
    _of_features(context)
    _of_targets(context)
    _of_bounds(context, pairs)
    if (held_out := context.notes.metrics.get("held_out")) is not None and context.config.optimizer.minimizes_objective:
        _of_objective(context, held_out)
        if context.config.objective.compares_norms:
            _of_coupling(context, fitted, held_out["rho"])


def _tell(context: RunContext, event: Event, what: str) -> None:
    context.notes.remark(event, f"{what}: {event.advice}")


def _of_features(context: RunContext) -> None:
    """Note features of an own table that are the same at all training points."""
    if not context.config.dataset.is_own or context.config.dataset.image is not None:
        return
    names, same = (
        context.parts[0].features,
        np.all([is_constant(part.x_train) for part in context.parts], axis=0),
    )
    found = [names[i] if names else f"feature {i}" for i in np.flatnonzero(same)]
    if found:
        shown = ", ".join(found[:_MOST_NAMED]) + (
            f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        )
        what = f"{shown} {'is' if len(found) == 1 else 'are'} the same at all training points"
        _tell(context, Event.CONSTANT_FEATURES, what)


def _of_targets(context: RunContext) -> None:
    """Note targets whose mean dominates their squares, if the objective compares norms."""
    if not context.config.objective.compares_norms:
        return
    y = torch.cat([y for _, y, _ in context.tensors]).to(torch.float64)
    means, deviations = y.mean(dim=0), y.std(dim=0)
    if float(means.square().sum()) > _MEAN_SQUARES * float(y.square().mean(dim=0).sum()):
        i = int(means.abs().argmax())
        shown = f"the targets' mean, {number(float(means[i]))}, is much larger than their deviation"
        _tell(
            context, Event.MEAN_DOMINATES, f"{shown}, {number(float(deviations[i]))}, and {_objective(context)} sees it"
        )


def _of_bounds(context: RunContext, pairs: Sequence[tuple[Kernel, Kernel]]) -> None:
    """Note parameters that ended at an end of their range.

    Parameters that stayed there were noted during the fit already; those that a flow does not move are left out.
    """
    optimizer = context.config.optimizer
    stayed = context.notes.trace.stayed if context.notes.trace is not None else ()
    if len(pairs[0][1].names) > _MOST_PARAMETERS:
        return
    ends: dict[str, list[float]] = {}
    for start, kernel in pairs:  # whose parameters differ where folds kept different parts
        for i, name in enumerate(kernel.names):
            moved = not optimizer.moves_points or kernel.flat[i] != start.flat[i]
            if moved and (end := _end(float(kernel.flat[i]), *optimizer.searched(kernel)[i])) is not None:
                ends.setdefault(name, []).append(end)
    for name, found in ends.items():
        if name in stayed:
            continue
        folds = f" in {len(found)} of {len(pairs)} {context.config.outputs.unit}s" if len(pairs) > 1 else ""
        shown = "λ" if name == _LAMBDA else readable(name, context.config.kernel)
        event = Event.REGULARIZATION_AT_BOUND if name == _LAMBDA else Event.AT_BOUND
        _tell(context, event, f"{shown} ended at {found[0]:g}, an end of its range{folds}")


def _end(value: float, low: float, high: float) -> float | None:
    """The end of the range at which a value lies; None if it lies within."""
    return next((end for end in (low, high) if math.isclose(value, end, rel_tol=1e-6)), None)


def _objective(context: RunContext) -> str:
    return "ρ" if context.config.objective.name == "rho" else context.config.objective.name


def _is_more_than(errors: float, change: float, error: float) -> bool:
    """Whether a change is larger than so many standard errors, if these are known."""
    is_larger = change * (1 - 1e-9) > errors * error  # one point among n changes by exactly its error
    return math.isfinite(change) and (is_larger or not math.isfinite(error))


def _of_objective(context: RunContext, held_out: TableRow) -> None:
    """Note an objective that is worse than before training."""
    found, count = held_out["objective"], held_out["batches"] - held_out["failed"]
    before, after, change = (found[name]["mean"] for name in ("initial", "trained", "change"))
    error = found["change"]["sd"] / math.sqrt(max(count, 1))
    if _is_more_than(_ERRORS, change, error) and change > _LEAST_CHANGE * abs(before):
        shown = f"{number(before)} → {number(after)} (+{number(change, before)} ± {number(error, before)})"
        _tell(
            context,
            Event.OBJECTIVE_ROSE,
            f"{_objective(context)} on held-out batches is worse than before training, {shown}",
        )


def _of_coupling(context: RunContext, fitted: Sequence[Kernel], rho: TableRow) -> None:
    """Note a kernel with ρ near 1 − p because A = Θ + λI is nearly diagonal; every nearly diagonal A has that ρ."""
    config = context.config
    before, after = (rho[name]["mean"] for name in ("initial", "trained"))
    of_identity = 1 - config.sampler.usual_proportion()
    if not abs(after - of_identity) < _NEAR_ONE_MINUS_P:
        return
    coupled = []
    for part, (kernel, (x, y, _)) in enumerate(zip(fitted, context.tensors, strict=True)):
        size, weights = config.sampler.batch_size or len(x), context.weights(part)
        regularization = kernel.own_regularization or config.regularization.build()
        given = kernel.gram(some_of(x, size)).to(torch.float64), some_of(y, size), regularization
        gram, _, regularization = weighted(*given, None if weights is None else some_of(weights, size))
        own = gram.diagonal() + regularization.of(gram)
        others = (gram.square().sum(dim=1) - gram.diagonal().square()).clamp(min=0).sqrt()
        coupled.append(float((others / own).median()))
    if np.median(coupled) < _COUPLED:
        shown = f"{number(before)} → {number(after)}, near 1 − p = {of_identity:g}"
        _tell(context, Event.NEARLY_IDENTITY, f"the trained kernel is nearly the identity, ρ {shown}")


def of_preparations(notes: Notes, found: Sequence[Prepared]) -> None:
    """Record how each part of the data is prepared where that was chosen, and note what is not usual."""
    if any(own.losses for own in found):
        notes.metrics["preparation"] = [own.document() for own in found]
    changed = [own for own in found if own.losses and own.how != own.usual]
    if changed:
        counts = Counter(str(own.how) for own in changed)
        hows = [f"{how} in {count} of {len(found)} folds" for how, count in counts.most_common()]
        losses = [(own.losses[str(own.how)], own.losses[str(own.usual)]) for own in changed]
        with_them, without = (number(float(np.mean(each))) for each in zip(*losses, strict=True))
        shown = ", ".join(hows) if len(found) > 1 else str(changed[0].how)
        found_by = f"(mean loss {with_them}, without {without}): {Event.TRANSFORMED.advice}"
        notes.remark(Event.TRANSFORMED, f"{shown} {found_by}")


def of_errors(context: RunContext, metric: str, before: float, after: float, error: float, on: str) -> None:
    """Note predictions that got worse by more than the error of the difference.

    error: standard error of the difference, NaN if unknown. on: the points on which the errors were measured, in words.
    """
    worse = before - after if metric == "accuracy" else after - before
    if not (worse > 0 and _is_more_than(1.0, worse, error)) or number(before) == number(after):
        return
    shown = f"{metric} {on} got worse, {number(before)} → {number(after)}"
    shown += f" ({'−' if metric == 'accuracy' else '+'}{spread(worse, error, before)})"
    held_out = context.notes.metrics.get("held_out")
    if held_out is not None and held_out["objective"]["change"]["mean"] < 0:
        means = [number(held_out["objective"][name]["mean"]) for name in ("initial", "trained")]
        shown += f", while {_objective(context)} fell, {means[0]} → {means[1]}"
    _tell(context, Event.ERROR_ROSE, shown)


def of_kernels_kept(context: RunContext, kept: Sequence[str]) -> None:
    """Note fits that end with another kernel than the fitted one, because its errors at points left out are smaller.

    kept: for each fit which one it is, `kfx.running.context.How`.
    """
    errors = "backtest errors" if context.config.dataset.is_series else "errors at points left out"
    for event, how, what in (
        (Event.INITIAL_KERNEL_KEPT, "initial", f"{errors} are larger after training"),
        (Event.ONE_LENGTH_KEPT, "one_length", f"{errors} are larger with a length for each feature"),
        (Event.SMOOTH_KEPT, "smooth", f"{errors} are larger with the rough part of the kernel"),
    ):
        if count := kept.count(how):
            folds = f" in {count} of {len(kept)} {context.config.outputs.unit}s" if len(kept) > 1 else ""
            _tell(context, event, f"{what}{folds}")


def of_edges(context: RunContext, name: str, kernels: Sequence[Kernel]) -> None:
    """Note a λ chosen by validation that is the smallest or the largest candidate.

    Below the smallest λ for data without noise there is only rounding.
    """
    offered = [choice.value for choice in context.config.regularization.left_out(context.config).values]
    offered = offered[1:] if context.config.regularization.is_free_of_noise(context.config) else offered
    found = [own.value for kernel in kernels if (own := kernel.own_regularization) is not None]
    for edge in {min(offered), max(offered)} if len(offered) > 1 else ():
        if count := found.count(edge):
            folds = f" in {count} of {len(kernels)} {context.config.outputs.unit}s" if len(kernels) > 1 else ""
            text = f"λ {edge:g} of the {name} kernel is at the edge of regularization.candidates{folds}"
            context.notes.remark(Event.REGULARIZATION_AT_EDGE, f"{text}: the best may lie beyond")


def of_directions(context: RunContext, lost: int) -> None:
    """Note a solution through centres whose λ is below the round-off of its sums."""
    if lost:
        _tell(context, Event.DIRECTIONS_LOST, f"{lost} directions of the centres are lost to round-off")


def of_predictions(
    context: RunContext, rows: Sequence[TableRow], splits: Sequence[Split], failures: Sequence[str], predictions: Path
) -> None:
    """Note failed evaluations, a trained kernel no better than a constant, and one that predicts worse than before
    training. predictions: the run's `predictions.csv`."""
    parts, notes = context.folds, context.notes
    for failure in failures:
        notes.remark(Event.EVALUATION_FAILED, failure)
    lost = max((row["value"] for row in rows if row["kernel"] == "trained" and row["metric"] == "lost"), default=0)
    of_directions(context, int(lost) if lost == lost else 0)
    metric = constant_prediction(parts[0])[0]
    constants = [constant_prediction(part)[1] for part in parts]
    of_part = {repeat: part for repeat, part, _ in splits}
    pick = max if metric == "accuracy" else min
    best = {}
    for kernel in ("initial", "trained"):
        own = [row for row in rows if row["kernel"] == kernel and row["metric"] == metric]
        largest: dict[int, int] = {}  # of each repeat, because folds differ by a point
        for row in own:
            largest[row["repeat"]] = max(largest.get(row["repeat"], 0), row["n_interpolation"])
        by_regularization: dict[float, dict[int, float]] = {}
        for row in own:
            if row["n_interpolation"] == largest[row["repeat"]] and math.isfinite(row["value"]):
                by_regularization.setdefault(row["configured_regularization"], {})[row["repeat"]] = row["value"]
        if by_regularization:  # the best of several λ
            best[kernel] = pick(by_regularization.values(), key=lambda values: float(np.mean(list(values.values()))))
    if "trained" not in best:  # it failed at the most points
        return
    value = float(np.mean(list(best["trained"].values())))
    constant = float(np.mean([constants[of_part[repeat]] for repeat in best["trained"]]))
    if value <= constant if metric == "accuracy" else value >= 0.999 * constant:
        what = "the largest class alone" if metric == "accuracy" else "the mean of the training targets"
        text = f"{metric} {number(value)} is no better than what {what} predicts, {number(constant)}"
        notes.remark(Event.NO_BETTER_THAN_CONSTANT, text)
    initial, trained = best.get("initial", {}), best["trained"]
    both = [(initial[repeat], trained[repeat]) for repeat in initial if repeat in trained]
    if both:
        before, after = (float(mean) for mean in np.mean(both, axis=0))
        if (before > after) == (metric == "accuracy"):
            error = _error_of_points(predictions) if len(both) == 1 else _standard_error([a - b for a, b in both])
            of_errors(context, metric, before, after, error, "on test points")


def of_points_left_out(context: RunContext, before: Kernel, after: Kernel) -> None:
    """As `of_predictions` without test points: by leave-one-out errors on some training points.

    After a flow they mean nothing, because it has moved the points by their own targets.
    """
    if context.config.optimizer.moves_points or before is after:
        return
    (x, y, _), labels, weights = context.tensors[0], context.parts[0].labels_train, context.weights(0)
    given = some_of(x, _MOST_LEFT_OUT), some_of(y, _MOST_LEFT_OUT)
    used = None if weights is None else some_of(weights, _MOST_LEFT_OUT)
    try:
        pair = [_errors_left_out(context, kernel, *given, used) for kernel in (before, after)]
    except NumericalError:  # if the interpolation fails too, it reports this
        return
    metric = "mse" if labels is None else "accuracy"
    means = [float(errors.mean()) for errors in pair]
    error = _standard_error(in_numpy(pair[1] - pair[0]))
    shown = means if labels is None else [1 - mean for mean in means]
    of_errors(context, metric, shown[0], shown[1], error, "on training points left out")


def _errors_left_out(
    context: RunContext, kernel: Kernel, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """For each point, (n,), the leave-one-out squared error, or 1 if its class is missed, times its weight. x: (n, …).
    y: (n, outputs). weights: (n,), or None."""
    from kfx.objectives.leave_one_out import errors

    regularization, part = kernel.own_regularization or context.config.regularization.build(), context.parts[0]
    left = errors(*weighted(kernel.gram(x), y, regularization, weights))
    left = left if weights is None else left / weights.sqrt()[:, None]
    if part.labels_train is None:
        units = left if part.reduction else left * torch.as_tensor(part.of_varying(part.target_scale))
        found = units.square().mean(dim=1)
    else:
        is_missed = predicted_labels(in_numpy(y - left)) != predicted_labels(in_numpy(y))
        found = torch.as_tensor(is_missed, dtype=torch.float64)
    return found if weights is None else found.to(weights) * weights / weights.mean()


def _error_of_points(predictions: Path) -> float:
    """The standard error over test points of the difference that training makes to their squared errors, or to their
    misclassifications; NaN where the predictions are not both there."""
    table = read_rows(predictions, ["kernel"])
    before, after = (_losses(table[table["kernel"] == name]) for name in ("initial", "trained"))
    return _standard_error(after - before) if len(before) == len(after) else math.nan


def _losses(rows: pd.DataFrame) -> np.ndarray:
    """The squared error of each point, the mean over outputs, or 1 if its class is missed, times its weight if points
    have weights, (m,)."""
    weights = rows["weight"].to_numpy() / rows["weight"].mean() if "weight" in rows else 1.0
    if "class" in rows:
        return (rows["class"] != rows["prediction"]).to_numpy(dtype=float) * weights
    target, prediction = (
        rows[[name for name in rows if str(name).partition(".")[0] == kind]].to_numpy(dtype=float)
        for kind in ("target", "prediction")
    )
    return np.square(prediction - target).mean(axis=1) * weights


def _standard_error(differences: Sequence[float] | np.ndarray) -> float:
    """That of the mean of paired differences; NaN for less than two."""
    return float(np.std(differences, ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
