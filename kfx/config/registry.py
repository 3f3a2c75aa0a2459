"""Options: what a config may choose from, each a dataclass that owns its fields, their ranges and its construction."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.metadata
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol, SupportsIndex, TypeVar, dataclass_transform

from kfx.outcomes import ConfigError

GROUPS = ("dataset", "kernel", "objective", "sampler", "optimizer", "evaluation", "device")
"""Groups whose options are dataclasses; `experiment` holds files alone."""

_FAMILIES = (
    "kfx.data.options",
    "kfx.data.own_options",
    "kfx.kernels.options",
    "kfx.kernels.conv_dkm.option",
    "kfx.objectives.options",
    "kfx.sampling.options",
    "kfx.optimizers.options",
    "kfx.optimizers.search_options",
    "kfx.optimizers.cross_entropy",
    "kfx.optimizers.elbo",
    "kfx.flows.options",
    "kfx.evaluation.options",
    "kfx.experiment.options",
)
_ENTRY_POINTS = "kfx.options"


class FieldError(ValueError):
    """One field of an option is wrong: what it got and what it takes."""

    def __init__(self, name: str, got: Any, takes: str) -> None:
        super().__init__(f"{name}={got}: expected {takes}")


# ---- fields: a default, what the field takes, and what it means


def ranged(default: Any, takes: str, test: Callable[[Any], bool], meaning: str, **more: Any) -> Any:
    """A field with any range: `takes` in words, `test` in code. The other fields are special cases of this."""
    metadata = {"takes": takes, "test": test, "meaning": meaning, **more}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


MOST_POINTS = 10_000_000
MOST_REPEATS = 10_000
"""Larger numbers are slips, which would show only when memory or time had run out."""


def positive(default: float, meaning: str) -> Any:
    return ranged(default, "a number > 0", lambda v: math.isfinite(v) and v > 0, meaning)


def not_negative(default: float, meaning: str) -> Any:
    return ranged(default, "a number >= 0", lambda v: math.isfinite(v) and v >= 0, meaning)


def between(default: float, low: float, high: float, meaning: str) -> Any:
    return ranged(default, f"a number > {low} and < {high}", lambda v: low < v < high, meaning)


def from_to(default: float, low: float, high: float, meaning: str) -> Any:
    return ranged(default, f"a number >= {low} and < {high}", lambda v: low <= v < high, meaning)


def count(default: int, least: int, meaning: str, most: int = 10**9) -> Any:
    takes = f"a whole number >= {least}" + (f" and <= {most}" if most < 10**9 else "")
    return ranged(default, takes, lambda v: least <= v <= most, meaning)


def whole(default: int, meaning: str) -> Any:
    return ranged(default, "a whole number >= 0", lambda v: v >= 0, meaning)


def count_or_null(default: int | None, least: int, null: str, meaning: str) -> Any:
    """null: what null stands for."""
    takes = f"a whole number >= {least}, or null for {null}"
    return ranged(default, takes, lambda v: v is None or least <= v <= 10**9, meaning)


def one_of(default: str, *choices: str, meaning: str) -> Any:
    return ranged(default, f"one of {', '.join(choices)}", lambda v: v in choices, meaning, choices=choices)


def some_of(default: list[str], *choices: str, meaning: str) -> Any:
    return ranged(default, f"a list out of {', '.join(choices)}", lambda v: all(item in choices for item in v), meaning)


def flag(default: bool, meaning: str) -> Any:
    return ranged(default, "true or false", lambda v: isinstance(v, bool), meaning)


def rising(default: list[float] | None, meaning: str, *, null: str | None = None, lowest: float = -math.inf) -> Any:
    """Two rising numbers; `null` says what null stands for, where it is taken."""

    def test(pair: Any) -> bool:
        return (pair is None and null is not None) or (len(pair) == 2 and lowest <= pair[0] < pair[1] < math.inf)

    takes = "two rising numbers" + (f" >= {lowest:g}" if math.isfinite(lowest) else "")
    return ranged(default, takes + (f", or null for {null}" if null else ""), test, meaning)


def parameter(default: float, low: float, high: float, meaning: str) -> Any:
    """A kernel's parameter, > 0, that an optimizer moves within [low, high]."""
    metadata = {"bounds": (low, high)}

    def test(value: float) -> bool:
        return math.isfinite(value) and value > 0

    return ranged(default, "a number > 0", test, meaning, **metadata)


def variance(default: float, low: float, high: float, meaning: str) -> Any:
    """A kernel's parameter, >= 0, that an optimizer moves within [low, high]."""
    return ranged(
        default, "a number >= 0", lambda v: math.isfinite(v) and v >= 0, meaning, bounds=(low, high), may_be_zero=True
    )


def signed_parameter(default: float, low: float, high: float, meaning: str) -> Any:
    """A kernel's parameter of any sign, that an optimizer moves within [low, high]."""
    return ranged(default, "a number", math.isfinite, meaning, bounds=(low, high), signed=True)


def is_window(value: Any) -> bool:
    """Whether a value is [first, last] with 1 ≤ first ≤ last."""
    numbers = isinstance(value, list) and all(type(each) is int for each in value)
    return numbers and len(value) == 2 and 1 <= value[0] <= value[1]


def nested(default: Any, takes: str, convert: Callable[[str, Any], Any], meaning: str) -> Any:
    """A field that holds options: `convert(path, value)` makes them of what the config has."""
    return ranged(default, takes, lambda v: True, meaning, convert=convert)


class Portable:
    """What may name, or be made by, a plugin: its pickle carries the plugins in use, by path and SHA-256, and they are
    plugged in where it is loaded, before anything else of it.

    ConfigError there for a plugin that it needs and that is gone or has changed; the others may have.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        made: Any = super().__reduce_ex__(protocol)
        if not _plugins:
            return made
        make, arguments, *state = made
        modules = self._modules()
        needed = tuple(each for each in plugins() if each.module in modules)
        return _made, (_Carried(needed, tuple(plugins())), make, arguments), *state

    def _modules(self) -> set[Any]:
        """The modules that it cannot be without."""
        return {getattr(value, "__module__", None) for value in (self, *vars(self).values())}


@dataclass(frozen=True)
class _Carried:
    """Plugins in a pickle, the first thing in it."""

    needed: tuple[Plugin, ...]
    every: tuple[Plugin, ...]

    def __reduce__(self) -> Any:
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


def _made(carried: _Carried, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return make(*arguments)


# ---- options


class ConfigView(Protocol):
    """What an option sees of the config that it is part of: the other options, and the sections, by name."""

    dataset: Any
    kernel: Any
    objective: Any
    sampler: Any
    optimizer: Any
    evaluation: Any
    device: Any
    regularization: Any
    checkpoint: Any
    flow: Any
    follow: Any
    interpolation: Any
    kernel_check: bool

    def training_size(self) -> int:
        """How many points a kernel is trained on, as far as is known before the data are read."""
        ...


T = TypeVar("T", bound="Option")


@dataclass
class Option(Portable):
    """A choice of a group, or a section of the config of its own. Making one checks each field against its range."""

    group: ClassVar[str] = ""
    name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    symbol: ClassVar[str] = ""
    """As papers and pictures print it, where it has a symbol."""
    origin: ClassVar[str] = "kfx"
    """`kfx`, the distribution that brings it and its version, a plugin's file name, or where in Python it was made."""
    quick: ClassVar[tuple[str, ...]] = ()
    """Further overrides under which a run with it ends in seconds, for smoke tests."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            try:
                good = "test" not in item.metadata or item.metadata["test"](value)
            except TypeError:  # a list where a word belongs, or the like
                good = False
            if not good:
                raise FieldError(item.name, value, item.metadata["takes"])

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field[Any]]:
        """Its fields by name, each with `takes`, `test` and `meaning` as metadata."""
        return {item.name: item for item in dataclasses.fields(cls)}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Its fields as a config holds them by default; an option with its name."""
        plain = {}
        for key, item in cls.fields().items():
            factory = item.default_factory
            if isinstance(factory, type) and issubclass(factory, Option):
                plain[key] = factory.defaults()
            else:
                plain[key] = factory() if factory is not dataclasses.MISSING else item.default
        return {"name": cls.name, **plain} if cls.name else plain

    def check(self, config: ConfigView) -> None:
        """ConfigError if this option cannot go with the others of a config."""


OPTIONS: dict[str, dict[str, type[Any]]] = {group: {} for group in GROUPS}
SECTIONS: dict[str, type[Any]] = {}
"""Parts of a config that are not chosen; the section "" holds the keys of the config itself."""


@dataclass_transform(field_specifiers=(dataclasses.field,))
def option(group: str, name: str, description: str) -> Callable[[type[T]], type[T]]:
    """Register a class as the option `group=name`; the class becomes a dataclass."""

    def register(cls: type[T]) -> type[T]:
        if group not in OPTIONS:
            raise ConfigError(f"{group}={name}: unknown group; it takes {', '.join(OPTIONS)}")
        if not (isinstance(cls, type) and issubclass(cls, Option)) or not _NAME.fullmatch(name):
            raise ConfigError(f"{group}={name}: expected a class on Option, and a name of letters, digits and _")
        if name in OPTIONS[group]:
            raise ConfigError(f"{group}={name}: is there already, from {OPTIONS[group][name].origin}; rename it")
        made = dataclass(cls)
        made.group, made.name, made.description = group, name, description
        made.origin = _origin if _origin != "kfx" or cls.__module__.startswith("kfx.") else cls.__module__
        _check_fields(made)
        OPTIONS[group][name] = made
        return made

    return register


_NAME = re.compile(r"\w+")


def _check_fields(made: type[Option]) -> None:
    """ConfigError for a field that does not explain itself, or whose default is none that it takes."""
    for key, item in made.fields().items():
        at, is_nested = f"{made.group}={made.name}: its field {key}", isinstance(item.default_factory, type)
        if key == "name":
            raise ConfigError(f"{at}: is reserved; rename it")
        if not is_nested and not (item.metadata.get("takes") and item.metadata.get("meaning")):
            raise ConfigError(f"{at}: expected one of kfx.options' fields, as parameter(default, low, high, meaning)")
        low, high = item.metadata.get("bounds", (0.0, 1.0))
        good_bounds = low < high < math.inf and (low > -math.inf if item.metadata.get("signed") else low >= 0)
        if not (is_nested or item.metadata["test"](made.defaults()[key])) or not good_bounds:
            raise ConfigError(f"{at}: its default {item.default} or its bounds are not what it takes")


@dataclass_transform(field_specifiers=(dataclasses.field,))
def section(name: str, description: str) -> Callable[[type[T]], type[T]]:
    """Register a class as the section `name` of every config; the class becomes a dataclass."""

    def register(cls: type[T]) -> type[T]:
        made = dataclass(cls)
        made.group, made.description = name, description
        SECTIONS[name] = made
        return made

    return register


_origin = "kfx"


@contextmanager
def _from(source: str) -> Iterator[None]:
    """Within the block, options that register come from `source`."""
    global _origin
    before, _origin = _origin, source
    try:
        yield
    finally:
        _origin = before


@cache
def load() -> None:
    """Register kfx's own options and those of installed packages."""
    for family in _FAMILIES:
        importlib.import_module(family)
    for entry in importlib.metadata.entry_points(group=_ENTRY_POINTS):
        source = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        with _from(source):
            try:
                entry.load()
            except Exception as error:  # of a stranger's code anything may come
                raise ConfigError(f"{source}: its options cannot be loaded: {_where(error)}") from error


def chosen(path: str, group: str, name: Any) -> type[Any]:
    """The option of a group by its name; ConfigError, with `path` as the key, where there is none."""
    if not isinstance(name, str) or name not in OPTIONS[group]:
        raise ConfigError(f"{path}.name={name}: unknown; it takes {', '.join(OPTIONS[group])}")
    return OPTIONS[group][name]


# ---- plugins: options in a file that a person names on the command line


@dataclass(frozen=True)
class Plugin:
    """A Python file whose options are registered: where it is, and what was in it."""

    path: str
    sha256: str

    @property
    def module(self) -> str:
        """The name of the module that it is loaded as."""
        return f"kfx_plugin_{Path(self.path).stem}_{self.sha256[:8]}"


_plugins: dict[str, Plugin] = {}


def plugins() -> list[Plugin]:
    """Those in use, in the order of their names on the command line."""
    return list(_plugins.values())


def plug_in(paths: Sequence[str | Path]) -> None:
    """Register the options in these files; ConfigError with one line for a file that is missing or fails."""
    load()
    for path in map(Path, paths):
        _plug_in(path)


def _plug_in(path: Path, expected: str | None = None) -> None:
    """Register the options in a file, unless that is done. expected: its SHA-256, where only that one will do."""
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
    if any(plugin.path == str(path.resolve()) for plugin in plugins()):
        raise ConfigError(f"--plugin {path}: has changed since it was loaded; start a new process")
    plugin = Plugin(str(path.resolve()), sha256)
    module = ModuleType(plugin.module)
    module.__file__ = plugin.path
    before = {group: dict(options) for group, options in OPTIONS.items()}
    _sources.add(str(path))
    sys.modules[module.__name__] = module  # where its dataclasses look their annotations up
    try:
        with _from(path.name):
            exec(compile(source, str(path), "exec"), module.__dict__)  # what was hashed, and no cached bytecode
        for group, options in OPTIONS.items():
            for name in set(options) - set(before[group]):
                _check_types(options[name])
    except (Exception, SystemExit) as error:  # of a stranger's code anything may come
        for group, options in before.items():
            OPTIONS[group].clear()
            OPTIONS[group].update(options)
        del sys.modules[module.__name__]
        why = str(error) if isinstance(error, ConfigError) else _where(error)
        raise ConfigError(f"--plugin {path}: {why}") from error
    _plugins[sha256] = plugin


def _check_types(made: type[Option]) -> None:
    """ConfigError for a field of a type that no config can hold."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.structured(made)
    except (OmegaConfBaseException, NameError, TypeError) as error:
        raise ConfigError(f"{made.group}={made.name}: a field has a type that is none of a config: {error}") from error


def require(needed: Sequence[Mapping[str, str]], where: str, *, no_others: bool = False) -> None:
    """ConfigError unless the plugins in use are those that a record names, by their content. no_others: and no more,
    for they are part of its identity."""
    present = {plugin.sha256: Path(plugin.path) for plugin in plugins()}
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
    """An error in one line, with the plugin and its line where it arose; None where it did not come from one."""
    frame, found = error.__traceback__, None
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file in _sources:
            found = f"{Path(file).name}, line {frame.tb_lineno}"
        frame = frame.tb_next
    return None if found is None else f"{type(error).__name__}: {' '.join(str(error).split())} ({found})"


_sources: set[str] = set()
"""Files of plugins, by the names that tracebacks show."""


def _where(error: BaseException) -> str:
    """An error in one line."""
    return in_plugin(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"
