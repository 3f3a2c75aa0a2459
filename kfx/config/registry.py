"""The registry of options by group and name, with the origin of each."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from kfx.outcomes import ConfigError

GROUPS = ("dataset", "kernel", "objective", "sampler", "optimizer", "evaluation", "device")
"""Groups whose options are dataclasses; `experiment` has only files."""

_FAMILIES = (
    "kfx.data.options",
    "kfx.data.image_options",
    "kfx.data.own_options",
    "kfx.data.uci_options",
    "kfx.data.series_options",
    "kfx.data.emulator_options",
    "kfx.kernels.options",
    "kfx.kernels.combination_options",
    "kfx.kernels.conv_dkm.option",
    "kfx.objectives.options",
    "kfx.sampling.options",
    "kfx.optimizers.options",
    "kfx.optimizers.search_options",
    "kfx.optimizers.cross_entropy",
    "kfx.optimizers.backtest",
    "kfx.optimizers.elbo",
    "kfx.flows.options",
    "kfx.evaluation.options",
    "kfx.evaluation.rollout_option",
    "kfx.evaluation.follow_option",
    "kfx.experiment.options",
)
_ENTRY_POINTS = "kfx.options"


Schema = type[Any]
"""The class of an option or a section; `Option` itself stands above this room."""

OPTIONS: dict[str, dict[str, Schema]] = {group: {} for group in GROUPS}
SECTIONS: dict[str, Schema] = {}
"""Parts of a config outside the groups; the section "" holds the keys of the config itself."""


_origin = "kfx"


@contextmanager
def from_source(source: str) -> Iterator[None]:
    """Within the block, newly registered options have the origin `source`."""
    global _origin
    before, _origin = _origin, source
    try:
        yield
    finally:
        _origin = before


@cache
def load() -> None:
    """Register the options of kfx and of installed packages."""
    for family in _FAMILIES:
        importlib.import_module(family)
    for entry in importlib.metadata.entry_points(group=_ENTRY_POINTS):
        source = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        with from_source(source):
            try:
                entry.load()
            except Exception as error:  # a package's code may raise anything
                raise ConfigError(f"{source}: its options cannot be loaded: {described(error)}") from error


def chosen(path: str, group: str, name: object) -> Schema:
    """The option of a group by its name; ConfigError, with `path` as the key, if there is none."""
    if not isinstance(name, str) or name not in OPTIONS[group]:
        raise ConfigError(f"{path}.name={name}: unknown; it takes {', '.join(OPTIONS[group])}")
    return OPTIONS[group][name]


def origin() -> str:
    """The origin of options registered now: `kfx`, or the source of the block `from_source`."""
    return _origin


def described(error: BaseException) -> str:
    """An error in one line, its type first."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
