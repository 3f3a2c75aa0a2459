"""The command of a run, and what papers print for it, beside what it measured."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from kfx.config.published import Published
from kfx.experiment.config import Config
from kfx.files import Document
from kfx.outcomes import Status
from kfx.record.reading import typed_words
from kfx.report.measured import applicable, measured_as


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


def printed_beside(config: Config, metrics: Document, directory: Path) -> list[tuple[Published, float | None]]:
    """What papers print for a completed run, each with what it measured: without a deviation over runs, which one run
    does not have, and a curve that was not measured."""
    if metrics.get("status") != Status.COMPLETED:
        return []
    found = [(each, measured_as(each, metrics, directory)) for each in applicable(config, typed_words(directory))]
    return [
        (printed, measured)
        for printed, measured in found
        if measured is not None or (printed.statistic == "mean" and printed.value is not None)
    ]
