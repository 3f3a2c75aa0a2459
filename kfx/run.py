"""The story of one run."""

from __future__ import annotations

import contextlib
import ctypes
import math
import operator
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from kfx import build, config, environment, held_out, kernel_check, plots, precision, threads
from kfx.checkpoint import CheckpointError
from kfx.closing import closing_lines, number, relative
from kfx.data.dataset import Dataset
from kfx.evaluation import changes, constant_prediction, evaluate, metric_names, summary
from kfx.flow_follower import FlowFollower, last_layers
from kfx.held_out import on_the_same_batches
from kfx.identity import identity
from kfx.kernels import Kernel, Regularized
from kfx.kernels.base import flat_parameters
from kfx.kernels.names import readable
from kfx.outcomes import Event, KfxError, NumericalError, Status
from kfx.preflight import check_layers, check_sizes
from kfx.progress import Progress, Steps, Waiting, say
from kfx.record import Record, RecordError, read_config
from kfx.schema import FLOWS, CNNGPNode, Config
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
            if resume and isinstance(raised, (RecordError, CheckpointError)):  # it is as far as it was before
                before = record.before[0] if record.before[0] != Status.RUNNING else Status.INTERRUPTED
                record.finish(Status(before), record.before[1] or str(raised))
                raise
            if end is None:
                record.finish(Status.FAILED, f"{type(raised).__name__}: {raised}")
                raise
            status, reason, code = end
            with _undisturbed():
                record.finish(status, reason)
            say(f"kfx: {reason}" if reason.startswith(status) else f"kfx: {status}: {reason}")
    try:
        if checked.figures:
            plots.draw(record.directory, checked.figures)
    except (KeyboardInterrupt, Exception) as error:  # the record is whole; its pictures can be drawn from it again
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        say(f"kfx: figures are incomplete ({why}); draw them with kfx plot {relative(directory)}")
    for line in closing_lines(checked, record.metrics, record.directory):
        print(line)  # results are for standard output, progress is not
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
    count = cfg.device.threads or threads.available()
    threads.use(count)
    keep_freed_memory()
    check_precision(cfg, record, device, switches)

    # the data and the kernel
    streams = Streams(cfg.seed)
    parts = build.parts(cfg, streams)
    tensors = [_tensors(part, dtype, device) for part in parts]
    of_fit, of_evaluation = _threads(cfg, parts, count, device)
    here = environment.describe(cfg.seed, device, switches, checksums, count, of_fit, of_evaluation)
    if change := record.environment(here):
        say(f"kfx: warning: {change}: the trace goes on with other bits than it would have had")
    threads.use(of_fit, count)
    candidates = build.starting_candidates(cfg, parts, streams)
    if cfg.kernel.start_from == "worst" and cfg.regularization.selection == "validation":  # as it will be evaluated
        by_start = [
            _with_chosen_regularization(cfg, list(each), tensors, cfg.regularization.scale)
            for each in zip(*candidates, strict=True)
        ]
        candidates = [list(own) for own in zip(*by_start, strict=True)]
    starts = _starts(cfg, candidates, parts, tensors, streams, record)
    kernel = starts[0]
    record.metrics["kernel_backend"] = kernel.backend_on(device)
    record.metrics["n_train"] = len(parts[0].x_train)
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
    names = partial(readable, node=cfg.kernel)
    with Progress(label, optimizer.iterations * len(parts), cfg.objective.name, names) as bar:
        record.watch = bar
        for number in range(len(fitted), len(parts)):
            data = tensors[number] if flows else tensors[number][:2]
            fitted.append(fits.fit(starts[number], optimizer, data, streams))
    record.save()
    record.final_parameters(starts, fitted)
    _measure_on_held_out_batches(cfg, starts, fitted, tensors, streams, record)
    trained = time.perf_counter()

    # evaluate
    threads.use(of_evaluation, count)
    scoring = build.scoring(cfg)
    jobs = build.evaluation_jobs(cfg, parts, streams)
    sizes = cfg.evaluation.n_interpolation
    kernels: dict[str, list[Kernel]] = {"initial": starts, "trained": fitted}
    lambda_scale = cfg.evaluation.regularization.scale or cfg.regularization.scale
    if cfg.kernel.start_from == "worst":  # those that the start was chosen from are shown beside it
        kernels |= {f"random-{i}": [own[i] for own in candidates] for i in range(cfg.kernel.starts)}
    for i in range(len(kernels) - 2, len(kernels) - 2 + cfg.evaluation.random_kernels):
        drawn = build.random_kernel(_bare(kernel), streams["random_kernels"], cfg.kernel)
        kernels[f"random-{i}"] = [drawn] * len(parts)
        if cfg.regularization.selection == "validation":
            kernels[f"random-{i}"] = _with_chosen_regularization(cfg, [drawn] * len(parts), tensors, lambda_scale)
    if cfg.evaluation.regularization.value == "validation":
        kernels = {name: _with_chosen_regularization(cfg, ks, tensors, lambda_scale) for name, ks in kernels.items()}
        for name in ("initial", "trained"):
            _remark_on_edges(cfg, name, kernels[name], record)
        scoring = replace(scoring, own=True)
    each = len(sizes or [0]) * len(scoring.regularizations) * len(metric_names(parts[0], scoring))
    rows = record.evaluated(each)
    is_curve = parts[0].x_train.shape[1:] == (1,) and len(parts) == 1  # its picture needs points and predictions
    if is_curve:
        record.predictions({name: getattr(parts[0], name) for name in ("x_train", "y_train", "x_test", "y_test")})
    failed = ["see evaluation.csv"]
    with Steps("evaluation", len(kernels) * len(jobs)) as steps:
        for name, of_parts in kernels.items():
            done = {row["repeat"] for row in rows if row["kernel"] == name}
            if name != "initial" and all(map(operator.is_, of_parts, starts)):  # nothing moved: the same rows
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
                    of_parts[number],
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
    whole = _whole(cfg, parts)
    entries: dict[str, Any] = {
        "evaluation": summary(rows, whole),
        "evaluation_change": changes(rows, whole),
        "timing": timing,
    }
    _remark_on_predictions(parts, rows, jobs, failed[1:], record)
    if isinstance(record.follow, FlowFollower) and (cfg.flow.evaluate_every or cfg.flow.evaluate_last):
        entries["last_layers"] = last_layers(record.directory, max(record.follow.last, 1))
    with _undisturbed():  # a signal now would make an interrupted run of a completed one
        record.finish(Status.COMPLETED, **entries)


def _errors_of(
    cfg: Config, kernels: Sequence[Kernel], parts: Sequence[Dataset], tensors: Sequence[Tensors], part: int
) -> list[float]:
    """The test error, or mean squared error, of each kernel at the largest N_I, as evaluation will find it; −∞ where
    that fails: such a kernel is no start."""
    of_part = next(job for job in build.evaluation_jobs(cfg, parts, Streams(cfg.seed)) if job[1] == part)
    size = max(cfg.evaluation.n_interpolation or [len(parts[part].x_train)])
    metric = constant_prediction(parts[part])[0]
    errors = []
    with Steps("starts", len(kernels)) as steps:
        for kernel in kernels:
            rows, _, _ = evaluate(
                "start", kernel, parts[part], tensors[part], 0, of_part[2], [size], build.scoring(cfg)
            )
            value = next(row["value"] for row in rows if row["metric"] == metric)
            errors.append(-math.inf if math.isnan(value) else 1 - value if metric == "accuracy" else value)
            steps.advance()
    return errors


def _starts(
    cfg: Config,
    candidates: Sequence[Sequence[Kernel]],
    parts: Sequence[Dataset],
    tensors: Sequence[Tensors],
    streams: Streams,
    record: Record,
) -> list[Kernel]:
    """The kernel that each part starts from, with a λ of its own where that is chosen or trained."""
    worst = cfg.kernel.start_from == "worst"
    starts = [kernels[0] for kernels in candidates]
    if cfg.kernel.starts > 1:
        loss, sampler = build.loss_maker(cfg), build.sampler(cfg.sampler, cfg.optimizer.iterations)
        rows = []
        for part, kernels in enumerate(candidates):
            if worst:
                values = _errors_of(cfg, kernels, parts, tensors, part)
            else:
                values = objectives_at(kernels, loss, sampler, tensors[part][:2], streams["starts"])
            starts[part] = kernels[int(np.argmax(values) if worst else np.argmin(values))]
            for kernel, value in zip(kernels, values, strict=True):
                named = {f"parameter.{k}": v for k, v in flat_parameters(kernel.parameters).items()}
                measure = "error" if worst else "objective"
                rows.append({"part": part, measure: value, "chosen": int(kernel is starts[part]), **named})
        record.table("starts.csv", list(rows[0]), rows)
    if cfg.regularization.selection == "validation":
        chosen = starts if worst else _with_chosen_regularization(cfg, starts, tensors, cfg.regularization.scale)
        _remark_on_edges(cfg, "initial", chosen, record)
        return chosen
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


def _measure_on_held_out_batches(
    cfg: Config,
    starts: Sequence[Kernel],
    fitted: Sequence[Kernel],
    tensors: Sequence[Tensors],
    streams: Streams,
    record: Record,
) -> None:
    """ρ and the objective before and after, on the same batches: single ones of a fit say little."""
    if not cfg.evaluation.batches:
        return
    loss, sampler = build.loss_maker(cfg), build.held_out_sampler(cfg.sampler)
    rows: list[dict[str, Any]] = []
    with Waiting("held-out batches"):
        for part, pair in enumerate(zip(starts, fitted, strict=True)):
            data, count = tensors[part][:2], cfg.evaluation.batches
            measured = on_the_same_batches(pair, loss, sampler, data, streams["held_out"], count)
            for name, evaluations in zip(("initial", "trained"), measured, strict=True):
                rows += held_out.rows(name, part, evaluations)
    record.table("held_out.csv", held_out.COLUMNS, rows)
    record.metrics["held_out"] = held_out.summary(rows)


def _remark_on_predictions(
    parts: Sequence[Dataset],
    rows: Sequence[dict[str, Any]],
    jobs: Sequence[tuple[int, int, np.ndarray]],
    failures: Sequence[str],
    record: Record,
) -> None:
    """Say what failed, and where a kernel knows less than a constant."""
    for failure in failures:
        record.remark(Event.EVALUATION_FAILED, failure)
    metric = constant_prediction(parts[0])[0]
    constants = [constant_prediction(part)[1] for part in parts]
    of_part = {repeat: number for repeat, number, _ in jobs}
    trained = [
        row for row in rows if row["kernel"] == "trained" and row["metric"] == metric and math.isfinite(row["value"])
    ]
    largest = max(row["n_interpolation"] for row in trained)
    by_regularization: dict[float, list[tuple[float, float]]] = {}
    for row in trained:
        if len(parts) > 1 or row["n_interpolation"] == largest:
            pair = row["value"], constants[of_part[row["repeat"]]]
            by_regularization.setdefault(row["configured_regularization"], []).append(pair)
    means = [tuple(np.mean(pairs, axis=0)) for pairs in by_regularization.values()]
    value, constant = max(means) if metric == "accuracy" else min(means)  # of several λ the best
    if value <= constant if metric == "accuracy" else value >= 0.999 * constant:
        what = "the largest class alone" if metric == "accuracy" else "the mean of the training targets"
        text = f"{metric} {number(value)} is no better than what {what} predicts, {number(constant)}"
        record.remark(Event.NO_BETTER_THAN_CONSTANT, text)


def _remark_on_edges(cfg: Config, name: str, kernels: Sequence[Kernel], record: Record) -> None:
    """Say where the λ that validation chose is the smallest or largest that it could choose."""
    offered = cfg.regularization.candidates
    found = [own.value for kernel in kernels if (own := kernel.own_regularization) is not None]
    for edge in {min(offered), max(offered)} if len(offered) > 1 else ():
        if count := found.count(edge):
            folds = f" in {count} of {len(kernels)} folds" if len(kernels) > 1 else ""
            text = f"λ {edge:g} of the {name} kernel is at the edge of regularization.candidates{folds}"
            record.remark(Event.REGULARIZATION_AT_EDGE, f"{text}: the best may lie beyond")


def _bare(kernel: Kernel) -> Kernel:
    """The kernel without a λ of its own."""
    return kernel.kernel if isinstance(kernel, Regularized) else kernel


def _threads(cfg: Config, parts: Sequence[Dataset], count: int, device: torch.device) -> tuple[int, int]:
    """Threads for the fit and for the evaluation: as many as the config says, else by the size of the work."""
    plain = isinstance(cfg.kernel, CNNGPNode) and cfg.kernel.engine == "torch"
    if cfg.device.threads is not None or device.type != "cpu" or plain:
        return count, count
    n, width = len(parts[0].x_train), parts[0].x_train[0].size
    batch = cfg.sampler.batch_size or n
    moved = n * batch * width if isinstance(cfg.optimizer, FLOWS) else 0
    size = max(cfg.evaluation.n_interpolation or [n])
    predicted = len(parts[0].x_test) * size * width
    return threads.worth(count, batch**3 + moved), threads.worth(count, size**3 + predicted)


def _tensors(part: Dataset, dtype: torch.dtype, device: torch.device) -> Tensors:
    """x_train, y_train, x_test: points in the run's dtype, targets in float64."""
    x_train, x_test = (torch.as_tensor(x, dtype=dtype, device=device) for x in (part.x_train, part.x_test))
    return x_train, torch.as_tensor(part.y_train, device=device), x_test


def _whole(cfg: Config, parts: Sequence[Dataset]) -> int | None:
    """What to call the number of interpolation points when every fold takes all of its own."""
    return None if cfg.evaluation.n_interpolation else max(len(part.x_train) for part in parts)


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
