"""A fit's journal: where it writes what happens, and finds what a process before it left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kfx.kernels.base import Kernel
from kfx.numerics.streams import Streams
from kfx.optimizers.loss import Evaluation
from kfx.outcomes import Event

State = dict[str, Any]
"""What a checkpoint holds: nested dicts and lists of numbers, text and arrays that do not change afterwards."""


class Journal:
    """A journal that keeps nothing; a subclass keeps what it wants. layer_path: where a flow may keep its layers."""

    layer_path: Path

    def row(
        self,
        iteration: int,
        evaluation: Evaluation,
        kernel_evaluations: int,
        *,
        told: float | None = None,
        events: Sequence[Event] = (),
        diagnostics: Mapping[str, float] | None = None,
    ) -> None:
        """Take a row of the trace. kernel_evaluations: Gram matrices so far. told: what a surrogate heard instead."""

    def restore(self, streams: Streams) -> tuple[int, State] | None:
        """The iteration and the state of the last checkpoint, with the streams put back; None for a fit that starts."""
        return None

    def checkpoint(self, iteration: int, streams: Streams, state: State) -> None:
        """Take the state before an iteration."""

    def wants(self, iteration: int, *, final: bool = False) -> bool:
        """Whether `moved` is to be called before this iteration, or at the end."""
        return False

    def moved(
        self, iteration: int, kernel: Kernel, x: torch.Tensor, along: torch.Tensor, *, final: bool = False
    ) -> None:
        """Take the kernel before an iteration, or at the end, and where the points are: x, (n, …), and those that flow
        along."""

    def stopped(self, layer: int, reason: str) -> None:
        """Take note that a flow ended before this layer."""
