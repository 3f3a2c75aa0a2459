"""Evaluate kernel ridge regression with a kernel on subsets of the training points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kfx.data.dataset import Dataset
from kfx.evaluation import judges
from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.interpolants import Interpolant
from kfx.evaluation.judges import Case, Judge, Subject, Tensors, predicted
from kfx.evaluation.results import Result
from kfx.evaluation.systems import InMemory, System
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import in_numpy
from kfx.numerics.incidents import collect
from kfx.numerics.means import column_means
from kfx.numerics.regularization import Regularization
from kfx.outcomes import Event, NumericalError

if TYPE_CHECKING:
    from kfx.evaluation.head import OfHead
    from kfx.evaluation.nystrom import Approximation
    from kfx.evaluation.rollout import Rollout

EFFECTIVE = "effective_regularization"
Keep = Callable[[Interpolant], None]


def interpolation_order(data: Dataset, balanced: bool, rng: np.random.Generator | None) -> np.ndarray:
    """An order of the training points, (n,), random with `rng`, else as they are; its first N_I are interpolated.

    balanced: the first N_I hold the classes in equal numbers, as far as the classes reach.
    """
    order = np.arange(len(data.x_train)) if rng is None else rng.permutation(len(data.x_train))
    if not balanced:
        return order
    assert data.labels_train is not None
    labels = data.labels_train[order]
    rank = np.empty(len(order), dtype=int)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rank[members] = np.arange(len(members))
    return order[np.argsort(rank, kind="stable")]


@dataclass(frozen=True)
class Scoring:
    """How predictions are made and judged.

    regularizations: the values of λ to evaluate.
    own: evaluate a kernel that has its own λ with that, under the name of the first of `regularizations`.
    clip: lowest and highest value that a prediction may have.
    train_error, rho, head, variance, calibration, rollout: what is judged beside the errors on the test points
        (`kfx.evaluation.judges`).
    ends: intervals have their ends, as of transformed targets: the folds of a run have the same columns.
    coefficients: also return those of the interpolation points, (n, outputs).
    approximation: the settings of solver `nystrom`.
    """

    regularizations: Sequence[Regularization]
    own: bool = True
    solver: str = "cholesky"
    rcond: float | None = None
    tolerance: float = 1e-6
    variance: bool = False
    clip: tuple[float, float] | None = None
    train_error: bool = False
    rho: bool = False
    head: bool = False
    calibration: bool = False
    ends: bool = False
    rollout: Rollout | None = None
    coefficients: bool = False
    approximation: Approximation | None = None

    def judges(self) -> Iterator[Judge]:
        """Yield the judges of predictions in the order in which they judge."""
        yield judges.Errors()
        yield judges.OfPlugins()
        if self.rho:
            yield judges.Rho()
        if self.train_error:
            yield judges.TrainingErrors()
        if self.variance:
            yield judges.PosteriorVariance()
        if self.calibration:
            yield judges.Calibration(self.ends)
        if self.rollout is not None:
            from kfx.evaluation.rollout import Forecasts

            yield Forecasts(self.rollout)

    def of_head(self) -> Sequence[OfHead]:
        """The judge of predictions by the kernel's own head, where they are judged."""
        if not self.head:
            return ()
        from kfx.evaluation.head import OfHead

        return [OfHead(self.train_error)]

    def regularization(self, kernel: Kernel, configured: Regularization | None = None) -> Regularization:
        """λ for a kernel: its own if that is to be used, else the configured one, by default the first."""
        return (kernel.own_regularization if self.own else None) or configured or self.regularizations[0]


_OF_SOLVERS = {"conjugate_gradients": ["residual", "iterations"], "nystrom": ["centres", "unexplained", "lost"]}


def metric_names(data: Dataset, scoring: Scoring, is_separate: bool = False) -> list[str]:
    """Names of the metrics that `evaluate` measures on this data; with a kernel for each output also of each λ."""
    found = [name for judge in scoring.judges() for name in judge.names(data)]
    found += [name for judge in scoring.of_head() for name in judge.names()]
    each = [f"{EFFECTIVE}.{c}" for c in range(data.targets.shape[1])] if is_separate else []
    return [*found, *_OF_SOLVERS.get(scoring.solver, []), EFFECTIVE, "jitter", *each]


def evaluate(
    kernel: Kernel,
    data: Dataset,
    tensors: Tensors,
    order: np.ndarray,
    sizes: Sequence[int],
    scoring: Scoring,
    disk: DiskStores | None = None,
    keep: Keep | None = None,
) -> list[Result]:
    """Judge a kernel with each N_I of `sizes` and each λ; one Gram matrix serves all.

    order: indices of training points, of which the first N_I are interpolated. disk: takes Gram matrices that do not
    fit in memory. keep: gets the solution of the largest N_I with the first λ. What cannot be solved or measured is
    NaN, and the result says why.
    """
    head = torch.as_tensor(order[: max(sizes)], device=tensors[0].device)
    every, names, results = list(scoring.judges()), metric_names(data, scoring), []
    of_kernel, problems = _of_kernel(kernel, data, tensors, scoring.of_head())
    with ExitStack() as held:
        subject = None
        try:
            system = _system(kernel, data, tensors, head, scoring, disk, held)
            subject = Subject(kernel, data, tensors, head, system, scoring.clip)
        except NumericalError as error:
            problems.append(str(error))
        for size in sizes:
            for configured in scoring.regularizations:
                own = scoring.regularization(kernel, configured)
                found = Result(size, configured.value, own.value, dict.fromkeys(names, math.nan), problems=[*problems])
                found.metrics |= of_kernel | {EFFECTIVE: own.value if own.scale == "absolute" else math.nan}
                with collect() as incidents:
                    try:
                        if subject is not None:
                            solved = _judge(subject, own, scoring, every, found)
                            if keep and size == max(sizes) and configured == scoring.regularizations[0]:
                                keep(solved)
                    except NumericalError as error:  # a kernel that fails must not stop the evaluation of the others
                        found.problems.append(f"at n_interpolation {size}: {error}")
                found.metrics["jitter"] = incidents.jitter
                results.append(found)
    return results


def _of_kernel(
    kernel: Kernel, data: Dataset, tensors: Tensors, judges: Sequence[OfHead]
) -> tuple[dict[str, float], list[str]]:
    """What judges find on a kernel alone, and why they fail."""
    found: dict[str, float] = {}
    for judge in judges:
        try:
            found |= judge(kernel, data, tensors)
        except NumericalError as error:
            return found, [f"its head: {error}"]
    return found, []


def _system(
    kernel: Kernel,
    data: Dataset,
    tensors: Tensors,
    head: torch.Tensor,
    scoring: Scoring,
    disk: DiskStores | None,
    held: ExitStack,
) -> System:
    """The system of the training points with the indices `head`; `held` keeps what is on disk open."""
    x_train, y_train, x_test = tensors
    if scoring.approximation is not None:
        from kfx.evaluation.nystrom import NystromSystem, passed

        assert disk is not None
        found = held.enter_context(passed(kernel, x_train, y_train, scoring.approximation, disk))
        disk.used.append(found.store.folder)
        return NystromSystem(kernel, found, x_test)
    points, weights = x_train[head], None if data.weights is None else data.weights[in_numpy(head)]
    if disk is not None and disk.takes(len(points), len(x_test), points.element_size()):
        from kfx.evaluation.on_disk import OnDisk

        if weights is not None:
            raise NumericalError(Event.EVALUATION_FAILED, "weights need a Gram matrix in memory")

        store = held.enter_context(disk.store(kernel, points, x_test))
        return OnDisk(store, disk, kernel, x_test, len(points), scoring.solver, scoring.tolerance)
    return InMemory(kernel, points, x_test, scoring.solver, scoring.rcond, scoring.tolerance, weights)


def _judge(
    subject: Subject, own: Regularization, scoring: Scoring, every: Sequence[Judge], found: Result
) -> Interpolant:
    """Solve with the λ `own`, and add what the judges find; NumericalError at the first that fails."""
    size, system = found.n_interpolation, subject.system
    found.metrics[EFFECTIVE] = system.effective(own, size)
    interpolant = system.interpolant(own, subject.tensors[1][subject.head[:size]])
    if scoring.coefficients:
        found.arrays["coefficients"] = in_numpy(interpolant.alpha)
    prediction = predicted(interpolant, system.test, subject.data, scoring.clip)
    if not np.isfinite(prediction).all():
        raise NumericalError(Event.DIVERGED, "a prediction is not finite")
    found.arrays["mean"] = prediction
    found.metrics |= interpolant.report
    case = Case(subject, size, own, interpolant, prediction)
    for judge in every:
        metrics, arrays = judge(case)
        found.metrics |= metrics
        found.arrays |= arrays
    return interpolant


def constant_prediction(data: Dataset) -> tuple[str, float]:
    """The main metric of a data set, and its value for a constant: the largest class, or the mean of the training
    targets."""
    if data.labels_train is not None and data.labels_test is not None:
        largest = np.bincount(data.labels_train, data.weights_train).argmax()
        return "accuracy", data.mean_over_test(data.labels_test == largest)
    with np.errstate(over="ignore"):
        mean = column_means(data.y_train, data.weights_train)
        return "mse", data.mean_over_test((data.y_test - mean) ** 2)
