"""Plugins: Python files with options and metrics, named on the command line, and pickled objects that need them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, SupportsIndex

from kfx.config.metrics import METRICS, Metric
from kfx.config.registry import OPTIONS, Schema, described, from_source, load
from kfx.outcomes import ConfigError


@dataclass(frozen=True)
class Plugin:
    """A Python file whose options are registered: its path and the hash of its content."""

    path: str
    sha256: str

    @property
    def module(self) -> str:
        """The name under which its module is loaded."""
        return f"kfx_plugin_{Path(self.path).stem}_{self.sha256[:8]}"


_plugins: dict[str, Plugin] = {}


def plugged_in() -> list[Plugin]:
    """The plugins in use, in the order of the command line."""
    return list(_plugins.values())


def _registered() -> tuple[dict[str, dict[str, Schema | str]], dict[str, Metric]]:
    return {group: dict(options.found) for group, options in OPTIONS.items()}, dict(METRICS)


def _restore(options_before: Mapping[str, dict[str, Schema | str]], metrics: Mapping[str, Metric]) -> None:
    METRICS.clear()
    METRICS.update(metrics)
    for group, found in options_before.items():
        OPTIONS[group].found = dict(found)


def load_plugins(paths: Sequence[str | Path]) -> None:
    """Register the options in these files; ConfigError in one line for a file that is missing or fails."""
    load()
    for path in map(Path, paths):
        _plug_in(path)


def _plug_in(path: Path, expected: str | None = None) -> None:
    """Register the options in a file, unless that has been done. expected: the SHA-256 that the file must have, if
    any."""
    if expected in _plugins:
        return
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--plugin {path}: expected a Python file ({error.strerror})") from error
    sha256 = hashlib.sha256(source).hexdigest()
    if sha256 in _plugins:
        return
    if expected not in (None, sha256):
        raise ConfigError(
            f"--plugin {path}: has changed (SHA-256 {sha256[:12]}…, not {expected[:12]}…); give that file"
        )
    if any(plugin.path == str(path.resolve()) for plugin in plugged_in()):
        raise ConfigError(f"--plugin {path}: has changed since it was loaded; start a new process")
    plugin = Plugin(str(path.resolve()), sha256)
    module = ModuleType(plugin.module)
    module.__file__ = plugin.path
    before = _registered()
    _sources.add(str(path))
    sys.modules[module.__name__] = module  # dataclasses look up annotations there
    try:
        with from_source(path.name):
            exec(compile(source, str(path), "exec"), module.__dict__)  # run the hashed source, not cached bytecode
        for group, options in OPTIONS.items():
            for name in set(options) - set(before[0][group]):
                _check_types(options[name])
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        _restore(*before)
        del sys.modules[module.__name__]
        why = str(error) if isinstance(error, ConfigError) else in_plugin(error) or described(error)
        raise ConfigError(f"--plugin {path}: {why}") from error
    _plugins[sha256] = plugin


def _check_types(made: Schema) -> None:
    """ConfigError for a field of a type that a config cannot hold."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.structured(made)
    except (OmegaConfBaseException, NameError, TypeError) as error:
        raise ConfigError(f"{made.group}={made.name}: a field has a type that is none of a config: {error}") from error


def require_plugins(needed: Sequence[Mapping[str, str]], where: str, *, no_others: bool = False) -> None:
    """ConfigError unless the plugins that a record names are in use, with the same content.

    no_others: refuse further plugins too, because plugins are part of a run's identity.
    """
    present = {plugin.sha256: Path(plugin.path) for plugin in plugged_in()}
    for plugin in needed:
        if plugin["sha256"] in present:
            continue
        path = Path(plugin["path"])
        if any(other.name == path.name for other in present.values()):
            raise ConfigError(
                f"{where}: was made with another {path.name} (SHA-256 {plugin['sha256'][:12]}…); give that file"
            )
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        raise ConfigError(f"{where}: was made with the plugin {shown}; add --plugin {shown}")
    surplus = set(present) - {plugin["sha256"] for plugin in needed}
    if no_others and surplus:
        raise ConfigError(f"{where}: was made without the plugin {present[min(surplus)].name}; leave it out")


def in_plugin(error: BaseException) -> str | None:
    """An error in one line with the plugin and the line that raised it; None if it does not come from a plugin."""
    frame, found = error.__traceback__, None
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file in _sources:
            found = f"{Path(file).name}, line {frame.tb_lineno}"
        frame = frame.tb_next
    return None if found is None else f"{described(error)} ({found})"


_sources: set[str] = set()
"""Files of plugins, with the names that tracebacks show."""


# ---- pickles


class Portable:
    """Base class of objects that plugins may define or be named in: their pickles carry the plugins in use.

    A pickle holds path and SHA-256 of each plugin, and loads the plugins before the object. ConfigError if a plugin
    that the object needs is missing or has changed then; other plugins may be.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        made: Any = super().__reduce_ex__(protocol)
        if not _plugins:
            return made
        make, arguments, *state = made
        modules = self._modules()
        needed = tuple(each for each in plugged_in() if each.module in modules)
        return _made, (_Carried(needed, tuple(plugged_in())), make, arguments), *state

    def _modules(self) -> set[str | None]:
        """The modules that the object needs."""
        return {getattr(value, "__module__", None) for value in (self, *vars(self).values())}


@dataclass(frozen=True)
class _Carried:
    """The plugins at the beginning of a pickle."""

    needed: tuple[Plugin, ...]
    every: tuple[Plugin, ...]

    def __reduce__(self) -> tuple[object, ...]:
        return _plugged_in, (self.needed, self.every)


def _plugged_in(needed: tuple[Plugin, ...], every: tuple[Plugin, ...]) -> _Carried:
    load()
    for plugin in every:
        try:
            _plug_in(Path(plugin.path), plugin.sha256)
        except ConfigError as error:
            if plugin in needed:
                raise ConfigError(f"what is loaded needs a plugin: {error}") from error
    return _Carried(needed, every)


def _made(carried: _Carried, make: Callable[..., object], arguments: tuple[object, ...]) -> object:
    return make(*arguments)
