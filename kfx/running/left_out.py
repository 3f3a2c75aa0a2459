"""What training points that are left out decide: λ, and the kernel with which a fit ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kfx.kernels import Kernel, Regularized
from kfx.kernels.kernel_option import POINTS_FOR_A_LENGTH
from kfx.kernels.regularized import bare
from kfx.numerics import threads
from kfx.numerics.arrays import some_of
from kfx.numerics.streams import Streams
from kfx.objectives.selection import Selection
from kfx.running import remarks
from kfx.running.context import How, Kept, RunContext


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
    from kfx.evaluation.cross_validation import errors_of_candidates, has_noise

    x, y, _ = context.tensors[part]
    folds = selection.folds if selection.how == "validation" else None
    approximation, in_blocks = context.config.evaluation.approximation(context.config), context.config.dataset.is_series
    with threads.restored():  # during a fit there may be one thread, for small batches
        threads.use(context.threads_of_evaluation, context.machine.threads)
        given = x, y, selection.values, folds, selection.points, rng, context.disk, approximation
        data, noisy = context.parts[part], has_noise(context.config, context.parts[part])
        return errors_of_candidates(kernel, *given, in_blocks=in_blocks, weights=data.weights, noisy=noisy)


def _errors_of_forecasts(context: RunContext, kernels: Sequence[Kernel], selection: Selection) -> Sequence[float]:
    """The error of forecasts within the training series with each λ. kernels: one, or one for each coordinate."""
    from kfx.data.choice import backtest_of

    series = context.parts[0].series
    assert series is not None
    asked = context.config.evaluation.forecast_steps()
    test = backtest_of(series.windows, series.train, context.config.dataset.judged_steps(asked))
    own = [bare(kernel) for kernel in kernels]
    return list(test.errors(own if context.config.outputs.is_separate else own[0], selection.values))


def better_left_out(context: RunContext, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> list[Kept]:
    """For each part the fitted kernel, or the initial one if that has smaller leave-one-out errors, each kernel with
    its best λ; for series all fitted kernels, or all initial ones, by their forecasts.

    With a trained length for each feature and few training points, also the kernels with one length for all features,
    before and after training, and one that is fitted without its rough part; the errors are then those of refitted
    folds, since trained lengths fit the points that are left out one by one too.
    """
    selection = context.config.regularization.left_out(context.config)

    def error(kernel: Kernel, part: int) -> float:
        inner = bare(kernel).fixed_on(some_of(context.tensors[part][0]))
        return min(_errors_of_candidates(context, part, inner, selection, Streams(context.config.seed)["validation"]))

    def best(part: int, start: Kernel, own: Kernel) -> Kept:
        if start is own:
            return Kept(own, "fitted")
        if _has_few_points(own, context.tensors[part][0]):
            from kfx.running.refitted import best_refitted

            return best_refitted(context, part, start, own)
        return Kept(start, "initial") if error(start, part) < error(own, part) else Kept(own, "fitted")

    if selection.how == "backtest":
        before, after = (
            min(_errors_of_forecasts(context, fixed_on(context, own), selection)) for own in (starts, fitted)
        )
        how: How = "initial" if before < after else "fitted"
        kept = [Kept(kernel, how) for kernel in (starts if before < after else fitted)]
    else:
        kept = [best(part, *pair) for part, pair in enumerate(zip(starts, fitted, strict=True))]
    remarks.of_kernels_kept(context, [each.how for each in kept])
    return kept


_FEW = 300
"""Training points below which kernels with a length for each feature are compared in refitted folds."""


def _has_few_points(kernel: Kernel, x: torch.Tensor) -> bool:
    """Whether lengths were trained on few training points x, (n, …), for their number or at all."""
    from kfx.kernels.ard import ARD

    are_trained = isinstance(bare(kernel), ARD) and "lengths" in kernel.trainable
    return are_trained and len(x) < max(_FEW, POINTS_FOR_A_LENGTH * x[0].numel())


def fixed_on(context: RunContext, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels with data-dependent settings, such as a length, fixed from the training points."""
    return [kernel.fixed_on(some_of(x)) for kernel, (x, _, _) in zip(kernels, context.tensors, strict=True)]
