"""Write overrides: values quoted for Hydra, and whole words for a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_][\w./-]*|0|[1-9][0-9]*", re.ASCII | re.IGNORECASE)
"""Texts that Hydra reads literally."""


def quoted(text: str, mark: str = "'") -> str:
    """Any text as the value of an override. mark: the quotation mark around it."""
    escaped = re.sub(rf"(\\+)({mark}|$)", lambda found: found[1] * 2 + found[2], text).replace(mark, f"\\{mark}")
    return f"{mark}{escaped}{mark}"


def typed(key: str, value: str | Sequence[str]) -> str:
    """The override that sets a key to a text, or to a list of texts, as it is typed in a shell."""

    def written(text: str) -> str:
        return text if _PLAIN.fullmatch(text) else quoted(text, "'" if '"' in text and "'" not in text else '"')

    text = written(value) if isinstance(value, str) else "[" + ",".join(map(written, value)) + "]"
    return shlex.quote(f"{key}={text}")
