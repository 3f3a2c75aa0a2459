"""Accuracy or error of the initial and the trained kernel, against N_I where there are several."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from kfx.config.metrics import main_metric
from kfx.numerics.formatting import number
from kfx.plots import predicted
from kfx.plots.style import COLOURS, DATA, FAINT, OF_KERNELS, above_noise, end_at_one, figure, finish
from kfx.record.reading import Run

_NAMES = {
    "accuracy": "test accuracy",
    "mse": "test mean squared error",
    "energy_error": "error in the energy norm, squared",
    "rho": r"$\rho$ against the largest $N_I$",
}
_BESIDE = 0.06
"""Horizontal distance of the folds' markers from that of their mean."""
_FURTHER = ("energy_error", "rho")


def before_and_after(run: Run) -> Figure | None:
    """Predictions of test points by the kernel before training and after it: against the truth, or for several N_I
    their error against N_I.

    At one N_I predicted against true values, or a confusion matrix of classes; where there are several λ or random
    kernels, errors alone. Folds or repeats are faint, lines against N_I and points at a single N_I; random kernels are
    a band from the worst to the best, and bars one standard deviation over repeats or folds. Where one of these failed
    there is no mean, as in `metrics.json`.
    """
    table = run.evaluation
    if table.empty:
        return None
    metric = main_metric(set(table["metric"]))
    varied = run.config.evaluation.n_interpolation is not None and table["n_interpolation"].nunique() > 1
    has_failed = table["value"].isna()
    failures = int((has_failed & (table["metric"] == metric)).sum())
    of_mean = ["metric", "kernel", "configured_regularization", *(["n_interpolation"] if varied else [])]
    table = table.assign(is_whole=~has_failed.groupby([table[name] for name in of_mean]).transform("any"))
    whole = table[~has_failed]
    table = whole[whole["metric"] == metric]
    if table.empty:
        return None
    of_two = table["configured_regularization"].nunique() == 1 and not table["kernel"].str.startswith("random").any()
    if of_two and not varied and (drawn := predicted.of_test_points(run)) is not None:
        return drawn
    shown = [metric, *(name for name in _FURTHER if varied and (whole["metric"] == name).any())]
    picture, panels = figure(columns=len(shown), width=6.4 if len(shown) == 1 else 4.8, height=4.2)
    for axes, name in zip(panels, shown, strict=True):
        own = whole[whole["metric"] == name]
        values = above_noise(own["value"])
        spans_decades = name != "accuracy" and values.max() > 100 * values.min()
        own = own.assign(value=values) if spans_decades else own
        (_against_points if varied else _from_initial_to_trained)(axes, own)
        axes.set(ylabel=_NAMES[name])
        if name == "rho" and run.config.kernel.name == "greens_function":
            _draw_bound(axes, own)
        if spans_decades:
            axes.set_yscale("log")
        axes.margins(y=0.12)
        if name == "accuracy":
            end_at_one(axes)
    axes = panels[0]
    several = "folds" if run.config.evaluation.name == "k_fold" else "repeats"
    count = table["repeat"].nunique()
    sizes = sorted(table["n_interpolation"].unique())
    fixed = [] if varied else [f"$N_I$ = {sizes[0]}" + (f" to {sizes[-1]}" if len(sizes) > 1 else "")]
    counts = [f"{count} {several}"] if count > 1 else []
    return finish(picture, axes, run, *fixed, *counts, *([f"{failures} evaluations failed"] if failures else []))


def _draw_bound(axes: Axes, table: pd.DataFrame) -> None:
    """C 2^(−2k) over the levels N_I = 2^k − 1, with the least C that bounds ρ (Owhadi & Yoo 2019, §5)."""
    most = table.groupby("n_interpolation")["value"].max()
    most = most[most.index < most.index.max()]  # at the last level ρ is 0
    nodes = most.index.to_numpy(dtype=int) + 1
    if (nodes & (nodes - 1)).any():
        return
    bound = axes.plot(most.index, float((most * nodes**2).max()) / nodes**2, ":", color=DATA, label=r"$C\,2^{-2k}$")
    axes.legend(handles=bound, fontsize=8, frameon=False)


def _against_points(axes: Axes, table: pd.DataFrame) -> None:
    several = table["configured_regularization"].nunique() > 1
    random = table[table["kernel"].str.startswith("random") & table["is_whole"]]
    if not random.empty:
        random = random[random["configured_regularization"] == random["configured_regularization"].iloc[0]]
        by_size = random.groupby(["n_interpolation", "kernel"])["value"].mean().groupby("n_interpolation")
        low, high = by_size.min(), by_size.max()
        label = f"{random['kernel'].nunique()} random kernels"
        axes.fill_between(low.index, low, high, color=FAINT, alpha=0.5, linewidth=0, label=label, zorder=0)
    groups = table[table["kernel"].isin(list(OF_KERNELS))].groupby(["kernel", "configured_regularization"], sort=False)
    offered = table["configured_regularization"].unique().tolist()
    for (name, regularization), rows in groups:
        colour, marker, style = OF_KERNELS[str(name)]
        colour = COLOURS[offered.index(regularization) % len(COLOURS)] if several else colour
        for _, one in rows.groupby("repeat"):
            axes.plot(one["n_interpolation"], one["value"], style, color=colour, linewidth=0.7, alpha=0.3)
        by_size = rows[rows["is_whole"]].groupby("n_interpolation")["value"]
        mean, spread = by_size.mean(), by_size.std().fillna(0.0)
        label = f"{name}, λ = {regularization:g}" if several else str(name)
        axes.errorbar(
            mean.index, mean, yerr=spread, color=colour, marker=marker, linestyle=style, capsize=3, label=label
        )
    sizes = sorted(table["n_interpolation"].unique())
    if sizes[-1] >= 8 * sizes[0]:
        axes.set_xscale("log")
    if len(sizes) <= 8:
        axes.set_xticks(sizes)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=r"interpolation points $N_I$")


def _from_initial_to_trained(axes: Axes, table: pd.DataFrame) -> None:
    several = table["configured_regularization"].nunique() > 1
    first = table[table["configured_regularization"] == table["configured_regularization"].iloc[0]]
    random = first[first["kernel"].str.startswith("random") & first["is_whole"]].groupby("kernel")["value"].mean()
    if len(random):
        label = f"{len(random)} random kernels"
        axes.axhspan(random.min(), random.max(), color=FAINT, alpha=0.5, linewidth=0, label=label, zorder=0)
    for i, (regularization, rows) in enumerate(table.groupby("configured_regularization", sort=False)):
        pairs = rows.pivot_table(index="repeat", columns="kernel", values="value")
        pairs = pairs.reindex(columns=["initial", "trained"])
        colour = COLOURS[i % len(COLOURS)]
        if len(pairs) > 1:
            beside, folds = np.tile([-_BESIDE, 1 - _BESIDE], len(pairs)), pairs.to_numpy().ravel()
            of_fold = "a fold or repeat" if i == 0 else None
            axes.plot(beside, folds, "o", color=colour, markersize=4, alpha=0.4, label=of_fold)
        is_whole = rows.groupby("kernel")["is_whole"].all().reindex(pairs.columns, fill_value=False)
        mean, spread = pairs.mean().where(is_whole), pairs.std().fillna(0.0)
        of = f"λ = {regularization:g}" if several else "mean"
        shown = of + (" ± sd" if len(pairs) > 1 else "") if several or len(pairs) > 1 else None
        axes.errorbar(
            [0, 1], mean, yerr=spread, fmt="o", color=colour, markersize=7, capsize=4, linewidth=2, label=shown
        )
        for x, value in enumerate(mean):
            if not several and np.isfinite(value):
                axes.annotate(number(value), (x, value), xytext=(9, 0), textcoords="offset points", va="center")
    axes.set_xticks([0, 1], ["initial kernel", "trained kernel"])
    axes.set_xlim(-0.35, 1.45)
