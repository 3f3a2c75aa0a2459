"""What the stages of a run share: the machine, the data and the record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch

from kfx.data.dataset import Dataset
from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.judges import Tensors
from kfx.experiment.config import Config
from kfx.files import Document, TableRow
from kfx.kernels import Kernel
from kfx.numerics.streams import Streams
from kfx.optimizers.loop import Optimizer
from kfx.outcomes import Event
from kfx.record.trace import Trace


@dataclass(frozen=True)
class Machine:
    """Where a run computes, with how many threads at most, and which precision switches were set."""

    device: torch.device
    dtype: torch.dtype
    threads: int
    switches: Document


class Fits(Protocol):
    """Fits one part after the other (`kfx.running.journals`)."""

    def ended(self, starts: Sequence[Kernel]) -> list[Kernel]:
        """The fitted kernels of the parts that ended in an earlier process."""

    def fit(self, kernel: Kernel, optimizer: Optimizer, data: Tensors, streams: Streams) -> Kernel:
        """Fit the next part by `Optimizer.fit`. data: of the part; its test points are for flows alone."""

    def close(self, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> None:
        """Keep the kernels of all parts."""


class Notes(Protocol):
    """Where stages write their findings: a run's record, or what an estimator keeps.

    watch: called with every row of the trace.
    """

    metrics: Document
    trace: Trace | None
    watch: Any

    def table(self, name: str, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
        """Write a CSV file."""

    def remark(self, event: Event, text: str) -> None:
        """Add a note on the result."""


@dataclass
class RunContext:
    """What the stages of a run share.

    open_fits: opens the trace, and gives what fits the parts and keeps them: for a run `in_record`, which gives
    `kfx.record.journal.PartFits`, and for an estimator `Unrecorded.open_fits`.
    parts: the data sets that kernels are trained on: one for each fold, or for each output of each fold. folds: those
    that they are evaluated on.
    """

    config: Config
    notes: Notes
    machine: Machine
    open_fits: Callable[[RunContext, Sequence[Kernel], Optimizer], Fits]
    streams: Streams
    parts: list[Dataset]
    tensors: list[Tensors]
    threads_of_evaluation: int
    disk: DiskStores | None = None
    folds: list[Dataset] = field(default_factory=list)
    tensors_of_folds: list[Tensors] = field(default_factory=list)
    keeps_held_out: bool = False
    """Whether a fit is measured on held-out batches though it changed nothing."""
    drawn: list[list[Kernel]] = field(default_factory=list)
    """For each part the candidates from which its initial kernel was chosen."""
    inflation: dict[int, float] = field(default_factory=dict)
    """The factor of the trained kernel's deviations, by part, where refitted folds gave one."""
    rejected: list[Kernel] = field(default_factory=list)
    """The kernel of each part that training reached, where some parts keep their initial kernel instead."""

    def __post_init__(self) -> None:
        self.folds, self.tensors_of_folds = self.folds or self.parts, self.tensors_of_folds or self.tensors

    def inflation_of(self, fold: int) -> np.ndarray | float:
        """`Dataset.inflation` of a fold."""
        count = len(self.parts) // len(self.folds)
        found = [self.inflation.get(part, 1.0) for part in range(fold * count, (fold + 1) * count)]
        return np.array(found) if self.config.outputs.is_separate else found[0]

    def weights(self, part: int) -> torch.Tensor | None:
        """The weights of a part's training points, (n,), on the run's device; None for all alike."""
        own = self.parts[part].weights
        return None if own is None else torch.as_tensor(own, device=self.machine.device)

    def of_fold(self, kernels: Sequence[Kernel], fold: int) -> Sequence[Kernel]:
        """The kernels of a fold: one, or one for each output."""
        count = len(self.parts) // len(self.folds)
        return kernels[fold * count : (fold + 1) * count]


How = Literal["fitted", "initial", "one_length", "smooth"]


class Kept(NamedTuple):
    """The kernel with which a fit ends, and which one it is: fitted, initial, with one length for all features, or with
    its smooth part alone; with refitted folds also the mean squared error of each candidate, of the targets as
    learned."""

    kernel: Kernel
    how: How
    errors: Mapping[str, float] | None = None


def tensors_of(part: Dataset, machine: Machine) -> Tensors:
    """The points and the targets of training of a data set, on the run's device."""
    x_train, x_test = (
        torch.as_tensor(x, dtype=machine.dtype, device=machine.device) for x in (part.x_train, part.x_test)
    )
    return Tensors(x_train, torch.as_tensor(part.targets, device=machine.device), x_test)
