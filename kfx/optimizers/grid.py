"""Grid search: the objective as a function of one parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kfx.kernels.base import Kernel
from kfx.kernels.space import Space
from kfx.numerics.arrays import Vector
from kfx.optimizers.journal import State
from kfx.optimizers.loop import Answer, FitSetup, Optimizer, Question
from kfx.optimizers.loss import Evaluation, Loss
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch, Sampler


class GridSearch(Optimizer):
    """Evaluates the objective at `points` values of one parameter, all on one batch before the next is drawn.

    The fitted kernel is the grid point with the smallest mean objective.
    parameter: its name; None for the first trainable one. bounds: (low, high), the ends of the grid; None for the
    parameter's bounds. space: `raw`, equal steps; `log`, equal ratios. gradient: whether to record the derivative, as
    `diagnostic.gradient`.
    """

    def __init__(
        self,
        make_loss: Callable[..., Loss],
        sampler: Sampler,
        *,
        iterations: int,
        parameter: str | None,
        bounds: Sequence[float] | None,
        points: int,
        space: str,
        gradient: bool,
    ) -> None:
        super().__init__(make_loss, sampler, iterations)
        self.parameter, self.ends, self.space_name = parameter, bounds, space
        self.n, self.gradient = min(points, iterations), gradient
        self.diagnostics = ("gradient",) if gradient else ()

    def start(self, setup: FitSetup) -> None:
        self.kernel = setup.kernel
        self.entry = setup.kernel.names.index(self.parameter) if self.parameter else 0
        space = Space(self.space_name, np.array([self.ends or setup.kernel.bounds[self.entry]]))
        self.values = space.to_parameters(np.linspace(space.low, space.high, self.n))[:, 0]
        self.totals, self.counts, self.failures = np.zeros((3, self.n))

    def state(self) -> State:
        return {name: getattr(self, name).copy() for name in ("totals", "counts", "failures")}

    def restore(self, state: State) -> None:
        self.totals, self.counts, self.failures = state["totals"], state["counts"], state["failures"]

    def keeps_batch(self, iteration: int) -> bool:
        return iteration % self.n > 0

    def ask(self, iteration: int, batch: Batch) -> Question:
        self.point, done = iteration % self.n, iteration // self.n
        self.is_whole_pass = (done + 1) * self.n <= self.iterations
        return Question(self._at(self.point), self.gradient)

    def tell(self, evaluation: Evaluation) -> Answer:
        if evaluation.failed:
            self.failures[self.point] += self.is_whole_pass  # the other points do not see the last batch of a part
        else:
            self.totals[self.point] += evaluation.objective
            self.counts[self.point] += 1
        slope = np.nan if evaluation.gradient is None else float(evaluation.gradient[self.entry])
        return Answer(diagnostics={"gradient": slope} if self.gradient else {})

    def result(self) -> Kernel:
        if not self.counts.any():
            raise NumericalError(Event.DIVERGED, "the objective could not be evaluated anywhere on the grid")
        # a point that fails on more batches than others has no mean that compares with theirs
        is_whole = (self.counts > 0) & (self.failures == self.failures[self.counts > 0].min())
        means = np.where(is_whole, self.totals / np.maximum(self.counts, 1), np.inf)
        return self.kernel.with_flat(self._at(int(np.argmin(means))))

    def _at(self, point: int) -> Vector:
        vector: Any = self.kernel.flat
        vector[self.entry] = self.values[point]
        return vector
