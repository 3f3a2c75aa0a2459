"""Rules of combination, as rows of an option's class: a setting, what it needs of the other parts, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from kfx.config.fields import Several
from kfx.config.parts import ConfigView
from kfx.outcomes import ConfigError


class Fact(NamedTuple):
    """Whether a config has a property, and what is said where it has not; `{config.…}` stands for values."""

    holds: Callable[[ConfigView], bool]
    otherwise: str


IMAGES = Fact(lambda c: c.dataset.image is not None, "dataset {config.dataset.name} has no images")
NO_IMAGES = Fact(lambda c: c.dataset.image is None, "takes a table, and the points are images")
CLASSES = Fact(lambda c: c.dataset.has_classes, "dataset {config.dataset.name} has no classes")
SERIES = Fact(lambda c: c.dataset.is_series, "forecasts series, and dataset {config.dataset.name} has none")
STILL_POINTS = Fact(lambda c: not c.optimizer.moves_points, "optimizer={config.optimizer.name} moves points")
POINT_GRADIENTS = Fact(
    lambda c: c.kernel.input_gradients, "moves points; kernel={config.kernel.name} has no gradient to them"
)


@dataclass(frozen=True)
class Rule:
    """A row: when an option, or its setting, does not go with its own settings and the other parts of a config.

    why: what is said, and what to do; in it `{own.…}` and `{config.…}` stand for values. key: a field that is set, or
    `field=word`; nothing for the option itself.
    """

    is_broken: Callable[[Several, ConfigView], bool]
    why: str
    key: str = ""

    def check(self, option: Several, config: ConfigView) -> None:
        """ConfigError if the option has the setting and the config breaks the rule."""
        key, _, wanted = self.key.partition("=")
        value = attrgetter(key)(option) if key else option.name
        is_set = (value == wanted or (isinstance(value, list) and wanted in value)) if wanted else bool(value)
        if is_set and self.is_broken(option, config):
            shown = str(value).lower() if isinstance(value, bool) else value
            at = f"{option.group}.{key}" if key else option.group
            raise ConfigError(f"{at}={shown}: {self.why.format(own=option, config=config)}")


refuses = Rule


def needs(fact: Fact, remedy: str, key: str = "") -> Rule:
    """The row of an option, or of a setting, that needs a fact."""
    return Rule(lambda _, config: not fact.holds(config), f"{fact.otherwise}; {remedy}", key)


def rows(*rules: Rule) -> tuple[Rule, ...]:
    """The rules of an option's class; those of its base classes hold too."""
    return rules
