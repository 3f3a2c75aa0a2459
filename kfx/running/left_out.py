"""What training points that are left out decide: λ, and the kernel with which a fit ends."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Sequence

import numpy as np
import torch

from kfx.kernels import Kernel, Regularized
from kfx.kernels.kernel_option import POINTS_FOR_A_LENGTH
from kfx.numerics import threads
from kfx.numerics.arrays import some_of
from kfx.numerics.streams import Streams
from kfx.objectives.selection import Selection
from kfx.optimizers.journal import Journal
from kfx.outcomes import NumericalError
from kfx.running import remarks
from kfx.running.context import RunContext
from kfx.screen.progress import WaitMessage


def with_selected(context: RunContext, kernels: Sequence[Kernel], selection: Selection) -> list[Kernel]:
    """Each kernel with its own λ: where training starts, or that which is best for its training points; as it is where
    λ is fixed."""
    if selection.how == "trained":
        return [Regularized(kernel, selection.values[0], trained=True) for kernel in kernels]
    if not selection.is_chosen:
        return list(kernels)
    from kfx.evaluation.cross_validation import least

    if selection.how == "backtest":
        best = least(selection.values, _errors_of_forecasts(context, kernels, selection))
        return [Regularized(bare(kernel), best) for kernel in kernels]
    chosen: list[Kernel] = []
    rng = Streams(context.config.seed)["validation"]
    for part, kernel in enumerate(kernels):
        errors = _errors_of_candidates(context, part, bare(kernel), selection, rng)
        chosen.append(Regularized(bare(kernel), least(selection.values, errors)))
    return chosen


def _errors_of_candidates(
    context: RunContext, part: int, kernel: Kernel, selection: Selection, rng: np.random.Generator
) -> Sequence[float]:
    """The error of a kernel with each λ on training points that are left out."""
    from kfx.evaluation.cross_validation import errors_of_candidates

    x, y, _ = context.tensors[part]
    folds = selection.folds if selection.how == "validation" else None
    approximation, in_blocks = context.config.evaluation.approximation(context.config), context.config.dataset.is_series
    with threads.restored():  # during a fit there may be one thread, for small batches
        threads.use(context.threads_of_evaluation, context.machine.threads)
        given = x, y, selection.values, folds, selection.points, rng, context.disk, approximation
        return errors_of_candidates(kernel, *given, in_blocks=in_blocks, weights=context.parts[part].weights)


def _errors_of_forecasts(context: RunContext, kernels: Sequence[Kernel], selection: Selection) -> Sequence[float]:
    """The error of forecasts within the training series with each λ. kernels: one, or one for each coordinate."""
    from kfx.data.backtest import Backtest

    series = context.parts[0].series
    assert series is not None
    test = Backtest.of(series.windows, series.train, context.config.evaluation.forecast_steps())
    own = [bare(kernel) for kernel in kernels]
    return list(test.errors(own if context.config.outputs.is_separate else own[0], selection.values))


def better_left_out(context: RunContext, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> list[Kernel]:
    """For each part the fitted kernel, or the initial one if that has smaller leave-one-out errors, each kernel with
    its best λ; for series all fitted kernels, or all initial ones, by their forecasts.

    With few training points for each length, also the kernels with one length for all features, before and after
    training. The error of the fitted kernel is then divided by (1 − lengths / points)², as generalized cross-validation
    counts parameters: trained lengths fit the points that are left out too.
    """
    selection = context.config.regularization.left_out(context.config)
    if selection.how == "backtest":
        before, after = (
            min(_errors_of_forecasts(context, fixed_on(context, own), selection)) for own in (starts, fitted)
        )
        kept = list(starts if before < after else fitted)
        remarks.of_kernels_kept(context, kept, starts, fitted)
        return kept

    def error(kernel: Kernel, part: int) -> float:
        inner, rng = (
            bare(kernel).fixed_on(some_of(context.tensors[part][0])),
            Streams(context.config.seed)["validation"],
        )
        return min(_errors_of_candidates(context, part, inner, selection, rng))

    def best(part: int, start: Kernel, own: Kernel) -> Kernel:
        if start is own:
            return own
        share, others = _share_of_lengths(own, context.tensors[part][0]), [start]
        if share:
            others += _with_one_length(context, part, start)
        own_error = error(own, part) / (1 - share) ** 2 if share < 1 else math.inf
        best_error, other = min(((error(each, part), each) for each in others), key=operator.itemgetter(0))
        return other if best_error < own_error else own

    kept = [best(part, *pair) for part, pair in enumerate(zip(starts, fitted, strict=True))]
    remarks.of_kernels_kept(context, kept, starts, fitted)
    return kept


def _share_of_lengths(kernel: Kernel, x: torch.Tensor) -> float:
    """The number of trained lengths over that of the training points x, (n, …); 0 where there are many points."""
    from kfx.kernels.ard import ARD

    are_trained = isinstance(bare(kernel), ARD) and "lengths" in kernel.trainable
    count = x[0].numel() if are_trained else 0
    return count / len(x) if len(x) < POINTS_FOR_A_LENGTH * count else 0.0


def _with_one_length(context: RunContext, part: int, start: Kernel) -> list[Kernel]:
    """The initial kernel with one length for all features, and that of another fit from there if it does not fail."""
    config, inner, data = context.config, bare(start), context.tensors[part]
    from kfx.kernels.ard import ARD
    from kfx.kernels.starts import with_one_length

    assert isinstance(inner, ARD)
    alone: Kernel = with_one_length(config.kernel, inner, context.parts[part])
    if (own := start.own_regularization) is not None:
        alone = Regularized(alone, own, trained="regularization" in start.trainable)
    found, optimizer = [alone], config.optimizer.build(config).weighing(context.weights(part))
    with WaitMessage("a fit with one length for all features"), contextlib.suppress(NumericalError):
        found.append(optimizer.fit(alone, data, Streams(config.seed), Journal()))
    count = data[0][0].numel()
    return [
        start.with_parameters(**{**each.parameters, "lengths": np.full(count, each.parameters["lengths"])})
        for each in found
    ]


def bare(kernel: Kernel) -> Kernel:
    """The kernel without its own λ."""
    return kernel.kernel if isinstance(kernel, Regularized) else kernel


def fixed_on(context: RunContext, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels with data-dependent settings, such as a length, fixed from the training points."""
    return [kernel.fixed_on(some_of(x)) for kernel, (x, _, _) in zip(kernels, context.tensors, strict=True)]
