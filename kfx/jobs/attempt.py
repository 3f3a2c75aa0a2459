"""Run, resume, skip or retry one job of a command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from kfx.config.plugins import load_plugins, require_plugins
from kfx.experiment import compose
from kfx.experiment.config import Config, check
from kfx.experiment.identity import identity
from kfx.jobs import sweep
from kfx.jobs.sweep import search_roots
from kfx.outcomes import CompletedError, Event, HeldError, KfxError, Status
from kfx.record.search import earlier
from kfx.running.signals import INTERRUPTED
from kfx.running.story import complete, resume, run
from kfx.screen.progress import numbered, say
from kfx.screen.summary import relative


class Stopped(KeyboardInterrupt):
    """A run was interrupted, has said so, and gave this exit code."""


def start(
    raw: DictConfig,
    jobs: int = 1,
    *,
    plugins: Sequence[Mapping[str, str]] = (),
    config_dir: str | None = None,
    smoke: bool = False,
) -> tuple[int, float | None]:
    """What Hydra calls for each of its jobs: the exit code, and what a sweeper may minimise.

    Results live in files; these two are for whoever waits. plugins (path and SHA-256), config_dir and smoke are those
    of the command: Hydra may have started this process anew.
    """
    settings: Any = HydraConfig.get()
    load_plugins([plugin["path"] for plugin in plugins])
    require_plugins(plugins, str(settings.runtime.output_dir))
    compose.give_options_to_hydra()
    words = list(settings.overrides.task)
    if smoke:
        extra = compose.smoke_words(raw)
        raw, words = compose.without_hydra(compose.composed([*words, *extra], config_dir)), [*words, *extra]
    threads = _share_of_cores(settings)
    if threads and raw.device.threads is None:
        with open_dict(raw):
            raw.device.threads = threads
    own = Path(settings.runtime.output_dir)
    roots = search_roots(own.parent if settings.mode == RunMode.MULTIRUN else own)
    with numbered(int(OmegaConf.select(settings, "job.num") or 0) + 1, jobs):
        code = attempt(raw, own, words, roots)
    if code in INTERRUPTED:
        raise Stopped(code)  # ends a sweep; the jobs after it have not started
    return code, sweep.loss(own)


def attempt(raw: DictConfig, own: Path, overrides: Sequence[str], roots: Sequence[Path]) -> int:
    """`attempted` for a command: its exit code, and errors in words."""
    try:
        return attempted(raw, own, overrides, roots)[0]
    except HeldError as error:
        checked = check(raw)
        if checked.resume and error.identity == identity(raw, checked):  # whoever holds it does the work
            say(f"kfx: all is well, the same run is under way: {error}")
            return 0
        say(f"kfx: {error}")
        return error.exit_code
    except KfxError as error:
        say(f"kfx: {error}")
        return error.exit_code
    except OSError as error:  # before the record could be opened
        say(f"kfx: {Event.STORAGE}: {Event.STORAGE.help} ({error})")
        return 1


def attempted(raw: DictConfig, own: Path, overrides: Sequence[str], roots: Sequence[Path]) -> tuple[int, Path]:
    """Run into `own`, or with `resume=true` stand back for an earlier run of the same identity; retry failures. The
    exit code, and where the run is."""
    checked = check(raw)
    found = earlier(identity(raw, checked), roots) if checked.resume else None
    if found is not None:
        _drop_if_empty(own)
        if found.status == Status.COMPLETED:
            return _completed_already(checked, found.directory), found.directory
        try:
            return resume(found.directory, raw.dataset), found.directory
        except CompletedError:  # by another process, since it was found
            return _completed_already(checked, found.directory), found.directory
    for left in range(checked.retries, -1, -1):
        code = run(raw, own, overrides, replace_failed=checked.resume or left < checked.retries)
        if code in (0, *INTERRUPTED) or not left:
            break
        say(f"kfx: trying again, {left} {'retry' if left == 1 else 'retries'} left")
    return code, own


def _drop_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _completed_already(config: Config, directory: Path) -> int:
    say(f"kfx: completed already: {relative(directory)}")
    return complete(config, directory)


def _share_of_cores(settings: Any) -> int | None:
    """Threads for each of the jobs that a launcher runs at once on this machine's cores."""
    at_once = OmegaConf.select(settings, "launcher.n_jobs")
    if at_once is None:
        return None
    cores = len(os.sched_getaffinity(0))
    return max(cores // (cores if at_once < 0 else at_once), 1)
