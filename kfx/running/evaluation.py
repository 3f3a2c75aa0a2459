"""The last stage of a run: evaluate its kernels, and note problems with the results."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kfx.config.metrics import better_of
from kfx.evaluation import predictions
from kfx.evaluation.options import Split, TestPointsOption
from kfx.evaluation.results import COMPARED, Result, changes, derived, summary
from kfx.evaluation.scoring import Keep, Scoring, evaluate, metric_names
from kfx.files import Document
from kfx.kernels import Kernel
from kfx.kernels.regularized import bare
from kfx.kernels.starts import random_kernel
from kfx.numerics import threads
from kfx.objectives.selection import Selection
from kfx.outcomes import Event, NumericalError
from kfx.record.columns import REJECTED
from kfx.record.evaluations import Evaluations
from kfx.record.record import Record
from kfx.running import remarks
from kfx.running.context import RunContext
from kfx.running.left_out import fixed_on, with_selected
from kfx.screen.progress import Steps, say

if TYPE_CHECKING:
    pass

_FORECASTS = ("/forecast", "/attractor")
"""Ends of the names of arrays that tables of forecasts are made of."""


def evaluate_kernels(
    context: RunContext, record: Record, starts: Sequence[Kernel], fitted: Sequence[Kernel]
) -> Document:
    """Evaluate the initial, the trained and random kernels into `evaluation.csv`; return the entries for
    `metrics.json`."""
    config, folds = context.config, context.folds
    threads.use(context.threads_of_evaluation, context.machine.threads)
    scoring, splits = config.evaluation.scoring(config), config.evaluation.splits(folds, context.streams)
    scoring = replace(scoring, ends=any(fold.warp is not None for fold in folds))
    started = fixed_on(context, starts)
    kernels = {
        name: started if all(map(operator.is_, own, starts)) else fixed_on(context, own)
        for name, own in _kernels(context, starts, fitted).items()
    }
    if (selection := config.evaluation.selected(config)).is_chosen:
        kernels = _with_selected(context, kernels, starts, selection)
    rows, failures = _evaluated(context, record, kernels, splits, scoring)
    has_draws = isinstance(config.evaluation, TestPointsOption) and config.evaluation.draws
    if scoring.rollout is not None or has_draws or config.kernel_check:
        from kfx.running.further_tables import write

        write(context, record, rows, kernels["trained"][-1], splits[-1][2], scoring)
    of_trained = [row["value"] for row in rows if row["kernel"] == "trained" and row["metric"] in ("accuracy", "mse")]
    if not np.isfinite(of_trained).any():
        why = failures[-1] if failures else "see evaluation.csv"
        raise NumericalError(Event.DIVERGED, f"no evaluation of the trained kernel gave a number: {why}")
    remarks.of_predictions(context, rows, splits, failures, record.directory / "predictions.csv")
    # The number of interpolation points to show when each fold takes all of its points.
    whole = None if config.evaluation.n_interpolation else max(len(fold.x_train) for fold in folds)
    every = [*rows, *derived(rows, {repeat: folds[part] for repeat, part, _ in splits})]
    entries: Document = {"evaluation": summary(every, whole), "evaluation_change": changes(every, whole)}
    if any(row["metric"] == "mse.0" for row in rows) and (names := config.dataset.target_names()):
        entries["targets"] = list(names)
    entries["better"] = better_of(dict.fromkeys(row["metric"] for row in every))
    if (series := folds[0].series) is not None and scoring.rollout is not None:
        from kfx.evaluation.rollout import SPREAD

        entries[SPREAD] = dict(zip(series.coordinates, series.spread.tolist(), strict=True))
    if record.follow is not None and config.follow.every + config.follow.last:
        from kfx.evaluation.follower import last_rows, window_rows

        of_flow, last = config.optimizer.moves_points, max(record.follow.last, 1)
        whole = None if record.follow.sizes else whole
        entries["last_layers" if of_flow else "last_iterations"] = last_rows(record.directory, last, of_flow, whole)
        if config.follow.windows:
            entries["windows"] = window_rows(record.directory, config.follow.windows, of_flow, whole)
    return entries


def _with_selected(
    context: RunContext, kernels: Mapping[str, list[Kernel]], starts: Sequence[Kernel], selection: Selection
) -> dict[str, list[Kernel]]:
    """Each kernel with the λ that is chosen for it; initial kernels may have it already."""
    is_known = replace(selection, again=True) == context.config.regularization.selected()
    known = {id(kernel) for own in [starts, *context.drawn] for kernel in own} if is_known else set()
    validated: dict[str, list[Kernel]] = {}
    for name, own in kernels.items():
        if own is kernels["initial"] and name != "initial":  # the kernel was not changed
            validated[name] = validated["initial"]
        elif all(id(kernel) in known for kernel in own) or (name == "trained" and not selection.again):
            validated[name] = own
        else:
            validated[name] = with_selected(context, own, selection)
            if name in ("initial", "trained"):
                remarks.of_edges(context, name, validated[name])
    return validated


def _kernels(context: RunContext, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> dict[str, list[Kernel]]:
    """The kernels to evaluate by name, one for each part: the initial ones, the trained ones, those that were not kept
    after training, and random ones."""
    config = context.config
    kernels = {"initial": list(starts), "trained": list(fitted)}
    if context.rejected:
        kernels[REJECTED] = context.rejected
    shown = config.kernel.starts if config.kernel.start_from == "worst" else 0
    for i in range(shown):  # the candidates for the initial kernel
        kernels[f"random-{i}"] = [own[i] for own in context.drawn]
    for i in range(shown, shown + config.evaluation.random_kernels):
        drawn = random_kernel(bare(starts[0]), context.streams["random_kernels"], config.kernel)
        kernels[f"random-{i}"] = [drawn] * len(context.parts)
    return kernels


def _evaluated(
    context: RunContext,
    record: Record,
    kernels: Mapping[str, Sequence[Kernel]],
    splits: Sequence[Split],
    scoring: Scoring,
) -> tuple[list[Document], list[str]]:
    """All rows of `evaluation.csv`, those of an earlier process included, and messages of failures."""
    config, folds = context.config, context.folds
    sizes = config.evaluation.n_interpolation
    metrics = metric_names(folds[0], scoring, config.outputs.is_separate)
    files, count = record.evaluations, len(sizes or [0]) * len(scoring.regularizations) * len(metrics)
    rows = files.begin(count, record.restored is not None)
    kept = next(repeat for repeat, fold, _ in splits if fold == len(folds) - 1)  # from which the record predicts
    keep_solution: Keep | None = None
    is_own = config.dataset.is_own and not config.dataset.is_series and folds[0].weights is None
    if scoring.approximation or (scoring.calibration and is_own):
        from kfx.record import solution

        keep_solution = partial(solution.keep, record.directory, with_deviations=folds[0].labels_train is None)
    is_curve = folds[0].x_train.shape[1:] == (1,) and len(folds) == 1  # the picture needs points and predictions
    if is_curve:
        files.keep({name: getattr(folds[0], name) for name in ("x_train", "y_train", "x_test", "y_test")})
    failed: list[str] = []
    unchanged = [name for name, own in kernels.items() if all(map(operator.is_, own, kernels["initial"]))]
    with Steps("evaluation", len(kernels) * len(splits)) as steps:
        for name, of_parts in kernels.items():
            done = {row["repeat"] for row in rows if row["kernel"] == name}
            if name != "initial" and name in unchanged:  # the same rows
                initial = [row for row in rows if row["kernel"] == "initial" and row["repeat"] not in done]
                same = [row | {"kernel": name} for row in initial]
                if name in COMPARED:
                    files.predicted_alike("initial", name, {row["repeat"] for row in same})
                files.add(same)
                rows += same
                for _ in splits:
                    steps.advance()
                continue
            for repeat, fold, order in splits:
                if repeat not in done:
                    of_fold = context.of_fold(of_parts, fold)
                    inflation = context.inflation_of(fold) if name == "trained" else 1.0
                    is_trained = name == "trained" or (name == "initial" and "trained" in unchanged)
                    keep = keep_solution if is_trained and repeat == kept else None
                    results = _results(context, of_fold, fold, order, scoring, inflation, keep)
                    _keep(files, name, repeat, results, every=config.evaluation.save_predictions or is_curve)
                    if name in COMPARED and (arrays := _at_largest(results).arrays):
                        files.predicted(name, repeat, predictions.columns(arrays, folds[fold]))
                    measured = [row for result in results for row in result.rows(name, repeat)]
                    files.add(measured)
                    if context.disk is not None:
                        context.disk.discard()
                    rows += measured
                    for problem in dict.fromkeys(problem for result in results for problem in result.problems):
                        shown = name if config.outputs.is_separate else f"{name} {of_fold[0]!r}"
                        failed.append(f"{shown}: {problem}")
                        record.note(Event.NOT_POSITIVE_DEFINITE, failed[-1])
                        say(f"kfx: evaluation: {failed[-1]}")
                    if record.stop is not None:
                        raise record.stop
                steps.advance()
    return rows, failed


def _results(
    context: RunContext,
    kernels: Sequence[Kernel],
    fold: int,
    order: np.ndarray,
    scoring: Scoring,
    inflation: np.ndarray | float,
    keep: Keep | None,
) -> list[Result]:
    """The results of the kernels of a fold: one, or one for each output. inflation: of their deviations."""
    data = replace(context.folds[fold], inflation=inflation)
    sizes = context.config.evaluation.n_interpolation or [len(data.x_train)]
    given = data, context.tensors_of_folds[fold], order, sizes, scoring, context.disk
    if context.config.outputs.is_separate:
        from kfx.evaluation import separate

        return separate.evaluate_separately(kernels, *given)
    return evaluate(kernels[0], *given, keep)


def _at_largest(results: Sequence[Result]) -> Result:
    """The result at the largest N_I with the first λ."""
    return max(results, key=lambda result: result.n_interpolation)


def _keep(files: Evaluations, name: str, repeat: int, results: Sequence[Result], *, every: bool) -> None:
    """Keep the arrays of results: `every` one, or else forecasts, from which `forecasts.csv` and `attractor.csv` are
    made."""
    arrays = {key: array for result in results for key, array in result.named(name, repeat).items()}
    if kept := arrays if every else {key: array for key, array in arrays.items() if key.endswith(_FORECASTS)}:
        files.keep(kept)
