"""The function of `kernel.flat` that parametric optimizers see: an objective on a batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.kernels.stationary import Stationary
from kfx.numerics.arrays import Vector, as_tensor, is_finite, is_small, numpy_if_small, total
from kfx.numerics.incidents import collect
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.outer_products import OuterProducts
from kfx.numerics.regularization import Regularization
from kfx.objectives import is_ratio, rho
from kfx.objectives.by_inverse import rho_by_inverse
from kfx.objectives.relative_error import nested_rho, rho_of_factor
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch


@dataclass(slots=True)
class Evaluation:
    """One evaluation of the objective, good or bad: a row of the trace.

    vector: where; objective, rho: NaN where they could not be had; gradient: to `vector`, or None;
    regularization: the effective λ; jitter: what the factorisation added to the diagonal;
    events: what happened on the way, the cause of a failure last; detail: that cause in words, empty if all is well;
    rho_half: ρ with the batch's second sample, NaN without one; to_points: the gradient to the batch's points, in
    their shape, where it was asked for; factored: the Gram matrix then. measured: further columns of the trace, of
    an objective that has some.
    """

    vector: Vector
    objective: float
    rho: float
    gradient: Vector | None
    regularization: float
    jitter: float
    events: tuple[Event, ...] = ()
    detail: str = ""
    rho_half: float = math.nan
    to_points: torch.Tensor | None = None
    factored: Factored | None = None
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether what was asked for, the value or its gradient, could not be had."""
        return bool(self.detail)

    @property
    def error(self) -> NumericalError | None:
        """The cause, if this evaluation failed."""
        return NumericalError(self.events[-1], self.detail) if self.failed else None

    def require(self) -> None:
        """Raise the cause, if this evaluation failed."""
        if self.error is not None:
            raise self.error


SECONDS = ("kernel_seconds", "pullback_seconds", "objective_seconds")
"""Columns of the trace: what of an iteration's time went into Gram matrices, their pullbacks and objectives. On a GPU
they are those of whoever first waits for it."""


def _dense(cotangent: Any) -> Any:
    return as_tensor(cotangent.dense()) if isinstance(cotangent, OuterProducts) else cotangent


@dataclass(slots=True)
class _Found:
    """What is known of an evaluation so far, and when the Gram matrix and the objective were done."""

    effective: float = math.nan
    objective: float = math.nan
    rho: float = math.nan
    half: float = math.nan
    slope: Vector | None = None
    to_points: torch.Tensor | None = None
    factored: Factored | None = None
    computed: float = 0.0
    solved: float = 0.0

    def take(self, objective: float, rho: float, half: float) -> None:
        self.objective, self.rho, self.half = objective, rho, half


class Loss:
    """objective(Θ(vector)) on a batch of (x, y), with its gradient through the kernel's pullback."""

    def __init__(
        self,
        objective: Callable[..., tuple[float, Any]],
        regularization: Regularization,
        kernel: Kernel,
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        self.objective, self.regularization = objective, regularization
        self.kernel, self.x, self.y = kernel, x, y
        self.kernel_evaluations = 0
        self._seconds = dict.fromkeys(SECONDS, 0.0)
        self.is_ratio = is_ratio(objective)

    def __call__(self, vector: Vector, batch: Batch, gradient: bool = True) -> Evaluation:
        """The objective at `vector`. A failure of the arithmetic is a result with an event, not an exception."""
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
        """The objective of a kernel on a batch that lies at x, with the gradient to the points as well if asked."""
        return self._evaluated(kernel, kernel.flat, x, y, batch, gradient, points)

    def lap(self) -> dict[str, float]:
        """`SECONDS` since the last call; none of them of an objective that has no Gram matrix."""
        spent, self._seconds = self._seconds, dict.fromkeys(SECONDS, 0.0)
        return {name: round(seconds, 6) for name, seconds in spent.items()} if any(spent.values()) else {}

    def _evaluated(self, *arguments: Any) -> Evaluation:
        if not torch.is_grad_enabled():  # as in a fit, which says so once
            return self._evaluate(*arguments)
        with torch.no_grad():
            return self._evaluate(*arguments)

    def _evaluate(
        self,
        kernel: Kernel,
        vector: Vector,
        x: torch.Tensor,
        y: torch.Tensor,
        batch: Batch,
        gradient: bool,
        points: bool,
    ) -> Evaluation:
        regularization = kernel.own_regularization or self.regularization
        found, jitter = _Found(), 0.0
        events: list[Event] = []
        try:
            if not is_finite(vector):
                raise NumericalError(Event.DIVERGED, "a parameter is not finite")
            with collect() as incidents, np.errstate(all="ignore"):  # an event says what leaves the numbers
                events = incidents.events
                self.kernel_evaluations += 1
                started = time.perf_counter()
                if gradient and isinstance(kernel, Stationary) and self._is_direct(kernel, x, y, batch):
                    self._directly(found, kernel, x, y, batch, regularization, points)
                else:
                    self._by_layers(found, kernel, x, y, batch, regularization, gradient, points)
                ended = time.perf_counter()
                spent = found.computed - started, ended - found.solved, found.solved - found.computed
                for name, seconds in zip(SECONDS, spent, strict=True):
                    self._seconds[name] += seconds
            jitter = incidents.jitter
            finite = found.slope is None or is_finite(found.slope)
            if found.to_points is not None:
                with np.errstate(all="ignore"):
                    finite = finite and math.isfinite(total(numpy_if_small(found.to_points)))  # one pass for all
            if not (math.isfinite(found.objective) and finite):
                raise NumericalError(Event.DIVERGED, "the objective or its gradient is not finite")
        except (NumericalError, OverflowError, ZeroDivisionError) as raised:
            beyond = "the objective leaves the range of float64"
            error = raised if isinstance(raised, NumericalError) else NumericalError(Event.DIVERGED, beyond)
            failed = (*events, error.event)
            detail = f"{kernel!r}: {error.detail}"
            return Evaluation(vector, found.objective, found.rho, None, found.effective, jitter, failed, detail)
        if not 0 <= found.rho <= 1:
            events.append(Event.RHO_OUT_OF_RANGE)
        return Evaluation(
            vector,
            found.objective,
            found.rho,
            found.slope,
            found.effective,
            jitter,
            tuple(events),
            rho_half=found.half,
            to_points=found.to_points,
            factored=found.factored if points else None,
        )

    def _is_direct(self, kernel: Stationary, x: torch.Tensor, y: torch.Tensor, batch: Batch) -> bool:
        """Whether `_directly` is for this: not for a kernel with a pullback of its own, nor for what does not fit."""
        return (
            self.objective is rho
            and type(kernel)._pullback is Stationary._pullback
            and not batch.orders
            and is_small(x)
            and is_small(y)
            and y.dtype == torch.float64
            and x.ndim > 1
            and len(x) == len(y)
            and 1 <= batch.sample_size < len(x)
        )

    def _directly(
        self,
        found: _Found,
        kernel: Stationary,
        x: torch.Tensor,
        y: torch.Tensor,
        batch: Batch,
        regularization: Regularization,
        points: bool,
    ) -> None:
        """ρ of a stationary kernel on a small batch, with its gradients: on arrays throughout, since the layers between
        would take longer than the arithmetic."""
        gram, pull = kernel.pullback_of_rows(x.numpy().reshape(len(x), -1))
        found.computed = time.perf_counter()
        found.effective = regularization.of(gram)
        found.factored = Factored(torch.from_numpy(gram))
        factor = found.factored.factor(found.effective).numpy()
        rhos, cotangent = rho_of_factor(factor, y.numpy().reshape(len(y), -1), batch.sample_sizes)
        assert cotangent is not None
        found.take(rhos[0], rhos[0], rhos[-1] if batch.half_size is not None else math.nan)
        found.solved = time.perf_counter()
        by_name, moved = pull(regularization.pull_of_outer_products(cotangent), points)
        found.slope = kernel.flatten(by_name)
        found.to_points = None if moved is None else torch.from_numpy(moved).to(x.dtype).reshape(x.shape)

    def _by_layers(
        self,
        found: _Found,
        kernel: Kernel,
        x: torch.Tensor,
        y: torch.Tensor,
        batch: Batch,
        regularization: Regularization,
        gradient: bool,
        points: bool,
    ) -> None:
        """Any objective of any kernel."""
        gram, pull = kernel.pullback(x) if gradient else (kernel.gram(x), None)
        found.computed = time.perf_counter()
        found.effective = regularization.of(gram)
        found.factored = Factored(gram)
        *numbers, cotangent = self._measured(found.factored, y, batch, regularization, gradient)
        if batch.orders:
            cotangent = _dense(cotangent)
        for i, order in enumerate(batch.orders, start=2):  # running means over the samples
            there = torch.as_tensor(order, device=gram.device)
            moved = Factored(gram[there][:, there]), y[there]
            *others, other = self._measured(*moved, batch, regularization, gradient)
            numbers = [mean + (new - mean) / i for mean, new in zip(numbers, others, strict=True)]
            if gradient:
                back = torch.argsort(there)
                cotangent += (_dense(other)[back][:, back] - cotangent) / i
        found.take(*numbers)
        found.solved = time.perf_counter()
        if pull is not None:
            found.slope, found.to_points = pull(cotangent, inputs=True) if points else (pull(cotangent), None)

    def _measured(
        self, gram: Factored, y: torch.Tensor, batch: Batch, regularization: Regularization, gradient: bool
    ) -> tuple[float, float, float, Any]:
        """The objective, ρ, ρ of the half sample, and the objective's cotangent."""
        sizes = batch.sample_sizes
        if self.objective is rho:
            rhos, cotangent = nested_rho(gram, y, sizes, regularization, gradient)
            value = rhos[0]
        elif self.objective is rho_by_inverse:  # nothing that a factor would set right
            rhos = [rho_by_inverse(gram, y, size, regularization, False)[0] for size in sizes]
            value, cotangent = rho_by_inverse(gram, y, batch.sample_size, regularization, gradient)
        else:
            rhos, _ = nested_rho(gram, y, sizes, regularization, False)
            value, cotangent = self.objective(gram, y, batch.sample_size, regularization, gradient)
        return value, rhos[0], rhos[-1] if batch.half_size is not None else math.nan, cotangent
