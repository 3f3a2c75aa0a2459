"""The function of `kernel.flat` that parametric optimizers minimise: an objective on a batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.kernels.covariance import OfOuterProducts, SmallPullback
from kfx.numerics.arrays import Vector, is_finite, numpy_if_small, rows_of, total
from kfx.numerics.incidents import collect
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.outer_products import as_dense
from kfx.numerics.regularization import Regularization
from kfx.numerics.weighting import scaled, weighted
from kfx.objectives.base import Cotangent, Function, Objective, as_objective
from kfx.objectives.nested import rho_of_factor
from kfx.objectives.problem import require_sizes
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch


@dataclass(slots=True)
class Evaluation:
    """One evaluation of the objective, successful or failed: a row of the trace. NaN and None until found.

    vector: the parameters, (n,). objective, rho: NaN where they could not be computed. gradient: with respect to
        `vector`, (n,), or None. regularization: the effective λ.
    jitter: the largest value that the factorisation added to the diagonal.
    events: incidents of the evaluation, the cause of a failure last. detail: the cause in words, empty on success.
    rho_half: ρ with the batch's second sample, NaN without one.
    to_points: gradient with respect to the batch's points, (N_f, …), where requested. factored: the Gram matrix,
        (N_f, N_f), where `to_points` is given.
    measured: further columns of the trace, by name.
    """

    vector: Vector
    objective: float = math.nan
    rho: float = math.nan
    gradient: Vector | None = None
    regularization: float = math.nan
    jitter: float = 0.0
    events: tuple[Event, ...] = ()
    detail: str = ""
    rho_half: float = math.nan
    to_points: torch.Tensor | None = None
    factored: Factored | None = None
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the value or a requested gradient could not be computed."""
        return bool(self.detail)

    @property
    def error(self) -> NumericalError | None:
        """The cause, where this evaluation failed, else None."""
        return NumericalError(self.events[-1], self.detail) if self.failed else None

    def require(self) -> None:
        """Raise the cause where this evaluation failed."""
        if self.error is not None:
            raise self.error

    def require_finite(self) -> None:
        """Raise NumericalError (diverged) unless the objective and its gradients are finite."""
        finite = math.isfinite(self.objective) and (self.gradient is None or is_finite(self.gradient))
        if finite and self.to_points is not None:
            finite = math.isfinite(total(numpy_if_small(self.to_points)))  # one pass for all entries
        if not finite:
            raise NumericalError(Event.DIVERGED, "the objective or its gradient is not finite")

    def fail(self, cause: NumericalError, kernel: Kernel) -> None:
        """Note the cause, and keep the results but those that a step would take."""
        self.events += (cause.event,)
        self.detail = f"{kernel!r}: {cause.detail}"
        self.gradient = self.to_points = self.factored = None
        self.rho_half = math.nan


SECONDS = ("kernel_seconds", "pullback_seconds", "objective_seconds")
"""Columns of the trace: an iteration's time in Gram matrices, pullbacks and objectives. On a GPU, which computes
asynchronously, time is counted for the step that first waits for a result."""
_LAMBDA = "regularization"


def with_failures_kept(kernel: Kernel, vector: Vector, fill_in: Callable[[Evaluation], None]) -> Evaluation:
    """Return the evaluation at `vector`, (n,), whose results `fill_in` finds.

    A numerical failure is returned, with its event and the results so far, and not raised.
    """
    found, failed = Evaluation(vector), None
    with collect() as incidents, np.errstate(all="ignore"):  # an event reports overflow
        try:
            fill_in(found)
            found.require_finite()
        except NumericalError as error:
            failed = error
        except (OverflowError, ZeroDivisionError):
            failed = NumericalError(Event.DIVERGED, "the objective leaves the range of float64")
    found.events, found.jitter = tuple(incidents.events), incidents.jitter
    if failed is not None:
        found.fail(failed, kernel)
    elif found.rho < 0 or found.rho > 1:
        found.events += (Event.RHO_OUT_OF_RANGE,)
    return found


class Loss:
    """The objective as a function of a kernel's parameters and a batch, with its gradient by the kernel's pullback.

    x: training points, (N, …). y: targets, (N, outputs). kernel: gives the parameters that `vector` does not replace.
    weights: of the points, (N,), float64, > 0; None for all alike.
    """

    def __init__(
        self,
        objective: Objective | Function,
        regularization: Regularization,
        kernel: Kernel,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor | None = None,
    ) -> None:
        self.objective, self.regularization = as_objective(objective), regularization
        self.kernel, self.x, self.y, self.weights = kernel, x, y, weights
        self.kernel_evaluations = 0
        self._seconds = dict.fromkeys(SECONDS, 0.0)

    def __call__(self, vector: Vector, batch: Batch, gradient: bool = True) -> Evaluation:
        """Return the evaluation at `vector`, (n,), in place of `kernel.flat`, on a batch of the training points.

        A numerical failure is returned with its event and not raised. gradient: whether to compute the gradient, (n,).
        """
        x, y = batch.of(self.x, self.y)
        return self._evaluated(self.kernel.with_flat(vector), vector, x, y, batch, gradient, False)

    def at(
        self,
        kernel: Kernel,
        x: torch.Tensor,
        y: torch.Tensor,
        batch: Batch,
        gradient: bool = True,
        points: bool = False,
    ) -> Evaluation:
        """Return the evaluation of a kernel on a batch whose points and targets are given.

        x: the batch's points, (N_f, …). y: their targets, (N_f, outputs). points: whether to compute the gradient with
        respect to x, (N_f, …), as well. A numerical failure is returned with its event and not raised.
        """
        return self._evaluated(kernel, kernel.flat, x, y, batch, gradient, points)

    def lap(self) -> dict[str, float]:
        """Return `SECONDS` since the last call, by name; empty for an objective without a Gram matrix."""
        spent, self._seconds = self._seconds, dict.fromkeys(SECONDS, 0.0)
        return {name: round(seconds, 6) for name, seconds in spent.items()} if any(spent.values()) else {}

    def _evaluated(
        self,
        kernel: Kernel,
        vector: Vector,
        x: torch.Tensor,
        y: torch.Tensor,
        batch: Batch,
        gradient: bool,
        points: bool,
    ) -> Evaluation:
        def fill_in(found: Evaluation) -> None:
            if not is_finite(vector):
                raise NumericalError(Event.DIVERGED, "a parameter is not finite")
            self.kernel_evaluations += 1
            started = time.perf_counter()
            # The usual step in NumPy alone; `_general` has equal results and takes up to 1.7 times as long
            is_plain = gradient and self.objective.is_rho_by_cholesky and not batch.orders and self.weights is None
            small = kernel.small_pullback(x) if is_plain and isinstance(kernel, OfOuterProducts) else None
            if small is not None:
                computed, solved = self._rho_in_numpy(found, kernel, small, x, y, batch, points)
            else:
                computed, solved = self._general(found, kernel, x, y, batch, gradient, points)
            spent = computed - started, time.perf_counter() - solved, solved - computed
            for name, seconds in zip(SECONDS, spent, strict=True):
                self._seconds[name] += seconds

        if not torch.is_grad_enabled():  # a fit disables gradients once for all its evaluations
            return with_failures_kept(kernel, vector, fill_in)
        with torch.no_grad():
            return with_failures_kept(kernel, vector, fill_in)

    def _rho_in_numpy(
        self,
        found: Evaluation,
        kernel: Kernel,
        small: SmallPullback,
        x: torch.Tensor,
        y: torch.Tensor,
        batch: Batch,
        points: bool,
    ) -> tuple[float, float]:
        """Fill in ρ and its gradients on a small batch, as `_general` would. Return the times when the Gram matrix and
        the objective were done."""
        gram, pull = small
        computed = time.perf_counter()
        require_sizes(gram.shape, y.shape, batch.sample_size)
        regularization = kernel.own_regularization or self.regularization
        found.regularization = regularization.of(gram)
        factored = Factored(torch.from_numpy(gram))
        factor = factored.factor(found.regularization).numpy()
        rhos, cotangent = rho_of_factor(factor, y.numpy().reshape(len(y), -1), batch.sample_sizes)
        assert cotangent is not None
        self._take(found, rhos[0], rhos, batch)
        solved = time.perf_counter()
        by_name, moved = pull(regularization.pull_of_outer_products(cotangent), points)
        found.gradient = kernel.flatten(by_name)
        if moved is not None:
            found.to_points, found.factored = torch.from_numpy(moved).to(x.dtype).reshape(x.shape), factored
        return computed, solved

    def _general(
        self,
        found: Evaluation,
        kernel: Kernel,
        x: torch.Tensor,
        y: torch.Tensor,
        batch: Batch,
        gradient: bool,
        points: bool,
    ) -> tuple[float, float]:
        """Fill in any objective of any kernel, its mean over the batch's samples. Return the times when the Gram matrix
        and the objective were done."""
        gram, pull = kernel.pullback(x) if gradient else (kernel.gram(x), None)
        computed = time.perf_counter()
        weights = None if self.weights is None else rows_of(self.weights, batch.indices)
        gram, y, regularization = weighted(gram, y, kernel.own_regularization or self.regularization, weights)
        factored = Factored(gram)
        found.regularization = factored.effective(regularization)
        value, ratios, cotangent = self.objective.measure(factored, y, batch.sample_sizes, regularization, gradient)
        if batch.orders:
            value, ratios, cotangent = self._mean(value, ratios, cotangent, gram, y, batch, regularization)
        self._take(found, value, ratios, batch)
        solved = time.perf_counter()
        if pull is not None and cotangent is not None:
            to_kernel = cotangent if weights is None else scaled(as_dense(cotangent), weights.sqrt())
            found.gradient, found.to_points = pull(to_kernel, inputs=True) if points else (pull(to_kernel), None)
            if weights is not None and _LAMBDA in kernel.names:  # `pull` knows no weights, and λ depends on them
                found.gradient[kernel.names.index(_LAMBDA)] = regularization.slope(as_dense(cotangent), gram)
            found.factored = factored if points else None
        return computed, solved

    def _mean(
        self,
        value: float,
        ratios: list[float],
        cotangent: Cotangent,
        gram: torch.Tensor,
        y: torch.Tensor,
        batch: Batch,
        regularization: Regularization,
    ) -> tuple[float, list[float], torch.Tensor | None]:
        """Return the mean of `Objective.measure` over the batch's samples, given its results for the first."""
        mean = None if cotangent is None else as_dense(cotangent)
        for i, order in enumerate(batch.orders, start=2):
            there = torch.as_tensor(order, device=gram.device)
            moved = Factored(gram[there][:, there])
            other, others, to_moved = self.objective.measure(
                moved, y[there], batch.sample_sizes, regularization.at(there), mean is not None
            )
            value += (other - value) / i
            ratios = [ratio + (new - ratio) / i for ratio, new in zip(ratios, others, strict=True)]
            if mean is not None and to_moved is not None:
                back = torch.argsort(there)
                mean += (as_dense(to_moved)[back][:, back] - mean) / i
        return value, ratios, mean

    def _take(self, found: Evaluation, value: float, ratios: Sequence[float], batch: Batch) -> None:
        found.objective, found.rho = value, ratios[0]
        found.rho_half = ratios[-1] if batch.half_size is not None else math.nan


def weighing(make_loss: Callable[..., Loss], weights: torch.Tensor | None) -> Callable[..., Loss]:
    """Return the loss, called with a kernel, x and y, for points with these weights, (N,); itself with None."""
    return make_loss if weights is None else partial(make_loss, weights=weights)
