"""What a person typed for a run, as it can be typed again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kfx.files import Document


def as_typed(words: Sequence[str]) -> str:
    """A command line that a shell splits into these words, quoted where needed: '…', and "…" around '."""
    return " ".join(
        f'"{word}"' if "'" in word and not set(word) & set('"$`!\\\n') else shlex.quote(word) for word in words
    )


def command_of(metrics: Document, typed: Sequence[str]) -> str:
    """The command that made a run, but for its place. metrics: its `metrics.json`. typed: its overrides."""
    plugins = [word for plugin in metrics.get("plugins", []) for word in ("--plugin", plugin["path"])]
    return as_typed(["kfx", "run", *plugins, *(word for word in typed if not word.startswith("hydra."))])


def own_words(typed: Sequence[Sequence[str]]) -> list[list[str]]:
    """The overrides of each run of a sweep that not all of them share, without Hydra's."""
    shared = set.intersection(*map(set, typed)) if len(typed) > 1 else set()
    return [[word for word in words if word not in shared and not word.startswith("hydra.")] for words in typed]
