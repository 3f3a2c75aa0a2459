"""The velocity that lowers ρ, on a batch and, by interpolation, everywhere; and the steps along it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.linear_algebra import Factored
from kfx.optimizers.loss import Evaluation, Loss
from kfx.outcomes import Event, NumericalError
from kfx.regression import coefficients
from kfx.regularization import Regularization
from kfx.sampling import Batch

_BLOCK = 4096
_MERGED = 16  # round-off errors of the largest coordinate between points that count as one


@dataclass(frozen=True)
class Interpolation:
    """How the batch's velocities g become a field, v(x) = K(x, X_f) (K(X_f, X_f) + λI)⁻¹ g (Owhadi & Yoo 2019, 6.6).

    kernel: K; None for the flow's own. regularization: λ, its own. solver, rcond: as in `kfx.regression`.
    """

    kernel: Kernel | None
    regularization: Regularization
    solver: str = "cholesky"
    rcond: float | None = None

    def field(self, own: Kernel, own_gram: Factored, x_f: torch.Tensor, g: torch.Tensor) -> Field:
        """The field that takes the values g, (N_f, …), at x_f; with λ, nearly. own: the flow's kernel, and its Gram
        matrix of x_f, which serves again where K and λ are the flow's."""

        def solved() -> torch.Tensor:
            factored = own_gram if self.kernel is None else Factored(self.kernel.gram(x_f))
            values = g.reshape(len(g), -1).to(torch.float64)
            chosen = self.regularization.of(factored.gram)
            return coefficients(factored, values, chosen, self.solver, self.rcond).to(x_f.dtype)

        return Field(self.kernel or own, x_f, solved)


@dataclass(frozen=True)
class Field:
    """v(x) = K(x, centres) coefficients, solved for when first needed: NumericalError where they cannot be had."""

    kernel: Kernel
    centres: torch.Tensor
    solved: Callable[[], torch.Tensor]

    @cached_property
    def coefficients(self) -> torch.Tensor:
        return self.solved()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Velocities at x, in x's shape."""
        return (self.kernel.gram(x, self.centres) @ self.coefficients.to(x)).reshape(x.shape)


class Velocity:
    """−∂objective/∂X_f of a batch (Owhadi & Yoo 2019, eq. 6.5; the RBF case is their Cor. 6.3), and its field.

    complete: every point follows the interpolated field; otherwise batch points follow −∂objective/∂X_f itself, of
    which the sample's part and the rest are two fields (Khalid 2022, §4.3).
    """

    def __init__(self, loss: Loss, interpolation: Interpolation, complete: bool) -> None:
        self.loss, self.interpolation, self.complete = loss, interpolation, complete

    def at(
        self, kernel: Kernel, x_f: torch.Tensor, y_f: torch.Tensor, batch: Batch
    ) -> tuple[Evaluation, torch.Tensor, Field]:
        """The evaluation, g = −∂objective/∂X_f in x_f's shape, and its field. NumericalError where g cannot be had."""
        evaluation = self.loss.at(kernel, x_f, y_f, batch, points=True)
        evaluation.require()
        assert evaluation.to_points is not None
        assert evaluation.factored is not None
        g = -evaluation.to_points
        low, high = torch.aminmax(x_f, dim=0)
        size = float(torch.maximum(high, -low).max())
        if float((high - low).max()) <= _MERGED * torch.finfo(x_f.dtype).eps * size:
            raise NumericalError(Event.COLLAPSED, "all points of the batch have merged")
        if not bool(g.any()):
            raise NumericalError(Event.FIELD_VANISHED, "the objective has no gradient to any point of the batch")
        return evaluation, g, self.interpolation.field(kernel, evaluation.factored, x_f, g)

    def of_batch(self, field: Field, x_f: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """The velocity that the batch's own points follow."""
        return field(x_f) if self.complete else g


# ---- how long a step is


@dataclass(frozen=True)
class StepRule:
    """ε of an Euler step.

    rule: `relative`, the largest ε with ‖εv_i‖ ≤ size ‖x_i‖ for all points but those at 0 (the paper prints a max
    where the min is meant); `absolute`, with ‖εv_i‖ ≤ size; `constant`, ε = size.
    decay_after: from layer n₀ on, size √(n₀ / n) (Owhadi & Yoo 2019, §7.1: 10 % and n₀ = 1000); None for no decay.
    """

    rule: str = "relative"
    size: float = 0.01
    decay_after: int | None = None

    def step(self, x: torch.Tensor, speeds: torch.Tensor, layer: int) -> float:
        """ε for these points, whose velocities have the norms `speeds`, in layer n = `layer` + 1; infinite where no
        point moves."""
        size, n = self.size, layer + 1
        if self.decay_after is not None and n > self.decay_after:
            size *= math.sqrt(self.decay_after / n)
        if self.rule == "constant":
            return size
        if self.rule == "absolute":
            largest = float(speeds.max())
            return size / largest if largest > 0 else math.inf
        norms = norms_of(x)
        return size * float((norms / speeds).masked_fill_(norms == 0, math.inf).min())


# ---- layers: what a flow leaves behind for points that come later


@dataclass(frozen=True)
class EulerLayer:
    """x ↦ x + ε v(x). rule: None, ε as in training; else `test` or `min`: from the points that pass through."""

    field: Field
    step: float
    number: int = 0
    rule: StepRule | None = None
    at_most_training: bool = False

    def move(self, x: torch.Tensor) -> torch.Tensor:
        velocity = self.field(x)
        step = self.step
        if self.rule is not None:
            own = self.rule.step(x, norms_of(velocity), self.number)
            own = step if math.isinf(own) else own
            step = min(step, own) if self.at_most_training else own
        return x + step * velocity


@dataclass(frozen=True)
class RungeKuttaLayer:
    """x(0) ↦ x(1) along the field of a batch that moves with it, by the accepted steps of its training."""

    velocity: Velocity
    kernel: Kernel
    x_f: torch.Tensor
    y_f: torch.Tensor
    batch: Batch
    times: np.ndarray
    method: str

    def move(self, x: torch.Tensor) -> torch.Tensor:
        n, shape, y_f = len(self.x_f), x.shape[1:], self.y_f.to(x.device)

        def slope(state: torch.Tensor) -> torch.Tensor:
            x_f, others = state[:n], state[n:]
            _, g, field = self.velocity.at(self.kernel, x_f, y_f, self.batch)
            return torch.cat([self.velocity.of_batch(field, x_f, g), field(others)])

        state = torch.cat([self.x_f.to(x).reshape(n, *shape), x])
        for start, end in zip(self.times[:-1], self.times[1:], strict=True):
            state = runge_kutta_step(slope, state, float(end - start), self.method)
        return state[n:]


def runge_kutta_step(
    slope: Callable[[torch.Tensor], torch.Tensor], state: torch.Tensor, step: float, method: str
) -> torch.Tensor:
    """One step of an explicit method of SciPy's, by its coefficients; the field does not depend on time."""
    import scipy.integrate

    tableau = getattr(scipy.integrate, method)
    stages: list[torch.Tensor] = []
    for row in tableau.A[: tableau.n_stages]:
        moved = state
        for weight, stage in zip(row, stages, strict=False):
            moved = moved + float(step * weight) * stage
        stages.append(slope(moved))
    for weight, stage in zip(tableau.B, stages, strict=True):
        state = state + float(step * weight) * stage
    return state


METHODS = ("RK23", "RK45", "DOP853")


def moved_by(field: Field, x: torch.Tensor, step: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x + ε v(x), block by block, and the norms of v: in one pass, for x may be most of the memory."""
    result, norms = torch.empty_like(x), []
    for start in range(0, len(x), _BLOCK):
        block, velocity = x[start : start + _BLOCK], field(x[start : start + _BLOCK])
        torch.add(block, velocity, alpha=step, out=result[start : start + _BLOCK])
        norms.append(norms_of(velocity))
    return result, torch.cat(norms)


def norms_of(vectors: torch.Tensor) -> torch.Tensor:
    """(n,): Euclidean norms."""
    return vectors.reshape(len(vectors), -1).norm(dim=1)


def at(field: Field, x: torch.Tensor) -> torch.Tensor:
    """v(x), block by block."""
    return torch.cat([field(block) for block in x.split(_BLOCK)])


def checked(positions: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """The positions, if a Gram matrix can be had there; NumericalError (overshot) if not."""
    if not len(positions):
        return positions
    largest = max(map(abs, map(float, torch.aminmax(positions))))
    if not math.isfinite(largest):
        raise NumericalError(Event.OVERSHOT, "a step led to positions that are not finite")
    # The squared distance of two points is at most this; and the diagonal bounds all other entries.
    farthest = 4 * largest * largest * positions[0].numel()
    if farthest > torch.finfo(positions.dtype).max or not bool(kernel.diagonal(positions).isfinite().all()):
        raise NumericalError(Event.OVERSHOT, "a step led to positions too far out to be evaluated")
    return positions


def crossings(before: torch.Tensor, after: torch.Tensor) -> float:
    """How many pairs of points that were neighbours on the line before now stand the other way round; NaN for points
    of several coordinates."""
    if before[0].numel() != 1:
        return math.nan
    order = torch.argsort(before.reshape(-1), stable=True)
    return float((after.reshape(-1)[order].diff() < 0).sum())


def mean_squared_distances(x: torch.Tensor, labels: np.ndarray | None) -> dict[str, float]:
    """Mean of ‖x_i − x_j‖² over all pairs and, with classes, over those in one class, between classes, and the ratio
    between / in."""
    flat = x.reshape(len(x), -1)

    def sums(points: torch.Tensor) -> tuple[float, float]:
        centred = points - points.mean(dim=0)
        return 2 * len(points) * float(centred.square_().sum(dtype=torch.float64)), float(len(points) ** 2)

    total, pairs = sums(flat)
    found = {"distance_all": total / pairs}
    if labels is not None:
        parts: Sequence[Any] = [sums(flat[torch.as_tensor(labels == label)]) for label in np.unique(labels)]
        inner, inner_pairs = sum(p[0] for p in parts), sum(p[1] for p in parts)
        found["distance_in_class"] = inner / inner_pairs
        found["distance_between"] = (total - inner) / max(pairs - inner_pairs, 1.0)
        found["distance_ratio"] = found["distance_between"] / max(found["distance_in_class"], 1e-300)
    return found
