"""What happens deep inside an evaluation and belongs in the trace: jitter on a diagonal, a tile made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from kfx.outcomes import Event


@dataclass
class Notices:
    """jitter: the largest one added. events: each once, in order."""

    jitter: float = 0.0
    events: list[Event] = field(default_factory=list)


_watching: ContextVar[Notices | None] = ContextVar("watching", default=None)


@contextmanager
def watch() -> Iterator[Notices]:
    """Collect the notices given inside the block: an objective and a kernel return numbers, not a log."""
    notices = Notices()
    token = _watching.set(notices)
    try:
        yield notices
    finally:
        _watching.reset(token)


def note(event: Event) -> None:
    notices = _watching.get()
    if notices is not None and event not in notices.events:
        notices.events.append(event)


def note_jitter(jitter: float) -> None:
    notices = _watching.get()
    if notices is not None:
        notices.jitter = max(notices.jitter, jitter)
