"""A plan: the words of a run, composed, checked and identified once, before the run begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from omegaconf import DictConfig, OmegaConf, open_dict

from kfx.config.plugins import Plugin, plugged_in
from kfx.experiment import compose
from kfx.experiment.config import Config, settled


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
        compose.check_hydra(composed.hydra)
        return cls.of_config(compose.without_hydra(composed), words, composed.hydra)

    @classmethod
    def of_config(cls, raw: DictConfig, words: Sequence[str] = (), hydra: DictConfig | None = None) -> Self:
        """Check a composed config, such as that of a record; ConfigError in one line for a wrong key."""
        return cls(tuple(words), *settled(raw), *(() if hydra is None else (hydra,)))

    @property
    def overrides(self) -> list[str]:
        """The words without those for Hydra, as the record keeps them."""
        return [word for word in self.words if not word.lstrip("+~").startswith(("hydra.", "hydra/"))]

    @cached_property
    def identity(self) -> str:
        """Sixteen hexadecimal digits that identify what the run computes; the data files must exist."""
        from kfx.experiment.identity import identity  # brings NumPy, which a wrong word need not wait for

        return identity(self.raw, self.config, self.plugins)

    def with_threads(self, count: int) -> Self:
        """The plan with `count` CPU threads, unless its config sets their number."""
        if self.config.device.threads is not None:
            return self
        raw = self.raw.copy()
        with open_dict(raw):
            raw.device.threads = count
        device = replace(self.config.device, threads=count)
        return replace(self, raw=raw, config=replace(self.config, device=device))
