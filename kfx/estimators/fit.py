"""Fit a kernel to points in memory, as a run does."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kfx.data.dataset import Dataset
from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.interpolants import ThroughCentres
from kfx.evaluation.nystrom import passed, solved
from kfx.evaluation.predictor import Arithmetic
from kfx.experiment import preflight
from kfx.experiment.config import Config
from kfx.kernels.base import Kernel
from kfx.numerics import process, threads
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.running import left_out, remarks, stages
from kfx.running.context import Machine, RunContext, tensors_of
from kfx.running.journals import Unrecorded
from kfx.screen.progress import Audience, Steps, told_to
from kfx.store.work import Work, in_this_process

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Fitted:
    """The result of a fit.

    kernel: the kernel with which a run of the same config on the same training points ends, bit for bit.
    regularization: the λ with which a run evaluates it. trace: the rows of `trace.csv`. remarks: notes on problems.
    arithmetic: that with which a run evaluates. data: prepared for the kernel. interpolant: the solution through
    centres, with solver `nystrom`.
    """

    kernel: Kernel
    regularization: Regularization
    trace: pd.DataFrame
    remarks: list[str]
    arithmetic: Arithmetic
    data: Dataset
    interpolant: ThroughCentres | None = None


def fit(config: Config, data: Dataset, streams: Streams, verbose: bool) -> Fitted:
    """Fit the kernel that the config describes, and choose λ for it. data: before preprocessing. streams: those of the
    config's seed, which go on from one output to the next."""
    device, dtype = config.device.pick(), getattr(torch, config.device.dtype)
    count = config.device.threads or threads.available()
    preflight.check_start(config)
    preflight.check_centres(config)
    audience = Audience.COMMAND if verbose else Audience.NOBODY
    with process.exclusively(), told_to(audience), tempfile.TemporaryDirectory(prefix="kfx-") as folder:
        machine = Machine(device, dtype, count, process.set_switches(config.device.allow_tf32))
        notes = Unrecorded(Path(folder))
        (data,) = map(config.outputs.applied, stages.prepared(config, [data], machine, notes))
        tensors = tensors_of(data, machine)
        of_fit, of_evaluation = stages.threads_for(config, [data], machine)
        threads.use(of_fit, count)
        disk = DiskStores(Path(folder) / "sums", config.evaluation.memory_bytes(), _do)
        approximation = config.evaluation.approximation(config)
        context = RunContext(
            config,
            notes,
            machine,
            notes.open_fits,
            streams,
            [data],
            [tensors],
            of_evaluation,
            disk if approximation else None,
        )
        (start,) = stages.choose_starts(context)
        (fitted,) = stages.fit(context, [start])
        threads.use(of_evaluation, count)
        (kernel,) = left_out.fixed_on(context, [fitted])
        chosen = kernel
        selection, of_start = config.evaluation.selected(config), config.regularization.selected()
        if selection.is_chosen and selection.again and (fitted is not start or not of_start.is_chosen):
            (chosen,) = left_out.with_selected(context, [kernel], selection)
            remarks.of_edges(context, "trained", [chosen])
        if fitted is not start:
            remarks.of_points_left_out(context, left_out.fixed_on(context, [start])[0], chosen)
        regularization = chosen.own_regularization or config.regularization.build()
        interpolant = None
        if approximation is not None:
            with passed(kernel, *tensors[:2], approximation, disk) as found:
                interpolant = solved(found, regularization)
                remarks.of_directions(context, int(interpolant.report["lost"]))
        data = replace(data, inflation=context.inflation.get(0, 1.0))
        arithmetic = Arithmetic(dtype, device, (of_evaluation, count), config.device.allow_tf32)
        return Fitted(kernel, regularization, notes.rows, notes.remarks, arithmetic, data, interpolant)


def _do(work: Work, label: str) -> None:
    """Do the tasks of a work that are left, with progress."""
    if left := work.tasks():
        with Steps(label, len(left)) as steps:
            in_this_process(work, lambda task: steps.advance())
