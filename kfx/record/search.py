"""Find runs on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kfx.files import Document
from kfx.lock import is_held
from kfx.outcomes import KfxError, RecordError, Status
from kfx.record.reading import Run, load_run, read_metrics

Made = TypeVar("Made")


@dataclass(frozen=True)
class Found:
    """A run on disk. `metrics` is empty if they cannot be read; `written` is when they were, in seconds since 1970."""

    directory: Path
    metrics: Document
    written: float = 0.0

    @property
    def identity(self) -> str | None:
        return self.metrics.get("identity")

    @property
    def status(self) -> str:
        return self.metrics.get("status", "unreadable")

    @property
    def state(self) -> str:
        """Its status; `killed` where the process of a running one was killed before it could write another."""
        return "killed" if self.status == Status.RUNNING and not is_held(self.directory) else self.status


def runs_below(roots: Iterable[Path], depth: int = 3) -> list[Found]:
    """Every run at most `depth` folders below the roots, newest last."""
    paths: set[Path] = set()
    for root in roots:
        for level in range(depth + 1):
            paths |= {path.parent.resolve() for path in Path(root).glob("/".join(["*"] * level + ["metrics.json"]))}
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # another process may have moved it meanwhile
            found.append(Found(path, metrics_in(path), (path / "metrics.json").stat().st_mtime))
    return sorted(found, key=lambda run: (run.written, run.directory))


def each_of(directories: Iterable[Path], make: Callable[[Run], Made]) -> tuple[list[Made], list[KfxError]]:
    """What is made of the run in each directory, and an error, which names the run, for each of which nothing can be
    made: one damaged run must not spoil what is shown of the others."""
    found, errors = [], []
    for directory in dict.fromkeys(directories):
        try:
            found.append(make(load_run(directory)))
        except KfxError as error:
            if str(directory) not in str(error):
                error.args = (f"{directory}: {error}", *error.args[1:])
            errors.append(error)
    return found, errors


def metrics_in(directory: Path) -> Document:
    """Its `metrics.json`; empty if it is missing or damaged."""
    try:
        return read_metrics(directory)
    except RecordError:
        return {}


def earlier(identity: str, roots: Iterable[Path]) -> Found | None:
    """The last run of this identity that a new run can use: a completed one, else one that can be resumed.

    A failed run is never used.
    """
    same = [run for run in runs_below(roots) if run.identity == identity]
    completed = [run for run in same if run.status == Status.COMPLETED]
    unfinished = [run for run in same if run.status in (Status.RUNNING, Status.INTERRUPTED)]
    candidates = completed or unfinished
    return candidates[-1] if candidates else None
