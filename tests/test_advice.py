"""What messages tell a person to type is there: each command, its options, and each key of a config with its value."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

import kfx
from kfx.cli import _parser
from kfx.config import registry
from kfx.config.nodes import make
from kfx.config.registry import OPTIONS, SECTIONS
from kfx.experiment.compose import composed
from kfx.outcomes import ConfigError

FOLDER = Path(kfx.__file__).parent
HOLE = "§"
"""Stands for what an f-string puts in."""
COMMAND = re.compile(r"\bkfx( [a-z]+\b.*?)(?:$|[;,:`()\n…]|\. )")
PROSE = {"has", "takes", "starts", "lets", "constructs", "checks", "gives"}
"""Words that follow kfx where it is the subject of a sentence."""
FOLLOWS = {"shows", "goes", "finds", "for"}
"""Words that go on after a command."""
KEY = re.compile(
    r"(?<![\w./§\-\[@])[+~]?(?P<key>[a-z_]+(?:\.[a-z_§][a-z_0-9§]*)*)(?:=(?P<value>\[[^\]]*\]|[^\s;,:)'\"`]*))?"
)


def texts():
    """(place, text) of each string in the code that is no docstring."""
    for path in sorted(FOLDER.rglob("*.py")):
        tree = ast.parse(path.read_text())
        left_out = set()
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
                left_out.add(node.body[0].value)
            if isinstance(node, ast.JoinedStr):
                left_out |= set(node.values)
        for node in ast.walk(tree):
            if node in left_out:
                continue
            place = f"{path.relative_to(FOLDER)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield place, "".join(part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield place, re.sub(r"\{(own|config)\.[^{}]*\}", HOLE, node.value)  # of a rule


def accepts(word, commands):
    """Why the parser does not take a command, None where it does: what is left open, it may miss."""
    name, *rest = word.split()
    if name not in commands:
        return None if name in PROSE else "no such command"
    end = next((i for i, each in enumerate(rest) if each in FOLLOWS), len(rest))
    try:
        commands[name].parse_intermixed_args([each.replace(HOLE, "x") for each in rest[:end]])
    except ConfigError as error:
        return None if "required" in str(error) or HOLE in word.split()[1] else str(error)
    except (SystemExit, IndexError):  # of --help
        pass
    return None


@pytest.mark.slow
def test_every_command_that_a_message_names_is_parsed():
    commands = _parser()[1]
    found = [(place, words.strip()) for place, text in texts() for words in COMMAND.findall(text)]
    assert len(found) > 50
    wrong = [f"{place}: kfx {words}: {why}" for place, words in found if (why := accepts(words, commands))]
    assert not wrong, "\n".join(wrong)


# ---- keys


def fields():
    """The options and sections that have a field, by its name: with its group or section, and alone."""
    registry.load()
    found = {}
    groups = {**OPTIONS, **{name: {"": section} for name, section in SECTIONS.items()}}
    for group, options in groups.items():
        for option in options.values():
            for field in (*option.fields(), "name"):
                for key in (f"{group}.{field}".lstrip("."), field):
                    found.setdefault(key, []).append(option)
    return found


def arguments():
    """What functions of the package take by name."""
    trees = [ast.parse(path.read_text()) for path in FOLDER.rglob("*.py")]
    return {node.arg for tree in trees for node in ast.walk(tree) if isinstance(node, ast.arg)}


def takes(option, field, value):
    """Whether an option takes the value of a field, the others being its defaults."""
    plain = {key: each for key, each in option.defaults().items() if key != "name"}
    try:
        make("here", option, {**plain, field: value})
    except ConfigError as error:
        return f"here.{field}" not in str(error)
    return True


def why_not(key, value, fields, arguments, hydra):
    """Why a key, or a value that is said in full, is none of a config or a function; None where it is one."""
    head, _, rest = key.partition(".")
    field = (rest or head).partition(".")[0]
    is_said = bool(value) and HOLE not in value and not re.search(r"[A-Z…]|low, high", value)
    if HOLE in field or key in ("key", "group", "experiment"):
        return None
    if head == "hydra":
        return None if field in hydra else "no key of Hydra's"
    if key in OPTIONS:
        return None if not is_said or value in OPTIONS[key] else "no option"
    options = fields.get(f"{head}.{field}" if rest else head)
    if options is None:
        return None if key in arguments else "no key"
    if not is_said or "." in rest.removeprefix(field):
        return None
    try:
        given = OverridesParser.create().parse_overrides([f"{key}={value}"])[0].value()
    except HydraException:
        return "cannot be read"
    if any(takes(option, field, given) for option in options) or key in arguments:
        return None
    return "a value that is not taken"


def advised():
    """(place, key, value or None) of what stands in a message: a key with a value, or one with its group or section."""
    for place, text in texts():
        if " " not in text or "<" in text:  # a name, or HTML
            continue
        for found in KEY.finditer(text):
            key, value = found["key"], found["value"]
            of_config = key.partition(".")[0] in {*OPTIONS, *SECTIONS, "hydra"} and "." in key
            if value is not None or (of_config and not key.endswith((".csv", ".png"))):
                yield place, key, value


@pytest.mark.slow
def test_every_key_that_a_message_names_is_there_and_takes_the_value():
    found = list(advised())
    assert len(found) > 200
    known = fields(), arguments(), composed([]).hydra
    wrong = [f"{place}: {key}={value}: {why}" for place, key, value in found if (why := why_not(key, value, *known))]
    assert not wrong, "\n".join(wrong)
