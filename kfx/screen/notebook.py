"""Progress in a notebook: a bar that is redrawn in place."""

from __future__ import annotations

import time
from html import escape
from typing import Any

_SECONDS = 0.2


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
        self._shown = display(HTML(self._html()), display_id=True)
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
        return f'<div style="font-family: monospace">{escape(self.label)} {bar} {escape(shown)}</div>'
