"""Gradients by differences of the objective: for kernels whose derivative is out of reach, and to repeat papers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.optimizers.loss import Evaluation, Loss
from kfx.regularization import Regularization
from kfx.sampling import Batch

SCHEMES = ("forward", "central")


class DifferencedLoss(Loss):
    """A loss whose gradient is a difference quotient on the batch of its value, in the parameters' own units.

    step: h. scheme: `forward`, (ρ(θ + h) − ρ(θ)) / h, one evaluation a parameter beside the value (Khalid 2022,
    eq. 3.7 with h = 1e-4); `central`, two.
    """

    def __init__(
        self,
        step: float,
        scheme: str,
        objective: Callable[..., tuple[float, Any]],
        regularization: Regularization,
        kernel: Kernel,
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        super().__init__(objective, regularization, kernel, x, y)
        self.step, self.scheme = step, scheme
        noise = torch.finfo(x.dtype).eps * len(x) ** 0.5
        if x.dtype == torch.float32:
            warnings.warn(
                f"finite differences in float32: a step of {step:g} divides errors of about {noise:.0e}; "
                "set device.dtype=float64 or raise optimizer.step",
                stacklevel=2,
            )

    def __call__(self, vector: np.ndarray, batch: Batch, gradient: bool = True) -> Evaluation:
        here = super().__call__(vector, batch, gradient=False)
        if not gradient or here.failed:
            return here
        slope = np.empty_like(vector)
        for i in range(len(vector)):
            shift = np.zeros_like(vector)
            shift[i] = self.step
            ahead = super().__call__(vector + shift, batch, gradient=False)
            behind = super().__call__(vector - shift, batch, gradient=False) if self.scheme == "central" else here
            for other in (ahead, behind):
                if other.failed:
                    return replace(other, vector=vector)
            slope[i] = (ahead.objective - behind.objective) / (self.step * (2 if self.scheme == "central" else 1))
        return replace(here, gradient=slope)
