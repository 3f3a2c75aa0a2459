"""Manifests of stores: JSON files of which every listed entry is checked before it is used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kfx.files import Document
from kfx.outcomes import StoreError

MANIFEST = "manifest.json"
REMEDY = "bring that file back from a copy, or make the store anew in another folder"
_MISSING = object()


class Entry(NamedTuple):
    """One entry of a manifest: allowed values in words, and a test for them. optional: the entry may be missing."""

    takes: str
    test: Callable[[Any], bool]
    optional: bool = False


def read(folder: Path, what: str, entries: Mapping[str, Entry]) -> Document:
    """The manifest of the store in a folder; entries that are not listed are ignored.

    StoreError, which says that the folder holds no `what`, if a listed entry is missing or has a wrong value.
    """
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        if not isinstance(content, dict):
            raise ValueError("expected names and values")
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{folder}: is no {what} (its {MANIFEST}: {line_of(error)}); {REMEDY}") from error
    for name, entry in entries.items():
        value = content.get(name, _MISSING)
        if not (entry.optional if value is _MISSING else entry.test(value)):
            came = "missing" if value is _MISSING else shortened(json.dumps(value))
            raise StoreError(
                f"{folder}: is no {what} (its {MANIFEST}: {name} is {came}, expected {entry.takes}); {REMEDY}"
            )
    return content


def require(condition: bool, path: Path, key: str, came: object, takes: str) -> None:
    """Raise StoreError, naming the file, the key, the value found and the allowed values, unless the condition
    holds."""
    if not condition:
        raise StoreError(f"{path}: {key} is {shortened(str(came))}, expected {takes}; {REMEDY}")


def whole(least: int, most: int | None = None) -> Entry:
    takes = f"a whole number >= {least}" + ("" if most is None else f" and <= {most}")
    return Entry(takes, lambda v: type(v) is int and least <= v and (most is None or v <= most))


def hexadecimal(digits: int) -> Entry:
    pattern = re.compile(f"[0-9a-f]{{{digits}}}")
    return Entry(f"{digits} hexadecimal digits", lambda v: isinstance(v, str) and pattern.fullmatch(v) is not None)


def line_of(error: BaseException) -> str:
    """The message of an error, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
