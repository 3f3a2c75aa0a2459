"""Write overrides: values quoted for Hydra, and whole words for a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_][\w./-]*|0|[1-9][0-9]*", re.ASCII | re.IGNORECASE)
"""Texts that Hydra reads literally."""


def escaped(value: object) -> Any:
    """A text, or the texts in plain keys and values, as a config holds them: `${` begins no interpolation."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if "${" in value else value
    if isinstance(value, Mapping):
        return {key: escaped(each) for key, each in value.items()}
    return [escaped(each) for each in value] if isinstance(value, (list, tuple)) else value


def literal(value: str | Sequence[str]) -> Any:
    """What a person typed, with or without a backslash before `${`, as the text itself."""
    return value.replace("\\${", "${") if isinstance(value, str) else [literal(each) for each in value]


def quoted(text: str, mark: str = "'") -> str:
    """A text as the value of an override. mark: the quotation mark around it."""
    within = re.sub(rf"(\\+)({mark}|$)", lambda found: found[1] * 2 + found[2], escaped(text))
    return mark + within.replace(mark, f"\\{mark}") + mark


def typed(key: str, value: str | Sequence[str]) -> str:
    """The override that sets a key to a text, or to a list of texts, as it is typed in a shell."""

    def written(text: str) -> str:
        return text if _PLAIN.fullmatch(text) else quoted(text, "'" if '"' in text and "'" not in text else '"')

    text = written(value) if isinstance(value, str) else "[" + ",".join(map(written, value)) + "]"
    return shlex.quote(f"{key}={text}")
