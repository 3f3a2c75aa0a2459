"""The lock of a run directory, and host, PID and start time of the process that holds it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kfx.files import write_json
from kfx.outcomes import HeldError

_NOTE = ".writer.json"


class Lock:
    """The right to write to a run directory, held until `release`. HeldError names the process that holds it already.

    It is a lock of the operating system, which ends with the process that holds it: a file left behind by a crash is
        never taken for a holder.
    """

    def __init__(self, directory: Path, identity: str | None = None) -> None:
        self._note = directory / _NOTE
        self._lock = FileLock(directory / ".lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            name, held = holder(directory)
            raise HeldError(f"{directory}: {name} is writing to it; wait for it, or stop it", held) from None
        me = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time(), "identity": identity}
        try:
            write_json(self._note, me)
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._note.unlink()
        self._lock.release()


def holder(directory: Path) -> tuple[str, str | None]:
    """The process that holds a directory and the identity of its run, from the note that it has written."""
    for _ in range(20):  # the note is written a moment after the lock is taken
        try:
            note: dict[str, Any] = json.loads((directory / _NOTE).read_text())
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(note["since"]))
            return f"process {note['pid']} on {note['host']} (since {since})", note.get("identity")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            time.sleep(0.05)
    return "another process", None


def has_note(directory: Path) -> bool:
    """Whether a process took the lock and has not released it; it may be alive, or killed."""
    return (directory / _NOTE).exists()


def is_held(directory: Path) -> bool:
    """Whether a living process holds the directory now."""
    if not (directory / ".lock").exists():
        return False
    probe = FileLock(directory / ".lock", timeout=0)
    try:
        probe.acquire()
    except Timeout:
        return True
    probe.release()
    return False
