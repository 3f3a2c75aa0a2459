"""A recorded run that draws its pictures and shows itself in a notebook."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kfx.experiment.config import typed
from kfx.files import write_whole
from kfx.outcomes import Status
from kfx.record import reading
from kfx.record.verdict import verdict
from kfx.report.table import Table
from kfx.screen.summary import closing, closing_lines

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kfx.estimators.base import KernelFlow
    from kfx.estimators.recorded import Model


class Run(reading.Run):
    """A recorded run: `directory`, `config`, `metrics`, `trace`, `evaluation`, `kernel`; and its pictures and page."""

    def plot(self, name: str = "rho", ax: Axes | None = None, style: str = "screen") -> Figure:
        """Draw one of its pictures from the record, on `ax` if the picture has one panel.

        style: `screen`, or `paper`, a column wide with small text. ConfigError for an unknown name, and for a picture
            that the record has no data for.
        """
        from kfx import plots
        from kfx.plots.style import looking

        with looking(style):
            drawn = plots.one(self, name, ax)
        _show_figures()
        return drawn

    def report(self) -> Path:
        """Write its page, `report.html`, with numbers, pictures and tables; return the path."""
        from kfx.report import run_page

        path = self.directory / "report.html"
        write_whole(path, run_page.page([self.directory]))
        return path

    def predict(self, frame: pd.DataFrame | np.ndarray) -> pd.DataFrame:
        """Return predictions for new rows, as `kfx predict`, with the index of the frame.

        frame: the columns of the run's table, or points before preprocessing, (n, …). DataError, naming the row, for a
            value that cannot be read.
        """
        return self._model.predict_all(frame)

    def estimator(self) -> KernelFlow:
        """Return its kernel as a fitted estimator, which takes points after the preprocessing of the run."""
        return self._model.estimator()

    @cached_property
    def _model(self) -> Model:
        from kfx.estimators.recorded import Model

        return Model.of_run(self)

    def summary(self) -> list[str]:
        """The closing lines of the command."""
        return closing_lines(typed(self.config), self.metrics, self.directory)

    def __str__(self) -> str:
        return "\n".join([repr(self), *filter(None, [verdict(self)]), *self.summary()])

    def __repr__(self) -> str:
        return f"Run({self.directory}: {self.metrics['status']})"

    def _repr_html_(self) -> str:
        if self.metrics["status"] != Status.COMPLETED:
            reason = self.metrics.get("reason", "")
            return f"<p>{escape(repr(self))} {escape(str(reason))}</p>"
        pairs = closing(typed(self.config), self.metrics, self.directory)
        picture = self.directory / "figures" / "evaluation.png"
        shown = ""
        if picture.is_file():
            data = base64.b64encode(picture.read_bytes()).decode()
            shown = f'<img alt="evaluation" style="max-width: 32em" src="data:image/png;base64,{data}">'
        return f"{in_cell(Table(['', ''], list(pairs), title=verdict(self)))}{shown}"


def in_cell(table: Table) -> str:
    """The table as HTML for a notebook, whose style sheets differ: no label or number is broken or cut, texts wrap."""
    styles = [
        f"text-align: {'right' if is_number else 'left'}; vertical-align: top; padding: 0.1em 1.2em 0.1em 0; "
        "font-family: monospace; max-width: none; overflow-wrap: anywhere; "
        f"white-space: {'nowrap' if is_number or column == 0 else 'normal'}"
        for column, is_number in enumerate(table.of_numbers)
    ]

    def row(cells: Sequence[str], tag: str) -> str:
        written = zip(cells, styles, strict=True)
        inside = "".join(f'<{tag} style="{style}">{escape(cell)}</{tag}>' for cell, style in written)
        return f"<tr>{inside}</tr>"

    heads = row(table.names, "th") if any(table.names) else ""
    notes = [f"* {table.note}"] if table.note else []
    below = "".join(f"<p>{escape(each)}</p>" for each in [*notes, *table.remarks])
    title = f"<p>{escape(table.title)}</p>" if table.title else ""
    return f"{title}<table>{heads}{''.join(row(cells, 'td') for cells in table.cells)}</table>{below}"


def load_run(path: str | Path, plugins: Sequence[str | Path] = ()) -> Run:
    """Read a run directory: `.config`, `.metrics`, `.trace`, `.evaluation`, `.kernel`, `.plot(name)`, `.report()`.

    plugins: files with the options that `.kernel` needs, if the run used some.
    A row that a killed run left half-written is dropped. FileNotFoundError if there is no run; RecordError if a file is
    damaged.
    """
    found = reading.load_run(path, plugins)
    return Run(*(getattr(found, item.name) for item in fields(found)))


def _show_figures() -> None:
    """Make a notebook show figures that pyplot has not made."""
    shell = sys.modules.get("IPython")
    if shell is not None and (here := shell.get_ipython()) is not None:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(here, {"png"})
