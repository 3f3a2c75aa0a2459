"""A fit's journal: rows of the trace and checkpoints, written by the fit and read when it resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kfx.kernels.base import Kernel
from kfx.numerics.streams import Streams
from kfx.optimizers.loss import Evaluation
from kfx.outcomes import Event

State = dict[str, Any]
"""The content of a checkpoint: nested dicts and lists of numbers, text and arrays that do not change afterwards."""


@dataclass(frozen=True)
class TraceRow:
    """An evaluation of the objective within a fit: a row of the trace.

    kernel_evaluations: Gram matrices computed so far. told: the value given to a surrogate where it is not the
    objective. diagnostics: further columns, of the optimizer, the sampler and the objective.
    """

    iteration: int
    evaluation: Evaluation
    kernel_evaluations: int
    told: float | None = None
    events: Sequence[Event] = ()
    diagnostics: Mapping[str, float] = field(default_factory=dict)


class Journal:
    """A journal that stores nothing; subclasses override what they store. layer_path: file for the layers of a flow."""

    layer_path = Path()

    def row(self, row: TraceRow) -> None:
        """Record a row of the trace."""

    def restore(self, streams: Streams) -> tuple[int, State] | None:
        """Return the iteration and the state of the last checkpoint and restore the streams; None for a new fit."""
        return None

    def checkpoint(self, iteration: int, streams: Streams, state: State) -> None:
        """Record the state before an iteration."""

    def wants(self, iteration: int, *, final: bool = False) -> bool:
        """Return whether to call `moved` before this iteration, or with `final` at the end."""
        return False

    def moved(
        self, iteration: int, kernel: Kernel, x: torch.Tensor, along: torch.Tensor, *, final: bool = False
    ) -> None:
        """Record the kernel and the positions of the points before an iteration, or with `final` at the end.

        x: training points, (n, …). along: points that a flow carries without learning from them, (m, …).
        """

    def stopped(self, layer: int, reason: str) -> None:
        """Record that a flow ended before this layer, and why."""
