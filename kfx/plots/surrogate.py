"""Figures of Bayesian optimisation: its convergence, and the surrogate of two parameters."""

from __future__ import annotations

import warnings

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kfx.optimizers.bayesian import search_box, surrogate_search
from kfx.plots.style import COLOURS, DATA, FAINT, Drawn, figure, finish, objective, symbol
from kfx.plots.trace import count_iterations, folds, within_fold
from kfx.record.reading import Run

_GRID = 60


def convergence(run: Run) -> Figure | None:
    """The search point by point: each dot is an evaluation on a batch, and the line the lowest value so far."""
    trace = run.trace
    if "diagnostic.incumbent" not in trace or trace.empty:
        return None
    picture, (axes,) = figure(height=4.2)
    if len(parts := folds(trace)) == 1:
        _draw_search(axes, run)
    else:
        for i, (fold, rows) in enumerate(parts):
            x, colour = within_fold(run, rows), COLOURS[i % len(COLOURS)]
            axes.plot(x, rows["told"], ".", color=colour, alpha=0.35)
            label = f"lowest so far, {run.unit} {fold}"
            axes.step(x, rows["diagnostic.incumbent"], where="post", color=colour, label=label)
    count_iterations([axes], run)
    axes.set_ylabel(objective(run))
    return finish(picture, axes, run)


def _draw_search(axes: Axes, run: Run) -> None:
    trace, label = run.trace, "what the surrogate is fitted to"
    axes.plot(trace["iteration"], trace["told"], "o", color=FAINT, markersize=5, label=label)
    differs = trace["told"] != trace["objective"]
    if differs.any():
        rows = trace[differs & trace["objective"].notna()]
        label = "measured, where the surrogate was told another value"
        axes.plot(rows["iteration"], rows["objective"], "x", color=COLOURS[1], label=label)
    axes.step(trace["iteration"], trace["diagnostic.incumbent"], where="post", color=COLOURS[0], label="lowest so far")
    initial = run.config.optimizer.initial_points
    if initial < len(trace):
        axes.axvline(initial - 0.5, color=DATA, linewidth=0.9, linestyle=":", label="up to here points are random")


def surface(run: Run) -> Figure | None:
    """What the search makes of its evaluations: colours are the surrogate's mean over two parameters, dots where it
    evaluated, the star the best of them.

    The surrogate is fitted again to the told values of the trace.
    """
    trace, settings = run.trace.dropna(subset="told"), run.config.optimizer
    if "diagnostic.incumbent" not in trace or len(trace) < 3 or len(folds(trace)) > 1:
        return None
    bounds = {f"parameter.{name}": own for name, own in zip(run.kernel.names, run.kernel.bounds, strict=True)}
    columns = [c for c in bounds if c in trace and trace[c].nunique() > 1]
    if len(columns) != 2:
        return None
    points = trace[columns].to_numpy(dtype=float)
    box = search_box(np.stack([bounds[c] for c in columns]), settings.bounds or None)
    low, high = box.T
    search = surrogate_search(box, settings.space, settings.noise, len(points) + 1, 0)
    model, space = search.base_estimator_, search.space
    to_axis = np.geomspace if settings.space == "log" else np.linspace
    axes_points = [to_axis(a, b, _GRID) for a, b in zip(low, high, strict=True)]
    grid = np.stack(np.meshgrid(*axes_points, indexing="ij"), axis=-1).reshape(-1, 2)
    inside = np.clip(points, low, high)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(space.transform(inside.tolist()), trace["told"].to_numpy(dtype=float))
        mean = model.predict(space.transform(np.clip(grid, low, high).tolist())).reshape(_GRID, _GRID)
    picture, (axes,) = figure(height=4.6)
    shown = axes.pcolormesh(*axes_points, mean.T, cmap="viridis_r", shading="gouraud")
    of_points: Drawn = {"color": "white", "markeredgecolor": DATA, "markersize": 5, "clip_on": False}
    axes.plot(*points.T, "o", label="evaluated", **of_points)
    best = points[int(trace["told"].to_numpy().argmin())]
    axes.plot(*best, "*", color=COLOURS[1], markeredgecolor="white", markersize=16, label="best", clip_on=False)
    if settings.space == "log":
        axes.set(xscale="log", yscale="log")
    names = [symbol(c.removeprefix("parameter."), run) for c in columns]
    axes.set(xlabel=names[0], ylabel=names[1])
    axes.grid(visible=False)
    picture.colorbar(shown, ax=axes, label=f"surrogate's mean of {objective(run)}")
    return finish(picture, axes, run)
