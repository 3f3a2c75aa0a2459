"""Figures of the trace: the objective and the parameters over iterations."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kfx.plots.style import COLOURS, DATA, FAINT, figure, symbol, title
from kfx.record import Run

_MOST_CURVES = 8


def objective_over_iterations(run: Run) -> Figure | None:
    """ρ at each iteration, its running mean, and the events."""
    trace = run.trace
    if trace.empty:
        return None
    picture, (axes,) = figure()
    iterations, rho = trace["iteration"].to_numpy(), trace["rho"].to_numpy(dtype=float)
    window = max(len(rho) // 20, 1)
    axes.plot(iterations, rho, ".", color=FAINT, markersize=3.5, label=r"$\rho$ of the batch")
    if window > 1:
        mean = trace["rho"].rolling(window, min_periods=1).mean()
        axes.plot(iterations, mean, color=COLOURS[0], label=f"mean of {window} batches")
    _mark_events(axes, run)
    axes.set(xlabel="iteration", ylabel=r"$\rho$", title=title(run))
    finite = rho[np.isfinite(rho)]
    if len(finite) and finite.min() >= 0 and finite.max() <= 1:
        axes.set_ylim(0, min(1.0, 1.15 * finite.max() + 0.01))
    axes.legend(loc="best")
    return picture


def parameters_over_iterations(run: Run) -> Figure | None:
    """Each parameter at each iteration; a logarithmic axis where they span more than a decade."""
    trace = run.trace
    names = [c for c in trace.columns if c.startswith("parameter.")]
    if trace.empty or not names:
        return None
    picture, (axes,) = figure()
    moved = [c for c in names if trace[c].nunique() > 1] or names
    for i, column in enumerate(moved[:_MOST_CURVES]):
        axes.plot(
            trace["iteration"],
            trace[column],
            color=COLOURS[i % len(COLOURS)],
            label=symbol(column[len("parameter.") :]),
        )
    values = trace[moved[:_MOST_CURVES]].to_numpy(dtype=float)
    positive = values[values > 0]
    if len(positive) == values.size and positive.max() > 10 * positive.min():
        axes.set_yscale("log")
    _mark_events(axes, run)
    more = f" (first {_MOST_CURVES} of {len(moved)})" if len(moved) > _MOST_CURVES else ""
    axes.set(xlabel="iteration", ylabel="parameter" + more, title=title(run))
    axes.legend(loc="best", ncols=2 if len(moved) > 4 else 1)
    return picture


def _mark_events(axes: Axes, run: Run) -> None:
    events = run.trace.loc[run.trace["event"].astype(str).str.len() > 0, ["iteration", "event"]]
    for i, (name, rows) in enumerate(events.groupby("event")):
        for j, iteration in enumerate(rows["iteration"]):
            label = f"{str(name).replace(';', ', ')} ({len(rows)})" if j == 0 else None
            style = ("--", ":", "-.")[i % 3]
            axes.axvline(iteration, color=DATA, linestyle=style, linewidth=0.9, alpha=0.7, label=label)
