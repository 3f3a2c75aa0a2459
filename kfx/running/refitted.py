"""What refitted folds decide where points left out one by one cannot: how the data are prepared, and which kernel.

A kernel whose parameters were fitted to all training points has small leave-one-out errors at each of them, since its
parameters have seen it. Here each fold is predicted by a kernel that was fitted without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from scipy.special import ndtri

from kfx.data.dataset import Dataset
from kfx.data.preparation import Preparation, offered
from kfx.data.splits import folds, some_rows
from kfx.evaluation.cross_validation import errors_of_candidates, has_noise, least
from kfx.evaluation.judges import Tensors
from kfx.evaluation.systems import InMemory
from kfx.experiment.config import Config
from kfx.files import Document
from kfx.kernels import Kernel, Regularized
from kfx.kernels.ard import ARD
from kfx.kernels.regularized import bare
from kfx.kernels.starts import candidates, with_one_length
from kfx.numerics.arrays import in_numpy, some_of
from kfx.numerics.calibration import COVERED
from kfx.numerics.streams import Streams
from kfx.optimizers.journal import Journal
from kfx.outcomes import DataError, NumericalError
from kfx.running.context import How, Kept, Machine, RunContext, tensors_of
from kfx.screen.progress import WaitMessage

_FOLDS = 3
_MOST = 1000
"""Rows on which preparations are compared; of more they are drawn at random."""


@dataclass(frozen=True)
class Prepared:
    """How data are prepared, how they usually are, and the mean loss of what was compared, by its name."""

    how: Preparation
    usual: Preparation
    losses: Document = field(default_factory=dict)

    def document(self) -> Document:
        """The entry of `metrics.json`."""
        return {"preprocess": list(self.how.preprocess), "targets": self.how.targets, "losses": self.losses}


def best_preparation(config: Config, data: Dataset, machine: Machine) -> Prepared:
    """Return how to prepare training data.

    The initial kernel of each fold predicts it, with λ chosen by leaving points out: no parameter is fitted. The loss
    is −log density in the units of the targets, for classes the squared error. Another preparation than the usual one
    is taken if its loss is smaller by more than the standard error of their difference, and its squared errors are not
    larger.
    """
    usual = config.dataset.preparation()
    choices = offered(data, usual, warps=config.evaluation.judges_distributions(config))
    if len(choices) == 1:
        return Prepared(usual, usual)
    rng = Streams(config.seed)["validation"]
    try:
        parts = folds(some_rows(data, _MOST, rng), _FOLDS, True, rng)
    except DataError:  # too few points of a kind
        return Prepared(usual, usual)
    losses: dict[Preparation, tuple[np.ndarray, np.ndarray]] = {}
    with WaitMessage("transforms of features and targets, in folds"):
        for how in choices:
            try:
                found = [_losses(config, config.dataset.preprocessed(part, how), machine) for part in parts]
            except (DataError, NumericalError):
                if how == usual:
                    return Prepared(usual, usual)
                continue
            losses[how] = tuple(np.concatenate(kind) for kind in zip(*found, strict=True))  # type: ignore[assignment]
    best = min(losses, key=lambda how: float(losses[how][0].mean()))
    chosen = best if _is_better(losses[best], losses[usual]) else usual
    return Prepared(chosen, usual, {str(how): float(loss.mean()) for how, (loss, _) in losses.items()})


def _is_better(own: tuple[np.ndarray, np.ndarray], usual: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether losses are smaller by more than the standard error of the difference, and squared errors not larger."""
    gain, squares = (before - after for before, after in zip(usual, own, strict=True))
    return bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)) and squares.mean() >= 0)


def _losses(config: Config, part: Dataset, machine: Machine) -> tuple[np.ndarray, np.ndarray]:
    """The loss and the squared error, (m,) each, of a prepared fold's test points, by its initial kernel."""
    tensors = tensors_of(part, machine)
    built = config.kernel.build(config.dataset.image).to(machine.dtype, machine.device)
    start = candidates(config.kernel, built, [part], Streams(config.seed)["initial_parameters"])[0][0]
    mean, deviation = _predicted(config, start, tensors, part.weights, has_noise(config, part))
    weights = np.ones(len(mean)) if part.weights_test is None else part.weights_test / part.weights_test.mean()
    if part.labels_train is not None:
        squares = np.square(mean - part.y_test).mean(axis=1) * weights
        return squares, squares
    z = (part.as_learned(part.y_test) - mean) / deviation
    slope = 0.0 if part.warp is None else part.warp.log_slope(part.y_test)
    loss = np.square(z) / 2 + np.log(deviation * part.of_varying(part.target_scale)) - slope
    moved = part.moments(mean, deviation)[0]
    return loss.mean(axis=1) * weights, np.square(moved - part.y_test).mean(axis=1) * weights


def _predicted(
    config: Config, kernel: Kernel, tensors: Tensors, weights: np.ndarray | None, noisy: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the deviation of the test points' targets as learned, (m, outputs) each, with λ chosen for the
    kernel by leaving out points. weights: of the training points, (n,). noisy: as of `errors_of_candidates`."""
    x, y, at = tensors
    own, selection = bare(kernel).fixed_on(some_of(x)), config.regularization.left_out(config)
    rng = Streams(config.seed)["validation"]
    given = own, x, y, selection.values, None, selection.points, rng
    errors = errors_of_candidates(*given, weights=weights, noisy=noisy)
    system = InMemory(own, x, at, weights=weights)
    mean, deviation = system.interpolant(least(selection.values, errors), y).mean_and_deviation(system.test)
    return in_numpy(mean), in_numpy(deviation)


Procedure = Callable[[Tensors, torch.Tensor | None], Kernel]
"""Gives a kernel for training points, (n, …), their targets, and their weights, (n,)."""


def trained_from(start: Kernel, config: Config, tensors: Tensors, weights: torch.Tensor | None) -> Kernel:
    """The kernel fitted to training points, (n, …), from this start, without a journal."""
    sampler = config.sampler
    if len(tensors[0]) < 2:  # one point trains nothing
        return start
    if sampler.batch_size is not None and sampler.batch_size > len(tensors[0]):
        config = replace(config, sampler=replace(sampler, batch_size=len(tensors[0])))
    return config.optimizer.build(config).weighing(weights).fit(start, tensors, Streams(config.seed), Journal())


def errors_of_procedures(
    config: Config, tensors: Tensors, weights: torch.Tensor | None, noisy: bool, procedures: Sequence[Procedure]
) -> tuple[np.ndarray, list[float]]:
    """The mean squared error of each procedure at training points, (procedures,), by kernels fitted without their fold,
    infinite where one fails; and the `_inflation` of each procedure's deviations.

    tensors: x, (n, …), and y, (n, outputs), as learned. weights: (n,), by which squared errors count. noisy: as of
    `errors_of_candidates`.
    """
    x, y, _ = tensors
    counts = np.ones(len(x)) if weights is None else in_numpy(weights / weights.mean())
    order = torch.as_tensor(Streams(config.seed)["validation"].permutation(len(x)), device=x.device)
    errors: list[list[np.ndarray]] = [[] for _ in procedures]
    deviations: list[list[np.ndarray]] = [[] for _ in procedures]
    for held in order.tensor_split(min(_FOLDS, len(x))):
        rest = order[~torch.isin(order, held)]
        part, own = Tensors(x[rest], y[rest], x[held]), None if weights is None else weights[rest]
        roots = np.sqrt(counts[in_numpy(held)])[:, None]
        for number, procedure in enumerate(procedures):
            try:
                kernel = procedure(part, own)
                mean, deviation = _predicted(config, kernel, part, None if own is None else in_numpy(own), noisy)
            except NumericalError:
                mean, deviation = np.full(y[held].shape, np.inf), np.full(y[held].shape, np.nan)
            errors[number].append(np.abs(mean - in_numpy(y[held])) * roots)
            # of a failed fit, or of equal targets, there is none
            deviations[number].append(np.where(deviation > 0, deviation, np.nan))
    every = [(np.concatenate(own), np.concatenate(spread)) for own, spread in zip(errors, deviations, strict=True)]
    return np.array([np.square(own).mean() for own, _ in every]), [_inflation(*each, in_numpy(y)) for each in every]


def _inflation(errors: np.ndarray, deviations: np.ndarray, y: np.ndarray) -> float:
    """The factor, at least 1, with which deviations cover 95 % of errors, (n, outputs) each, NaN where there is none.

    It makes them at most as large as those of the mean of the targets y, (n, outputs), in the mean square: of few
    points a single one, far from the others, decides a quantile.
    """
    if not np.isfinite(deviations).any():
        return 1.0
    # no mean of squared errors, of which one point can be all: a training point's twin has nearly no deviation
    covering = np.nanquantile(errors / deviations, COVERED) / ndtri((1 + COVERED) / 2)
    most = np.sqrt(y.var(axis=0).mean() / np.nanmean(np.square(deviations)))
    return float(np.fmax(min(covering, most), 1.0))


def best_refitted(context: RunContext, part: int, start: Kernel, own: Kernel) -> Kept:
    """Of the initial kernel, the fitted one, both with one length for all features, and the one fitted without its
    rough part, that which predicts refitted folds best."""
    config, data, weights = context.config, context.tensors[part], context.weights(part)
    alone, smooth = _simpler(context, part, start)

    def fitted(begin: Kernel) -> Procedure:
        return partial(trained_from, begin, config)

    procedures: list[tuple[Procedure, How, bool]] = [
        (fitted(start), "fitted", True),
        (lambda *_: start, "initial", False),
    ]
    if data[0][0].numel() > 1:  # else a length for each feature is one length
        procedures += [(lambda *_: alone, "one_length", False), (fitted(alone), "one_length", True)]
    if smooth is not None:
        procedures.append((fitted(smooth), "smooth", True))
    with WaitMessage("kernels of folds, with a length for each feature and with one for all"):
        noisy = has_noise(config, context.parts[part])
        errors, inflations = errors_of_procedures(config, data, weights, noisy, [each for each, *_ in procedures])
        if data[0][0].numel() >= len(data[0]):  # as many lengths as points fit any targets
            errors[[how in ("fitted", "smooth") for _, how, _ in procedures]] = math.inf
        best = int(np.argmin(errors))
        try:
            found = (own, start)[best] if best < 2 else procedures[best][0](data, weights)
        except NumericalError:
            best, found = (0, own) if procedures[best][1] == "smooth" else (2, alone)
        _, how, is_fitted = procedures[best]
        if is_fitted and context.parts[part].labels_train is None:  # it may be too sure
            context.inflation[part] = inflations[best]
        shown: dict[str, float] = {}
        for error, (_, name, _) in zip(errors.tolist(), procedures, strict=True):
            shown[name] = min(error, shown.get(name, math.inf))
        return Kept(_for_each_feature(found, start, data[0]) if how == "one_length" else found, how, shown)


def with_smooth_part(kernel: ARD) -> ARD | None:
    """Return the kernel with its smooth part alone, its roughness at the lower bound; None if it has no rough part."""
    if "roughness" not in kernel.parameters:
        return None
    least, _ = kernel.limits["roughness"]
    stretch = np.maximum(kernel.parameters["stretch"], 1.0)  # so that the smooth part's lengths are the kernel's
    return kernel.with_parameters(roughness=least, stretch=stretch).training(
        {*kernel.trainable} - {"roughness", "stretch"}
    )


def _for_each_feature(alone: Kernel, start: Kernel, x: torch.Tensor) -> Kernel:
    """The kernel with one length as one with a length for each feature of x, (n, features); features that never varied
    keep the long initial one, so that they do not count in new points."""
    is_same = in_numpy((x == x[0]).all(dim=0))
    lengths = np.where(is_same, start.parameters["lengths"], alone.parameters["lengths"])
    return start.with_parameters(**{**alone.parameters, "lengths": lengths})


def _simpler(context: RunContext, part: int, start: Kernel) -> tuple[Kernel, Kernel | None]:
    """The initial kernel with one length for all features, and with its smooth part alone if it has a rough one."""
    inner, own = bare(start), start.own_regularization
    assert isinstance(inner, ARD)
    alone, smooth = with_one_length(context.config.kernel, inner, context.parts[part]), with_smooth_part(inner)
    if own is None:
        return alone, smooth
    with_own = partial(Regularized, regularization=own, trained="regularization" in start.trainable)
    return with_own(alone), None if smooth is None else with_own(smooth)
