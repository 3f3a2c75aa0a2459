"""Pictures of several runs together, for studies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from kfx.outcomes import ConfigError
from kfx.plots.landscape import place_of_least
from kfx.plots.style import (
    COLOURS,
    FAINT,
    INITIAL,
    MARKERS,
    count_along,
    end_at_one,
    figure,
    headline,
    legend,
    running,
    symbol,
)
from kfx.record.reading import Run

Runs = Mapping[str, Run]


def landscape(runs: Runs, x: str, y: Sequence[str], frame: pd.DataFrame) -> Figure:
    """The objective against a parameter, mean and standard deviation over batches; also its absolute derivative if
    recorded."""
    first = next(iter(runs.values()))
    column = _recorded(runs, f"parameter.{x}", x)
    keys = ["objective"]
    if all(
        "diagnostic.gradient" in run.trace and run.trace["diagnostic.gradient"].notna().any() for run in runs.values()
    ):
        keys.append("diagnostic.gradient")
    picture, axes = figure(rows=len(keys), height=4.2 if len(keys) == 1 else 3.4)
    for panel, key in zip(axes, keys, strict=True):
        for i, (label, run) in enumerate(runs.items()):
            values = run.trace[key] if key == "objective" else run.trace[key].abs()
            sweeps = values.groupby(run.trace[column])
            mean, deviation = sweeps.mean(), sweeps.std().fillna(0.0)
            at, colour = mean.index.to_numpy(dtype=float), COLOURS[i % len(COLOURS)]
            panel.fill_between(at, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
            panel.plot(at, mean, color=colour, label=label)
            if key == "objective" and mean.notna().any():
                least = place_of_least(values, run.trace[column])
                panel.plot(least, mean[least], "*", color=colour, markeredgecolor="white", markersize=13)
        panel.set(ylabel=r"$\rho$" if key == "objective" else rf"$|\partial\rho/\partial${symbol(x, first)}$|$")
        if first.config.optimizer.space == "log":
            panel.set_xscale("log")
    axes[-1].set_xlabel(symbol(x, first))
    headline(axes[0], "mean ± 1 sd over batches; stars: where the mean is smallest")
    legend(picture, axes[0])
    return picture


def _recorded(runs: Runs, column: str, x: str) -> str:
    """The column, if all runs have it; ConfigError if not."""
    for label, run in runs.items():
        if column not in run.trace:
            raise ConfigError(f"x={x}: {label} records no such parameter; it has {', '.join(run.trace.columns)}")
    return column


def over_iterations(runs: Runs, x: str, y: Sequence[str], frame: pd.DataFrame) -> Figure:
    """ρ or a parameter at each iteration, as running medians."""
    picture, (axes,) = figure(height=4.2)
    first = next(iter(runs.values()))
    for i, (label, run) in enumerate(runs.items()):
        rows = run.trace
        values = rows[_recorded(runs, x if x in rows else f"parameter.{x}", x)].to_numpy(dtype=float)
        colour, window = COLOURS[i % len(COLOURS)], max(len(rows) // 50, 1) if x in rows else 1
        if window == 1 and x in rows:
            axes.plot(rows["iteration"], values, ".", color=colour, alpha=0.35, markersize=4)
        median, low, high = running(values, window)
        if window > 1:
            axes.fill_between(rows["iteration"], low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(rows["iteration"], median, color=colour, linewidth=1.4, label=label)
    count_along(axes, "iteration")
    axes.set_ylabel(r"$\rho$" if x == "rho" else symbol(x, first))
    if x == "rho" and any(not run.trace["rho"].dropna().between(-1, 2).all() for run in runs.values()):
        axes.set_yscale("symlog", linthresh=1)  # values outside [0, 1] may be far outside
    legend(picture, axes)
    return picture


def over_points(runs: Runs, x: str, y: Sequence[str], frame: pd.DataFrame) -> Figure:
    """A metric against N_I for the initial and the trained kernels, with random kernels as a band from worst to
    best."""
    picture, (axes,) = figure(height=4.4)
    metric = x or "accuracy"
    starts = [_initial(run, metric) for run in runs.values()]
    is_shared = len(starts) > 1 and all(start.equals(starts[0]) for start in starts)
    for i, (label, run) in enumerate(runs.items()):
        table = run.evaluation[run.evaluation["metric"] == metric]
        random = table[table["kernel"].str.startswith("random")]
        if not random.empty:
            spread = random.groupby(["n_interpolation", "kernel"])["value"].mean().groupby("n_interpolation")
            low, high = spread.min(), spread.max()
            count = random["kernel"].nunique()
            shown = f"{count} random kernels" + (f", {label}" if len(runs) > 1 else "")
            axes.fill_between(low.index, low, high, color=FAINT, alpha=0.4, linewidth=0, label=shown, zorder=0)
        for kernel, style in (("initial", "--"), ("trained", "-")):
            each = table[table["kernel"] == kernel].groupby("n_interpolation")["value"]
            own = each.agg(lambda values: values.mean(skipna=False))  # none where a repeat failed
            untrained = run.config.optimizer.name == "none"
            if kernel == "initial" and (untrained or (is_shared and i)):
                continue
            said = label if untrained or (is_shared and kernel == "trained") else f"{label}, {kernel}"
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            if kernel == "initial" and is_shared:
                said, colour, marker = "before training", INITIAL, "x"
            axes.plot(own.index, own, style, label=said, markersize=5, color=colour, marker=marker)
    sizes = sorted({size for run in runs.values() for size in run.evaluation["n_interpolation"].unique()})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="interpolation points $N_I$", ylabel=f"test {metric}")
    if metric == "accuracy":
        end_at_one(axes)
    legend(picture, axes, most=3)
    return picture


def _initial(run: Run, metric: str) -> pd.Series:
    table = run.evaluation[(run.evaluation["metric"] == metric) & (run.evaluation["kernel"] == "initial")]
    return table.groupby("n_interpolation")["value"].mean()


def scaling(runs: Runs, x: str, y: Sequence[str], frame: pd.DataFrame) -> Figure:
    """The cost of runs against a varied key, on logarithmic axes, with fitted exponents and printed values.

    The exponents are those of straight lines through the larger half of the points. Runs whose names agree up to the
    last comma form one curve.
    """
    picture, (axes,) = figure(height=4.4)
    at = {label: float(OmegaConf.select(run.config, x)) for label, run in runs.items()}
    curves: dict[str, list[str]] = {}
    for label in at:
        curves.setdefault(label.rpartition(", ")[0], []).append(label)
    table = frame.set_index("run")
    for i, (curve, column) in enumerate(itertools.product(curves, y)):
        sizes = np.array([at[label] for label in curves[curve]])
        values = table.loc[curves[curve], column].to_numpy(dtype=float)
        exponent = slope(sizes, values)
        named = ", ".join([*([curve] if curve else []), *([column] if len(y) > 1 or not curve else [])])
        label = f"{named}: exponent {exponent:.2f}" if np.isfinite(exponent) else named
        colour = COLOURS[i % len(COLOURS)]
        axes.loglog(sizes, values, color=colour, marker=MARKERS[i % len(MARKERS)], label=label)
        if f"{column}, published" in table:
            printed = table.loc[curves[curve], f"{column}, published"].to_numpy(dtype=float)
            if np.isfinite(printed).any():
                axes.plot(sizes, printed, "*", color=colour, markersize=13, markeredgecolor="white", label="published")
    ticks = sorted(set(at.values()))
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.minorticks_off()
    axes.set(xlabel=x, ylabel=_shared_end(y))
    legend(picture, axes, most=2)
    return picture


def _shared_end(names: Sequence[str]) -> str:
    """The last words that all names share."""
    shared: list[str] = []
    for words in zip(*(reversed(name.split()) for name in names), strict=False):
        if len(set(words)) > 1:
            break
        shared.insert(0, words[0])
    return " ".join(shared)


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """The exponent of a power law y ∝ x^a through the larger half of the points. x, y: (n,)."""
    good = np.isfinite(y) & (y > 0)
    order = np.argsort(x[good])
    large = order[len(order) // 2 :] if len(order) > 3 else order
    if len(np.unique(x[good][large])) < 2:
        return np.nan
    return float(np.polyfit(np.log(x[good][large]), np.log(y[good][large]), 1)[0])


NEEDS_X = ("landscape", "over_iterations", "scaling")
PICTURES: dict[str, Callable[[Runs, str, Sequence[str], pd.DataFrame], Figure]] = {
    "landscape": landscape,
    "over_iterations": over_iterations,
    "over_points": over_points,
    "scaling": scaling,
}
