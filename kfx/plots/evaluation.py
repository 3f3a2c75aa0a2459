"""Accuracy, or error, against the number of interpolation points."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from kfx.plots.style import FAINT, INITIAL, TRAINED, figure, title
from kfx.record import Run


def error_against_points(run: Run) -> Figure | None:
    """One curve for the initial kernel, one for the trained, faint ones for random kernels; bars are ± one sd."""
    table = run.evaluation
    if table.empty:
        return None
    metric = "accuracy" if (table["metric"] == "accuracy").any() else "mse"
    table = table[table["metric"] == metric]
    picture, (axes,) = figure()
    several = table["regularization"].nunique() > 1
    labelled = False
    for (name, regularization), rows in table.groupby(["kernel", "regularization"], sort=False):
        by_size = rows.groupby("n_interpolation")["value"]
        mean, spread = by_size.mean(), by_size.std().fillna(0.0)
        suffix = f", λ = {regularization:g}" if several else ""
        if str(name).startswith("random"):
            axes.plot(
                mean.index, mean, color=FAINT, linewidth=1, label=None if labelled else "random kernels", zorder=1
            )
            labelled = True
            continue
        colour = {"initial": INITIAL, "trained": TRAINED}.get(str(name))
        marker = {"initial": "s", "trained": "o"}.get(str(name), "^")
        axes.errorbar(
            mean.index, mean, yerr=spread, color=colour, marker=marker, capsize=3, label=f"{name}{suffix}", alpha=0.9
        )
    sizes = sorted(table["n_interpolation"].unique())
    if len(sizes) > 1 and sizes[-1] >= 8 * sizes[0]:
        axes.set_xscale("log")
    if len(sizes) <= 8:
        axes.set_xticks(sizes)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
    names = {"accuracy": "test accuracy", "mse": "test mean squared error"}
    axes.set(xlabel=r"interpolation points $N_I$", ylabel=names[metric], title=title(run))
    axes.legend(loc="best")
    return picture
