"""Progress of long computations: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from kfx.files import Document

_LINES = 10  # plain lines for a whole run, and at most one more every few seconds
_SECONDS = 15.0


_label: ContextVar[str] = ContextVar("label", default="")


@contextmanager
def numbered(number: int, of: int) -> Iterator[None]:
    """Within the block, a run's progress lines begin with the number of its job in the sweep."""
    token = _label.set(f"job {number} of {of} · " if of > 1 else "")
    try:
        yield
    finally:
        _label.reset(token)


class WaitMessage:
    """Tells what is being done if a block takes more than a moment, and then how long it took."""

    def __init__(self, label: str, moment: float = 2.0) -> None:
        self.label = label
        self._timer = threading.Timer(moment, copy_context().run, (say, f"{label} …"))
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._started = time.monotonic()
        self._timer.start()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._timer.cancel()
        seconds = time.monotonic() - self._started
        if error is None and seconds > self._timer.interval:
            say(f"{self.label}: {seconds:.0f} s")


class Audience(StrEnum):
    """Who sees the progress of a run."""

    COMMAND = "command"
    """A terminal or a log: lines on standard error, results on standard output."""
    PYTHON = "python"
    """A person in Python: the same without results, which are returned; bars in a notebook."""
    NOBODY = "nobody"


_audience: ContextVar[Audience] = ContextVar("audience", default=Audience.COMMAND)


@contextmanager
def told_to(audience: Audience) -> Iterator[None]:
    """Within the block, progress and results are shown to this audience."""
    token = _audience.set(audience)
    try:
        yield
    finally:
        _audience.reset(token)


def is_notebook(audience: Audience | None = None) -> bool:
    """Whether the audience, that of the block or another one, works in a notebook."""
    shell = sys.modules.get("IPython") if (audience or _audience.get()) == Audience.PYTHON else None
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def say(line: str) -> None:
    """Print one line on standard error, so that standard output holds only results."""
    if _audience.get() != Audience.NOBODY:
        in_notebook = is_notebook()  # where errors are red
        stream = sys.stdout if in_notebook else sys.stderr
        stream.write(f"{line}\n")  # one write: an interruption between two would append the next line to this one
        stream.flush()


def tell(results: Sequence[str]) -> None:
    """Print the results of a run, a line each, on standard output."""
    if _audience.get() == Audience.COMMAND:
        sys.stdout.write("".join(f"{line}\n" for line in results))  # one write: others may write there too


_in_lines: ContextVar[bool] = ContextVar("in_lines", default=False)


@contextmanager
def in_lines() -> Iterator[None]:
    """Within the block, progress is shown as plain lines, because bars of several processes would share a terminal
    line."""
    token = _in_lines.set(True)
    try:
        yield
    finally:
        _in_lines.reset(token)


class Steps:
    """Shows the progress of `total` steps: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.done = _label.get() + label, total, 0
        self._bar: Any = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if is_notebook():
            from kfx.screen import notebook

            self._bar = notebook.Bar()
            self._task = self._bar.add_task(self.label, total=self.total)
        elif sys.stderr.isatty() and not _in_lines.get() and _audience.get() != Audience.NOBODY:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[state]}"),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, state="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """Count one more step."""
        self.reach(self.done + 1)

    def reach(self, done: int, state: str = "", left: float | None = None, telling: bool = False) -> None:
        """Show that `done` steps are done. state: a short text beside them. left: seconds to go. telling: print a line
        in any case."""
        self.done = done
        if self._bar is not None:
            self._bar.update(self._task, completed=done, state=state)
        elif telling or self.is_due(done):
            self._last_line = time.monotonic()
            to_go = "" if left is None else f"{left:.0f} s left"
            say("  ".join(filter(None, (f"{self.label} {done:>{len(str(self.total))}}/{self.total}", state, to_go))))

    def is_due(self, done: int) -> bool:
        """Whether something is shown after `done` steps."""
        is_step = done == self.total or done % max(self.total // _LINES, 1) == 0
        return self._bar is not None or is_step or time.monotonic() - self._last_line > _SECONDS


class TraceProgress(Steps):
    """Shows the trace rows of a run of `total` iterations."""

    def __init__(
        self, label: str, total: int, objective: str = "rho", readable: Callable[[str], str] = lambda name: name
    ) -> None:
        super().__init__(label, total)
        self.objective, self.readable = objective, readable

    def __call__(self, row: Document) -> None:
        """Show one trace row."""
        done = row["iteration"] + 1
        if row["event"] or self.is_due(done):  # format only the rows that are shown
            left = row["seconds"] / done * (self.total - done)
            self.reach(done, self._state(row), left, telling=bool(row["event"]))

    def _state(self, row: Document) -> str:
        names = {"rho": "rho"} if self.objective == "rho" else {"objective": self.objective, "rho": "rho"}
        shown = [f"{name} {row[key]:.4g}" if math.isfinite(row[key]) else f"{name} -" for key, name in names.items()]
        if not any(name.endswith(".norm") for name in row["parameters"]):
            shown += [f"{self.readable(name)} {number:.4g}" for name, number in list(row["parameters"].items())[:4]]
        return "  ".join([*shown, row["event"]]).rstrip()
