"""An option: a dataclass that a config can choose, with its fields, their ranges and its construction."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

from kfx.config import registry
from kfx.config.fields import FieldError, Several
from kfx.config.parts import Built, ConfigView, Part
from kfx.config.plugins import Portable
from kfx.config.registry import OPTIONS, SECTIONS
from kfx.config.rules import Rule
from kfx.outcomes import ConfigError

Settings = dict[str, Any]
"""Values by the names of fields: numbers, texts, lists and mappings, as a config has them."""

T = TypeVar("T", bound="Option")


@dataclass
class Option(Portable, Part):
    """A choice of a group, or a section of the config. Construction checks each field against its range."""

    group: ClassVar[str] = ""
    description: ClassVar[str] = ""
    symbol: ClassVar[str] = ""
    """Its symbol in papers and pictures, if it has one."""
    quick: ClassVar[tuple[str, ...]] = ()
    """Overrides with which a run that uses it ends in seconds, for smoke tests."""
    implied: ClassVar[Settings] = {}
    """Values of fields that are newer than the first records; identities leave these out, so that they stay."""
    rules: ClassVar[tuple[Rule, ...]] = ()
    """What it cannot be combined with: `needs` and `refuses` of `kfx.config.rules`."""
    builds: ClassVar[str] = ""
    """`module:name` of the class or function that it builds from its fields, imported when it is built."""

    def __post_init__(self) -> None:
        self.require(**{item.name: getattr(self, item.name) for item in dataclasses.fields(self)})

    @classmethod
    def require(cls, **values: object) -> None:
        """Raise FieldError, a ValueError, for a value outside the range of its field, so that what is built from fields
        need not state their ranges again."""
        for item in dataclasses.fields(cls):
            if item.name not in values or "test" not in item.metadata:
                continue
            try:
                good = item.metadata["test"](values[item.name])
            except TypeError:  # a value of another type, such as a list for a word
                good = False
            if not good:
                raise FieldError(item.name, values[item.name], item.metadata["takes"])

    @classmethod
    def check_definition(cls) -> None:
        """ConfigError for a class whose parts do not fit together; called when it is registered."""
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise ConfigError(f"{cls.group}={cls.name}: expected its methods {', '.join(missing)}")

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field[Several]]:
        """Its fields by name, each with `takes`, `test` and `meaning` as metadata."""
        return {item.name: item for item in dataclasses.fields(cls)}

    @classmethod
    def defaults(cls) -> Settings:
        """Its default fields as a config holds them; with `name` for an option."""
        plain = {}
        for key, item in cls.fields().items():
            factory = item.default_factory
            if isinstance(factory, type) and issubclass(factory, Option):
                plain[key] = factory.defaults()
            else:
                plain[key] = factory() if factory is not dataclasses.MISSING else item.default
        return {"name": cls.name, **plain} if cls.name else plain

    def constructor(self) -> Callable[..., Built]:
        """What `builds` names; NotImplementedError if it names nothing."""
        if not self.builds:
            raise NotImplementedError(f"{type(self).__name__}: expected `builds`, or a method that builds it")
        module, _, name = self.builds.partition(":")
        return getattr(importlib.import_module(module), name)

    def beyond(self, base: type[Option]) -> Settings:
        """Its values of the fields that this base class does not have."""
        return {name: getattr(self, name) for name in self.fields() if name not in base.fields()}

    def settled(self, config: ConfigView) -> Settings:
        """Values of the fields whose default depends on the other options of a config: what a field's `settle` returns
        where the field is null or `auto`."""
        settle = {key: item for key, item in self.fields().items() if "settle" in item.metadata}
        # null is a value beside a default of auto, and auto may be a name
        words = {k: ["auto"] if f.default else [None, *f.metadata.get("auto", ["auto"])] for k, f in settle.items()}
        asked = [key for key in settle if getattr(self, key) in words[key]]
        return {key: settle[key].metadata["settle"](self, config) for key in asked}

    def check(self, config: ConfigView) -> None:
        """ConfigError if this option cannot be combined with the others of a config, beyond its rules."""

    def check_together(self, config: ConfigView) -> None:
        """ConfigError for the first rule of its base classes, or of its own, that a config breaks, or by `check`."""
        for cls in reversed(type(self).__mro__):
            for rule in vars(cls).get("rules", ()):
                rule.check(self, config)
        self.check(config)


@dataclass_transform(field_specifiers=(dataclasses.field,))
def option(group: str, name: str, description: str) -> Callable[[type[T]], type[T]]:
    """Register a class as the option `group=name`; the class becomes a dataclass. ConfigError if it cannot be one."""

    def register(cls: type[T]) -> type[T]:
        if group not in OPTIONS:
            raise ConfigError(f"{group}={name}: unknown group; it takes {', '.join(OPTIONS)}")
        if not (isinstance(cls, type) and issubclass(cls, Option)) or not _NAME.fullmatch(name):
            raise ConfigError(f"{group}={name}: expected a class on Option, and a name of letters, digits and _")
        made = dataclass(cls)
        made.group, made.name, made.description = group, name, description
        made.origin = registry.origin_of(cls)
        _check_fields(made)
        made.check_definition()
        OPTIONS[group].add(made)
        return made

    return register


_NAME = re.compile(r"\w+")


def _check_fields(made: type[Option]) -> None:
    """ConfigError for a field without a range or a meaning, or with a default outside its range."""
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
