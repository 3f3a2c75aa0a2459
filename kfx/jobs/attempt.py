"""Run, resume, skip or retry the jobs of a command in this process."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from kfx.config.plugins import load_plugins, require_plugins
from kfx.config.registry import described
from kfx.experiment import compose
from kfx.experiment.config import Config
from kfx.experiment.plan import Plan, places
from kfx.jobs.job import Job
from kfx.jobs.plans import make_folder, search_roots
from kfx.outcomes import CompletedError, Event, HeldError, KfxError, RecordError, Status
from kfx.record.environment import changes, software
from kfx.record.reading import environments
from kfx.record.search import earlier
from kfx.running.signals import INTERRUPTED, Interrupted
from kfx.running.story import complete, resume, run
from kfx.screen.progress import numbered, say
from kfx.screen.summary import relative

Complain = Callable[[Job, str], None]
"""Called with a job and the error that stopped it before it had a record."""


def _complain(job: Job, line: str) -> None:
    say(f"kfx: {line}")


def run_jobs(jobs: Sequence[Job], complain: Complain = _complain) -> int:
    """Run the jobs one after another and return the largest exit code; Interrupted if a run was interrupted."""
    codes = [0]
    for job in jobs:
        with numbered(job.number, job.of):
            code = run_job(job, complain)
        if code in INTERRUPTED:
            raise Interrupted(code)
        codes.append(code)
    return max(codes)


def run_job(job: Job, complain: Complain = _complain) -> int:
    """Do what `run_or_reuse` does, with a message for an error; return the exit code."""
    try:
        return run_or_reuse(job)[0]
    except HeldError as error:
        if job.plan.config.resume and error.identity == job.plan.identity:  # the process that holds it does the work
            say(f"kfx: all is well, the same run is under way: {error}")
            return 0
        complain(job, str(error))
        return error.exit_code
    except KfxError as error:
        complain(job, str(error))
        return error.exit_code
    except OSError as error:  # the record could not be opened
        complain(job, f"{Event.STORAGE}: {Event.STORAGE.help} ({error})")
        return 1
    except Exception as error:  # a defect, which must not stop the other jobs
        if job.of == 1:
            raise
        traceback.print_exc()
        complain(job, described(error))
        return 1


def run_or_reuse(job: Job) -> tuple[int, Path]:
    """Run a job in its folder, or with `resume=true` use an earlier run of the same identity; retry failures.

    Returns the exit code and the directory of the run.
    """
    plan, own = job.plan, job.directory
    if not job.is_checked:
        make_folder([plan.config], "hydra.run.dir", own)
    found = earlier(plan.identity, job.roots) if plan.config.resume else None
    if found is not None:
        _drop_if_empty(own)
        if found.status == Status.COMPLETED:
            return _completed_already(plan.config, found.directory, own), found.directory
        try:
            return resume(found.directory, places(plan.raw)), found.directory
        except CompletedError:  # another process has completed it meanwhile
            return _completed_already(plan.config, found.directory, own), found.directory
    retries = plan.config.retries
    for left in range(retries, -1, -1):
        code = run(plan, own, replace_failed=plan.config.resume or left < retries)
        if code in (0, *INTERRUPTED) or not left:
            break
        say(f"kfx: trying again, {left} {'retry' if left == 1 else 'retries'} left")
    return code, own


def _drop_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _completed_already(config: Config, directory: Path, asked: Path) -> int:
    told = f"kfx: completed already: {relative(directory)}"
    if directory.resolve() != asked.resolve():
        told += f", so that {relative(asked)} is not written"
    with contextlib.suppress(RecordError):  # what is damaged says nothing of its software
        if changed := changes(*environments(directory), software()):
            told += f"; {changed} since it began: {Event.ENVIRONMENT_CHANGED.advice}"
    say(told)
    return complete(config, directory)


# ---- jobs that Hydra starts, by its other launchers and by sweepers that draw jobs


def run_of_hydra(
    raw: DictConfig,
    jobs: int = 1,
    *,
    plugins: Sequence[Mapping[str, str]] = (),
    config_dir: str | None = None,
    smoke: bool = False,
) -> tuple[int, float | None]:
    """Run the job that Hydra has composed; return its exit code and the value that a sweeper minimises.

    plugins (path and SHA-256), config_dir and smoke are those of the command, because Hydra may have started this
    process anew. jobs: the number of jobs, as far as it is known.
    """
    from kfx.jobs import sweep
    from kfx.jobs.pool import share_of

    settings: Any = HydraConfig.get()
    own = Path(settings.runtime.output_dir)
    load_plugins([plugin["path"] for plugin in plugins])
    require_plugins(plugins, str(own))
    compose.give_options_to_hydra()
    words = list(settings.overrides.task)
    try:
        plan = Plan.of_words(words, config_dir, smoke=True) if smoke else Plan.of_config(raw, words)
    except KfxError as error:  # a value that a sweeper drew
        say(f"kfx: {error}")
        return error.exit_code, None
    at_once = OmegaConf.select(settings, "launcher.n_jobs")
    if at_once is not None:  # parallel jobs share this machine's cores
        plan = plan.with_threads(share_of(at_once))
    roots = search_roots(own.parent if settings.mode == RunMode.MULTIRUN else own)
    number = int(OmegaConf.select(settings, "job.num") or 0) + 1
    job = Job(plan, own, roots, number, jobs)
    return run_jobs([job]), sweep.loss(job)
