"""A plan: the words of a run, composed, checked and identified once, before anything of it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from omegaconf import DictConfig, OmegaConf, open_dict

from kfx.config.plugins import Plugin, plugged_in
from kfx.experiment import compose
from kfx.experiment.config import Config, check


@dataclass(frozen=True)
class Plan:
    """A run that can begin.

    words: its overrides as typed, Hydra's among them. raw: its config as composed, without Hydra's own node. config:
    the same, typed and checked. hydra: Hydra's own node, which says where the run goes; empty for a record's plan.
    plugins: those that it needs.
    """

    words: tuple[str, ...]
    raw: DictConfig
    config: Config
    hydra: DictConfig = field(default_factory=lambda: OmegaConf.create({}))
    plugins: tuple[Plugin, ...] = field(default_factory=lambda: tuple(plugged_in()))

    @classmethod
    def of_words(cls, words: Sequence[str], config_dir: str | None = None, *, smoke: bool = False) -> Self:
        """Compose and check the words of `kfx run`; ConfigError in one line for what is wrong.

        config_dir: a folder of further presets. smoke: with the overrides of the config's own key `smoke` last.
        """
        if smoke:
            words = compose.with_smoke_words(words, config_dir)
        composed = compose.composed(words, config_dir)
        compose.check_hydra(composed.hydra)
        return cls.of_config(compose.without_hydra(composed), words, composed.hydra)

    @classmethod
    def of_config(cls, raw: DictConfig, words: Sequence[str] = (), hydra: DictConfig | None = None) -> Self:
        """Check a composed config, such as a record's; ConfigError in one line for what is wrong."""
        return cls(tuple(words), raw, check(raw), *(() if hydra is None else (hydra,)))

    @property
    def overrides(self) -> list[str]:
        """The words without those for Hydra: what the record keeps."""
        return [word for word in self.words if not word.lstrip("+~").startswith(("hydra.", "hydra/"))]

    @cached_property
    def identity(self) -> str:
        """Sixteen hexadecimal digits of what the run computes. The data files must be there."""
        from kfx.experiment.identity import identity  # brings NumPy, which a wrong word need not wait for

        return identity(self.raw, self.config, self.plugins)

    def with_threads(self, count: int) -> Self:
        """The plan with so many CPU threads, unless its config gives a number."""
        if self.config.device.threads is not None:
            return self
        raw = self.raw.copy()
        with open_dict(raw):
            raw.device.threads = count
        device = replace(self.config.device, threads=count)
        return replace(self, raw=raw, config=replace(self.config, device=device))
