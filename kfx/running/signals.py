"""Handle SIGTERM and SIGINT during a run, and while its end is written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kfx.record.record import Record

NUMBERS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = tuple(128 + number for number in NUMBERS)
"""Exit codes of a run ended by SIGINT or SIGTERM."""


class Interrupted(KeyboardInterrupt):
    """A run or a sweep was interrupted and has reported it; its argument is the exit code."""


class Terminated(BaseException):
    """SIGTERM, as a batch system sends it before its time limit."""


@contextlib.contextmanager
def stoppable(record: Record) -> Iterator[None]:
    """Within the block, SIGTERM and SIGINT raise exceptions.

    They are also noted in the record, which raises them at the next checkpoint if a library has swallowed them.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        record.stop = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        raise record.stop

    with _handled_by(stop):
        yield


@contextlib.contextmanager
def noted() -> Iterator[list[int]]:
    """Within the block, SIGTERM and SIGINT raise KeyboardInterrupt, and their numbers are added to the list.

    The list is needed because a library may swallow the exception or replace it by one of its own.
    """
    numbers: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        raise KeyboardInterrupt

    with _handled_by(stop):
        yield numbers


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Within the block, a second Ctrl-C or SIGTERM waits until the record is written."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    before = [signal.signal(number, handler) for number in NUMBERS]
    try:
        yield
    finally:
        for number, usual in zip(NUMBERS, before, strict=True):
            signal.signal(number, usual)
