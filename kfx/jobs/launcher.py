"""`hydra/launcher=cores` as a launcher of Hydra, for sweepers that draw their jobs while they run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from kfx.experiment import compose
from kfx.experiment.plan import Plan
from kfx.jobs import sweep
from kfx.jobs.job import Job
from kfx.jobs.plans import CORES_LAUNCHER, search_roots
from kfx.jobs.pool import Pool, processes

smoke = False
"""Whether jobs apply the overrides in their configs' key `smoke`; set by the command before Hydra starts them."""


def register() -> None:
    """Register the launcher in Hydra, which looks for plugins only in the package `hydra_plugins`."""
    plugins = Plugins.instance()  # it has already searched the installed ones
    name = CORES_LAUNCHER.rpartition(".")[0]
    package = sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    package.kfx = sys.modules[name] = sys.modules[__name__]  # type: ignore[attr-defined]
    CoresLauncher.__module__ = name
    plugins.register(CoresLauncher)


class CoresLauncher(Launcher):
    """Run at most `n_jobs` jobs at once, in a `Pool`; -1: one for each core."""

    def __init__(self, n_jobs: int = 2) -> None:
        self.n_jobs = n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs; each returns the value that a sweeper minimises."""
        folder = Path(str(self.config.hydra.sweep.dir))
        of = initial_job_idx + len(job_overrides)
        jobs = [self._job(folder, initial_job_idx + i, of, list(words)) for i, words in enumerate(job_overrides)]
        Pool(processes(self.n_jobs), jobs).run()
        return [_returned(job) for job in jobs]

    def _job(self, folder: Path, index: int, of: int, words: list[str]) -> Job:
        config = self.context.config_loader.load_sweep_config(self.config, words)
        if smoke:
            config = self.context.config_loader.load_sweep_config(self.config, [*words, *compose.smoke_words(config)])
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = index
        plan = Plan.of_config(compose.without_hydra(config), list(config.hydra.overrides.task))
        directory = folder / str(config.hydra.sweep.subdir)
        return Job(plan, directory, search_roots(folder), index + 1, of)


def _returned(job: Job) -> JobReturn:
    words, directory = list(job.plan.words), str(job.directory)
    done = JobReturn(overrides=words, working_dir=directory, task_name="kfx", status=JobStatus.COMPLETED)
    done.return_value = sweep.loss(job.directory)
    return done
