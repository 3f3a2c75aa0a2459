"""Figures of the precision check and of the kernel check."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from kfx.numerics.precision import VERDICTS
from kfx.plots.style import COLOURS, MARKERS, figure, legend


def error_against_size(content: dict[str, Any]) -> Figure:
    """Relative error of products against the matrix size, each device and dtype (as Khalid 2022, Fig. 3.4, which
    shows the norm itself)."""
    picture, (axes,) = figure(width=7.2)
    for i, v in enumerate(content["verdicts"]):
        sizes = [int(n) for n in v["products"]]
        # float64 on the CPU is the reference: an error of exactly 0 has no place on a logarithmic axis
        errors = [max(float(e), 1e-17) for e in v["products"].values()]
        label = f"{v['framework']} {v['device']} {v['dtype']}"
        marker = MARKERS[i % len(MARKERS)]
        axes.plot(sizes, errors, "-", marker=marker, color=COLOURS[i % len(COLOURS)], markersize=4, label=label)
    for name, bound in VERDICTS:
        axes.axhline(bound, color="#b9c1cc", linewidth=0.8, linestyle="--", zorder=0)
        axes.annotate(
            f"at most {bound:g}: {name}",
            (1.0, bound),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
            color="#6c757d",
        )
    axes.set_yscale("log")
    axes.set(xlabel="matrix size N", ylabel="relative Frobenius error", title="Products of random matrices")
    axes.set_ylim(5e-18, 1e-1)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return picture


def product_check(table: pd.DataFrame) -> Figure:
    """Accuracy and distance from float64 on the CPU against N_I, in each setting (Khalid 2022, Fig. 3.3)."""
    has_accuracy = bool(table["accuracy"].notna().any())
    picture, axes = figure(columns=2 if has_accuracy else 1, width=5.2)
    for i, ((device, dtype), rows) in enumerate(table.groupby(["device", "dtype"])):
        style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        style |= {"alpha": 0.8, "label": f"{device} {dtype}"}
        distance = rows["norm_of_difference"].clip(lower=1e-17)
        axes[0].plot(rows["n_interpolation"], distance, **style)
        if has_accuracy:
            axes[1].plot(rows["n_interpolation"], rows["accuracy"], **style)
    axes[0].set_yscale("log")
    axes[0].set(xlabel=r"interpolation points $N_I$", ylabel="Frobenius distance from cpu float64")
    if has_accuracy:
        axes[1].set(xlabel=r"interpolation points $N_I$", ylabel="test accuracy")
    legend(picture, axes[0])
    picture.suptitle("The regression product in each device and dtype")
    return picture
