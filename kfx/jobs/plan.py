"""The jobs of a command, composed and checked: all that can be known before the first of them begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from kfx.experiment import compose
from kfx.experiment.config import Config, check
from kfx.outcomes import ConfigError


@dataclass(frozen=True)
class Prepared:
    """words: the overrides of each job. composed: its config with Hydra's own node. jobs: the same, checked. shared:
    Hydra's own node of the command."""

    words: list[list[str]]
    composed: list[DictConfig]
    jobs: list[Config]
    shared: Any
    is_sweep: bool

    @property
    def key(self) -> str:
        """The key of the folder."""
        return "hydra.sweep.dir" if self.is_sweep else "hydra.run.dir"

    def identities(self) -> list[tuple[list[str], str]]:
        """(overrides, identity) of each job."""
        from kfx.experiment.identity import identity

        own = [identity(raw, job) for raw, job in zip(self.composed, self.jobs, strict=True)]
        return list(zip(self.words, own, strict=True))

    def roots(self, folder: Path) -> list[Path]:
        """Where a sweep's runs may lie: in its folder, and beside it where those are taken up."""
        from kfx.jobs.sweep import search_roots

        return search_roots(folder) if self.jobs[0].resume else [folder]

    def make_folder(self) -> Path:
        """Check machine, kernels, data files and disk, and make the folder of the run or sweep."""
        from kfx.experiment import preflight

        preflight.check(self.jobs)
        if self.is_sweep:
            compose.check_subfolders([raw.hydra for raw in self.composed])
        folder = Path(compose.text_at(self.shared, self.key.removeprefix("hydra.")))
        preflight.check_disk(self.jobs, folder)
        preflight.make_folder(self.key, folder, resume=self.jobs[0].resume)
        return folder


def prepare(overrides: Sequence[str], config_dir: str | None, *, is_sweep: bool, smoke: bool) -> Prepared:
    """Compose and check every job; ConfigError in one line for the first that cannot be."""
    words = list(compose.combinations(overrides, is_sweep))
    composed = [compose.composed(each, config_dir, smoke=smoke) for each in words]
    for raw in composed:
        compose.check_hydra(raw.hydra)
    jobs = [check(raw) for raw in composed]
    if smoke:
        words = [[*each, *compose.smoke_words(raw)] for each, raw in zip(words, composed, strict=True)]
    shared = _of_sweep(overrides, config_dir) if is_sweep else composed[0].hydra
    return Prepared(words, composed, jobs, shared, is_sweep)


def _of_sweep(overrides: Sequence[str], config_dir: str | None) -> Any:
    """Hydra's own node, from which it starts a sweep: no job need have seen it."""
    try:
        shared = compose.composed(compose.without_sweeps(overrides), config_dir).hydra
    except ConfigError as error:
        raise ConfigError(
            f"{error} (Hydra composes a sweep without its swept groups first: give a key that only they have as "
            "a sweep too, key=choice(value))"
        ) from error
    compose.check_hydra(shared)
    return shared
