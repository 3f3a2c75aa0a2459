"""Which of several starting points is worth going on with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from kfx.held_out import on_the_same_batches
from kfx.kernels.base import Kernel
from kfx.optimizers.loss import Loss
from kfx.sampling import FixedSampler

BATCHES = 10


def objectives_at(
    kernels: Sequence[Kernel],
    loss: Callable[..., Loss],
    sampler: FixedSampler,
    data: tuple[torch.Tensor, torch.Tensor],
    rng: np.random.Generator,
) -> list[float]:
    """The mean objective of each kernel over the same ten batches, drawn for this alone; infinite where it fails."""
    return [
        math.inf if any(value.failed for value in values) else float(np.mean([value.objective for value in values]))
        for values in on_the_same_batches(kernels, loss, sampler, data, rng, BATCHES)
    ]
