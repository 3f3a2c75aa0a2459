"""Figures of the trace: the objective and the parameters over iterations."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kfx.kernels.names import OF_FEATURES
from kfx.numerics.formatting import spread
from kfx.plots.style import (
    COLOURS,
    DATA,
    FAINT,
    INITIAL,
    MARKERS,
    Drawn,
    count_along,
    figure,
    finish,
    legend,
    objective,
    running,
    set_title,
    symbol,
)
from kfx.record.reading import Run
from kfx.record.verdict import discarded

_MOST_CURVES = 8
_SAMPLE_SIZE = "diagnostic.sample_size"
_MOST_ROOM = 4.0
"""Largest factor by which the law of ρ may lengthen the axis; beyond it, the trace would look flat."""
_MOST_POINTS = 3000
"""With more points than this, a running median with its band is clearer than single points."""


def objective_over_iterations(run: Run) -> Figure | None:
    """What was minimised, and ρ, at each iteration: single batches scatter, and lines are running medians.

    Each fold has a line of its own.
    """
    trace = run.trace
    if trace.empty or run.config.optimizer.name == "grid":  # a grid's order means nothing; it has its landscape
        return None
    wanted = [("rho", r"$\rho$")]
    if run.config.objective.name != "rho":
        wanted.insert(0, ("objective", objective(run)))
    if trace["rho"].isna().all() and trace["objective"].notna().any():  # an objective without Gram matrices
        wanted = wanted[:1]
    picture, axes = figure(rows=len(wanted), height=4.0 if len(wanted) == 1 else 2.9)
    for panel, (column, label) in zip(axes, wanted, strict=True):
        _draw_noisy(panel, run, column, label)
        _mark_events(panel, run)
        panel.set(ylabel=label)
        panel.margins(y=0.08)
        if column == "rho":
            _draw_law(panel, run)
    count_iterations(axes, run)
    set_title(axes[0], run)
    legend(picture, axes[-1])
    return picture


def _draw_law(axes: Axes, run: Run) -> None:
    """A band for ρ of draws of the kernel's own process; none where samples change in size."""
    if (law := run.metrics.get("rho_law")) is None or _SAMPLE_SIZE in run.trace:
        return
    low, high = axes.get_ylim()
    ends = law["mean"] - 2 * law["sd"], law["mean"] + 2 * law["sd"]
    label = f"a draw of this kernel: {spread(law['mean'], law['sd'])} (band: two deviations)"
    axes.axhspan(*ends, color=COLOURS[2], alpha=0.15, linewidth=0, zorder=0, label=label)
    if max(high, ends[1]) - min(low, ends[0]) > _MOST_ROOM * (high - low):
        axes.set_ylim(low, high)


def count_iterations(axes: list[Axes], run: Run) -> None:
    """Count iterations along axes one below another; only the lowest is labelled."""
    for panel in axes:
        count_along(panel, "")
    axes[-1].set_xlabel("iteration" if len(folds(run.trace)) == 1 else f"iteration of the {run.unit}")


def folds(trace: pd.DataFrame) -> list[tuple[int | None, pd.DataFrame]]:
    """The rows of each fold with its number; all rows with None if there are no folds."""
    if "diagnostic.fold" not in trace:
        return [(None, trace)]
    return [(int(str(fold)), rows) for fold, rows in trace.groupby("diagnostic.fold")]


def within_fold(run: Run, rows: pd.DataFrame) -> np.ndarray:
    """Iterations counted from the fold's first one, (rows,)."""
    iterations = rows["iteration"].to_numpy()
    return iterations - iterations[0] if "diagnostic.fold" in rows else iterations


def _draw_noisy(axes: Axes, run: Run, column: str, what: str) -> None:
    """A column with a value for each batch, as points with their running median; of several folds the medians alone.

    The median of a fit that was discarded is dashed and grey.
    """
    left = discarded(run.metrics)
    for i, (fold, rows) in enumerate(folds(run.trace)):
        x, values = within_fold(run, rows), rows[column].to_numpy(dtype=float)
        colour, window = COLOURS[i % len(COLOURS)], max(len(x) // 20, 1)
        median, low, high = running(values, window)
        if fold is None and len(x) <= _MOST_POINTS:
            alone = ", discarded" if window == 1 and left[0] else ""
            axes.plot(x, values, ".", color=FAINT, markersize=3.5, label=f"{what} of a batch{alone}")
        elif fold is None:
            axes.fill_between(x, low, high, color=FAINT, alpha=0.6, linewidth=0, label=f"80 % of {window} batches")
        if window > 1 or fold is not None:
            label = f"median of {window} batches" if fold is None else f"{run.unit} {fold}"
            style = ("-", "-.", ":")[i // len(COLOURS) % 3]
            if left[i % len(left)]:
                label, style, colour = f"{label}, discarded", "--", INITIAL
            axes.plot(x, median, style, color=colour, linewidth=1.4, label=label)


def parameters_over_iterations(run: Run) -> Figure | None:
    """The kernel's parameters at each iteration: they have fixed where the lines are level.

    With folds a line for each fold and a panel for each parameter. A search shows the best parameters so far,
    because its points are scattered; a grid has its landscape instead. Where what training reached was discarded, the
    lines are dashed and grey, and a mark at their end is the value that was kept.
    """
    trace = run.trace
    columns = [c for c in trace.columns if c.startswith("parameter.")]
    of_features = [c for c in columns if c.startswith(tuple(f"parameter.{name}." for name in OF_FEATURES))]
    if len(of_features) > _MOST_CURVES:  # they have a picture of their own
        columns = [c for c in columns if c not in of_features]
    moved = [c for c in columns if trace[c].nunique() > 1]
    if trace.empty or not moved or run.config.optimizer.name == "grid":
        return None
    shown = moved[:_MOST_CURVES]
    more = f" (first {_MOST_CURVES} of {len(moved)})" if len(moved) > _MOST_CURVES else ""
    if "diagnostic.incumbent" in trace:
        trace = pd.concat([_best_so_far(rows, shown) for _, rows in folds(trace)])
        more += ", of the best so far"
    parts = folds(trace)
    panels = len(shown) if len(parts) > 1 else 1
    picture, axes = figure(rows=panels, height=4.0 if panels == 1 else 2.2)
    left = discarded(run.metrics)
    for i, column in enumerate(shown):
        panel, name = axes[min(i, panels - 1)], symbol(column[len("parameter.") :], run)
        for j, (fold, rows) in enumerate(parts):
            x, values = within_fold(run, rows), rows[column].to_numpy(dtype=float)
            k = i if fold is None else j
            marks: Drawn = {
                "marker": MARKERS[k % len(MARKERS)],
                "markevery": max(len(x) // 8, 1),
                "markersize": 4,
            }
            label = name if fold is None else f"{run.unit} {fold}"
            drawstyle = "steps-post" if "diagnostic.incumbent" in trace else "default"
            if left[j % len(left)]:
                marks |= {"color": INITIAL, "linestyle": "--"}
                label += ", discarded"
                _mark_kept(panel, run, column, j, x[-1], marks)
            else:
                marks["color"] = COLOURS[k % len(COLOURS)]
            panel.plot(x, values, linewidth=1.3, label=label, drawstyle=drawstyle, **marks)
        if panels > 1:
            panel.set(ylabel=name)
    every = trace[shown].to_numpy(dtype=float)
    if np.isfinite(every).all() and every.min() > 0 and every.max() > 10 * every.min():
        for panel in axes:
            panel.set_yscale("log")
    for panel in axes:
        _mark_events(panel, run)
    if panels == 1:
        axes[0].set(ylabel=f"{symbol(shown[0][len('parameter.') :], run) if len(shown) == 1 else 'parameter'}{more}")
    count_iterations(axes, run)
    return finish(picture, axes[0], run)


def _mark_kept(axes: Axes, run: Run, column: str, fit: int, end: float, marks: Drawn) -> None:
    """The value of a parameter that is kept after a fit, with the marker of its line, where the line ends."""
    name, values = column.removeprefix("parameter."), run.metrics["parameters"]
    own = (values.get("folds") or [values["final"]])[fit]
    parameter = name.partition(".")[0]
    if isinstance(own.get(parameter), list):
        names = run.metrics.get("features") or list(map(str, range(len(own[parameter]))))
        own = dict(zip((f"{parameter}.{each}" for each in names), own[parameter], strict=True))
    if isinstance(own.get(name), float):
        label = "kept" if "kept" not in axes.get_legend_handles_labels()[1] else None
        axes.plot([end], [own[name]], marks["marker"], color=COLOURS[0], markersize=7, label=label, clip_on=False)


def _best_so_far(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The rows of a search, each with the parameters of the best point so far."""
    best = rows["told"] <= rows["told"].cummin()
    return rows.assign(**{column: rows[column].where(best).ffill() for column in columns})


def displacement_over_layers(run: Run) -> Figure | None:
    """How far the fastest point went in each layer, and the steps that were taken.

    Steps are shown by their length, or by how many were accepted.
    """
    trace = run.trace
    if "diagnostic.displacement" not in trace or trace["diagnostic.displacement"].notna().sum() < 2:
        return None
    pace = next(name for name in ("step", "accepted_steps") if f"diagnostic.{name}" in trace)
    wanted = (("displacement", "longest way in a layer"), (pace, "step ε" if pace == "step" else "accepted steps"))
    picture, axes = figure(rows=2, height=2.7)
    for panel, (column, label) in zip(axes, wanted, strict=True):
        _draw_noisy(panel, run, f"diagnostic.{column}", "value")
        every = trace[f"diagnostic.{column}"]
        if every.min() > 0 and every.max() > 30 * every.min():
            panel.set_yscale("log")
        panel.set(ylabel=label)
    for panel, name in zip(axes, ("", "layer"), strict=True):
        count_along(panel, name)
    return finish(picture, axes[0], run)


def sample_size_over_iterations(run: Run) -> Figure | None:
    """How many points of the batch the sample kept at each iteration, and ρ with that many.

    For a sampler that changes it (Darcy 2020, Fig. 5.1).
    """
    trace = run.trace
    if _SAMPLE_SIZE not in trace or trace[_SAMPLE_SIZE].nunique() < 2:
        return None
    picture, axes = figure(columns=2, width=4.8)
    for panel, column, label in zip(axes, (_SAMPLE_SIZE, "rho"), ("sample size $N_c$", r"$\rho$"), strict=True):
        _draw_noisy(panel, run, column, label)
        count_iterations([panel], run)
        panel.set_ylabel(label)
        panel.margins(y=0.08)
    set_title(axes[0], run)
    legend(picture, axes[-1])
    return picture


def _mark_events(axes: Axes, run: Run) -> None:
    events = run.trace.loc[run.trace["event"].astype(str).str.len() > 0]
    for i, (name, rows) in enumerate(events.groupby("event")):
        in_folds = len(folds(run.trace)) > 1
        first = run.trace.groupby("diagnostic.fold")["iteration"].transform("min") if in_folds else 0
        where = (rows["iteration"] - first).dropna() if in_folds else rows["iteration"]
        for j, iteration in enumerate(where[:50]):
            label = f"{str(name).replace(';', ', ')} ({len(rows)})" if j == 0 else None
            style = ("--", ":", "-.")[i % 3]
            axes.axvline(iteration, color=DATA, linestyle=style, linewidth=0.9, alpha=0.7, label=label)
