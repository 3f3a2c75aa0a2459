"""`trace.csv`: a row for each evaluation of the objective, with events such as a parameter at its bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from kfx.files import CsvFile, Document, read_rows
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import Vector
from kfx.optimizers.journal import TraceRow
from kfx.outcomes import Event
from kfx.record.columns import TRACE_COLUMNS

_MOST_WATCHED = 16
_ROWS_AT_BOUND = 100


class Trace:
    """The rows of one run; those of an earlier process are read first.

    diagnostics: the optimizer's own columns. keep: bytes of the present file that stay; 0 starts the file. elapsed:
        seconds of the run so far. remark: called with an event and a note.
    """

    def __init__(
        self,
        path: Path,
        kernel: Kernel,
        diagnostics: Sequence[str],
        keep: int,
        elapsed: float,
        remark: Callable[[Event, str], None],
    ) -> None:
        self._kernel, self._diagnostics, self._remark = kernel, tuple(diagnostics), remark
        self._values = kernel.shown
        self._by_norms = kernel.are_many
        self._names = [] if self._by_norms else kernel.names
        watched = self._names if len(self._names) <= _MOST_WATCHED else []
        bounds = kernel.bounds.tolist() if watched else []
        self._bounds = dict(zip(watched, map(tuple, bounds), strict=True))
        self._rows_at_bound = dict.fromkeys(self._bounds, 0)
        self.stayed: set[str] = set()
        """Parameters that stayed at a bound for many rows."""
        self.rho: list[float] = []
        """Every finite ρ so far."""
        parameters = [f"parameter.{name}" for name in self._values]
        self._rows = CsvFile(path, [*TRACE_COLUMNS, *parameters, *(f"diagnostic.{n}" for n in diagnostics)], keep=keep)
        if keep:
            before = read_rows(path)
            rho = before["rho"].to_numpy(dtype=float)
            self.rho = rho[np.isfinite(rho)].tolist()
            for values in before[[f"parameter.{name}" for name in self._bounds]].to_numpy(dtype=float).tolist():
                self._at_bounds(dict(zip(self._bounds, values, strict=True)))
        self._started = time.perf_counter() - elapsed

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._rows.size

    def seconds(self) -> float:
        """Seconds of the run so far."""
        return time.perf_counter() - self._started

    def row(self, row: TraceRow) -> Document:
        """Write a row and return it as a dict, with the parameters."""
        evaluation, diagnostics = row.evaluation, row.diagnostics
        values = self._shown(evaluation.vector)
        cells = {
            "iteration": row.iteration,
            "rho": evaluation.rho,
            "objective": evaluation.objective,
            "told": evaluation.objective if row.told is None else row.told,
            "regularization": evaluation.regularization,
            "seconds": round(self.seconds(), 6),
            "kernel_evaluations": row.kernel_evaluations,
            "jitter": evaluation.jitter,
            "event": ";".join([*evaluation.events, *row.events, *self._at_bounds(values)]),
        }
        self._rows.write(
            [*cells.values(), *values.values(), *(diagnostics.get(name, math.nan) for name in self._diagnostics)]
        )
        if math.isfinite(evaluation.rho):
            self.rho.append(evaluation.rho)
        return {**cells, "parameters": values}

    def _shown(self, vector: Vector) -> dict[str, float]:
        if self._by_norms:
            return self._kernel.with_flat(vector).shown
        return self._values | dict(zip(self._names, vector.tolist(), strict=True))

    def _at_bounds(self, values: Mapping[str, float]) -> list[Event]:
        """The event for a parameter that has now stayed at a bound for many rows, with a note."""
        found = []
        for name, (low, high) in self._bounds.items():
            value = values[name]
            at = math.isclose(value, low, rel_tol=1e-9) or math.isclose(value, high, rel_tol=1e-9)
            self._rows_at_bound[name] = self._rows_at_bound[name] + 1 if at else 0
            if self._rows_at_bound[name] == _ROWS_AT_BOUND:
                text = f"{name} stayed at its bound {value:g} for {_ROWS_AT_BOUND} iterations: widen kernel.bounds"
                self._remark(Event.AT_BOUND, text)
                self.stayed.add(name)
                found = [Event.AT_BOUND]
        return found

    def close(self) -> None:
        self._rows.close()
