"""What kernels predict for test points, beside the truth: values on a plane, classes in a confusion matrix."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from omegaconf import ListConfig

from kfx.data.series_options import INCREMENT
from kfx.numerics.formatting import number
from kfx.plots.forecast import coordinates
from kfx.plots.style import DATA, OF_KERNELS, TRAINED, figure, headline, legend, literal, title
from kfx.record.findings import Findings, mean_of
from kfx.record.reading import Run, read_table
from kfx.record.verdict import change, discarded, explained_before_and_after, points_tested, right

_MOST_PANELS = 4
"""Outputs that are drawn, the first ones: each has a scale of its own."""
_MOST_NUMBERS, _MOST_TICKS = 20, 30
"""Classes whose counts are written, and whose numbers are, in a confusion matrix."""
_BEYOND = 1.0
"""How far the axes reach beyond the range of the truth, in ranges, for predictions that are far off."""


def of_test_points(run: Run) -> Figure | None:
    """The test points of `predictions.csv`: predicted against true values, or which class is taken for which."""
    rows = read_table(run.directory / "predictions.csv", ("kernel", "repeat"))
    if rows.empty or not (rows["kernel"] == "trained").any():
        return None
    return _confusion(run, rows) if "class" in rows else _against_truth(run, rows)


def _titled(picture: Figure, run: Run, words: str) -> None:
    sizes = sorted(run.evaluation["n_interpolation"].unique())
    of = f"$N_I$ = {sizes[0]}" + (f" to {sizes[-1]}" if len(sizes) > 1 else "")
    headline(picture, f"{title(run, of)}\n{words}")


def _change_in_words(run: Run, rows: pd.DataFrame) -> str:
    """The main metric before and after, as `mse 3683.4 → 2813.9 (−24 %), R² 0.4076 → 0.5474 · 100 test points`."""
    found, repeated = Findings.of(run.metrics), _repeated(run, rows)
    if (pair := found.pair(found.at())) is None:
        return ""
    before, after = (row["mean"] for row in pair)
    if before == after and all(discarded(run.metrics)):
        why = "what training reached was discarded, the initial kernel is kept"
        return f"{found.metric} {mean_of(pair[0])}: {why}{repeated}"
    shown = f"{found.metric} {mean_of(pair[0])} → {mean_of(pair[1])}{change(found.metric, before, after, right(run))}"
    if found.metric == "accuracy":
        return f"{shown}{repeated}"
    explained = [number(row["mean"]) for row in explained_before_and_after(run) or ()]
    of_variance = f", R² {' → '.join(explained)}" if explained else ""
    return f"{shown}{of_variance}{repeated or f' · {points_tested(run)} test points'}"


def _repeated(run: Run, rows: pd.DataFrame) -> str:
    """How often each test point is drawn; empty for once."""
    count, points = int((rows["kernel"] == "trained").sum()), points_tested(run)
    return f"\n{count} predictions, {count // points} of each test point" if count > points else ""


# ---- values


def _against_truth(run: Run, rows: pd.DataFrame) -> Figure:
    names = [str(name).removeprefix("target") for name in rows if str(name).partition(".")[0] == "target"]
    shown = names[:_MOST_PANELS]
    columns = min(len(shown), 2)
    picture, panels = figure(rows=-(-len(shown) // 2), columns=columns, width=5.4 if columns == 1 else 4.4, height=4.9)
    found, (true, predicted) = Findings.of(run.metrics), _quantity(run)
    for axes, name in zip(panels, shown, strict=False):
        _draw_plane(axes, rows, name, _labels(run, found))
        axes.set(xlabel=true, ylabel=predicted)
        if len(names) > 1:
            axes.set_title(_output(run, name[1:]), fontsize=9)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    few = f"\nfirst {len(shown)} of {len(names)} outputs" if len(shown) < len(names) else ""
    _titled(picture, run, f"{_change_in_words(run, rows)}{few}")
    legend(picture, panels[0], most=1)
    return picture


def _output(run: Run, number: str) -> str:
    """The name of an output: a coordinate of a series, or a target that the config lists by name."""
    named = coordinates(run) or run.config.dataset.get("columns") or run.config.dataset.get("target")
    is_listed = isinstance(named, (list, ListConfig)) and len(named) > int(number)
    return literal(str(named[int(number)])) if is_listed else f"output {number}"


def _quantity(run: Run) -> tuple[str, str]:
    """What is true and what is predicted: values, or for windows of a series the changes from their last values."""
    dataset = run.config.dataset
    is_change = "lags" in dataset and dataset.get("target") == INCREMENT
    return ("true change from the last value", "predicted change") if is_change else ("true value", "predicted value")


def _labels(run: Run, found: Findings) -> dict[str, str]:
    """What the legend says of each kernel: its error and R². Where a fit changed nothing one kernel is drawn."""
    pair, explained = found.pair(found.at()), explained_before_and_after(run)
    shown = {}
    for i, kernel in enumerate(OF_KERNELS):
        of = "" if pair is None else f": {found.metric} {mean_of(pair[i])}"
        shown[kernel] = f"{kernel} kernel{of}" + ("" if explained is None else f", R² {number(explained[i]['mean'])}")
    is_same = pair is not None and pair[0]["mean"] == pair[1]["mean"]
    return {"trained": shown["initial"]} if is_same else shown


def _draw_plane(axes: Axes, rows: pd.DataFrame, output: str, labels: dict[str, str]) -> None:
    """Predictions against the truth, those of the initial kernel faint, with the line where both are equal."""
    true = rows[f"target{output}"].to_numpy(dtype=float)
    low, high = float(np.nanmin(true)), float(np.nanmax(true))
    reach = _BEYOND * ((high - low) or 1.0)
    every = [low, high]
    for kernel, label in labels.items():
        colour, marker, _ = OF_KERNELS[kernel]
        of = (rows["kernel"] == kernel).to_numpy()
        own = rows.loc[of, f"prediction{output}"].to_numpy(dtype=float)
        x = true[of]
        if not len(own):
            continue
        shown = np.isfinite(own) & (own >= low - reach) & (own <= high + reach)
        every += [float(own[shown].min()), float(own[shown].max())] if shown.any() else []
        far = f"; {(~shown).sum()} beyond the axes" if not shown.all() else ""
        is_trained = kernel == "trained"
        axes.scatter(
            x[shown],
            own[shown],
            s=14 if is_trained else 16,
            marker=marker,
            facecolors=colour if is_trained else "none",
            edgecolors="none" if is_trained else colour,
            alpha=0.75 if is_trained else 0.5,
            linewidths=0.8,
            label=f"{label}{far}",
            zorder=3 if is_trained else 2,
        )
    pad = 0.04 * ((max(every) - min(every)) or 1.0)
    limits = (min(every) - pad, max(every) + pad)
    axes.plot(limits, limits, color=DATA, linewidth=0.9, linestyle=":", label="prediction = truth", zorder=1)
    axes.set(xlim=limits, ylim=limits, aspect="equal")


# ---- classes


def _confusion(run: Run, rows: pd.DataFrame) -> Figure:
    own = rows[(rows["kernel"] == "trained") & (rows["class"] >= 0)]
    names = _class_names(run)
    size = max(len(names), int(max(own["class"].max(), own["prediction"].max())) + 1, _scores(rows))
    counts = np.zeros((size, size), dtype=int)
    np.add.at(counts, (own["class"].to_numpy(dtype=int), own["prediction"].to_numpy(dtype=int)), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = 5.4 if size <= _MOST_NUMBERS // 2 else 6.8
    picture, (axes,) = figure(width=side, height=side * 0.95)
    blues = LinearSegmentedColormap.from_list("share", ["#ffffff", "#9ecae6", TRAINED])
    image = axes.imshow(shares, cmap=blues, norm=PowerNorm(0.5, 0.0, 1.0))
    bar = picture.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("share of the class's test points")
    bar.set_ticks([0, 0.05, 0.2, 0.5, 1])
    if size <= _MOST_NUMBERS:
        _write_counts(axes, counts, shares)
    shown = [literal(name) for name in names or map(str, range(size))]
    for axis in (axes.xaxis, axes.yaxis):
        if size > _MOST_TICKS:
            axis.set_major_locator(MaxNLocator(integer=True))
        else:
            axis.set_ticks(range(size), shown)
    which = "" if names or run.config.dataset.name != "table" else ", by its place in the order of names"
    axes.set(xlabel=f"predicted class{which}", ylabel="true class")
    axes.grid(visible=False)
    _titled(picture, run, _change_in_words(run, rows))
    return picture


def _write_counts(axes: Axes, counts: np.ndarray, shares: np.ndarray) -> None:
    """The counts, and on the diagonal the shares: how many of a class are right."""
    size = len(counts)
    points = 9 if size <= _MOST_NUMBERS // 2 else 6
    for i, j in zip(*np.nonzero(counts), strict=True):
        percent = round(100 * shares[i, j]) if shares[i, j] == 1 else min(round(100 * shares[i, j]), 99)  # 100 %: all
        rate = f"\n{percent} %" if i == j else ""
        colour = "white" if shares[i, j] > 0.5 else DATA
        axes.text(j, i, f"{counts[i, j]}{rate}", ha="center", va="center", fontsize=points, color=colour)


def _class_names(run: Run) -> tuple[str, ...]:
    """The names of the classes, where the config chooses some."""
    chosen = run.config.dataset.get("classes")
    return tuple(map(str, sorted(chosen))) if chosen else ()


def _scores(rows: pd.DataFrame) -> int:
    """The number of classes that have a score."""
    return sum(str(name).startswith("score.") for name in rows)
