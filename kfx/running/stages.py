"""The stages of a run up to its fitted kernels: machine, data, initial kernels, fit."""

from __future__ import annotations

import contextlib
import ctypes
import math
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import torch

from kfx.config.plugins import plugged_in
from kfx.data.dataset import Dataset
from kfx.evaluation import held_out
from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.held_out import mean_objectives, on_the_same_batches
from kfx.evaluation.scoring import constant_prediction, evaluate
from kfx.experiment.config import Config, sources
from kfx.experiment.identity import data_checksums
from kfx.files import Document
from kfx.kernels import Kernel
from kfx.kernels.names import readable
from kfx.kernels.starts import candidates
from kfx.numerics import precision, process, threads
from kfx.numerics.arrays import some_of
from kfx.numerics.memory import forget_peak, peak_bytes
from kfx.numerics.streams import Streams
from kfx.optimizers.loss import weighing
from kfx.outcomes import ConfigError
from kfx.record import environment
from kfx.record.columns import rho_of
from kfx.record.record import Record
from kfx.running import remarks
from kfx.running.context import Machine, Notes, RunContext, tensors_of
from kfx.running.journals import in_record
from kfx.running.left_out import better_left_out, fixed_on, with_selected
from kfx.screen.progress import Steps, TraceProgress, WaitMessage, say

_LEAST_TARGETS = 10
"""Fewest targets for each fitted parameter for ρ beside its law: with two, ρ of new targets lies far above."""


class Clock:
    """Seconds of each stage by name, of all processes of a run together, and the largest memory at its end.

    timing, memory: what is there of earlier processes, which is added to.
    """

    def __init__(self, timing: dict[str, float], memory: dict[str, int]) -> None:
        self.timing, self.memory, self.device = timing, memory, torch.device("cpu")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens within, also if it is interrupted."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds, peak = f"{name}_seconds", f"{name}_bytes"
            self.timing[seconds] = self.timing.get(seconds, 0.0) + time.perf_counter() - began
            self.memory[peak] = max(self.memory.get(peak, 0), peak_bytes(self.device))


# ---- the machine


def prepare_machine(config: Config, record: Record) -> Machine:
    """Pick the device, set precision and threads, and check the arithmetic before anything is built on it."""
    device, dtype = config.device.pick(), getattr(torch, config.device.dtype)
    forget_peak(device)
    switches = process.set_switches(config.device.allow_tf32)
    count = config.device.threads or threads.available()
    threads.use(count)
    keep_freed_memory()
    machine = Machine(device, dtype, count, switches)
    if config.device.precision_check != "off":
        check_precision(config, machine, partial(record.json, "precision.json"))
    return machine


_MALLOC_TRIM_THRESHOLD, _MALLOC_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def keep_freed_memory() -> None:
    """Make glibc keep freed arrays of up to 32 MB for the next iteration.

    Otherwise each iteration fetches the same pages from the system again, which takes half of its time at N_f = 600.
    """
    with contextlib.suppress(TypeError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MALLOC_MMAP_THRESHOLD, 32 << 20)
        mallopt(_MALLOC_TRIM_THRESHOLD, 1 << 30)


def check_precision(config: Config, machine: Machine, keep: Callable[[Document], None] = lambda report: None) -> None:
    """Measure the precision of the arithmetic, and `keep` the report; with `strict`, refuse one that is too low."""
    frameworks = ("torch", "jax") if config.kernel.uses_jax else ("torch",)
    verdicts = precision.of_this_process(frameworks, repr(machine.switches))
    keep(precision.report(verdicts, machine.switches))
    complaint = precision.complaint(verdicts, machine.device, config.device.dtype, config.device.allow_tf32)
    if complaint and config.device.precision_check == "strict":
        raise precision.ImpreciseError(f"{complaint} (device.precision_check=strict)")
    if complaint:
        say(f"kfx: warning: {complaint}")


# ---- the data


def load_data(config: Config, machine: Machine, record: Record, disk: DiskStores) -> RunContext:
    """Load and preprocess the data set, or each of its folds separately, and record the environment."""
    streams = Streams(config.seed)
    whole = config.dataset.load(streams["data"])
    cut = config.evaluation.parts(whole, streams["data"])
    folds = [config.outputs.applied(each) for each in prepared(config, cut, machine, record)]
    parts = config.outputs.separated(folds)
    tensors = [tensors_of(part, machine) for part in parts]
    of_folds = [tensors_of(fold, machine) for fold in folds] if config.outputs.is_separate else tensors
    of_fit, of_evaluation = threads_for(config, parts, machine)
    here = environment.describe(
        config.seed, machine.device, machine.switches, data_checksums(config), machine.threads, of_fit, of_evaluation
    )
    if found := process.found():
        here["precision_found"] = found
    if plugins := plugged_in():
        here["plugins"] = [asdict(plugin) for plugin in plugins]
    if outside := sources(config):
        here["options_from"] = outside
    if change := record.environment(here):
        say(f"kfx: warning: {change}")
    threads.use(of_fit, machine.threads)
    return RunContext(
        config=config,
        notes=record,
        machine=machine,
        open_fits=partial(in_record, record),
        streams=streams,
        parts=parts,
        tensors=tensors,
        threads_of_evaluation=of_evaluation,
        disk=disk,
        folds=folds,
        tensors_of_folds=of_folds,
        keeps_held_out=True,
    )


def prepared(config: Config, parts: Sequence[Dataset], machine: Machine, notes: Notes) -> list[Dataset]:
    """Prepare the data, or each fold of them, for the kernel: as configured, or as refitted folds choose."""
    if not getattr(config.dataset, "transform", False):
        return [config.dataset.preprocessed(part) for part in parts]
    from kfx.running.refitted import best_preparation

    chosen = [best_preparation(config, part, machine) for part in parts]
    remarks.of_preparations(notes, chosen)
    return [config.dataset.preprocessed(part, own.how) for part, own in zip(parts, chosen, strict=True)]


def threads_for(config: Config, parts: Sequence[Dataset], machine: Machine) -> tuple[int, int]:
    """Threads for the fit and for the evaluation: the configured number, else by the size of the work."""
    count = machine.threads
    if config.device.threads is not None or machine.device.type != "cpu" or config.kernel.own_threads():
        return count, count
    n, width = len(parts[0].x_train), parts[0].x_train[0].size
    batch = config.sampler.batch_size or n
    moved = n * batch * width if config.optimizer.moves_points else 0
    size = max(config.evaluation.n_interpolation or [n])
    predicted = len(parts[0].x_test) * size * width
    return threads.worth(count, batch**3 + moved), threads.worth(count, size**3 + predicted)


# ---- initial kernels


def choose_starts(context: RunContext) -> list[Kernel]:
    """The initial kernel of each part, with its own λ if λ is chosen or trained, ready to compute."""
    starts = _starts(context)
    _prepare(context, starts[0])
    return starts


def _starts(context: RunContext) -> list[Kernel]:
    config = context.config
    # Of the option `kernel=NAME`, the class that `@option("kernel", NAME)` decorates; its `builds` names the kernel's.
    built = config.kernel.build(config.dataset.image).to(context.machine.dtype, context.machine.device)
    try:
        built.require_good_on(context.tensors[0][0])
    except ValueError as error:
        raise ConfigError(f"kernel={config.kernel.name}: {error}") from error
    drawn = candidates(config.kernel, built, context.parts, context.streams["initial_parameters"])
    worst, selection = config.kernel.start_from == "worst", config.regularization.selected()
    if worst and selection.is_chosen:  # as the evaluation will do
        by_start = [with_selected(context, each, selection) for each in zip(*drawn, strict=True)]
        drawn = [list(own) for own in zip(*by_start, strict=True)]
    context.drawn = drawn
    starts = [kernels[0] for kernels in drawn] if config.kernel.starts == 1 else _best_or_worst(context, drawn)
    heads = context.streams["head"]
    starts = [
        config.objective.with_own_parameters(own, x, y, heads)
        for own, (x, y, _) in zip(starts, context.tensors, strict=True)
    ]
    if not (worst and selection.is_chosen):
        starts = with_selected(context, starts, selection)
    if selection.is_chosen:
        remarks.of_edges(context, "initial", starts)
    return starts


def _best_or_worst(context: RunContext, drawn: Sequence[Sequence[Kernel]]) -> list[Kernel]:
    """For each part the candidate with the best objective, or with the worst error; `starts.csv` lists all
    candidates."""
    config, starts, rows = context.config, [], []
    worst = config.kernel.start_from == "worst"
    make_loss, sampler = config.optimizer.make_loss(config), config.sampler.build(config.optimizer.iterations)
    for part, kernels in enumerate(drawn):
        if worst:
            values = _errors_of(context, kernels, part)
        else:
            own = weighing(make_loss, context.weights(part))
            values = mean_objectives(kernels, own, sampler, context.tensors[part][:2], context.streams["starts"])
        starts.append(kernels[int(np.argmax(values) if worst else np.argmin(values))])
        for kernel, value in zip(kernels, values, strict=True):
            named = {f"parameter.{k}": v for k, v in kernel.shown.items()}
            measure = "error" if worst else "objective"
            rows.append({"part": part, measure: value, "chosen": int(kernel is starts[part]), **named})
    context.notes.table("starts.csv", list(rows[0]), rows)
    return starts


def _errors_of(context: RunContext, kernels: Sequence[Kernel], part: int) -> list[float]:
    """The test error, or the mean squared error, of each kernel at the largest N_I, computed as in the evaluation.

    −∞ if that fails, so that such a kernel is never chosen as the worst.
    """
    config, data = context.config, context.parts[part]
    # parts are folds here: start_from=worst takes one kernel for all outputs
    splits = config.evaluation.splits(context.parts, Streams(config.seed))
    order = next(order for _, number, order in splits if number == part)
    size = max(config.evaluation.n_interpolation or [len(data.x_train)])
    metric, scoring = constant_prediction(data)[0], config.evaluation.scoring(config)
    single = replace(scoring, regularizations=scoring.regularizations[:1])
    errors = []
    with Steps("starts", len(kernels)) as steps:
        for kernel in kernels:
            own = kernel.fixed_on(some_of(context.tensors[part][0]))
            (found,) = evaluate(own, data, context.tensors[part], order, [size], single, context.disk)
            if context.disk is not None:
                context.disk.discard()
            value = found.metrics[metric]
            errors.append(-math.inf if math.isnan(value) else 1 - value if metric == "accuracy" else value)
            steps.advance()
    return errors


def _prepare(context: RunContext, kernel: Kernel) -> None:
    """Compile what the kernel needs, and record its backend."""
    config, parts, machine, folds = context.config, context.parts, context.machine, context.folds
    context.notes.metrics["kernel_backend"] = kernel.backend_at(context.tensors[0][0][:1])
    context.notes.metrics["n_train"] = len(parts[0].x_train)
    if kernel.labels and parts[0].features:
        context.notes.metrics["features"] = list(parts[0].features)
    config.check_sizes(sum(len(fold.x_test) for fold in folds) if len(folds) > 1 else len(folds[0].x_train))
    with WaitMessage("compiling the kernel, once on this machine"):
        kernel.prepare(machine.dtype, machine.device)


# ---- the fit


def fit(context: RunContext, starts: Sequence[Kernel]) -> list[Kernel]:
    """Fit a kernel to each part, measure it on held-out batches, and note problems."""
    fitted = _fitted(context, starts)
    if context.keeps_held_out or any(map(operator.is_not, starts, fitted)):
        _measure_on_held_out_batches(context, starts, fitted)
    remarks.of_fit(context, starts, fitted)
    return fitted


def _fitted(context: RunContext, starts: Sequence[Kernel]) -> list[Kernel]:
    """Fit a kernel to each part in turn, going on where an earlier process stopped."""
    config = context.config
    optimizer = config.optimizer.build(config)
    fits = context.open_fits(context, starts, optimizer)
    label = f"{config.dataset.name} {config.kernel.name} {config.optimizer.name}"
    names = partial(readable, node=config.kernel)
    fitted = fits.ended(starts)
    with TraceProgress(label, optimizer.iterations * len(context.parts), config.objective.name, names) as bar:
        context.notes.watch = bar
        for number in range(len(fitted), len(context.parts)):
            own = optimizer.weighing(context.weights(number))
            fitted.append(fits.fit(starts[number], own, context.tensors[number], context.streams))
    if config.optimizer.fall_back:
        kept, how, errors = zip(*better_left_out(context, starts, fitted), strict=True)
        counts = {f"{other}_kept": how.count(other) for other in ("initial", "one_length", "smooth")}
        context.notes.metrics["fall_back"] = counts | {"fits": len(fitted), "kept": list(how)}
        if any(errors):
            context.notes.metrics["fall_back"]["errors"] = [own or {} for own in errors]
        context.rejected, fitted = fitted if any(counts.values()) else [], list(kept)
        if context.inflation:
            context.notes.metrics["inflation"] = [context.inflation.get(part, 1.0) for part in range(len(fitted))]
    fits.close(starts, fixed_on(context, fitted))
    return fitted


def _measure_on_held_out_batches(context: RunContext, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> None:
    """Measure ρ and the objective before and after on the same batches, because single batches of a fit are noisy."""
    config, count = context.config, context.config.evaluation.batches
    if not count:
        return
    make_loss, sampler = config.optimizer.make_loss(config), config.sampler.held_out()
    rows: list[Document] = []
    with WaitMessage("held-out batches"):
        for part, pair in enumerate(zip(starts, fitted, strict=True)):
            data, rng = context.tensors[part][:2], context.streams["held_out"]
            batches = held_out.drawn(sampler, data, rng, count)
            measured = on_the_same_batches(pair, weighing(make_loss, context.weights(part)), batches, data)
            for name, evaluations in zip(("initial", "trained"), measured, strict=True):
                rows += held_out.rows(name, part, evaluations)
    context.notes.table("held_out.csv", held_out.COLUMNS, rows)
    found = held_out.summary(rows)
    context.notes.metrics |= {"rho": rho_of(found), "held_out": found}
    if not found["failed"] and _rho_has_law(context, starts, fitted):
        context.notes.metrics["rho_law"] = held_out.beside_law(found["rho"], batches[0], data[1])


def _rho_has_law(context: RunContext, starts: Sequence[Kernel], fitted: Sequence[Kernel]) -> bool:
    """Whether ρ has its law if targets are draws: not if they chose batches, moved points or fitted many parameters."""
    config, parts = context.config, zip(starts, fitted, context.tensors, strict=True)
    if not config.objective.rho_has_law or config.optimizer.moves_points or config.sampler.choice == "stratified":
        return False
    return all(own is start or len(own.flat) * _LEAST_TARGETS <= y.numel() for start, own, (_, y, _) in parts)
