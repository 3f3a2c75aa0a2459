"""The registry of options by group and name, with the origin of each."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from kfx.outcomes import ConfigError

GROUPS = ("dataset", "kernel", "objective", "sampler", "optimizer", "evaluation", "device")
"""Groups whose options are dataclasses; `experiment` has only files."""

_FAMILIES = ("data", "kernels", "objectives", "sampling", "optimizers", "flows", "evaluation", "experiment")
_OPTION = re.compile(r'^@option\(\s*"(\w+)",\s*"(\w+)"', re.MULTILINE)
_SECTION_OR_METRIC = re.compile(r"^@(section|metric)\(", re.MULTILINE)
_ENTRY_POINTS = "kfx.options"


Schema = type[Any]
"""The class of an option or a section. Any: this module must not import `Option`."""


class Options(Mapping[str, Schema]):
    """The options of a group by name. A file of kfx that declares one is imported when that option is asked for."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.found: dict[str, Schema | str] = {}  # the class, or the module that declares it

    def __getitem__(self, name: str) -> Schema:
        found = self.found[name]
        if isinstance(found, str):
            classes = [each for each in vars(importlib.import_module(found)).values() if isinstance(each, type)]
            found = self.found[name] = next(each for each in classes if self._is(each, name))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def _is(self, each: type, name: str) -> bool:
        return (vars(each).get("group"), vars(each).get("name")) == (self.group, name)

    def expect(self, name: str, module: str) -> None:
        """Know that this module declares an option, and keep the order of these calls, whatever is imported already."""
        self.found[name] = self.found.pop(name, module)

    def add(self, made: Schema) -> None:
        """Register a class; ConfigError if another one has its name."""
        if self.found.get(made.name, made.__module__) != made.__module__:  # a class, or another module
            raise ConfigError(f"{made.group}={made.name}: is there already, from {self[made.name].origin}; rename it")
        self.found[made.name] = made


OPTIONS: dict[str, Options] = {group: Options(group) for group in GROUPS}
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
    package = Path(__file__).resolve().parents[1]
    for family in _FAMILIES:
        for path in sorted((package / family).rglob("*.py"), key=lambda path: (path.name != "options.py", path)):
            module, source = (
                ".".join(("kfx", *path.relative_to(package).with_suffix("").parts)),
                path.read_text("utf-8"),
            )
            for group, name in _OPTION.findall(source):
                OPTIONS[group].expect(name, module)
            if _SECTION_OR_METRIC.search(source):
                importlib.import_module(module)
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


def origin_of(cls: type) -> str:
    """The origin of a class that is registered now: `kfx`, the source of the block `from_source`, or its module."""
    if cls.__module__.startswith("kfx."):
        return "kfx"
    return cls.__module__ if _origin == "kfx" else _origin


def described(error: BaseException) -> str:
    """An error in one line, its type first."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
