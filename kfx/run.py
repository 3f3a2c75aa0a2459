"""The story of one run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from threadpoolctl import threadpool_limits

from kfx import build, config, environment, kernel_check, plots, precision
from kfx.evaluation import evaluate, interpolation_order, summary
from kfx.outcomes import Event, KfxError, NumericalError, Status
from kfx.progress import Progress, say
from kfx.record import Record
from kfx.schema import Config
from kfx.streams import Streams


def run(raw: DictConfig, directory: Path, overrides: Sequence[str] = ()) -> int:
    """Run a composed config into `directory` and return the exit code. Whatever happens, the record says what."""
    checked = config.check(raw)
    record = Record(directory)
    record.config(raw, overrides)
    say(f"kfx: {relative(record.directory)}")
    try:
        _tell(checked, record)
        code = 0
    except KeyboardInterrupt:
        code = _end(record, Status.INTERRUPTED, f"{Event.INTERRUPTED}: {Event.INTERRUPTED.help}", 130)
    except (MemoryError, torch.OutOfMemoryError) as error:
        code = _end(record, Status.FAILED, f"{Event.OUT_OF_MEMORY}: {Event.OUT_OF_MEMORY.help} ({error})", 1)
    except NumericalError as error:
        code = _end(record, Status.FAILED, f"{error} ({error.event.help})", error.exit_code)
    except KfxError as error:
        code = _end(record, Status.FAILED, str(error), error.exit_code)
    except BaseException as error:
        record.finish(Status.FAILED, f"{type(error).__name__}: {error}")
        raise
    plots.draw(record.directory)
    for line in closing_lines(record):
        say(line)
    return code


def _end(record: Record, status: Status, reason: str, code: int) -> int:
    record.finish(status, reason)
    say(f"kfx: {status}: {reason}")
    return code


def _tell(cfg: Config, record: Record) -> None:
    started = time.perf_counter()

    # the machine
    device, dtype = precision.pick_device(cfg.device.name), getattr(torch, cfg.device.dtype)
    switches = precision.set_switches(cfg.device.allow_tf32)
    if cfg.device.threads is not None:
        torch.set_num_threads(cfg.device.threads)
        threadpool_limits(cfg.device.threads)
    check_precision(cfg, record, device, switches)

    # the data and the kernel
    streams = Streams(cfg.seed)
    data = build.dataset(cfg.dataset, streams)
    kernel = build.starting_kernel(cfg.kernel, build.image_size(cfg.dataset), streams["initial_parameters"])
    record.json("environment.json", environment.describe(cfg.seed, device, kernel.backend, switches, data.checksums))
    x_train, x_test = (torch.as_tensor(x, dtype=dtype, device=device) for x in (data.x_train, data.x_test))
    y_train = torch.as_tensor(data.y_train, device=device)
    loaded = time.perf_counter()

    # fit
    optimizer = build.optimizer(cfg)
    record.open_trace(kernel, optimizer.diagnostics)
    label = f"{cfg.dataset.name} {cfg.kernel.name} {cfg.optimizer.name}"
    with Progress(label, optimizer.iterations) as bar:
        record.watch = bar
        fitted = optimizer.fit(kernel, (x_train, y_train), streams, record)
    record.final_parameters(fitted)
    trained = time.perf_counter()

    # evaluate
    rng = streams["evaluation"]
    orders = [interpolation_order(data, cfg.evaluation.balanced, rng) for _ in range(cfg.evaluation.repeats)]
    kernels = {"initial": kernel, "trained": fitted}
    for i in range(cfg.evaluation.random_kernels):
        kernels[f"random-{i}"] = build.random_kernel(kernel, cfg.kernel.initial_range, streams["random_kernels"])
    rows = []
    is_curve = data.x_train.shape[1:] == (1,)  # its picture needs the points and the predictions
    if is_curve:
        record.predictions({name: getattr(data, name) for name in ("x_train", "y_train", "x_test", "y_test")})
    for name, candidate in kernels.items():
        for measured, arrays in evaluate(
            name,
            candidate,
            data,
            (x_train, y_train, x_test),
            sizes=cfg.evaluation.n_interpolation or [len(x_train)],
            orders=orders,
            regularizations=build.evaluation_regularizations(cfg),
            solver=cfg.evaluation.solver,
            rcond=cfg.evaluation.rcond,
            variance=cfg.evaluation.posterior_variance,
        ):
            record.evaluation(measured)
            rows += measured
            if cfg.evaluation.save_predictions or is_curve:
                record.predictions(arrays)
    if cfg.kernel_check:
        sizes = cfg.evaluation.n_interpolation or [len(x_train)]
        effective = cfg.regularization.value
        checked = kernel_check.compare(fitted, data, x_train, x_test, orders[0], sizes, effective)
        record.table("kernel_check.csv", kernel_check.COLUMNS, checked)
    evaluated = time.perf_counter()

    # record
    record.finish(
        Status.COMPLETED,
        evaluation=summary(rows),
        timing={
            "load_seconds": loaded - started,
            "fit_seconds": trained - loaded,
            "evaluation_seconds": evaluated - trained,
        },
    )


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


def closing_lines(record: Record) -> list[str]:
    """What a run says at its end: the kernel before and after, and where to look."""
    metrics = record.metrics
    rows = metrics.get("evaluation", [])
    metric = "accuracy" if any(row["metric"] == "accuracy" for row in rows) else "mse"
    lines = [
        f"{row['kernel']:<10} n_interpolation {row['n_interpolation']:>6}  λ {row['regularization']:<8g} "
        f"{metric} {row['mean']:.4f}" + (f" ± {row['sd']:.4f}" if row["repeats"] > 1 else "")
        for row in rows
        if row["metric"] == metric
    ]
    pictures = sorted((record.directory / "figures").glob("*.png"))
    names = ", ".join(path.name for path in pictures)
    shown = relative(record.directory)
    return [*lines, f"results  {shown}", *([f"pictures {shown / 'figures'} ({names})"] if pictures else [])]


def relative(directory: Path) -> Path:
    """The path as a person would type it here."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
