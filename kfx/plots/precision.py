"""Figures of the precision check and of the kernel check."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from kfx.evaluation.device_products import COLUMNS
from kfx.files import Document
from kfx.numerics.precision import VERDICTS, read
from kfx.plots.style import COLOURS, MARKERS, Drawn, count_along, end_at_one, figure, headline, legend
from kfx.record.reading import Run, read_environment, read_table


def error_against_size(contents: Mapping[str, Document]) -> Figure:
    """Error of products against the matrix size on each machine, device and dtype (Khalid 2022, Figs. 3.4 and 3.5).

    The error is relative; beside it the norm of the error, if it was recorded.
    """
    rows = [(machine, v) for machine, content in contents.items() for v in content["verdicts"]]
    picture, axes = figure(columns=2, width=5.6, height=4.2)
    for i, (machine, v) in enumerate(rows):
        named = [*([machine] if len(contents) > 1 else []), v["framework"], v["device"], v["dtype"]]
        look: Drawn = {
            "marker": MARKERS[i % len(MARKERS)],
            "color": COLOURS[i % len(COLOURS)],
            "markersize": 4,
        }
        for panel, key in zip(axes, ("products", "distances"), strict=False):
            sizes = [int(n) for n in v[key]]
            # float64 on the CPU is the reference, and its error of 0 cannot be shown on a logarithmic axis
            errors = [max(float(e), 1e-17) for e in v[key].values()]
            panel.plot(sizes, errors, "-", label=" ".join(named), **look)
    for name, bound in VERDICTS:
        axes[0].axhline(bound, color="#b9c1cc", linewidth=0.8, linestyle="--", zorder=0)
        axes[0].annotate(
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
    names = ("relative Frobenius error", "Frobenius norm of the difference")
    for panel, name in zip(axes, names, strict=False):
        panel.set_yscale("log")
        panel.set(xlabel="matrix size N", ylabel=name)
    axes[0].set_ylim(5e-18, 1e-1)
    headline(axes[0], "Products of random matrices")
    legend(picture, axes[0], most=4)
    return picture


def of_run(run: Run) -> Figure | None:
    """Errors of matrix products in each arithmetic of this machine: below the dashed line of its name it keeps what its
    type promises."""
    path = run.directory / "precision.json"
    return error_against_size(read([path])) if path.is_file() else None


def falls_short(run: Run) -> bool:
    """Whether the precision check warned that the run's device delivers less than its dtype promises."""
    path, here = run.directory / "precision.json", read_environment(run.directory)
    if not path.is_file() or not here:
        return False
    used = "cpu" if here.get("device") == "cpu" else "cuda", run.config.device.dtype
    (content,) = read([path]).values()
    return any((v["device"].split(":")[0], v["dtype"]) == used and not v["keeps_promise"] for v in content["verdicts"])


def product_check(run: Run) -> Figure | None:
    """How far predictions in each device and dtype are from those in float64 on the CPU, by number of interpolation
    points.

    See Khalid 2022, Fig. 3.3.
    """
    path = run.directory / "kernel_check.csv"
    if not path.is_file():
        return None
    table = read_table(path, COLUMNS)
    has_accuracy = bool(table["accuracy"].notna().any())
    picture, axes = figure(columns=2 if has_accuracy else 1, width=5.2)
    for i, ((device, dtype), rows) in enumerate(table.groupby(["device", "dtype"])):
        style: Drawn = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        style |= {"alpha": 0.8, "label": f"{device} {dtype}"}
        distance = rows["norm_of_difference"].clip(lower=1e-17)
        axes[0].plot(rows["n_interpolation"], distance, **style)
        if has_accuracy:
            axes[1].plot(rows["n_interpolation"], rows["accuracy"], **style)
    axes[0].set_yscale("log")
    count_along(axes[0], "interpolation points $N_I$")
    axes[0].set_ylabel("Frobenius distance from cpu float64")
    if has_accuracy:
        count_along(axes[1], "interpolation points $N_I$")
        axes[1].set_ylabel("test accuracy")
        end_at_one(axes[1])
    legend(picture, axes[0])
    headline(picture, "The regression product in each device and dtype")
    return picture
