"""Progress in a notebook: a bar that is redrawn in place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from typing import Any

_SECONDS = 0.2
_LETTERS = 30
"""Letters of a label beside which bars stand one below another."""


_place: ContextVar[Any] = ContextVar("place", default=None)


@contextmanager
def in_one_place() -> Iterator[None]:
    """Within the block, each bar replaces the one before it, as of the jobs of a sweep."""
    from IPython.display import HTML, display

    token = _place.set(display(HTML(""), display_id=True))
    try:
        yield
    finally:
        _place.reset(token)


class Bar:
    """A progress bar in HTML, with the methods of rich's bars that `Steps` calls."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._drawn = 0.0
        self.label, self.total, self.completed, self.state = "", 1, 0, ""

    def add_task(self, label: str, *, total: int) -> int:
        """Show the bar."""
        from IPython.display import HTML, display

        self.label, self.total, self._started = label, total, time.monotonic()
        self._shown = _place.get() or display(HTML(""), display_id=True)
        self._draw()
        return 0

    def update(self, task: int, *, completed: int, state: str = "") -> None:
        """Show the number of completed steps."""
        self.completed, self.state = completed, state
        if completed == self.total or time.monotonic() - self._drawn > _SECONDS:
            self._draw()

    def stop(self) -> None:
        self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML

        self._drawn = time.monotonic()
        if self._shown is not None:
            self._shown.update(HTML(self._html()))

    def _html(self) -> str:
        left = ""
        if 0 < self.completed < self.total:
            spent = time.monotonic() - self._started
            left = f"{spent / self.completed * (self.total - self.completed):.0f} s left"
        shown = " · ".join(filter(None, (f"{self.completed} of {self.total}", self.state, left)))
        bar = f'<progress value="{self.completed}" max="{self.total}" style="width: 12em"></progress>'
        label = f'<span style="display: inline-block; min-width: {_LETTERS}ch">{escape(self.label)}</span>'
        return f'<div style="font-family: monospace">{label} {bar} {escape(shown)}</div>'
