"""The function of `kernel.flat` that parametric optimizers see: an objective on a batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kfx.kernels.base import Kernel
from kfx.numerics.arrays import Vector, as_tensor, is_finite, numpy_if_small, total
from kfx.numerics.incidents import collect
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.outer_products import OuterProducts
from kfx.numerics.regularization import Regularization
from kfx.objectives import is_ratio, rho
from kfx.objectives.by_inverse import rho_by_inverse
from kfx.objectives.relative_error import nested_rho
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
        effective = value = relative_error = half = math.nan
        jitter = 0.0
        events: list[Event] = []
        try:
            if not is_finite(vector):
                raise NumericalError(Event.DIVERGED, "a parameter is not finite")
            with collect() as incidents:
                events = incidents.events
                self.kernel_evaluations += 1
                started = time.perf_counter()
                gram, pull = kernel.pullback(x) if gradient else (kernel.gram(x), None)
                computed = time.perf_counter()
                effective = regularization.of(gram)
                factored = Factored(gram)
                value, relative_error, half, cotangent = self._measured(factored, y, batch, regularization, gradient)
                if batch.orders:
                    cotangent = _dense(cotangent)
                for i, order in enumerate(batch.orders, start=2):  # running means over the samples
                    there = torch.as_tensor(order, device=gram.device)
                    moved = Factored(gram[there][:, there]), y[there]
                    *numbers, other = self._measured(*moved, batch, regularization, gradient)
                    value, relative_error, half = (
                        mean + (new - mean) / i
                        for mean, new in zip((value, relative_error, half), numbers, strict=True)
                    )
                    if gradient:
                        back = torch.argsort(there)
                        cotangent += (_dense(other)[back][:, back] - cotangent) / i
                slope, to_points, solved = None, None, time.perf_counter()
                if pull is not None:
                    slope, to_points = pull(cotangent, inputs=True) if points else (pull(cotangent), None)
                spent = computed - started, time.perf_counter() - solved, solved - computed
                for name, seconds in zip(SECONDS, spent, strict=True):
                    self._seconds[name] += seconds
            jitter = incidents.jitter
            finite = slope is None or is_finite(slope)
            finite = finite and (
                to_points is None or math.isfinite(total(numpy_if_small(to_points)))
            )  # one pass for all
            if not (math.isfinite(value) and finite):
                raise NumericalError(Event.DIVERGED, "the objective or its gradient is not finite")
        except (NumericalError, OverflowError, ZeroDivisionError) as raised:
            beyond = "the objective leaves the range of float64"
            error = raised if isinstance(raised, NumericalError) else NumericalError(Event.DIVERGED, beyond)
            failed = (*events, error.event)
            detail = f"{kernel!r}: {error.detail}"
            return Evaluation(vector, value, relative_error, None, effective, jitter, failed, detail)
        if not 0 <= relative_error <= 1:
            events.append(Event.RHO_OUT_OF_RANGE)
        return Evaluation(
            vector,
            value,
            relative_error,
            slope,
            effective,
            jitter,
            tuple(events),
            rho_half=half,
            to_points=to_points,
            factored=factored if points else None,
        )

    def _measured(
        self, gram: Factored, y: torch.Tensor, batch: Batch, regularization: Regularization, gradient: bool
    ) -> tuple[float, float, float, Any]:
        """The objective, ρ, ρ of the half sample, and the objective's cotangent."""
        sizes = [size for size in (batch.sample_size, batch.half_size) if size is not None]
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
