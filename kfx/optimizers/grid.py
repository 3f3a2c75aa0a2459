"""Grid search: the objective as a function of one parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.optimizers.loss import Loss
from kfx.optimizers.space import Space
from kfx.outcomes import Event, NumericalError
from kfx.sampling import Batch, FixedSampler
from kfx.streams import Streams


class GridSearch:
    """Evaluates the objective at `points` values of one parameter, all of them on a batch before the next is drawn.

    parameter: its name; None for the first that is trainable. bounds: (low, high), the ends of the grid; None for
    those of the parameter. space: `raw`, equal steps; `log`, equal ratios. gradient: also the derivative, as
    `diagnostic.gradient`. The kernel that comes back is the one with the smallest mean objective.
    """

    def __init__(
        self,
        loss: Callable[..., Loss],
        sampler: FixedSampler,
        *,
        iterations: int,
        parameter: str | None,
        bounds: tuple[float, float] | None,
        points: int,
        space: str,
        gradient: bool,
    ) -> None:
        self.loss, self.sampler, self.iterations = loss, sampler, iterations
        self.parameter, self.bounds, self.points, self.space = parameter, bounds, points, space
        self.gradient = gradient
        self.diagnostics = (*(("gradient",) if gradient else ()), *sampler.diagnostics)

    def fit(self, kernel: Kernel, data: tuple[torch.Tensor, torch.Tensor], streams: Streams, record: Any) -> Kernel:
        loss, n = self.loss(kernel, *data), min(self.points, self.iterations)
        entry = kernel.names.index(self.parameter) if self.parameter else 0
        space = Space(self.space, np.array([self.bounds or kernel.bounds[entry]]))
        values = space.to_parameters(np.linspace(space.low, space.high, n))[:, 0]
        totals, counts, first = np.zeros(n), np.zeros(n), 0
        self.sampler.start(*data)
        batch: Batch | None = None
        if restored := record.restore(streams):
            first, state = restored
            loss.kernel_evaluations, totals, counts = state["kernel_evaluations"], state["totals"], state["counts"]
            self.sampler.restore(state["sampler"])
            batch = Batch(state["indices"], state["sample_size"], state["half_size"], tuple(state["orders"]))

        def checkpoint(iteration: int) -> None:
            assert batch is not None
            state = {
                "kernel_evaluations": loss.kernel_evaluations,
                "totals": totals.copy(),
                "counts": counts.copy(),
                "sampler": self.sampler.state(),
                "indices": batch.indices,
                "sample_size": batch.sample_size,
                "half_size": batch.half_size,
                "orders": list(batch.orders),
            }
            record.checkpoint(iteration, streams, state)

        for iteration in range(first, self.iterations):
            point = iteration % n
            if batch is None or (point == 0 and iteration > first):
                batch = self.sampler.draw(streams["batches"], iteration)
            checkpoint(iteration)
            vector = kernel.flat
            vector[entry] = values[point]
            evaluation = loss(vector, batch, gradient=self.gradient)
            slope = np.nan if evaluation.gradient is None else evaluation.gradient[entry]
            shown = {"gradient": slope, **self.sampler.shown(batch)}
            record.row(iteration, evaluation, loss.kernel_evaluations, diagnostics=shown)
            self.sampler.observe(evaluation.rho_half)
            if not evaluation.failed:
                totals[point] += evaluation.objective
                counts[point] += 1
        checkpoint(self.iterations)
        if not counts.any():
            raise NumericalError(Event.DIVERGED, "the objective could not be evaluated anywhere on the grid")
        means = np.where(counts > 0, totals / np.maximum(counts, 1), np.inf)
        vector = kernel.flat
        vector[entry] = values[int(np.argmin(means))]
        return kernel.with_flat(vector)
