"""The objective as a function of one parameter, from a grid search."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kfx.plots.style import COLOURS, FAINT, figure, finish, objective, symbol
from kfx.record.reading import Run


def objective_over_parameter(run: Run) -> Figure | None:
    """The objective as a function of one parameter: the line is its mean over batches, the band one standard
    deviation over them, the star the least mean.

    Also of its absolute derivative, if that was recorded.
    """
    trace = run.trace
    if trace.empty or run.config.optimizer.name != "grid":
        return None
    name = run.config.optimizer.parameter or next(
        (c for c in trace.columns if c.startswith("parameter.") and trace[c].nunique() > 1), None
    )
    if name is None:
        return None
    column = name if name.startswith("parameter.") else f"parameter.{name}"
    wanted = [("objective", objective(run))]
    if "diagnostic.gradient" in trace and trace["diagnostic.gradient"].notna().any():
        wanted.append(("diagnostic.gradient", "absolute derivative"))
    picture, axes = figure(rows=len(wanted), height=3.8 if len(wanted) == 1 else 3.0)
    for panel, (key, label) in zip(axes, wanted, strict=True):
        values = trace[key] if key == "objective" else trace[key].abs()
        sweeps = values.groupby(trace[column])
        mean, deviation = sweeps.mean(), sweeps.std()
        x = mean.index.to_numpy(dtype=float)
        if deviation.notna().any():
            low, high = (mean - deviation).to_numpy(), (mean + deviation).to_numpy()
            panel.fill_between(x, low, high, color=FAINT, alpha=0.5, linewidth=0, label="± 1 sd over batches")
        panel.plot(x, mean, color=COLOURS[0], label=_of_batches(sweeps.count()))
        if key == "objective" and mean.notna().any():
            least = place_of_least(values, trace[column])
            shown = symbol(column[len("parameter.") :], run)
            label_of_it = f"smallest at {shown} = {least:.4g}"
            panel.plot(
                least, mean[least], "*", color=COLOURS[1], markeredgecolor="white", markersize=15, label=label_of_it
            )
        panel.set(ylabel=label)
        if key != "objective" and np.all(mean > 0) and mean.max() > 100 * mean.min():
            panel.set_yscale("log")
        if run.config.optimizer.space == "log":
            panel.set_xscale("log")
    axes[-1].set_xlabel(symbol(column[len("parameter.") :], run))
    return finish(picture, axes[0], run)


def place_of_least(values: pd.Series, at: pd.Series) -> float:
    """Where the mean over batches is smallest, out of the points that failed on the fewest of them, as the search ends.

    values: of the objective, NaN where it failed. at: the parameter.
    """
    mean, failed = values.groupby(at).mean(), values.isna().groupby(at).sum()
    whole = mean[failed == failed[mean.notna()].min()]
    return float(whole.index[int(whole.argmin())])


def _of_batches(counts: pd.Series) -> str:
    """The label of a line whose points are means over batches."""
    least, most = int(counts.min()), int(counts.max())
    if most == 1:
        return "one batch"
    return f"mean of {most} batches" if least == most else f"mean of {least} to {most} batches"
