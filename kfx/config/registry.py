"""The registry of options by group and name, with the origin of each."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from kfx.outcomes import ConfigError

GROUPS = ("dataset", "kernel", "objective", "sampler", "optimizer", "evaluation", "device")
"""Groups whose options are dataclasses; `experiment` has only files."""

_FAMILIES = ("data", "kernels", "objectives", "sampling", "optimizers", "flows", "evaluation", "experiment")
_DECLARES = re.compile(rb"^@(option|section|metric)\(", re.MULTILINE)
_ENTRY_POINTS = "kfx.options"


Schema = type[Any]
"""The class of an option or a section. Any: this module must not import `Option`."""

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
    """Register the options and metrics of kfx and of installed packages; ConfigError for a package that fails.

    No import leads to them: `kernel=rbf` is the class under `@option("kernel", "rbf", …)` in a folder of `_FAMILIES`.
    """
    for module in _declaring():
        importlib.import_module(module)
    for entry in importlib.metadata.entry_points(group=_ENTRY_POINTS):
        source = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        with from_source(source):
            try:
                entry.load()
            except Exception as error:  # a package's code may raise anything
                raise ConfigError(f"{source}: its options cannot be loaded: {described(error)}") from error


def _declaring() -> Iterator[str]:
    """Yield the modules of kfx's families that declare something; others may need torch. `options.py` come first."""
    package = Path(__file__).resolve().parents[1]
    for family in _FAMILIES:
        for path in sorted((package / family).rglob("*.py"), key=lambda path: (path.name != "options.py", path)):
            if _DECLARES.search(path.read_bytes()):
                yield ".".join(("kfx", *path.relative_to(package).with_suffix("").parts))


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
