"""Make options from nodes of a config; every key, type and range is checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kfx.config.fields import FieldError, Several
from kfx.config.option import Option
from kfx.config.overrides import escaped
from kfx.config.registry import OPTIONS, chosen
from kfx.outcomes import ConfigError

T = TypeVar("T", bound=Option)

_MOST_SHOWN = 30


def make_option(path: str, group: str, node: object) -> Option:
    """Make the option of `group` that the node at `path` names, with its fields; ConfigError in one line."""
    name = node.get("name") if isinstance(node, Mapping) else node
    schema = chosen(path, group, name)
    if not isinstance(node, Mapping):
        return make(path, schema, node)
    return make(path, schema, {key: value for key, value in node.items() if key != "name"})


def make(path: str, schema: type[T], node: object) -> T:
    """Make an option or section from plain keys and values; ConfigError names the key, the value found, and the allowed
    values."""
    fields, at = schema.fields(), f"{path}." if path else ""
    if not isinstance(node, Mapping):
        shown = "null" if node is None else node
        raise ConfigError(f"{path}={shown}: expected {', '.join(fields)}; leave it out for the defaults")
    for key in map(str, node):
        if key not in fields:
            raise ConfigError(f"{at}{key}: unknown key; {taken(schema, key)}")
    made: dict[str, object] = {}
    for key, item in fields.items():
        if "convert" in item.metadata and (key in node or item.default is not None):
            made[key] = item.metadata["convert"](f"{at}{key}", node.get(key, schema.defaults()[key]))
        elif key in node and isinstance(item.default_factory, type) and issubclass(item.default_factory, Option):
            made[key] = make(f"{at}{key}", item.default_factory, node[key])
    plain = {key: value for key, value in node.items() if key not in made}
    try:
        hints = _hints(schema)
        option: Several = (
            schema(**plain)  # much faster
            if all(_has_type(value, hints[key]) for key, value in plain.items())
            else OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(escaped(plain))))
        )
        for key, value in made.items():
            setattr(option, key, value)
        return option
    except FieldError as error:
        raise ConfigError(f"{at}{error}") from error
    except OverflowError as error:  # of a whole number with hundreds of digits where any number is taken
        key = next(key for key, value in plain.items() if isinstance(value, int) and abs(value) > 1e308)
        takes = fields[key].metadata.get("takes", "a number")
        raise ConfigError(f"{at}{key}: is too large; expected {takes}") from error
    except OmegaConfBaseException as error:
        if isinstance(error.__cause__, FieldError):
            raise ConfigError(f"{at}{error.__cause__}") from error
        key = str(error.full_key or "")
        wrong = fields.get(key.split("[")[0])
        takes = wrong.metadata.get("takes", "text") if wrong else "a value of another type"
        got = OmegaConf.select(OmegaConf.create({"node": escaped(plain)}), f"node.{key}") if key else ""
        raise ConfigError(f"{at}{key}={got}: expected {takes}") from error


@cache
def _hints(schema: type[Option]) -> dict[str, object]:
    return get_type_hints(schema)


def _has_type(value: object, hint: object) -> bool:
    """Whether a value is of its field's type, so that OmegaConf would take it as it is."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if type(value) is list:
        items = [get_args(kind)[0] for kind in kinds if get_origin(kind) is list]
        return bool(items) and all(_has_type(each, items[0]) for each in value)
    if type(value) is str and value == "???":
        return False
    return type(value) in (bool, int, float, str, NoneType) and (hint is Any or type(value) in kinds)


def taken(schema: type[Option], key: str) -> str:
    """The keys that an option or section takes, the one that was probably meant by `key`, and the options of its group
    that have `key`."""
    known = schema.fields()
    having = [name for name, other in OPTIONS.get(schema.group, {}).items() if schema.name and key in other.fields()]
    options = f"; {key} is a key of {', '.join(f'{schema.group}={name}' for name in having)}" if having else ""
    of = f"{schema.group}={schema.name}" if schema.name else "it"
    return f"{of} takes {near(key, known) if known else 'no keys'}{options}"


def near(word: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """The known words, and the one that was probably meant."""
    close = difflib.get_close_matches(word, list(known), n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"what kfx list shows{meant}" if len(known) > _MOST_SHOWN else f"{', '.join(known)}{meant}"


def leaves(node: object, path: str = "", *, into_lists: bool = True) -> Iterator[tuple[str, object]]:
    """(path, value) of each leaf of nested mappings and lists, as `a.b` or `a[0]`; an empty one is a leaf.

    into_lists: whether the items of a list are leaves, or the list itself.
    """
    inner: list[tuple[str, object]] = []
    if isinstance(node, Mapping):
        inner = [(f"{path}.{key}" if path else str(key), value) for key, value in node.items()]
    elif isinstance(node, list) and into_lists:
        inner = [(f"{path}[{i}]", value) for i, value in enumerate(node)]
    for own, value in inner:
        yield from leaves(value, own, into_lists=into_lists)
    if not inner:
        yield path, node


def plain(node: object) -> Several:
    """Keys and values without OmegaConf's types."""
    return OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
