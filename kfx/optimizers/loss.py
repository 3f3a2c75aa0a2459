"""The function of `kernel.flat` that parametric optimizers see: an objective on a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.linear_algebra import watch_jitter
from kfx.objectives import rho
from kfx.outcomes import Event, NumericalError
from kfx.regularization import Regularization
from kfx.sampling import Batch


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the objective, good or bad: a row of the trace.

    vector: where; objective, rho: NaN where they could not be had; gradient: to `vector`, or None;
    regularization: the effective λ; jitter: what the factorisation added to the diagonal; event: why it failed.
    """

    vector: np.ndarray
    objective: float
    rho: float
    gradient: np.ndarray | None
    regularization: float
    jitter: float
    event: Event | None = None
    detail: str = ""

    @property
    def failed(self) -> bool:
        return not math.isfinite(self.objective)


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

    def __call__(self, vector: np.ndarray, batch: Batch, gradient: bool = True) -> Evaluation:
        """The objective at `vector`. A failure of the arithmetic is a result with an event, not an exception."""
        if not np.all(np.isfinite(vector)):
            return self._failure(vector, Event.DIVERGED, "a parameter is not finite")
        kernel = self.kernel.with_flat(vector)
        indices = torch.as_tensor(batch.indices, device=self.x.device)
        x, y = self.x[indices], self.y[indices]
        self.kernel_evaluations += 1
        slope = effective = None
        with watch_jitter() as jitters:
            try:
                gram, pull = kernel.pullback(x) if gradient else (kernel.gram(x), None)
                effective = self.regularization.of(gram)
                value, cotangent = self.objective(gram, y, batch.sample_size, self.regularization, gradient)
                if self.objective is not rho:
                    relative_error = rho(gram, y, batch.sample_size, self.regularization, False)[0]
                else:
                    relative_error = value
                if pull is not None:
                    slope = pull(cotangent)
            except NumericalError as error:
                return self._failure(vector, error.event, f"{kernel!r}: {error}", effective)
        jitter = max(jitters, default=0.0)
        if not math.isfinite(value) or (slope is not None and not np.all(np.isfinite(slope))):
            return self._failure(vector, Event.DIVERGED, f"{kernel!r}: the objective or its gradient is not finite")
        event = None if 0 <= relative_error <= 1 else Event.RHO_OUT_OF_RANGE
        return Evaluation(vector, value, relative_error, slope, effective, jitter, event)

    def _failure(
        self, vector: np.ndarray, event: Event, detail: str, regularization: float | None = None
    ) -> Evaluation:
        effective = math.nan if regularization is None else regularization
        return Evaluation(vector, math.nan, math.nan, None, effective, 0.0, event, detail)
