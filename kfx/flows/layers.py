"""Layers: the steps of a flow, which can move further points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kfx.flows.integration import runge_kutta_step
from kfx.flows.vector_field import Field, Velocity
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import as_kind, as_tensor, extent, numpy_if_small
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch

_BLOCK = 4096


# ---- length of a step


Norms = Any
"""(n,), in NumPy for a few points and in torch for many: what is written once for both."""


@dataclass(frozen=True)
class StepRule:
    """The rule for ε of an Euler step.

    rule: `relative`, the largest ε with ‖εv_i‖ ≤ size ‖x_i‖ for all points but those at 0 (Darcy 2020, §3.2);
        `relative_to_largest`, the largest with ‖εv_i‖ ≤ size max_j ‖x_j‖ (a reading of the max that Owhadi & Yoo 2019,
        §8.1, prints); `absolute`, the largest with ‖εv_i‖ ≤ size; `constant`, ε = size.
    decay_after: n₀, from which on layer n has size √(n₀ / n) (Owhadi & Yoo 2019, §7.1: 10 % and n₀ = 1000); None for no
        decay.
    unit_below: speed ‖v_i‖ below which a point counts as one of speed 1, as in the public code of Darcy 2020.
    """

    rule: str = "relative"
    size: float = 0.01
    decay_after: int | None = None
    unit_below: float = 0.0

    def step(self, x: torch.Tensor, speeds: Norms, layer: int) -> float:
        """ε for the points x, (n, …), in layer n = `layer` + 1; infinite if no point moves. speeds: norms of their
        velocities, (n,)."""
        size, n = self.size, layer + 1
        if self.decay_after is not None and n > self.decay_after:
            size *= math.sqrt(self.decay_after / n)
        if self.rule == "constant":
            return size
        if self.unit_below > 0:
            speeds = speeds + (1 - speeds) * (speeds < self.unit_below)
        if self.rule != "relative":
            largest = float(speeds.max())
            size *= float(norms_of(x).max()) if self.rule == "relative_to_largest" else 1.0
            return size / largest if largest > 0 else math.inf
        norms = as_kind(norms_of(x), speeds)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = norms / speeds
        ratios[norms == 0] = math.inf
        return size * float(ratios.min())


# ---- layers, which move further points


@dataclass(frozen=True)
class EulerLayer:
    """x ↦ x + ε v(x). rule: None for ε as in training; else ε from the points that pass through (`test`), or the
    smaller (`min`)."""

    field: Field
    step: float
    number: int = 0
    rule: StepRule | None = None
    at_most_training: bool = False

    def move(self, x: torch.Tensor) -> torch.Tensor:
        """The points x, (n, …), after the layer."""
        velocity = self.field(x)
        step = self.step
        if self.rule is not None:
            own = self.rule.step(x, norms_of(velocity), self.number)
            own = step if math.isinf(own) else own
            step = min(step, own) if self.at_most_training else own
        return x + step * velocity


@dataclass(frozen=True)
class RungeKuttaLayer:
    """x(0) ↦ x(1) along the field of a batch that moves too, with the steps that training accepted."""

    velocity: Velocity
    kernel: Kernel
    x_f: torch.Tensor
    y_f: torch.Tensor
    batch: Batch
    times: np.ndarray
    method: str

    def move(self, x: torch.Tensor) -> torch.Tensor:
        """The points x, (n, …), after the layer."""
        n, shape, y_f = len(self.x_f), x.shape[1:], self.y_f.to(x.device)

        def slope(state: torch.Tensor) -> torch.Tensor:
            x_f, others = state[:n], state[n:]
            evaluation = self.velocity.evaluate(self.kernel, x_f, y_f, self.batch)
            g, field = self.velocity.of(evaluation, self.kernel, x_f)
            return torch.cat([self.velocity.of_batch(field, x_f, g), field(others)])

        state = torch.cat([self.x_f.to(x).reshape(n, *shape), x])
        for start, end in zip(self.times[:-1], self.times[1:], strict=True):
            state, _ = runge_kutta_step(slope, state, float(end - start), self.method)
        return state[n:]


Layer = EulerLayer | RungeKuttaLayer


def moved_by(field: Field, x: torch.Tensor, step: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x + ε v(x), (n, …), and the norms of v, (n,), computed in blocks because x may take most of the memory."""
    result, norms = torch.empty_like(x), []
    for start in range(0, len(x), _BLOCK):
        block, velocity = x[start : start + _BLOCK], field(x[start : start + _BLOCK])
        torch.add(block, velocity, alpha=step, out=result[start : start + _BLOCK])
        norms.append(as_tensor(norms_of(velocity)))
    return result, torch.cat(norms)


def norms_of(vectors: torch.Tensor) -> Norms:
    """Euclidean norms of vectors, (n, …) → (n,); in NumPy for a few vectors."""
    rows = numpy_if_small(vectors.reshape(len(vectors), -1))
    return np.sqrt(np.einsum("ij,ij->i", rows, rows)) if isinstance(rows, np.ndarray) else rows.norm(dim=1)


def at_points(field: Field, x: torch.Tensor) -> torch.Tensor:
    """v(x), in x's shape, (n, …), computed in blocks."""
    return torch.cat([field(block) for block in x.split(_BLOCK)])


def checked(positions: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """Return the positions, (n, …), if a Gram matrix can be computed there; else NumericalError (overshot)."""
    if not len(positions):
        return positions
    largest, _ = extent(positions)
    if not math.isfinite(largest):
        raise NumericalError(Event.OVERSHOT, "a step led to positions that are not finite")
    # This bounds the squared distance of two points; the diagonal bounds all other entries.
    farthest = 4 * largest * largest * positions[0].numel()
    if farthest > torch.finfo(positions.dtype).max or not kernel.is_finite_at(positions):
        raise NumericalError(Event.OVERSHOT, "a step led to positions too far out to be evaluated")
    return positions


def crossings(before: torch.Tensor, after: torch.Tensor) -> float:
    """Number of neighbours on the line, (n, 1), whose order is reversed afterwards; NaN in more than one dimension."""
    if before[0].numel() != 1:
        return math.nan
    order = torch.argsort(before.reshape(-1), stable=True)
    return float((after.reshape(-1)[order].diff() < 0).sum())
