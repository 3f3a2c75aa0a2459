"""The last stage of a run: evaluate its kernels, and say what the numbers are worth."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kfx.evaluation import device_products
from kfx.evaluation.draws import COLUMNS, errors_of_draws, extremes
from kfx.evaluation.follower import last_rows, window_rows
from kfx.evaluation.options import Job, TestPoints
from kfx.evaluation.scoring import (
    Scoring,
    changes,
    evaluate,
    interpolation_order,
    metric_names,
    summary,
)
from kfx.files import whole_file
from kfx.kernels import Kernel
from kfx.kernels.starts import random_kernel
from kfx.numerics import threads
from kfx.outcomes import Event, NumericalError
from kfx.running import remarks
from kfx.running.stages import bare, settled, with_chosen_regularization
from kfx.running.task import Task
from kfx.screen.progress import Steps, say


def assess(task: Task, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> dict[str, Any]:
    """Evaluate the initial, the trained and random kernels into `evaluation.csv`; what `metrics.json` says of it."""
    config, record, parts = task.config, task.record, task.parts
    threads.use(task.threads_of_evaluation, task.machine.threads)
    scoring, jobs = config.evaluation.scoring(config), config.evaluation.jobs(parts, task.streams)
    started = settled(task, starts)
    kernels = {
        name: started if all(map(operator.is_, own, starts)) else settled(task, own)
        for name, own in _kernels(task, starts, fitted).items()
    }
    if config.evaluation.is_validated(config):
        kernels = _validated(task, kernels, starts)
        scoring = replace(scoring, own=True)
    rows, failures = _evaluated(task, kernels, jobs, scoring)
    if isinstance(config.evaluation, TestPoints) and config.evaluation.draws:
        _draw_subsets(task, config.evaluation, kernels["trained"][-1], scoring)
    if config.kernel_check:
        _check_products(task, kernels["trained"][-1], jobs[-1][2])
    of_trained = [row["value"] for row in rows if row["kernel"] == "trained" and row["metric"] in ("accuracy", "mse")]
    if not np.isfinite(of_trained).any():
        why = failures[-1] if failures else "see evaluation.csv"
        raise NumericalError(Event.DIVERGED, f"no evaluation of the trained kernel gave a number: {why}")
    remarks.of_predictions(task, rows, jobs, failures)
    # What to call the number of interpolation points when every fold takes all of its own.
    whole = None if config.evaluation.n_interpolation else max(len(part.x_train) for part in parts)
    entries: dict[str, Any] = {"evaluation": summary(rows, whole), "evaluation_change": changes(rows, whole)}
    if record.follow is not None and config.follow.every + config.follow.last:
        of_flow, last = config.optimizer.moves_points, max(record.follow.last, 1)
        entries["last_layers" if of_flow else "last_iterations"] = last_rows(record.directory, last, of_flow)
        if config.follow.windows:
            entries["windows"] = window_rows(record.directory, config.follow.windows, of_flow)
    return entries


def _draw_subsets(task: Task, node: TestPoints, kernel: Kernel, scoring: Scoring) -> None:
    """Many draws of a few interpolation points: `draws.csv`, and the best and the worst of them in `draws.npz`."""
    data = task.parts[-1]
    order = interpolation_order(data, node.balanced, task.streams["draws"])
    size = min(node.n_interpolation or [len(order)])
    rows, parts = errors_of_draws(kernel, data, task.tensors[-1], order, size, node.draws, scoring)
    task.record.table("draws.csv", COLUMNS, rows)
    with whole_file(task.record.directory / "draws.npz") as stream:
        np.savez(stream, **extremes(rows, parts, data))  # type: ignore[arg-type]


def _validated(task: Task, kernels: Mapping[str, list[Kernel]], starts: Sequence[Kernel]) -> dict[str, list[Kernel]]:
    """Each kernel with the λ that validation on the training points chooses for it; starts may have theirs already."""
    usual, scale = task.config.regularization, task.config.evaluation.regularization.scale
    chooses_again = task.config.evaluation.chooses_again(task.config)
    is_known = usual.selection == "validation" and scale in (None, usual.scale)
    known = {id(kernel) for own in [starts, *task.drawn] for kernel in own} if is_known else set()
    validated: dict[str, list[Kernel]] = {}
    for name, own in kernels.items():
        if own is kernels["initial"] and name != "initial":  # nothing moved
            validated[name] = validated["initial"]
        elif all(id(kernel) in known for kernel in own) or (name == "trained" and not chooses_again):
            validated[name] = own
        else:
            validated[name] = with_chosen_regularization(task, own, scale or usual.scale)
            if name in ("initial", "trained"):
                remarks.of_edges(task, name, validated[name])
    return validated


def _kernels(task: Task, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> dict[str, list[Kernel]]:
    """By name, one a part: the initial and the trained one, and random ones beside them."""
    config = task.config
    kernels = {"initial": list(starts), "trained": list(fitted)}
    shown = config.kernel.starts if config.kernel.start_from == "worst" else 0
    for i in range(shown):  # those that the start was chosen from
        kernels[f"random-{i}"] = [own[i] for own in task.drawn]
    for i in range(shown, shown + config.evaluation.random_kernels):
        drawn = random_kernel(bare(starts[0]), task.streams["random_kernels"], config.kernel)
        kernels[f"random-{i}"] = [drawn] * len(task.parts)
    return kernels


def _evaluated(
    task: Task,
    kernels: Mapping[str, Sequence[Kernel]],
    jobs: Sequence[Job],
    scoring: Scoring,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every row of `evaluation.csv`, those of an earlier process too, and failures in words."""
    config, record, parts = task.config, task.record, task.parts
    sizes = config.evaluation.n_interpolation
    rows = record.evaluated(len(sizes or [0]) * len(scoring.regularizations) * len(metric_names(parts[0], scoring)))
    is_curve = parts[0].x_train.shape[1:] == (1,) and len(parts) == 1  # its picture needs points and predictions
    if is_curve:
        record.predictions({name: getattr(parts[0], name) for name in ("x_train", "y_train", "x_test", "y_test")})
    failed: list[str] = []
    with Steps("evaluation", len(kernels) * len(jobs)) as steps:
        for name, of_parts in kernels.items():
            done = {row["repeat"] for row in rows if row["kernel"] == name}
            if name != "initial" and all(
                map(operator.is_, of_parts, kernels["initial"])
            ):  # nothing moved: the same rows
                initial = [row for row in rows if row["kernel"] == "initial" and row["repeat"] not in done]
                same = [row | {"kernel": name} for row in initial]
                record.evaluation(same)
                rows += same
                for _ in jobs:
                    steps.advance()
                continue
            for repeat, part, order in jobs:
                if repeat not in done:
                    n = sizes or [len(parts[part].x_train)]
                    measured, arrays, failures = evaluate(
                        name, of_parts[part], parts[part], task.tensors[part], repeat, order, n, scoring, task.beyond
                    )
                    if config.evaluation.save_predictions or is_curve:
                        record.predictions(arrays)
                    record.evaluation(measured)
                    if task.beyond is not None:
                        task.beyond.discard()
                    rows += measured
                    failed += failures
                    for failure in failures:
                        record.note(Event.NOT_POSITIVE_DEFINITE, failure)
                        say(f"kfx: evaluation: {failure}")
                    if record.stop is not None:
                        raise record.stop
                steps.advance()
    return rows, failed


def _check_products(task: Task, kernel: Kernel, order: np.ndarray) -> None:
    x_train, _, x_test = task.tensors[-1]
    sizes = task.config.evaluation.n_interpolation or [len(x_train)]
    regularization = task.config.regularization.build()
    found = device_products.compare(kernel, task.parts[-1], x_train, x_test, order, sizes, regularization)
    task.record.table("kernel_check.csv", device_products.COLUMNS, found)
