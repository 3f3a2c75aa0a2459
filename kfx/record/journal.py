"""One record for several fits in a row, such as the folds of cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kfx.files import Document, digest
from kfx.kernels.base import Kernel
from kfx.kernels.regularized import as_recorded
from kfx.numerics.streams import Streams
from kfx.optimizers.journal import Journal, State, TraceRow
from kfx.optimizers.loop import Data, Optimizer
from kfx.outcomes import Event
from kfx.record.fitted import Flowed, flow_path, flowed, layer_path

if TYPE_CHECKING:
    from kfx.record.record import Record


class PartFits:
    """One record for several fits in a row.

    Iterations are numbered through all fits. A checkpoint tells which fit it belongs to, and holds the results of the
    fits before.
    """

    def __init__(self, record: Record, count: int, iterations: int) -> None:
        self.record, self.count, self.iterations = record, count, iterations
        self.diagnostics = ("fold",) if count > 1 else ()
        restored = record.restored["optimizer"] if record.restored is not None else {}
        self.fitted: list[Document] = list(restored.get("fitted", []))
        self.files: dict[str, str] = dict(restored.get("files", {}))
        """Files written by finished fits: name → SHA-256."""
        self.bytes: dict[str, int] = {}
        """Sizes of the files to which fits and measurements append."""
        self._evaluations = int(restored.get("evaluations", 0))
        self._resumed = int(restored.get("part", 0)) if restored else -1

    @property
    def resumed_at(self) -> tuple[int, int]:
        """The part, and the iteration within it, at which a resumed run continues; (0, 0) for a new run."""
        restored = self.record.restored
        return (0, 0) if restored is None else (self._resumed, restored["iteration"] - self._resumed * self.iterations)

    def fit(self, kernel: Kernel, optimizer: Optimizer, data: Data, streams: Streams) -> Kernel:
        """Run `optimizer.fit` for the next part, from its checkpoint if there is one.

        data: x (n, …), y (n, outputs) and points (m, …) that flow along.
        """
        journal = PartJournal(self, len(self.fitted))
        fitted = optimizer.fit(kernel, data, streams, journal)
        self._evaluations = journal.evaluations
        self.fitted.append(fitted.parameters)
        if isinstance(fitted, Flowed):
            path = flow_path(self.record.directory, journal.number)
            fitted.save(path)
            self.files[path.name] = digest(path, "sha256")
        return fitted

    def close(self, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> None:
        """Save the last checkpoint, and record the final parameters."""
        self.record.save()
        self.record.final_parameters(starts, fitted)

    def ended(self, starts: Sequence[Kernel]) -> list[Kernel]:
        """The fitted kernels of the parts before that of the checkpoint."""
        kernels = [as_recorded(kernel, values) for kernel, values in zip(starts, self.fitted, strict=False)]
        return [flowed(self.record.directory, part, kernel) for part, kernel in enumerate(kernels)]


class PartJournal(Journal):
    """The journal of one part's fit in the record of a run."""

    def __init__(self, fits: PartFits, number: int) -> None:
        self.fits, self.number = fits, number
        self.first = number * fits.iterations
        self.layer_path = layer_path(fits.record.directory, number)
        self.before = self.evaluations = fits._evaluations

    def wants(self, iteration: int, *, final: bool = False) -> bool:
        """Whether the kernel is measured or kept before this iteration, or at the end."""
        follow = self.fits.record.follow
        return follow is not None and follow.wants(self.number, iteration, final)

    def moved(
        self, iteration: int, kernel: Kernel, x: torch.Tensor, along: torch.Tensor, *, final: bool = False
    ) -> None:
        """Measure or keep the kernel and the points before an iteration, or at the end.

        x: (n, …), training points. along: (m, …), points that flow along.
        """
        follow = self.fits.record.follow
        if follow is not None and (size := follow(self.number, iteration, kernel, x, along, final)):
            self.fits.bytes[follow.file] = size

    def stopped(self, layer: int, reason: str) -> None:
        """Record that a flow ended before its last layer, and why."""
        record = self.fits.record
        record.note(Event.FLOW_STOPPED, f"part {self.number}, layer {layer}: {reason}")
        record.metrics.setdefault("flow_stopped", {})[str(self.number)] = {"layer": layer, "reason": reason}
        record.write_metrics()

    def row(self, row: TraceRow) -> None:
        self.evaluations = self.before + row.kernel_evaluations
        fold = {"fold": self.number} if self.fits.count > 1 else {}
        self.fits.record.row(
            replace(
                row,
                iteration=self.first + row.iteration,
                kernel_evaluations=self.evaluations,
                diagnostics={**row.diagnostics, **fold},
            )
        )

    def restore(self, streams: Streams) -> tuple[int, State] | None:
        if self.number != self.fits._resumed:
            return None
        restored = self.fits.record.restore(streams)
        if restored is None:
            return None
        self.evaluations = restored[1]["so_far"]  # a part that has ended writes no row from which to continue the count
        return restored[0] - self.first, restored[1]["own"]

    def checkpoint(self, iteration: int, streams: Streams, state: State) -> None:
        whole = {
            "own": state,
            "part": self.number,
            "fitted": list(self.fits.fitted),
            "files": dict(self.fits.files),
            "evaluations": self.before,
            "so_far": self.evaluations,
        }
        if layers := state["own"].get("layer_bytes"):
            self.fits.bytes[self.layer_path.name] = layers
        self.fits.record.checkpoint(self.first + iteration, streams, whole, self.fits.bytes)
