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

    diagnostics: tuple[str, ...] = ()

    def __init__(self, loss: Callable[..., Loss], sampler: FixedSampler, iterations: int) -> None:
        self.loss, self.sampler, self.iterations = loss, sampler, iterations

    def fit(self, kernel: Kernel, data: tuple[torch.Tensor, torch.Tensor], streams: Streams, record: Any) -> Kernel:
        loss = self.loss(kernel, *data)
        first = 0
        if restored := record.restore(streams):
            first, loss.kernel_evaluations = restored[0], restored[1]["kernel_evaluations"]
        for iteration in range(first, self.iterations):
            record.checkpoint(iteration, streams, {"kernel_evaluations": loss.kernel_evaluations})
            batch = self.sampler.draw(len(data[0]), streams["batches"])
            evaluation = loss(kernel.flat, batch, gradient=False)
            record.row(iteration, evaluation, loss.kernel_evaluations)
            evaluation.require()
        record.checkpoint(self.iterations, streams, {"kernel_evaluations": loss.kernel_evaluations})
        return kernel
