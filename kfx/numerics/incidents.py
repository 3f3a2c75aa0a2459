"""Incidents during an evaluation that the trace records: jitter added to a diagonal, a tile made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from kfx.outcomes import Event


@dataclass
class Incidents:
    """Incidents collected so far. jitter: the largest one added. events: each once, in order of first occurrence."""

    jitter: float = 0.0
    events: list[Event] = field(default_factory=list)


_watching: ContextVar[Incidents | None] = ContextVar("watching", default=None)


@contextmanager
def collect() -> Iterator[Incidents]:
    """Collect the incidents reported inside the block; objectives and kernels return numbers alone."""
    incidents = Incidents()
    token = _watching.set(incidents)
    try:
        yield incidents
    finally:
        _watching.reset(token)


def report(event: Event) -> None:
    incidents = _watching.get()
    if incidents is not None and event not in incidents.events:
        incidents.events.append(event)


def report_jitter(jitter: float) -> None:
    incidents = _watching.get()
    if incidents is not None:
        incidents.jitter = max(incidents.jitter, jitter)
