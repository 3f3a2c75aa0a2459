"""The story of one run."""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from threadpoolctl import threadpool_limits

from kfx import build, config, environment, kernel_check, plots, precision
from kfx.data.dataset import Dataset
from kfx.evaluation import evaluate, metric_names, summary
from kfx.flow_follower import FlowFollower, last_layers
from kfx.identity import identity
from kfx.kernels import Kernel, Regularized
from kfx.kernels.base import flat_parameters
from kfx.outcomes import Event, KfxError, NumericalError, Status
from kfx.preflight import check_layers, check_sizes
from kfx.progress import Progress, Steps, Waiting, say
from kfx.record import Record, read_config
from kfx.schema import FLOWS, Config
from kfx.starts import objectives_at
from kfx.streams import Streams
from kfx.validation import choose_regularization


def run(raw: DictConfig, directory: Path, overrides: Sequence[str] = (), *, replace_failed: bool = False) -> int:
    """Run a composed config into `directory` and return the exit code. Whatever happens, the record says what.

    replace_failed: a failed run of the same identity that is there makes room.
    """
    return _write(raw, Path(directory), overrides, resume=False, replace_failed=replace_failed)


def resume(directory: Path) -> int:
    """Go on with the run in `directory` from its last checkpoint; its trace ends as if nothing had happened."""
    if not (directory / "config.yaml").is_file() or not (directory / "metrics.json").is_file():
        raise config.ConfigError(f"{directory}: holds no run to resume")
    return _write(read_config(directory), directory, None, resume=True)


_MALLOC_TRIM_THRESHOLD, _MALLOC_MMAP_THRESHOLD = -1, -3  # <malloc.h>

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Terminated(BaseException):
    """SIGTERM, as a batch system sends it before its limit."""


def _write(
    raw: DictConfig,
    directory: Path,
    overrides: Sequence[str] | None,
    *,
    resume: bool,
    replace_failed: bool = False,
) -> int:
    checked = config.check(raw)
    checksums = build.data_checksums(checked.dataset)
    record = Record(
        directory,
        None if overrides is None else (raw, overrides),
        identity=identity(raw, checksums),
        resume=resume,
        replace_failed=replace_failed,
        checkpoint_seconds=checked.checkpoint.seconds,
        checkpoint_iterations=checked.checkpoint.iterations,
    )
    say(f"kfx: {relative(record.directory)}{' (resumed)' if resume else ''}")
    code = 0
    with _stoppable(record):
        try:
            _story(checked, checksums, record)
        except BaseException as raised:
            # A library stopped amid its work may raise something of its own in place of the signal's exception.
            end = _explained(record.stop or raised, relative(directory))
            if end is None:
                record.finish(Status.FAILED, f"{type(raised).__name__}: {raised}")
                raise
            status, reason, code = end
            with _undisturbed():
                record.finish(status, reason)
            say(f"kfx: {reason}" if reason.startswith(status) else f"kfx: {status}: {reason}")
    try:
        if checked.figures:
            plots.draw(record.directory)
    except (KeyboardInterrupt, OSError) as error:  # the record is whole; its pictures can be drawn from it again
        say(f"kfx: figures are incomplete: {error or 'interrupted'}")
    for line in closing_lines(record):
        say(line)
    return code


def _explained(error: BaseException, shown: Path) -> tuple[Status, str, int] | None:
    """Status, reason and exit code of what ended a run; None for a defect, whose traceback is wanted."""
    match error:
        case Terminated():
            return Status.INTERRUPTED, f"{Event.INTERRUPTED}: SIGTERM; go on with kfx resume {shown}", 143
        case KeyboardInterrupt():
            return Status.INTERRUPTED, f"{Event.INTERRUPTED}: SIGINT; go on with kfx resume {shown}", 130
        case NumericalError():
            return Status.FAILED, f"{error} ({error.event.help})", error.exit_code
        case KfxError():
            return Status.FAILED, str(error), error.exit_code
        case OSError():
            return Status.FAILED, f"{Event.STORAGE}: {Event.STORAGE.help} ({error})", 1
        case MemoryError() | RuntimeError() if _is_out_of_memory(error):
            detail = " ".join(str(error).split()) or "no memory"
            return Status.FAILED, f"{Event.OUT_OF_MEMORY}: {Event.OUT_OF_MEMORY.help} ({detail})", 1
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    """torch on a CPU and JAX say it in words alone."""
    words = ("can't allocate memory", "not enough memory", "RESOURCE_EXHAUSTED")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(word in str(error) for word in words)


def _story(cfg: Config, checksums: dict[str, str], record: Record) -> None:
    started = time.perf_counter()

    # the machine
    device, dtype = precision.pick_device(cfg.device.name), getattr(torch, cfg.device.dtype)
    switches = precision.set_switches(cfg.device.allow_tf32)
    set_threads(cfg.device.threads)
    keep_freed_memory()
    here = environment.describe(cfg.seed, device, switches, checksums)
    if change := record.environment(here):
        say(f"kfx: warning: {change}: the trace goes on with other bits than it would have had")
    check_precision(cfg, record, device, switches)

    # the data and the kernel
    streams = Streams(cfg.seed)
    parts = build.parts(cfg, streams)
    tensors = [_tensors(part, dtype, device) for part in parts]
    starts = _starts(cfg, parts, tensors, streams, record)
    kernel = starts[0]
    record.metrics["kernel_backend"] = kernel.backend_on(device)
    check_sizes(cfg, sum(len(part.x_test) for part in parts) if len(parts) > 1 else len(parts[0].x_train))
    with Waiting("compiling the kernel, once on this machine"):
        kernel.prepare(dtype, device)
    loaded = time.perf_counter()

    # fit
    optimizer = build.optimizer(cfg)
    flows = isinstance(cfg.optimizer, FLOWS)
    if flows:
        record.follow = FlowFollower(cfg, record.directory, parts, tensors, streams["flow_evaluation"])
        if cfg.flow.record_layers:
            say(f"kfx: flow.record_layers: {check_layers(cfg, record.directory)}")
    fits = record.parts(len(parts), optimizer.iterations)
    if isinstance(record.follow, FlowFollower):
        record.follow.start(*fits.resumed_at)
    record.open_trace(kernel, [*optimizer.diagnostics, *fits.diagnostics])
    label = f"{cfg.dataset.name} {cfg.kernel.name} {cfg.optimizer.name}"
    fitted = fits.ended(starts)
    with Progress(label, optimizer.iterations * len(parts)) as bar:
        record.watch = bar
        for number in range(len(fitted), len(parts)):
            data = tensors[number] if flows else tensors[number][:2]
            fitted.append(fits.fit(starts[number], optimizer, data, streams))
    record.save()
    record.final_parameters(fitted)
    trained = time.perf_counter()

    # evaluate
    scoring = build.scoring(cfg)
    jobs = build.evaluation_jobs(cfg, parts, streams)
    sizes = cfg.evaluation.n_interpolation
    kernels = {"initial": starts, "trained": fitted}
    lambda_scale = cfg.evaluation.regularization.scale or cfg.regularization.scale
    for i in range(cfg.evaluation.random_kernels):
        drawn = build.random_kernel(_bare(kernel), cfg.kernel.initial_range, streams["random_kernels"])
        kernels[f"random-{i}"] = [drawn] * len(parts)
        if cfg.regularization.selection == "validation":
            kernels[f"random-{i}"] = _with_chosen_regularization(cfg, [drawn] * len(parts), tensors, lambda_scale)
    if cfg.evaluation.regularization.value == "validation":
        kernels = {name: _with_chosen_regularization(cfg, ks, tensors, lambda_scale) for name, ks in kernels.items()}
        scoring = replace(scoring, own=True)
    each = len(sizes or [0]) * len(scoring.regularizations) * len(metric_names(parts[0], scoring))
    rows = record.evaluated(each)
    is_curve = parts[0].x_train.shape[1:] == (1,) and len(parts) == 1  # its picture needs points and predictions
    if is_curve:
        record.predictions({name: getattr(parts[0], name) for name in ("x_train", "y_train", "x_test", "y_test")})
    failed = ["see evaluation.csv"]
    with Steps("evaluation", len(kernels) * len(jobs)) as steps:
        for name, candidates in kernels.items():
            done = {row["repeat"] for row in rows if row["kernel"] == name}
            if name != "initial" and all(map(operator.is_, candidates, starts)):  # nothing moved: the same rows
                initial = [row for row in rows if row["kernel"] == "initial" and row["repeat"] not in done]
                same = [row | {"kernel": name} for row in initial]
                record.evaluation(same)
                rows += same
                for _ in jobs:
                    steps.advance()
                continue
            for repeat, number, order in jobs:
                if repeat in done:
                    steps.advance()
                    continue
                measured, arrays, failures = evaluate(
                    name,
                    candidates[number],
                    parts[number],
                    tensors[number],
                    repeat,
                    order,
                    sizes or [len(parts[number].x_train)],
                    scoring,
                )
                if cfg.evaluation.save_predictions or is_curve:
                    record.predictions(arrays)
                record.evaluation(measured)
                rows += measured
                failed += failures
                for failure in failures:
                    record.note(Event.NOT_POSITIVE_DEFINITE, failure)
                    say(f"kfx: evaluation: {failure}")
                if record.stop is not None:
                    raise record.stop
                steps.advance()
    if cfg.kernel_check:
        (x_train, _, x_test), (_, _, order) = tensors[-1], jobs[-1]
        used = sizes or [len(x_train)]
        checks = kernel_check.compare(
            fitted[-1], parts[-1], x_train, x_test, order, used, build.regularization(cfg.regularization)
        )
        record.table("kernel_check.csv", kernel_check.COLUMNS, checks)
    evaluated = time.perf_counter()
    trained_rows = [row["value"] for row in rows if row["kernel"] == "trained" and row["metric"] in ("accuracy", "mse")]
    if not np.isfinite(trained_rows).any():
        raise NumericalError(Event.DIVERGED, f"no evaluation of the trained kernel gave a number: {failed[-1]}")

    # record
    timing = {
        "load_seconds": loaded - started,
        "fit_seconds": trained - loaded,
        "evaluation_seconds": evaluated - trained,
    }
    entries: dict[str, Any] = {"evaluation": summary(rows, _whole(cfg, parts)), "timing": timing}
    if flows and (cfg.flow.evaluate_every or cfg.flow.evaluate_last):
        entries["last_layers"] = last_layers(record.directory, max(cfg.flow.evaluate_last, 1))
    with _undisturbed():  # a signal now would make an interrupted run of a completed one
        record.finish(Status.COMPLETED, **entries)


def _starts(
    cfg: Config, parts: Sequence[Dataset], tensors: Sequence[Tensors], streams: Streams, record: Record
) -> list[Kernel]:
    """The kernel that each part starts from, with a λ of its own where that is chosen or trained."""
    candidates = build.starting_candidates(cfg, parts, streams)
    starts = [kernels[0] for kernels in candidates]
    if cfg.kernel.starts > 1:
        loss, sampler = build.loss_maker(cfg), build.sampler(cfg.sampler, cfg.optimizer.iterations)
        rows = []
        for part, kernels in enumerate(candidates):
            values = objectives_at(kernels, loss, sampler, tensors[part][:2], streams["starts"])
            starts[part] = kernels[int(np.argmin(values))]
            for kernel, value in zip(kernels, values, strict=True):
                named = {f"parameter.{k}": v for k, v in flat_parameters(kernel.parameters).items()}
                rows.append({"part": part, "objective": value, "chosen": int(kernel is starts[part]), **named})
        record.table("starts.csv", list(rows[0]), rows)
    if cfg.regularization.selection == "validation":
        return _with_chosen_regularization(cfg, starts, tensors, cfg.regularization.scale)
    if cfg.regularization.selection == "trained":
        regularization = build.regularization(cfg.regularization)
        return [Regularized(kernel, regularization, trained=True) for kernel in starts]
    return starts


def _with_chosen_regularization(
    cfg: Config, kernels: Sequence[Kernel], tensors: Sequence[Tensors], scale: str
) -> list[Kernel]:
    """Each with the λ that does best in folds of its own training points, the same folds for every kernel of a part."""
    node, rng = cfg.regularization, Streams(cfg.seed)["validation"]
    chosen: list[Kernel] = []
    for kernel, (x, y, _) in zip(kernels, tensors, strict=True):
        inner = _bare(kernel)
        of = choose_regularization(inner, x, y, build.candidates(cfg, scale), node.folds, node.points, rng)
        chosen.append(Regularized(inner, of))
    return chosen


def _bare(kernel: Kernel) -> Kernel:
    """The kernel without a λ of its own."""
    return kernel.kernel if isinstance(kernel, Regularized) else kernel


def _tensors(part: Dataset, dtype: torch.dtype, device: torch.device) -> Tensors:
    """x_train, y_train, x_test: points in the run's dtype, targets in float64."""
    x_train, x_test = (torch.as_tensor(x, dtype=dtype, device=device) for x in (part.x_train, part.x_test))
    return x_train, torch.as_tensor(part.y_train, device=device), x_test


def _whole(cfg: Config, parts: Sequence[Dataset]) -> int | None:
    """What to call the number of interpolation points when every fold takes all of its own."""
    return None if cfg.evaluation.n_interpolation else max(len(part.x_train) for part in parts)


def set_threads(threads: int | None) -> None:
    """Threads of torch and of the BLAS that NumPy uses; all cores with None. Set afresh by every run."""
    count = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    threadpool_limits(count)


def keep_freed_memory() -> None:
    """Have the C library keep arrays of up to 32 MB for the next iteration, which would otherwise fetch the same
    pages from the system again: half of an iteration's time at N_f = 600. Only glibc can be told."""
    with contextlib.suppress(TypeError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MALLOC_MMAP_THRESHOLD, 32 << 20)
        mallopt(_MALLOC_TRIM_THRESHOLD, 1 << 30)


def check_precision(cfg: Config, record: Record, device: torch.device, switches: dict[str, Any]) -> None:
    """Measure the arithmetic before anything is built on it; with `strict`, refuse what delivers too little."""
    if cfg.device.precision_check == "off":
        return
    frameworks = ("torch", "jax") if build.uses_jax(cfg.kernel) else ("torch",)
    verdicts = precision.measure(precision.arithmetics(frameworks))
    record.json("precision.json", precision.report(verdicts, switches))
    complaint = precision.complaint(verdicts, device, cfg.device.dtype, cfg.device.allow_tf32)
    if complaint and cfg.device.precision_check == "strict":
        raise precision.ImpreciseError(f"{complaint} (device.precision_check=strict)")
    if complaint:
        say(f"kfx: warning: {complaint}")


# ---- signals


@contextlib.contextmanager
def _stoppable(record: Record) -> Iterator[None]:
    """SIGTERM and SIGINT as exceptions, noted in the record as well: what a library swallows comes up at the next
    checkpoint. Signals reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        record.stop = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        raise record.stop

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C or SIGTERM waits until the record is written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


# ---- what it says


def closing_lines(record: Record) -> list[str]:
    """What a run says at its end: the kernel before and after, and where to look."""
    metrics = record.metrics
    rows = metrics.get("evaluation", [])
    metric = "accuracy" if any(row["metric"] == "accuracy" for row in rows) else "mse"
    used = {
        (row["kernel"], row["n_interpolation"], row["regularization"]): row["mean"]
        for row in rows
        if row["metric"] == "effective_regularization"
    }
    lines = [
        f"{row['kernel']:<10} n_interpolation {row['n_interpolation']:>6}  "
        f"λ {used[row['kernel'], row['n_interpolation'], row['regularization']]:<8.3g} "
        f"{metric} {row['mean']:.4f}" + (f" ± {row['sd']:.4f}" if row["repeats"] > 1 else "")
        for row in rows
        if row["metric"] == metric
    ]
    pictures = sorted((record.directory / "figures").glob("*.png"))
    names = ", ".join(path.name for path in pictures)
    shown = relative(record.directory)
    for part, end in metrics.get("flow_stopped", {}).items():
        of_part = f"part {part}, " if len(metrics["parameters"].get("folds", [0])) > 1 else ""
        lines.append(f"flow       stopped, {of_part}layer {end['layer']}: {end['reason']}")
    return [*lines, f"results  {shown}", *([f"pictures {shown / 'figures'} ({names})"] if pictures else [])]


def relative(directory: Path) -> Path:
    """The path as a person would type it here."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
