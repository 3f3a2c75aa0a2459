"""L-BFGS on `kernel.flat`: quasi-Newton steps on one batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kfx.kernels.base import Kernel
from kfx.kernels.space import Space
from kfx.numerics.arrays import Vector, as_kind, in_numpy
from kfx.optimizers.journal import State
from kfx.optimizers.loop import Answer, FitSetup, Optimizer, Question
from kfx.optimizers.loss import Evaluation, Loss
from kfx.sampling.samplers import Batch, Sampler

_DECREASE = 1e-4
"""The share of the decrease that the gradient promises and a step must give (Armijo)."""
_SHORTEST = 1e-12
_FARTHEST = 1.0
"""The largest change of a logarithm in a step: farther ones reach lengths where the objective is flat."""


class LBFGS(Optimizer):
    """L-BFGS within the kernel's bounds, on the first batch of the sampler (Nocedal & Wright 2006, algorithm 7.5).

    Each iteration is an evaluation: of a new step, or of a shorter one where the last did not lower the objective
    enough. The fit ends where a step lowers it by less than `tolerance`, relative to its size.
    space: `raw` or `log`, see `Space`. memory: number of pairs of a step and a change of the gradient that are kept.
    """

    def __init__(
        self,
        make_loss: Callable[..., Loss],
        sampler: Sampler,
        *,
        iterations: int,
        space: str,
        memory: int,
        tolerance: float,
    ) -> None:
        super().__init__(make_loss, sampler, iterations)
        self.space_name, self.memory, self.tolerance = space, memory, tolerance

    def start(self, setup: FitSetup) -> None:
        self.kernel = setup.kernel
        self.space = Space(self.space_name, self.kernel.bounds)
        start = in_numpy(self.space.to_coordinates(self.kernel.flat)).astype(np.float64)
        self.position: np.ndarray = np.asarray(self.space.project(start))
        self.value, self.gradient = np.inf, np.zeros_like(self.position)
        self.direction, self.length = np.zeros_like(self.position), 1.0
        self.steps: list[np.ndarray] = []
        self.changes: list[np.ndarray] = []
        self.is_done = False

    def state(self) -> State:
        kept = ("position", "value", "gradient", "direction", "length", "is_done")
        return {name: getattr(self, name) for name in kept} | {
            "steps": list(self.steps),
            "changes": list(self.changes),
        }

    def restore(self, state: State) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def keeps_batch(self, iteration: int) -> bool:
        return True

    def ask(self, iteration: int, batch: Batch) -> Question | None:
        if self.is_done:
            return None
        self.candidate = np.asarray(self.space.project(self.position + self.length * self.direction))
        return Question(self._parameters(self.candidate))

    def tell(self, evaluation: Evaluation) -> Answer:
        if np.isinf(self.value):
            evaluation.require()  # the start itself cannot be evaluated
        step = self.candidate - self.position
        promised = min(float(self.gradient @ step), 0.0)
        if evaluation.failed or evaluation.objective > self.value + _DECREASE * promised:
            self._shorten(evaluation.objective, promised, step)
            return Answer()
        assert evaluation.gradient is not None
        gradient = in_numpy(self.space.gradient(evaluation.vector, evaluation.gradient)).astype(np.float64)
        change = gradient - self.gradient
        if np.isfinite(self.value):
            if step @ change > 1e-10 * np.linalg.norm(step) * np.linalg.norm(change):
                self.steps = [*self.steps, step][-self.memory :]
                self.changes = [*self.changes, change][-self.memory :]
            size = max(abs(self.value), abs(evaluation.objective))
            self.is_done = self.value - evaluation.objective <= self.tolerance * size
        self.position, self.value, self.gradient = self.candidate, evaluation.objective, gradient
        self._turn()
        return Answer()

    def _shorten(self, value: float, promised: float, step: np.ndarray) -> None:
        """Shorten a step that failed or did not lower the objective enough; end where it promises too little."""
        excess = value - self.value - promised
        minimum = -promised / 2 / excess if excess > 0 else 0.5  # of the parabola through what is known
        self.length *= min(max(minimum, 0.1), 0.5)
        if -promised <= self.tolerance * abs(self.value):
            self.is_done = True
        elif np.abs(step).max() <= _SHORTEST * (1 + np.abs(self.position).max()):
            self.is_done = not self.steps
            self.steps, self.changes = [], []
            self._turn()

    def _turn(self) -> None:
        """Set the next direction, −H g with H from the kept pairs; entries at a bound that g pushes outwards stay."""
        outwards = np.where(self.gradient > 0, self.position <= self.space.low, self.position >= self.space.high)
        free = np.where(outwards, 0.0, self.gradient)
        pairs = list(zip(self.steps, self.changes, strict=True))
        q, shares = free.copy(), []
        for step, change in reversed(pairs):
            shares.append(step @ q / (step @ change))
            q -= shares[-1] * change
        if pairs:
            step, change = pairs[-1]
            q *= step @ change / (change @ change)
        for (step, change), share in zip(pairs, reversed(shares), strict=True):
            q += (share - change @ q / (step @ change)) * step
        self.direction = np.where(outwards, 0.0, -q)
        if self.direction @ free >= 0:  # no descent: forget the pairs
            self.steps, self.changes, self.direction = [], [], -free
        size = float(np.linalg.norm(free))
        self.length = 1.0 / size if size > 0 and not self.steps else 1.0
        fastest = np.abs(self.direction[self.space.is_logged]).max(initial=0.0)
        if self.length * fastest > _FARTHEST:
            self.length = _FARTHEST / fastest
        self.is_done = self.is_done or not size > 0

    def result(self) -> Kernel:
        return self.kernel.with_flat(self._parameters(self.position))

    def _parameters(self, position: np.ndarray) -> Vector:
        return self.space.to_parameters(as_kind(position, self.kernel.flat))
