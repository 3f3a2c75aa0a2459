"""Standard streams that cannot make a run fail."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from kfx.report.table import Table


def console(width: int, stderr: bool = False) -> Console:
    """A console that prints text as it is: overrides such as `preprocess=[center]` are no markup. `width`, in
    characters, is for files and pipes; a terminal has its own."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(width=None if stream.isatty() else width, stderr=stderr, markup=False, highlight=False)


def show(table: Table, width: int, stderr: bool = False) -> None:
    """Print a table as wide as a terminal, or `width` in files and pipes."""
    from kfx.report.table import screen

    to = console(width, stderr)
    to.print(screen(table, to.width), crop=False)  # what does not fit is broken by the terminal, not lost


def open_missing() -> None:
    """Open the null device for closed standard streams, so that no file of a run gets their number and what libraries
    print."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115
        elif isinstance(getattr(sys, name), io.TextIOWrapper):
            getattr(sys, name).reconfigure(errors="replace")  # a question mark if the encoding has no λ


class _Unfailing(io.TextIOBase):
    """A stream whose writes cannot fail: after a failure, such as a closed pipe or a full disk, further output is
    dropped."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self.stream, "encoding", "utf-8")

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return bool(self.stream.isatty())
        return False

    def fileno(self) -> int:
        return self.stream.fileno()

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
            if "\n" in text:
                self.stream.flush()
        except (OSError, ValueError):
            self._give_up()
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def _give_up(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # its buffer must be written somewhere too
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)
            self.stream.flush()


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Within the block, Python prints nothing for an interruption where it cannot be raised, as in a garbage
    collector's callback."""
    usual = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, Exception):
            usual(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


@contextlib.contextmanager
def unfailing() -> Iterator[None]:
    """Within the block, printing cannot fail."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (s if isinstance(s, _Unfailing) else _Unfailing(s) for s in before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
