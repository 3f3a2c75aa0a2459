"""A plan: the words of a run, composed, checked and identified once, before the run begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from omegaconf import DictConfig, OmegaConf, open_dict

from kfx.config.plugins import Plugin, plugged_in
from kfx.config.registry import SECTIONS
from kfx.experiment import compose
from kfx.experiment.config import Config, settled

_OF_THE_PERSON = ("cluster.scheduler", "cluster.dashboard", "evaluation.store", "dataset.predict")
"""Keys of hosts, stores and further files: a record may have come from anyone, so its values are not used."""


def places(raw: DictConfig) -> dict[str, object]:
    """What a config says of where its run reads, computes and keeps: for `Plan.of_record`."""
    return {"dataset": raw.dataset, "cluster": raw.cluster, "evaluation.store": raw.evaluation.store}


def unused_of_record(raw: DictConfig, own: Mapping[str, object]) -> dict[str, object]:
    """The hosts, stores and further files that a record's config names and `own` does not replace, by key."""
    usual = {"cluster.dashboard": SECTIONS["cluster"].defaults()["dashboard"]}
    named = {key: OmegaConf.select(raw, key) for key in _OF_THE_PERSON if not {key, key.partition(".")[0]} & set(own)}
    return {key: value for key, value in named.items() if value not in (None, usual.get(key))}


@dataclass(frozen=True)
class Plan:
    """A run that is ready to begin.

    words: its overrides as typed, including Hydra's. raw: its composed config, without Hydra's own node. config: the
        same, typed and checked. hydra: Hydra's own node, which says where the run goes; empty for a record's plan.
        plugins: the plugins that it needs.
    """

    words: tuple[str, ...]
    raw: DictConfig
    config: Config
    hydra: DictConfig = field(default_factory=lambda: OmegaConf.create({}))
    plugins: tuple[Plugin, ...] = field(default_factory=lambda: tuple(plugged_in()))

    @classmethod
    def of_words(cls, words: Sequence[str], config_dir: str | None = None, *, smoke: bool = False) -> Self:
        """Compose and check the words of `kfx run`; ConfigError in one line for a wrong word.

        config_dir: a folder with further presets. smoke: apply the overrides in the config's own key `smoke` last.
        """
        if smoke:
            words = compose.with_smoke_words(words, config_dir)
        composed = compose.composed(words, config_dir)
        compose.check_hydra(composed.hydra, words, config_dir)
        return cls.of_config(compose.without_hydra(composed), words, composed.hydra)

    @classmethod
    def of_config(cls, raw: DictConfig, words: Sequence[str] = (), hydra: DictConfig | None = None) -> Self:
        """Check a composed config; ConfigError in one line for a wrong key."""
        raw, config = settled(raw)
        return cls(tuple(words), raw, config, OmegaConf.create({}) if hydra is None else hydra)

    @classmethod
    def of_record(cls, raw: DictConfig, own: Mapping[str, object]) -> Self:
        """Check the config of a record, with the values in `own` for these keys, and without other hosts, stores and
        further files (`unused_of_record`)."""
        unused, moved = unused_of_record(raw, own), raw.copy()
        changes = dict.fromkeys(unused) | dict(own)
        if "cluster.dashboard" in unused:
            changes["cluster.dashboard"] = SECTIONS["cluster"].defaults()["dashboard"]
        if "cluster.scheduler" in unused:  # its workers are not processes of this machine
            changes.setdefault("cluster.workers", 1)
        with open_dict(moved):
            for key, value in changes.items():
                OmegaConf.update(moved, key, value, merge=False)
        return cls.of_config(moved)

    @property
    def overrides(self) -> list[str]:
        """The words without those for Hydra, as the record keeps them."""
        return [word for word in self.words if not word.lstrip("+~").startswith(("hydra.", "hydra/"))]

    @cached_property
    def identity(self) -> str:
        """Sixteen hexadecimal digits that identify what the run computes; the data files must exist."""
        from kfx.experiment.identity import identity  # brings NumPy, which a wrong word need not wait for

        in_folds = self.config.evaluation.leaves_out_in_folds(self.config)
        return identity(self.raw, self.config, self.plugins, in_folds=in_folds)

    def with_threads(self, count: int) -> Self:
        """The plan with `count` CPU threads, unless its config sets their number."""
        if self.config.device.threads is not None:
            return self
        raw = self.raw.copy()
        with open_dict(raw):
            raw.device.threads = count
        device = replace(self.config.device, threads=count)
        return replace(self, raw=raw, config=replace(self.config, device=device))
