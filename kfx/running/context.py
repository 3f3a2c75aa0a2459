"""What the stages of a run share: the machine, the data and where results go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from kfx.data.dataset import Dataset
from kfx.evaluation.on_disk import DiskStores
from kfx.experiment.config import Config
from kfx.kernels import Kernel
from kfx.numerics.streams import Streams
from kfx.record.record import Record

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""x_train, y_train, x_test: points in the run's dtype, targets in float64."""


@dataclass(frozen=True)
class Machine:
    """Where a run computes, with how many threads at most, and what was switched."""

    device: torch.device
    dtype: torch.dtype
    threads: int
    switches: dict[str, Any]


@dataclass
class RunContext:
    """What the stages of a run share. parts: what kernels are trained and judged on, one or one a fold."""

    config: Config
    record: Record
    machine: Machine
    streams: Streams
    parts: list[Dataset]
    tensors: list[Tensors]
    threads_of_evaluation: int
    disk: DiskStores | None = None
    drawn: list[list[Kernel]] = field(default_factory=list)
    """The kernels that each part's start was chosen from."""
