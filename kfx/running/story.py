"""One run from start to end: `story`, and the record of how it ends: `_into_record`, for `run` and `resume`."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from signal import Signals

import torch
from omegaconf import DictConfig

from kfx.config.plugins import in_plugin, plugged_in, require_plugins
from kfx.experiment.config import Config, of_outside, typed, with_absolute_paths
from kfx.experiment.plan import Plan, unused_of_record
from kfx.files import write_whole
from kfx.numerics.process import exclusively
from kfx.outcomes import CheckpointError, ConfigError, Event, KfxError, NumericalError, RecordError, Status
from kfx.record.origin import require_own_files
from kfx.record.reading import read_config, read_metrics
from kfx.record.record import Record
from kfx.running import stages
from kfx.running.disk import disk_stores
from kfx.running.evaluation import evaluate_kernels
from kfx.running.signals import Terminated, noted, stoppable, undisturbed
from kfx.screen.progress import say, tell
from kfx.screen.summary import closing_lines, relative


def story(config: Config, record: Record) -> None:
    """Run one checked config from start to end, and complete its record."""
    clock = stages.Clock(*record.spent())
    with disk_stores(config, record.directory) as disk:
        with clock.stage("load"):
            machine = stages.prepare_machine(config, record)
            clock.device = machine.device
            context = stages.load_data(config, machine, record, disk)
            starts = stages.choose_starts(context)
        with clock.stage("fit"):
            fitted = stages.fit(context, starts)
        with clock.stage("evaluation"):
            entries = evaluate_kernels(context, record, starts, fitted)
    with undisturbed():  # a signal now would mark a completed run as interrupted
        record.finish(Status.COMPLETED, **entries)


def run(plan: Plan, directory: Path, *, replace_failed: bool = False) -> int:
    """Run a plan into `directory` and return the exit code; the record tells how the run ended in any case.

    replace_failed: move a failed run of the same identity aside.
    """
    return _into_record(plan, directory, resume=False, replace_failed=replace_failed)


def resume(directory: Path, own: Mapping[str, object] | None = None) -> int:
    """Continue the run in `directory` from its last checkpoint; its trace ends as if it had never stopped.

    own: what the person says of hosts, stores and data files, by key; the identity must be the same.
    """
    if not (directory / "config.yaml").is_file() or not (directory / "metrics.json").is_file():
        raise ConfigError(f"{directory}: holds no run to resume")
    require_own_files(directory)
    metrics = read_metrics(directory)
    require_plugins(metrics.get("plugins", []), str(directory), no_others=True)
    raw = read_config(directory)
    if metrics["status"] == Status.COMPLETED and (directory / _UNDRAWN).exists():
        return show(typed(raw), directory)
    return _into_record(plan_of(directory, raw, own or {}), directory, resume=True)


def plan_of(directory: Path, raw: DictConfig, own: Mapping[str, object]) -> Plan:
    """The plan of a record, and a line about the hosts, stores and files that its config names and that are not used.

    own: what the person says of them, by key.
    """
    if unused := unused_of_record(raw, own):
        named = ", ".join(f"{key}={value}" for key, value in unused.items())
        say(
            f"kfx: warning: {directory}: its config names {named}, which a record cannot choose; give --scheduler, "
            "--dashboard or --store to use yours, and new rows to kfx predict"
        )
    return Plan.of_record(raw, own)


def _into_record(plan: Plan, directory: Path, *, resume: bool, replace_failed: bool = False) -> int:
    """Run into a record; write its end, successful or not, then draw and print it."""
    config = plan.config
    record = Record(
        directory,
        None if resume else (with_absolute_paths(plan.raw, config), plan.overrides),
        identity=plan.identity,
        plugins=[asdict(plugin) for plugin in plan.plugins],
        resume=resume,
        replace_failed=replace_failed,
        checkpoint_seconds=config.checkpoint.seconds,
        checkpoint_iterations=config.checkpoint.iterations,
    )
    say(f"kfx: {relative(record.directory)}{' (resumed)' if resume else ''}")
    code = 0
    if config.figures or config.report:
        (record.directory / _UNDRAWN).touch()
    with exclusively(), stoppable(record):
        try:
            story(config, record)
        except BaseException as raised:
            # A library that is interrupted may raise its own exception instead of the signal's.
            end = _explained(record.stop or raised, config, command("resume", relative(directory), config))
            if resume and isinstance(raised, (RecordError, CheckpointError)):  # the run stands where it stood before
                before = record.before[0] if record.before[0] != Status.RUNNING else Status.INTERRUPTED
                record.finish(Status(before), record.before[1] or str(raised))
                raise
            if end is None:
                record.finish(Status.FAILED, f"{type(raised).__name__}: {raised}")
                raise
            status, reason, code = end
            with undisturbed():
                record.finish(status, reason)
            say(f"kfx: {reason}" if reason.startswith(status) else f"kfx: {status}: {reason}")
    return show(config, record.directory) or code


_UNDRAWN = ".undrawn"
"""This file is in a run's directory until its pictures and page are made, so that an interruption leaves them due."""


def show(config: Config, directory: Path) -> int:
    """Draw the pictures of a finished run, write its page, and print its summary.

    Returns the exit code: 0, or that of the signal that interrupted this.
    """
    whole = False
    with noted() as signals, contextlib.suppress(KeyboardInterrupt):
        drawn = _draw(config, directory, signals)
        whole = not signals and _report(config, directory, signals) and drawn
    if whole and not signals:
        (directory / _UNDRAWN).unlink(missing_ok=True)
    metrics = read_metrics(directory)
    tell(closing_lines(config, metrics, directory))
    if not signals:
        return 0
    again = command("plot" if metrics["status"] == Status.FAILED else "resume", relative(directory))
    say(f"kfx: interrupted: {Signals(signals[0]).name}, while its pictures were drawn; go on with {again}")
    return 128 + signals[0]


def complete(config: Config, directory: Path) -> int:
    """Make the pictures and the page that a completed run lacks after an interruption; return the exit code."""
    if (config.figures or config.report) and (directory / _UNDRAWN).exists():
        return show(config, directory)
    return 0


def _draw(config: Config, directory: Path, signals: list[int]) -> bool:
    """Draw the configured pictures; whether all of them are there."""
    if not config.figures:
        return True
    try:
        from kfx import plots

        plots.draw(directory, config.figures)
    except Exception as error:  # the record is complete; its pictures can be drawn again
        if not signals:
            why, how = f"{type(error).__name__}: {error}", command("plot", relative(directory))
            say(f"kfx: figures are incomplete ({why}); draw them with {how}")
        return False
    return True


def _report(config: Config, directory: Path, signals: list[int]) -> bool:
    """Write the page, if one is configured; whether it is there."""
    if not config.report:
        return True
    try:
        from kfx.report import run_page

        write_whole(directory / "report.html", run_page.page([directory]))
    except Exception as error:  # as for pictures
        if not signals:
            why, how = f"{type(error).__name__}: {error}", command("report", relative(directory))
            say(f"kfx: no report ({why}); write it with {how}")
        return False
    return True


def command(word: str, directory: Path, config: Config | None = None) -> str:
    """A command such as `kfx resume r` as it can be typed, with the plugins in use, and with the scheduler and the
    store of a config."""
    plugins = [word for plugin in plugged_in() for word in ("--plugin", str(relative(Path(plugin.path))))]
    places = {} if config is None else {"scheduler": config.cluster.scheduler, "store": config.evaluation.store}
    own = [word for name, value in places.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(["kfx", word, str(directory), *own, *plugins])


def _explained(error: BaseException, config: Config, again: str) -> tuple[Status, str, int] | None:
    """Status, reason and exit code for the error that ended a run; None for a defect, which needs its traceback.

    again: the command that resumes the run.
    """
    match error:
        case Terminated():
            return Status.INTERRUPTED, f"{Event.INTERRUPTED}: SIGTERM; go on with {again}", 143
        case KeyboardInterrupt():
            return Status.INTERRUPTED, f"{Event.INTERRUPTED}: SIGINT; go on with {again}", 130
        case NumericalError():
            return Status.FAILED, f"{error} ({error.event.help})", error.exit_code
        case KfxError():
            return Status.FAILED, str(error), error.exit_code
        case Exception() if (of_plugin := in_plugin(error)) is not None:
            return Status.FAILED, of_plugin, 1
        case OSError():
            return Status.FAILED, f"{Event.STORAGE}: {Event.STORAGE.help} ({error})", 1
        case MemoryError() | RuntimeError() if _is_out_of_memory(error):
            detail = " ".join(str(error).split()) or "no memory"
            return Status.FAILED, f"{Event.OUT_OF_MEMORY}: {Event.OUT_OF_MEMORY.help} ({detail})", 1
        case Exception() if (why := of_outside(error, config)) is not None:
            return Status.FAILED, why, 1
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; torch on a CPU and JAX tell it only in their messages."""
    words = ("can't allocate memory", "not enough memory", "RESOURCE_EXHAUSTED")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(word in str(error) for word in words)
