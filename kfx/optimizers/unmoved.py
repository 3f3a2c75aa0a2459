"""`none`: measure the objective of the kernel as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kfx.kernels.base import Kernel
from kfx.optimizers.loss import Loss
from kfx.sampling import FixedSampler
from kfx.streams import Streams


class Unmoved:
    """Evaluates the objective on the same batches as every other optimizer, and moves nothing."""

    def __init__(self, loss: Callable[..., Loss], sampler: FixedSampler, iterations: int) -> None:
        self.loss, self.sampler, self.iterations = loss, sampler, iterations
        self.diagnostics = sampler.diagnostics

    def fit(self, kernel: Kernel, data: tuple[torch.Tensor, torch.Tensor], streams: Streams, record: Any) -> Kernel:
        loss = self.loss(kernel, *data)
        first = 0
        self.sampler.start(*data)
        if restored := record.restore(streams):
            first, state = restored
            loss.kernel_evaluations = state["kernel_evaluations"]
            self.sampler.restore(state["sampler"])

        def checkpoint(iteration: int) -> None:
            state = {"kernel_evaluations": loss.kernel_evaluations, "sampler": self.sampler.state()}
            record.checkpoint(iteration, streams, state)

        for iteration in range(first, self.iterations):
            checkpoint(iteration)
            batch = self.sampler.draw(streams["batches"], iteration)
            evaluation = loss(kernel.flat, batch, gradient=False)
            record.row(iteration, evaluation, loss.kernel_evaluations, diagnostics=self.sampler.shown(batch))
            self.sampler.observe(evaluation.rho_half)
            evaluation.require()
        checkpoint(self.iterations)
        return kernel
