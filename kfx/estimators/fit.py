"""Fit a kernel to points in memory, as a run does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kfx.data.dataset import Dataset
from kfx.evaluation.interpolants import ThroughCentres
from kfx.evaluation.nystrom import passed, solved
from kfx.evaluation.on_disk import DiskStores
from kfx.experiment import preflight
from kfx.experiment.config import Config
from kfx.files import Document, TableRow, read_rows
from kfx.flows.flowed import FlowedKernel
from kfx.kernels.base import Kernel
from kfx.numerics import process, threads
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.optimizers.journal import Journal, Step
from kfx.outcomes import Event
from kfx.record.fitted import recorded_layers
from kfx.record.trace import Trace
from kfx.running import remarks, stages
from kfx.running.context import Machine, RunContext
from kfx.screen.progress import Audience, Steps, TraceProgress, told_to
from kfx.store.work import Work, in_this_process

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Fitted:
    """The result of a fit.

    kernel: the kernel with which a run of the same config on the same training points ends, bit for bit.
    regularization: the λ with which a run evaluates it. trace: the rows of `trace.csv`. remarks: notes on problems.
    threads: of torch and of the engine, with which a run evaluates. interpolant: the solution through centres, with
    solver `nystrom`.
    """

    kernel: Kernel
    regularization: Regularization
    trace: pd.DataFrame
    remarks: list[str]
    threads: tuple[int, int]
    interpolant: ThroughCentres | None = None


def fit(config: Config, data: Dataset, verbose: bool) -> Fitted:
    """Fit the kernel that the config describes, and choose λ for it."""
    device, dtype = config.device.pick(), getattr(torch, config.device.dtype)
    count = config.device.threads or threads.available()
    preflight.check_start(config)
    preflight.check_centres(config)
    audience = Audience.COMMAND if verbose else Audience.NOBODY
    with process.exclusively(), told_to(audience), tempfile.TemporaryDirectory(prefix="kfx-") as folder:
        machine = Machine(device, dtype, count, process.set_switches(config.device.allow_tf32))
        tensors = stages.tensors_of(data, machine)
        of_fit, of_evaluation = stages.threads_for(config, [data], machine)
        threads.use(of_fit, count)
        notes = _Notes(Path(folder))
        disk = DiskStores(Path(folder) / "sums", config.evaluation.memory_bytes(), _do)
        context = RunContext(config, notes, machine, Streams(config.seed), [data], [tensors], of_evaluation)
        approximation = config.evaluation.approximation(config)
        context.disk = disk if approximation is not None else None
        start = stages.choose_starts(context)[0]
        start.prepare(dtype, device)
        optimizer = config.optimizer.build(config)
        notes.trace = Trace(
            notes.folder / "trace.csv",
            start,
            [*config.objective.columns(start), *optimizer.columns],
            0,
            0.0,
            notes.remark,
        )
        with TraceProgress(
            f"{config.kernel.name} {config.optimizer.name}", optimizer.iterations, config.objective.name
        ) as bar:
            notes.watch = bar if verbose else None
            fitted = optimizer.fit(start, tensors[:2], context.streams, notes)
        if isinstance(fitted, FlowedKernel):
            layers = notes.layer_path.read_bytes() if notes.layer_path.is_file() else b""
            fitted = fitted.with_layers(partial(recorded_layers, config, layers, start))
        if config.optimizer.fall_back and fitted is not start:
            fitted = stages.better_left_out(context, [start], [fitted])[0]
        notes.trace.close()
        rows = read_rows(notes.folder / "trace.csv")
        kernel = chosen = stages.fixed_on(context, [fitted])[0]
        if fitted is not start:
            stages.measure_on_held_out_batches(context, [start], [fitted])
            remarks.of_fit(context, [start], [fitted])
        threads.use(of_evaluation, count)
        if config.evaluation.chooses_again(config) and (fitted is not start or not config.regularization.is_chosen):
            chosen = stages.with_chosen_regularization(context, [kernel])[0]
            remarks.of_edges(context, "trained", [chosen])
        if fitted is not start:
            remarks.of_points_left_out(context, stages.fixed_on(context, [start])[0], chosen)
        regularization = chosen.own_regularization or config.regularization.build()
        interpolant = None
        if approximation is not None:
            with passed(kernel, *tensors[:2], approximation, disk) as found:
                interpolant = solved(found, regularization)
                remarks.of_directions(context, found.nystrom.spectrum.lost(interpolant.effective))
        return Fitted(kernel, regularization, rows, notes.remarks, (of_evaluation, count), interpolant)


def _do(work: Work, label: str) -> None:
    """Do the tasks of a work that are left, with progress."""
    if left := work.tasks():
        with Steps(label, len(left)) as steps:
            in_this_process(work, lambda task: steps.advance())


class _Notes(Journal):
    """The journal of a fit in memory: its trace in a temporary folder, metrics and notes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.layer_path = folder, folder / "layers.bin"
        self.remarks: list[str] = []
        self.metrics: Document = {}
        self.watch: TraceProgress | None = None
        self.trace: Trace | None = None

    def table(self, name: str, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
        pass

    def remark(self, event: Event, text: str) -> None:
        self.remarks.append(text)

    def stopped(self, layer: int, reason: str) -> None:
        self.remarks.append(f"the flow stopped at layer {layer}: {reason}")

    def row(self, step: Step) -> None:
        assert self.trace is not None
        row = self.trace.row(step)
        if self.watch is not None:
            self.watch(row)
