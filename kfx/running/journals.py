"""Where a fit of one or several parts is kept: in the record of a run, or in memory for an estimator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from kfx.files import Document, TableRow, read_rows
from kfx.kernels import Kernel
from kfx.numerics.streams import Streams
from kfx.optimizers.journal import Journal, TraceRow
from kfx.optimizers.loop import Data, Optimizer
from kfx.outcomes import Event
from kfx.record.fitted import Flowed, recorded_layers
from kfx.record.journal import PartFits
from kfx.record.record import Record
from kfx.record.trace import Trace
from kfx.running.context import Fits, RunContext
from kfx.screen.progress import TraceProgress, say


def in_record(record: Record, context: RunContext, starts: Sequence[Kernel], optimizer: Optimizer) -> Fits:
    """Fits into the record of a run, which go on where an earlier process stopped; with a follower if one is asked
    for."""
    config = context.config
    fits = PartFits(record, len(context.parts), optimizer.iterations)
    if config.optimizer.moves_points or config.follow.every + config.follow.last:
        from kfx.evaluation.follower import Follower

        record.follow = Follower(
            config, record.directory, context.parts, context.tensors, context.streams["flow_evaluation"]
        )
        record.follow.start(*fits.resumed_at)
    if config.optimizer.moves_points and config.flow.record_layers:
        from kfx.experiment.preflight import check_layers

        say(f"kfx: flow.record_layers: {check_layers(config, record.directory)}")
    record.open_trace(starts[0], [*config.objective.columns(starts[0]), *optimizer.columns, *fits.diagnostics])
    return fits


class Unrecorded(Journal):
    """The journal and the notes of the fit of one part in memory; its trace is in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.layer_path = folder, folder / "layers.bin"
        self.remarks: list[str] = []
        self.metrics: Document = {}
        self.watch: TraceProgress | None = None
        self.trace: Trace | None = None

    def open_fits(self, context: RunContext, starts: Sequence[Kernel], optimizer: Optimizer) -> Fits:
        """Start the trace, and return the fits: itself."""
        columns = [*context.config.objective.columns(starts[0]), *optimizer.columns]
        self.trace = Trace(self.folder / "trace.csv", starts[0], columns, 0, 0.0, self.remark)
        self._config = context.config
        return self

    def ended(self, starts: Sequence[Kernel]) -> list[Kernel]:
        return []

    def fit(self, kernel: Kernel, optimizer: Optimizer, data: Data, streams: Streams) -> Kernel:
        """Fit; the layers of a flow are kept in the kernel. data: x (n, …), y (n, outputs)."""
        fitted = optimizer.fit(kernel, data[:2], streams, self)
        if isinstance(fitted, Flowed):
            layers = self.layer_path.read_bytes() if self.layer_path.is_file() else b""
            return fitted.with_layers(partial(recorded_layers, self._config, layers, kernel))
        return fitted

    def close(self, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> None:
        assert self.trace is not None
        self.trace.close()
        self.rows = read_rows(self.folder / "trace.csv")

    def table(self, name: str, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
        pass

    def remark(self, event: Event, text: str) -> None:
        self.remarks.append(text)

    def stopped(self, layer: int, reason: str) -> None:
        self.remarks.append(f"the flow stopped at layer {layer}: {reason}")

    def row(self, found: TraceRow) -> None:
        assert self.trace is not None
        row = self.trace.row(found)
        if self.watch is not None:
            self.watch(row)
