"""Gradients of the objective by finite differences."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.numerics.arrays import Vector, as_kind, in_numpy
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import Function, Objective
from kfx.optimizers.loss import Evaluation, Loss
from kfx.outcomes import ConfigError
from kfx.sampling.samplers import Batch

_LEAST = 64
"""Units in the last place of a parameter in the difference of two: fewer would leave a quotient without digits."""


class DifferencedLoss(Loss):
    """A loss whose gradient is a difference quotient on the same batch, in the parameters' own units.

    step: h. scheme: `forward`, (ρ(θ + h) − ρ(θ)) / h, which takes one more evaluation for each parameter (Khalid 2022,
    eq. 3.7 with h = 1e-4); `central`, (ρ(θ + h) − ρ(θ − h)) / 2h, which takes two. Both points stay within the
    kernel's bounds. x: training points, (N, …). y: targets, (N, outputs). ConfigError, when a gradient is asked for, if
    h is lost in round-off beside a parameter.
    """

    def __init__(
        self,
        step: float,
        scheme: str,
        objective: Objective | Function,
        regularization: Regularization,
        kernel: Kernel,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor | None = None,
    ) -> None:
        super().__init__(objective, regularization, kernel, x, y, weights)
        self.step, self.scheme = step, scheme
        noise = torch.finfo(x.dtype).eps * len(x) ** 0.5
        if x.dtype == torch.float32:
            warnings.warn(
                f"finite differences in float32: a step of {step:g} divides errors of about {noise:.0e}; "
                "set device.dtype=float64 or raise optimizer.step",
                stacklevel=2,
            )

    def __call__(self, vector: Vector, batch: Batch, gradient: bool = True) -> Evaluation:
        here = super().__call__(vector, batch, gradient=False)
        if not gradient or here.failed:
            return here
        at = in_numpy(vector)
        slope = np.zeros_like(at)
        for i, (low, high) in enumerate(self.kernel.bounds):
            if high - low <= _LEAST * np.spacing(abs(at[i])):  # it is fixed
                continue
            ends = {at[i] + self.step, at[i] - self.step if self.scheme == "central" else at[i]}
            above, below = (float(np.clip(end, low, high)) for end in (max(ends), min(ends)))
            if above - below < self.step / 2:  # at the upper bound, up to round-off: look back
                below = float(np.maximum(above - self.step, low))
            if not above - below > _LEAST * np.spacing(max(abs(above), abs(below))):
                at_least = f"{self.kernel.names[i]}={at[i]:g}: take at least {2 * _LEAST * np.spacing(abs(at[i])):.1g}"
                raise ConfigError(f"optimizer.step={self.step:g}: is lost in round-off beside {at_least}")
            values = []
            for end in (above, below):
                there = here
                if end != at[i]:
                    shifted = at.copy()
                    shifted[i] = end
                    there = super().__call__(as_kind(shifted, vector), batch, gradient=False)
                if there.failed:
                    return replace(here, events=there.events, detail=there.detail)
                values.append(there.objective)
            slope[i] = (values[0] - values[1]) / (above - below)
        return replace(here, gradient=as_kind(slope, vector))
