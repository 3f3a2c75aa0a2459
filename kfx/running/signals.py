"""SIGTERM and SIGINT while a run goes on, and while its end is written."""

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
"""Exit codes of a run that SIGINT or SIGTERM ended."""


class Interrupted(KeyboardInterrupt):
    """A run or a sweep was interrupted and has said so; its argument is the exit code."""


class Terminated(BaseException):
    """SIGTERM, as a batch system sends it before its limit."""


@contextlib.contextmanager
def stoppable(record: Record) -> Iterator[None]:
    """SIGTERM and SIGINT as exceptions, noted in the record as well: what a library swallows comes up at the next
    checkpoint."""

    def stop(number: int, frame: FrameType | None) -> None:
        record.stop = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        raise record.stop

    with _handled_by(stop):
        yield


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM as Ctrl-C: what runs in other processes is stopped with this one."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(stop):
        yield


@contextlib.contextmanager
def noted() -> Iterator[list[int]]:
    """SIGTERM and SIGINT as KeyboardInterrupt, and their numbers in the list: a library may swallow the exception, or
    make an error of its own of it."""
    numbers: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        raise KeyboardInterrupt

    with _handled_by(stop):
        yield numbers


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C or SIGTERM waits until the record is written."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread alone
        yield
        return
    before = [signal.signal(number, handler) for number in NUMBERS]
    try:
        yield
    finally:
        for number, usual in zip(NUMBERS, before, strict=True):
            signal.signal(number, usual)
