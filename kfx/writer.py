"""One writer a directory: a lock that the operating system drops with its process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kfx.outcomes import KfxError


class HeldError(KfxError):
    """Another process writes to this run."""


class Writer:
    """The right to write to a run directory, held until `release`. HeldError names the holder.

    The lock is the operating system's: it ends with the process that holds it, however that ends, so that what a
    crash leaves behind is never taken for a holder.
    """

    def __init__(self, directory: Path) -> None:
        self._note = directory / ".writer.json"
        self._lock = FileLock(directory / ".lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise HeldError(f"{directory}: {holder(directory)} is writing to it; wait for it, or stop it") from None
        self._note.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}))

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._note.unlink()
        self._lock.release()


def holder(directory: Path) -> str:
    """The process that holds a directory, by its own account."""
    try:
        note: dict[str, Any] = json.loads((directory / ".writer.json").read_text())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(note["since"]))
        return f"process {note['pid']} on {note['host']} (since {since})"
    except (OSError, ValueError, KeyError):
        return "another process"


def is_held(directory: Path) -> bool:
    """Whether a living process writes to the directory now."""
    if not (directory / ".lock").exists():
        return False
    probe = FileLock(directory / ".lock", timeout=0)
    try:
        probe.acquire()
    except Timeout:
        return True
    probe.release()
    return False
