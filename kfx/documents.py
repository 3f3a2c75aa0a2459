"""Read JSON files whose keys and types are known; what does not fit is an error in one line that names file and key."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kfx.files import Document
from kfx.outcomes import RecordError, Status

Shape = str | tuple[Any] | Mapping[str, Any]
"""What a value must be: one of `KINDS`; a tuple of one shape for a list of it; or a mapping with the shapes of keys,
where `key?` may be absent and `*` stands for all keys that are not listed. Other keys may hold anything."""


def is_number(value: object) -> bool:
    """Whether it is a finite number that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e308


def _is_whole(value: Any) -> bool:
    return is_number(value) and value == math.floor(value)


def _are_numbers(value: object) -> bool:
    return all(map(_are_numbers, value)) if isinstance(value, list) else value is None or is_number(value)


KINDS: dict[str, Callable[[object], bool]] = {
    "text": lambda value: isinstance(value, str),
    "text or null": lambda value: value is None or isinstance(value, str),
    "a number": is_number,
    "a number or null": lambda value: value is None or is_number(value),
    "a whole number": _is_whole,
    "a whole number or null": lambda value: value is None or _is_whole(value),
    "a number, or numbers in lists": _are_numbers,
    "running, completed, failed or interrupted": lambda value: isinstance(value, str) and value in set(Status),
    "true or false": lambda value: isinstance(value, bool),
    "a number for each size": lambda value: (
        isinstance(value, dict) and len(value) > 0 and all(k.isdecimal() and is_number(v) for k, v in value.items())
    ),
}


_DAMAGED = "damaged"


def read_document(path: Path, shape: Shape, problem: str = _DAMAGED) -> Document:
    """The content of a JSON file; RecordError, with the first key that does not fit, for another shape. problem: what
    such a file is."""
    try:
        content: Document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error, problem) from error
    require_shape(path, content, shape, problem)
    return content


def require_shape(path: Path, content: object, shape: Shape, problem: str = _DAMAGED) -> None:
    """RecordError unless what a file holds has a shape."""
    if (wrong := fault(content, shape)) is not None:
        raise damaged(path, wrong, problem)


def damaged(path: Path, why: object, problem: str = _DAMAGED) -> RecordError:
    """The error for a file that does not hold what it should."""
    remedy = "; restore it, or take its folder away" if problem == _DAMAGED else ""
    return RecordError(f"{path}: {problem}: {' '.join(str(why).split())}{remedy}")


def fault(value: object, shape: Shape, key: str = "") -> str | None:
    """The first key, in words, whose value does not have its shape; None where all have."""
    if isinstance(shape, str):
        return None if KINDS[shape](value) else _expected(shape, value, key)
    if isinstance(shape, tuple):
        if not isinstance(value, list):
            return _expected("a list", value, key)
        return next((wrong for i, each in enumerate(value) if (wrong := fault(each, shape[0], f"{key}[{i}]"))), None)
    if not isinstance(value, Mapping):
        return _expected("names and values", value, key)
    listed = {name.removesuffix("?") for name in shape}
    for name, of in shape.items():
        own = name.removesuffix("?")
        if name == "*" or (own not in value and name != own):
            continue
        if own not in value:
            return f"no {_path(key, own)}"
        if wrong := fault(value[own], of, _path(key, own)):
            return wrong
    others = [name for name in value if "*" in shape and name not in listed]
    return next((wrong for name in others if (wrong := fault(value[name], shape["*"], _path(key, str(name))))), None)


def _path(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _expected(what: str, value: object, key: str) -> str:
    shown = json.dumps(value, default=str)
    return f"{key}{'=' if key else ''}{shown if len(shown) < 40 else shown[:39] + '…'}: expected {what}"
