"""`hydra/launcher=cores` as a launcher of Hydra, for sweepers that draw their jobs while they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from kfx.experiment import compose
from kfx.experiment.plan import Plan
from kfx.jobs import sweep
from kfx.jobs.job import Job
from kfx.jobs.plans import search_roots
from kfx.jobs.pool import Pool, processes
from kfx.outcomes import KfxError
from kfx.screen.progress import say

smoke = False
"""Whether jobs apply the overrides in their configs' key `smoke`; set by the command before Hydra starts them."""


def register() -> None:
    """Register the launcher in Hydra, which by itself finds plugins in packages of its own alone."""
    Plugins.instance().register(CoresLauncher)


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
        Pool(processes(self.n_jobs), filter(None, jobs)).run()
        return [_returned(list(words), job) for words, job in zip(job_overrides, jobs, strict=True)]

    def _job(self, folder: Path, index: int, of: int, words: list[str]) -> Job | None:
        """The job of these words; None where they cannot be run, which a sweeper may draw."""
        config = self.context.config_loader.load_sweep_config(self.config, words)
        if smoke:
            config = self.context.config_loader.load_sweep_config(self.config, [*words, *compose.smoke_words(config)])
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = index
        try:
            plan = Plan.of_config(compose.without_hydra(config), list(config.hydra.overrides.task))
        except KfxError as error:
            say(f"kfx: job {index + 1} of {of}: {error}")
            return None
        directory = folder / str(config.hydra.sweep.subdir)
        return Job(plan, directory, search_roots(folder), index + 1, of)


def _returned(words: list[str], job: Job | None) -> JobReturn:
    done = JobReturn(overrides=words, task_name="kfx", status=JobStatus.COMPLETED)
    done.return_value = None
    if job is not None:
        done.working_dir, done.return_value = str(job.directory), sweep.loss(job)
    return done
