"""The plans of a command, one for each job, composed and checked before the first job begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from kfx.experiment import compose, sweeps
from kfx.experiment.config import Config
from kfx.experiment.plan import Plan
from kfx.jobs.job import Job
from kfx.outcomes import ConfigError
from kfx.screen.progress import WaitMessage

CORES_LAUNCHER = "kfx.jobs.launcher.CoresLauncher"
_BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@dataclass(frozen=True)
class Plans:
    """The plans of `kfx run` or `kfx run -m`, of which `in_folder` makes each a `Job`. hydra: Hydra's own node."""

    jobs: tuple[Plan, ...]
    hydra: DictConfig
    is_sweep: bool

    @property
    def key(self) -> str:
        """The config key of the run's or the sweep's folder."""
        return "hydra.sweep.dir" if self.is_sweep else "hydra.run.dir"

    @property
    def is_complete(self) -> bool:
        """Whether all jobs are known; some sweepers draw theirs while they run."""
        return not self.is_sweep or self.hydra.sweeper._target_ == _BASIC_SWEEPER

    @property
    def at_once(self) -> int | None:
        """The number of processes that run the jobs: 0 for this one, -1 for one on each core, None if Hydra starts
        them."""
        launcher = self.hydra.launcher
        if not self.is_complete or launcher._target_ not in (_BASIC_LAUNCHER, CORES_LAUNCHER):
            return None
        return int(launcher.n_jobs) if launcher._target_ == CORES_LAUNCHER else 0

    def make_folder(self) -> Path:
        """Check machine, kernels, data files and disk space, then make the folder of the run or sweep."""
        if self.is_sweep:
            compose.check_subfolders([plan.hydra for plan in self.jobs])
        folder = Path(compose.text_at(self.hydra, self.key.removeprefix("hydra.")))
        make_folder([plan.config for plan in self.jobs], self.key, folder)
        return folder

    def in_folder(self, folder: Path) -> list[Job]:
        """The jobs, each with its folder."""
        if not self.is_sweep:
            return [Job(self.jobs[0], folder, search_roots(folder))]
        roots, count = search_roots(folder), len(self.jobs)
        return [
            Job(plan, folder / compose.text_at(plan.hydra, "sweep.subdir"), roots, number, count)
            for number, plan in enumerate(self.jobs, start=1)
        ]

    def roots(self, folder: Path) -> list[Path]:
        """Folders in which the runs of a sweep may lie: its own, and with `resume=true` those beside it."""
        return search_roots(folder) if self.jobs[0].config.resume else [folder]


def search_roots(folder: Path) -> list[Path]:
    """Folders in which `resume=true` looks for runs: that of the run or sweep, and those beside it."""
    return [folder, folder.parent]


def make_folder(configs: Sequence[Config], key: str, folder: Path) -> None:
    """Check machine, kernels, data files and disk space, then make the folder that `key` names; ConfigError or
    DataError."""
    from kfx.experiment import preflight  # imports torch, which a wrong word need not wait for

    preflight.check(configs)
    preflight.check_disk(configs, folder)
    preflight.make_folder(key, folder, resume=configs[0].resume)


def plans(overrides: Sequence[str], config_dir: str | None, *, is_sweep: bool, smoke: bool) -> Plans:
    """Compose and check every job; ConfigError in one line for the first job that is wrong."""
    words = sweeps.combinations(overrides, is_sweep)
    with WaitMessage("reading the settings; for series, choosing windows by a backtest", moment=10.0):
        jobs = tuple(Plan.of_words(each, config_dir, smoke=smoke) for each in words)
    return Plans(jobs, _of_sweep(overrides, config_dir) if is_sweep else jobs[0].hydra, is_sweep)


def _of_sweep(overrides: Sequence[str], config_dir: str | None) -> DictConfig:
    """Hydra's own node for starting a sweep, composed without the overrides of single jobs."""
    try:
        shared: DictConfig = compose.composed(sweeps.without_sweeps(overrides), config_dir).hydra
    except ConfigError as error:
        raise ConfigError(
            f"{error} (Hydra composes a sweep without its swept groups first: give a key that only they have as "
            "a sweep too, key=choice(value))"
        ) from error
    compose.check_hydra(shared, overrides, config_dir)
    return shared
