"""The tables of docs/scale_notes.md and its picture, from the rows in runs/scale/ alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent.parent / "runs" / "scale"
CHOICES = ("uniform", "rpcholesky", "kmeans", "flow")
EXACT = {"kin40k": (25_600, 0.099), "protein": (29_267, 0.536), "keggundirected": (40_708, 0.118)}
"""Training rows, 64 % of each table, and the same error of exact Gaussian processes (Wang et al. 2019, Table 1)."""
DRAWN = tuple(EXACT)


def choices() -> str:
    """Errors of each choice of 500 centres, and steps of conjugate gradients before and after."""
    rows = pd.read_csv(FOLDER / "centres.csv").query("centres == 500")
    steps = pd.read_csv(FOLDER / "steps.csv").set_index(["set", "regularization"])
    lines = []
    for name, own in rows.groupby("set"):
        errors = own.groupby("choose")["rmse"]
        first = own[own["seed"] == 0].set_index("choose")["rmse"]
        cells = [str(own["n"].iloc[0])]
        cells += [f"{errors.mean()[how]:.4f} ± {errors.std()[how]:.4f}" for how in CHOICES[:3]]
        cells += [f"{first[how]:.4f}" for how in ("rpcholesky", "flow")]
        pairs = [steps.loc[(name, value)] for value in (1e-3, 1e-5)]
        cells += [f"{pair['evenly_spaced']:.0f} → {pair['rpcholesky']:.0f}" for pair in pairs]
        lines.append([str(name), *cells])
    return as_table(
        ["table", "rows", *CHOICES[:3], "rpcholesky, seed 0", "flow, seed 0", "steps, λ = 10⁻³", "λ = 10⁻⁵"], lines
    )


def libraries() -> str:
    """Errors and times of other libraries with 500 centres."""
    rows = pd.read_csv(FOLDER / "rivals.csv").query("centres == 500")
    methods = list(rows["method"].unique())
    lines = []
    for name, own in rows.groupby("set", sort=False):
        at = own.set_index("method")
        cells = [f"{at['rmse'][method]:.4f} in {at['seconds'][method]:.0f} s" for method in methods]
        lines.append([str(name), str(at["n"].iloc[0]), *cells])
    return as_table(["table", "rows", *methods], lines)


def everything() -> str:
    """Errors through centres and with all training rows, beside those of Wang et al. 2019 with fewer."""
    centres = pd.read_csv(FOLDER / "centres.csv").query("choose == 'rpcholesky'")
    mean = centres.groupby(["set", "centres"])["rmse"].mean()
    found = pd.read_csv(FOLDER / "exact.csv").set_index("set")
    lines = []
    for name, (theirs, error) in EXACT.items():
        own = [f"{mean[name, count]:.4f}" if (name, count) in mean.index else "not run" for count in (500, 2000)]
        at, whole = None, ["not run", "", ""]
        if name in found.index:
            at = found.loc[name]
            memory = f"{8 * at['n'] ** 2 / 1e9:.0f} GB"
            factor, noise = f"{at['lengths_times']:g}", f"{at['noise']:g}"
            whole = [f"{at['rmse']:.4f} in {at['seconds']:.0f} s, {memory}", factor, noise]
        rows = str(centres[centres["set"] == name]["n"].iloc[0])
        lines.append([name, rows, *own, *whole, str(theirs), f"{error:.3f}"])
    heads = ["M = 500", "M = 2000", "all rows", "factor of the lengths", "λ", "rows of Wang et al. 2019", "their error"]
    return as_table(["table", "rows", *heads], lines)


def as_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*rows, *(f"| {' | '.join(line)} |" for line in lines)])


def draw() -> None:
    """Draw errors against the number of centres into runs/scale/centres.png."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = pd.read_csv(FOLDER / "centres.csv").groupby(["set", "choose", "centres"])["rmse"].mean().unstack("centres")
    others, everything = pd.read_csv(FOLDER / "rivals.csv"), pd.read_csv(FOLDER / "exact.csv")
    picture = Figure(figsize=(9.6, 3.4), dpi=130, layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(1, len(DRAWN))
    for axes, name in zip(panels, DRAWN, strict=True):
        for colour, how in zip(("#0072b2", "#d55e00", "#009e73", "#cc79a7"), CHOICES, strict=True):
            line = found.loc[(name, how)].dropna()
            axes.plot(line.index, line, color=colour, marker="o", ms=4, label=how)
        for marker, (method, own) in zip("s^Dv", others[others["set"] == name].groupby("method"), strict=False):
            axes.plot(own["centres"], own["rmse"], "k", ls="", marker=marker, mfc="white", label=method)
        axes.axhline(EXACT[name][1], color="#555555", ls="--", lw=1, label="exact, Wang et al. 2019")
        for value in everything["rmse"][everything["set"] == name]:
            axes.axhline(value, color="#555555", lw=1, label="exact, kfx")
        axes.set(xscale="log", xlim=(450, 4500), title=name, xlabel="centres M")
        axes.set_xticks(list(found.columns), [str(count) for count in found.columns], minor=False)
        axes.minorticks_off()
        axes.grid(color="#d5d9e0")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test RMSE, in deviations of y")
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    picture.savefig(FOLDER / "centres.png")
