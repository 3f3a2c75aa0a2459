"""Arguments that several commands share: overrides and plugins, with their completion in a shell."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from kfx.config import catalogue, option, registry

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where a subcommand adds its parser."""


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--plugin FILE.py`, which may be repeated."""
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py", help="a file with your own options (repeatable)"
    )


def add_cluster(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Add the arguments of the section `cluster`. when: what its help begins with."""
    parser.add_argument("--workers", type=int, metavar="N", help=f"{when}processes, as cluster.workers")
    parser.add_argument("--scheduler", metavar="ADDRESS", help=f"{when}Dask's scheduler, or slurm")
    parser.add_argument("--dashboard", metavar="ADDRESS", help=f"{when}address of Dask's dashboard")


def of_cluster(parsed: argparse.Namespace) -> dict[str, object]:
    """The values of these arguments, by config key."""
    asked = {f"cluster.{name}": getattr(parsed, name) for name in ("workers", "scheduler", "dashboard")}
    return {key: value for key, value in asked.items() if value is not None}


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add the arguments `group=option`, `key=value` and `+experiment=NAME`."""
    overrides = parser.add_argument("overrides", nargs="*", help="group=option, key=value, +experiment=NAME")
    overrides.completer = completions  # type: ignore[attr-defined]


def completions(prefix: str, **_: object) -> dict[str, str]:
    """Possible completions of an override, each with its description."""
    registry.load()
    key, equals, _rest = prefix.partition("=")
    if equals:
        bare = key.lstrip("+")
        if bare in catalogue.GROUPS:
            return {f"{key}={name}": catalogue.description(bare, name) for name in catalogue.options(bare)}
        return {f"{key}={value}": meaning for value, meaning in _choices(bare).items()}
    groups = {f"{group}=": f"one of {', '.join(registry.OPTIONS[group])}" for group in registry.GROUPS}
    words = {**groups, "+experiment=": "an experiment", **_keys()}
    return {word: text for word, text in words.items() if word.startswith(prefix)}


def _schemas() -> list[tuple[str, type[option.Option]]]:
    """Every option and section, with the prefix of its keys."""
    chosen = [(f"{group}.", option) for group, named in registry.OPTIONS.items() for option in named.values()]
    return [*chosen, *((f"{name}." if name else "", section) for name, section in registry.SECTIONS.items())]


def _keys() -> dict[str, str]:
    """Every key of every option and section, with its meaning."""
    return {
        f"{prefix}{key}=": item.metadata.get("meaning", "")
        for prefix, schema in _schemas()
        for key, item in schema.fields().items()
    }


def _choices(key: str) -> dict[str, str]:
    """The values of a key that takes one of several words; empty for other keys."""
    found: dict[str, str] = {}
    for prefix, schema in _schemas():
        item = schema.fields().get(key.removeprefix(prefix)) if key.startswith(prefix) else None
        if item is not None:
            listed = item.metadata.get("choices", ("true", "false") if item.type in (bool, "bool") else ())
            found |= dict.fromkeys(listed, item.metadata.get("meaning", ""))
    return found
