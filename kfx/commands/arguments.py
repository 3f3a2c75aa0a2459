"""What several commands take: overrides, plugins, and the words that a shell may complete them to."""

from __future__ import annotations

import argparse
from typing import Any

from kfx.config import catalogue, registry


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """`--plugin FILE.py`, any number of times."""
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py", help="options of one's own, in Python (repeatable)"
    )


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """`group=option`, `key=value` and `+experiment=NAME`."""
    overrides = parser.add_argument("overrides", nargs="*", help="group=option, key=value, +experiment=NAME")
    overrides.completer = completions  # type: ignore[attr-defined]


def completions(prefix: str, **_: Any) -> list[str]:
    """What an override that begins so may become."""
    registry.load()
    key, equals, _rest = prefix.partition("=")
    if equals:
        bare = key.lstrip("+")
        if bare in catalogue.GROUPS:
            return [f"{key}={name}" for name in catalogue.options(bare)]
        return [f"{key}={value}" for value in _choices(bare)]
    groups = [f"{group}=" for group in registry.GROUPS]
    return [word for word in (*groups, "+experiment=", *_keys()) if word.startswith(prefix)]


def _keys() -> list[str]:
    """Every key of every option and section."""
    found = {f"{name}=" for name in registry.SECTIONS[""].fields()}
    for name, section in registry.SECTIONS.items():
        found |= {f"{name}.{key}=" for key in section.fields() if name}
    for group, options in registry.OPTIONS.items():
        found |= {f"{group}.{key}=" for option in options.values() for key in option.fields()}
    return sorted(found)


def _choices(key: str) -> list[str]:
    """The values that a key chooses among, where it does."""
    group, _, name = key.partition(".")
    schemas = [
        *registry.OPTIONS.get(group, {}).values(),
        *([registry.SECTIONS[group]] if group in registry.SECTIONS else []),
    ]
    found: dict[str, None] = {}
    for schema in schemas:
        if (item := schema.fields().get(name)) is not None:
            listed = item.metadata.get("choices", ("true", "false") if item.type in (bool, "bool") else ())
            found |= dict.fromkeys(listed)
    return list(found)
