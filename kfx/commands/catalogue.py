"""`kfx list` and `kfx data`: list options, and manage the files of data sets."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence

from kfx.commands.arguments import Commands, add_plugins
from kfx.config import registry
from kfx.config.catalogue import GROUPS, description, file_of, options
from kfx.config.option import Option
from kfx.config.plugins import load_plugins
from kfx.outcomes import ConfigError
from kfx.screen.terminal import console

_SECTIONS = "config"
"""The word for keys and sections that do not belong to a group."""


def add(commands: Commands) -> None:
    """Register the commands."""
    listing = commands.add_parser("list", help="experiments and the options of each group, or the keys of an option")
    group = listing.add_argument("group", nargs="?", help="one group only, say kernel or experiment, or config")
    group.completer = lambda **_: (*GROUPS, _SECTIONS)  # type: ignore[attr-defined]
    words = listing.add_argument(
        "words",
        nargs="*",
        help="an option, whose keys are shown; or words, for options that hold all of them, as darcy 'Fig. 3.4'",
    )
    words.completer = lambda parsed_args, **_: options(parsed_args.group) if parsed_args.group in GROUPS else ()  # type: ignore[attr-defined]
    listing.add_argument("--config-dir", help="look for further options of any group there")
    listing.add_argument("--names", action="store_true", help="names alone, for scripts")
    add_plugins(listing)
    listing.set_defaults(call=_list)

    data = commands.add_parser("data", help="data files: where they are, fetch them, verify them")
    data.add_argument("action", choices=("where", "fetch", "verify"))
    data.add_argument("dataset", nargs="*", help="mnist, fashion_mnist, cifar10, cifar100; all of them by default")
    data.set_defaults(call=_data)

    completion = commands.add_parser("completion", help='shell completion: eval "$(kfx completion bash)"')
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(call=_completion)


def _list(parsed: argparse.Namespace) -> int:
    group, words = parsed.group, parsed.words
    if group is not None and group not in (*GROUPS, _SECTIONS):
        raise ConfigError(f"kfx list {group}: unknown group; it takes {', '.join((*GROUPS, _SECTIONS))}")
    load_plugins(parsed.plugin)
    registry.load()
    if group == _SECTIONS:
        _show_sections(words)
        return 0
    for name in [group] if group else GROUPS:
        known = options(name, parsed.config_dir)
        if len(words) == 1 and words[0] in known and not parsed.names:
            _show_option(name, words[0], parsed.config_dir)
            continue
        described = {option: description(name, option, parsed.config_dir) for option in known}
        found = {option: text for option, text in described.items() if _holds(f"{option} {text}", words)}
        repeating = _commands_of(described, words, parsed.config_dir) if name == "experiment" and words else {}
        found = {option: text for option, text in described.items() if option in {*found, *repeating}}
        width = max(map(len, found), default=0)
        if words and not found:
            raise ConfigError(f"kfx list {name} {' '.join(words)}: no such option; kfx list {name} shows all")
        if not parsed.names:
            print(f"{name}")
        for option, text in found.items():
            print(option if parsed.names else f"  {option:<{width}}  {text}".rstrip())
            for command, source in [] if parsed.names else repeating.get(option, {}).items():
                print(f"    {command}  # {source}")
    return 0


def _holds(text: str, words: Sequence[str]) -> bool:
    """Whether a text has all words, in any case; a number in a word is not a part of a longer number."""

    def pattern(word: str) -> str:
        before, after = r"(?<![\d.])" if word[:1].isdigit() else "", r"(?!\d)" if word[-1:].isdigit() else ""
        return before + re.escape(word) + after

    return all(re.search(pattern(word), text, re.IGNORECASE) for word in words)


def _commands_of(described: Mapping[str, str], words: Sequence[str], own: str | None) -> dict[str, dict[str, str]]:
    """For each experiment the commands that repeat a published table or figure with all words, and where it is."""
    from kfx.config.published import read_published

    found: dict[str, dict[str, str]] = {}
    for experiment in described:
        for each in read_published(experiment, own):
            if _holds(f"{experiment} {each.source}", words) and not _holds(experiment, words):
                command = shlex.join(["kfx", "run", f"+experiment={experiment}", *each.overrides])
                found.setdefault(experiment, {}).setdefault(command, each.source)
    return found


def _show_option(group: str, name: str, own: str | None) -> None:
    """Print the keys of an option, or the file of a preset or an experiment."""
    if name not in registry.OPTIONS.get(group, {}):
        print(file_of(group, name, own).read_text(errors="replace"), end="")
        return
    schema = registry.OPTIONS[group][name]
    source = "" if schema.origin == "kfx" else f" [{schema.origin}]"
    print(f"{group}={name}: {schema.description}{source}")
    show_fields(schema, schema.defaults())


def _show_sections(words: Sequence[str]) -> None:
    names = [word for word in words if word in registry.SECTIONS]
    if len(names) < len(words):
        known = [name for name in registry.SECTIONS if name]
        raise ConfigError(f"kfx list {_SECTIONS} {' '.join(words)}: no such section; it takes {', '.join(known)}")
    for name in names or registry.SECTIONS:
        schema = registry.SECTIONS[name]
        print(f"{name}: {schema.description}" if name else schema.description)
        show_fields(schema, schema.defaults())
        print()


def show_fields(schema: type[Option], values: Mapping[str, object], *, column: str = "default") -> None:
    """Print a table of an option's keys: values, allowed values, meaning."""
    from rich.table import Table

    if not schema.fields():
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    table.add_column("key", no_wrap=True)
    table.add_column(column)
    table.add_column("takes")
    table.add_column("meaning")
    for key, value, takes, meaning in _rows(schema, values, ""):
        table.add_row(key, value, takes, meaning)
    screen = console(160)
    with screen.capture() as drawn:
        screen.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def _rows(schema: type[Option], values: Mapping[str, object], prefix: str) -> list[tuple[str, str, str, str]]:
    found = []
    for key, item in sorted(schema.fields().items(), key=lambda pair: _distance(schema, pair[0])):
        factory, value = item.default_factory, values.get(key)
        if isinstance(factory, type) and issubclass(factory, Option):
            found += _rows(factory, value or {}, f"{prefix}{key}.")
        else:
            takes, meaning = item.metadata.get("takes", ""), item.metadata.get("meaning", "")
            found.append((prefix + key, _shown(value), takes, meaning))
    return found


def _distance(schema: type[Option], key: str) -> int:
    """How far up the bases of an option a key is defined, for sorting: its own keys come first."""
    return -max(i for i, base in enumerate(reversed(schema.__mro__)) if key in vars(base).get("__annotations__", {}))


def _shown(value: object) -> str:
    """A value as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return repr(value) if isinstance(value, float) else str(value)


def _data(parsed: argparse.Namespace) -> int:
    from kfx.data.files import FILES, cache_folder, locate
    from kfx.files import digest

    action, datasets = parsed.action, parsed.dataset
    for name in datasets:
        if name not in FILES:
            raise ConfigError(f"kfx data {action} {name}: unknown data set; it takes {', '.join(FILES)}")
    print(cache_folder())
    failed = 0
    for dataset in datasets or FILES:
        for name, file in FILES[dataset].items():
            path = cache_folder() / file.path
            if action == "fetch":
                locate(dataset, name)
            if not path.is_file():
                state, failed = "missing", failed + (action == "verify")
            elif action == "where":
                state = f"{path.stat().st_size} bytes"
            elif digest(path, "md5") == file.md5:
                state = "as published"
            else:
                state = "not the published file"
                failed += action == "verify"
            print(f"  {file.path:<48}  {state}")
    return 1 if failed else 0


def _completion(parsed: argparse.Namespace) -> int:
    import argcomplete

    print(argcomplete.shellcode(["kfx"], shell=parsed.shell), end="")
    return 0
