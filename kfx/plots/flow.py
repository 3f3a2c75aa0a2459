"""Figures of a flow: where its points went, what that did to the errors, and the field that moved them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kfx.evaluation.follower import OF_FLOWS, OF_OTHERS, columns
from kfx.files import read_rows
from kfx.plots.style import COLOURS, DATA, FAINT, MARKERS, figure, set_title, title
from kfx.record.reading import Run

_PANELS = 8
_IMAGES = 12
_GRID = 60
_ONE_SCALE = 4
_TRAIL = 12  # snapshots
_AVERAGED = 300  # layers, as in Owhadi & Yoo 2019, Fig. 13


def snapshots(run: Run) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """(layer, training points, test points) of each recorded position, in order; at most those that were kept."""
    found = []
    for path in sorted((run.directory / "snapshots").glob("*.npz")):
        with np.load(path) as stored:
            found.append((int(path.stem), stored["train"], stored["test"]))
    return found


def targets(run: Run, count: int) -> np.ndarray | None:
    """Class or first target of the points in a snapshot, where the run kept them."""
    path = run.directory / "targets.npy"
    return np.load(path)[:count] if path.is_file() else None


def limits(positions: Sequence[np.ndarray]) -> np.ndarray:
    """How far the axes of each picture reach: one scale for all, or, where the points spread more than fourfold, one
    that grows in halves of octaves."""
    extents = np.maximum.accumulate([float(np.abs(points).max()) for points in positions]) * 1.05
    if extents[-1] <= _ONE_SCALE * extents[0]:
        return np.full(len(extents), extents[-1])
    return 2 ** (np.ceil(2 * np.log2(np.maximum(extents, 1e-12))) / 2)


def draw_positions(axes: Axes, points: np.ndarray, values: np.ndarray | None, limit: float | None = None) -> None:
    """A scatter of points in the plane, coloured by class or target; the axes from −limit to limit."""
    colours: Any = DATA if values is None else values
    flat = values is not None and len(np.unique(values)) <= len(COLOURS)
    if flat:
        assert values is not None
        colours = [COLOURS[int(np.searchsorted(np.unique(values), value))] for value in values]
    axes.scatter(points[:, 0], points[:, 1], s=9, c=colours, cmap=None if flat else "viridis", linewidths=0)
    axes.set_aspect("equal")
    if limit is not None:
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit))


def positions(run: Run) -> Figure | None:
    """Points in the plane at eight layers."""
    found = snapshots(run)
    if len(found) < 2 or found[0][1][0].size != 2:
        return None
    chosen = [found[int(i)] for i in np.linspace(0, len(found) - 1, min(_PANELS, len(found))).round()]
    picture, axes = figure(rows=2, columns=math.ceil(len(chosen) / 2), width=3.0, height=3.0)
    scales = limits([train for _, train, _ in chosen])
    for panel, (layer, train, _), limit in zip(axes, chosen, scales, strict=False):
        draw_positions(panel, train, targets(run, len(train)), limit)
        panel.set_title(f"layer {layer}", fontsize=9)
    for panel in axes[len(chosen) :]:
        panel.set_axis_off()
    picture.suptitle(title(run), fontsize=10)
    return picture


def displacement(run: Run) -> Figure | None:
    """On a line: where each point went, and the targets over the new positions."""
    found = snapshots(run)
    if len(found) < 2 or found[0][1][0].size != 1:
        return None
    (_, before, _), (layer, after, _) = found[0], found[-1]
    x, moved = before.ravel(), after.ravel()
    order = np.argsort(x)
    picture, (left, right) = figure(columns=2, width=4.6)
    left.plot(x[order], moved[order], ".-", color=COLOURS[0], markersize=4, linewidth=0.8)
    left.set(xlabel="x", ylabel=f"F(x) after {layer} layers")
    set_title(left, run)
    values = targets(run, len(x))
    if values is not None:
        right.plot(x[order], values[order], ".-", color=FAINT, markersize=4, linewidth=0.8, label="y over x")
        right.plot(moved[order], values[order], ".", color=COLOURS[1], markersize=5, label="y over F(x)")
        right.set(xlabel="position", ylabel="y")
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8, frameon=False)
    return picture


def images(run: Run) -> Figure | None:
    """Training and test images, where the flow took them, and the difference (Owhadi & Yoo 2019, Fig. 15)."""
    from kfx.config.registry import OPTIONS, load

    load()
    found = snapshots(run)
    name = run.config.get("dataset", {}).get("name")
    size = OPTIONS["dataset"][name].image if name in OPTIONS["dataset"] else None
    if len(found) < 2 or size is None:
        return None
    (_, *before), (layer, *after) = found[0], found[-1]
    count = min(_IMAGES, *map(len, before))
    rows: dict[str, np.ndarray] = {}
    for kind, start, end in zip(("training", "test"), before, after, strict=True):
        named = {f"{kind} images": start, f"{kind}, layer {layer}": end, f"{kind}, difference": end - start}
        rows |= {name: shown[:count] for name, shown in named.items()}
    picture, axes = figure(rows=len(rows), columns=count, width=0.8, height=0.95)
    for i, (name, shown) in enumerate(rows.items()):
        span = max(float(np.abs(shown).max()), 1e-12)
        for j, image in enumerate(shown):
            panel = axes[i * count + j]
            signed = name.endswith("difference")
            pixels = image.reshape(-1, *size[:2]).mean(axis=0)
            panel.imshow(pixels, cmap="RdBu_r" if signed else "gray_r", vmin=-span if signed else 0, vmax=span)
            panel.set(xticks=[], yticks=[])
            panel.grid(visible=False)
        axes[i * count].set_title(name, fontsize=8, loc="left")
    return picture


_ERROR_NAMES = {"error": "test error", "mse": "test MSE", "energy_error": "error in the energy norm"}


def errors(run: Run) -> Figure | None:
    """On the way of a fit: test errors for each number of interpolation points, mean squared distances in classes and
    between them, and their ratio (Owhadi & Yoo 2019, Figs. 14, 25 and 27)."""
    of = next((each for each in (OF_FLOWS, OF_OTHERS) if (run.directory / each[0]).is_file()), None)
    if of is None:
        return None
    file, counted = of
    table = read_rows(run.directory / file, columns(counted))
    found = [name for name in _ERROR_NAMES if (table["metric"] == name).any()]
    if table[counted].nunique() < 2 or not found:
        return None
    distances = {"distance_all": "all", "distance_in_class": "in class", "distance_between": "between classes"}
    panels = [*found, *([] if table[table["metric"].isin(distances)].empty else ["distances"])]
    panels += ["distance_ratio"] if (table["metric"] == "distance_ratio").any() else []
    picture, axes = figure(columns=len(panels), width=4.8)
    for panel, what in zip(axes, panels, strict=True):
        if what in _ERROR_NAMES:
            heads = table[table["metric"] == "head_error"] if what == "error" else table[:0]
            _draw_errors(panel, table[table["metric"] == what], heads, counted)
            panel.set(ylabel=_ERROR_NAMES[what])
        else:
            lines = distances if what == "distances" else {what: "between / in class"}
            for i, (name, label) in enumerate(lines.items()):
                curve = table[table["metric"] == name].groupby(counted)["value"].mean()
                if len(curve):
                    panel.plot(curve.index, curve, **_look(i, len(curve)), label=label)
            panel.set(ylabel="mean squared distance" if what == "distances" else "ratio of mean squared distances")
        panel.set(xlabel=counted)
        panel.margins(y=0.08)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=8, frameon=False)
    set_title(axes[0], run)
    return picture


def _draw_errors(panel: Axes, rows: pd.DataFrame, of_head: pd.DataFrame, counted: str) -> None:
    """A curve for each number of interpolation points, the mean over subsets, and one for a network's own head;
    logarithmic where they differ much."""
    several = rows["regularization"].nunique() > 1
    groups: Any = rows.groupby(["n_interpolation", "regularization"])
    for i, ((size, value), own) in enumerate(groups):
        curve = own.groupby(counted)["value"].mean()
        label = f"{int(size)} points" + (f", λ {value:g}" if several else "")
        panel.plot(curve.index, curve, "-", **_look(i, len(curve)), label=label)
    if len(of_head):
        curve = of_head.groupby(counted)["value"].mean()
        panel.plot(curve.index, curve, "--", color=DATA, linewidth=1.3, label="its head")
    finite = rows["value"][rows["value"] > 0]
    if len(finite) and finite.max() > 20 * finite.min():
        panel.set_yscale("log")


def _look(i: int, points: int) -> dict[str, Any]:
    marks = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4, "markevery": max(points // 40, 1)}
    return {"color": COLOURS[i % len(COLOURS)], "linewidth": 1.3, **(marks if points <= 120 else {})}


def boundary_and_field(run: Run) -> Figure | None:
    """In the plane, with recorded layers: what the flowed kernel predicts, over the original points; and over the
    final ones the velocity of the last layer and the mean over the last 300 (Owhadi & Yoo 2019, Figs. 11 to 13)."""
    found = snapshots(run)
    if len(found) < 2 or found[0][1][0].size != 2 or not (run.directory / "layers-0.bin").is_file():
        return None
    if run.metrics.get("status") != "completed" or len(run.metrics["parameters"].get("folds", [0])) > 1:
        return None
    (_, before, _), (_, after, _) = found[0], found[-1]
    kernel: Any = run.kernel
    values = targets(run, len(before))
    count = sum(1 for _ in kernel.layers)
    last = list(islice(kernel.layers, max(count - _AVERAGED, 0), None))
    if values is None or not hasattr(last[-1], "field"):
        return None
    picture, axes = figure(columns=3, width=3.8)
    corners = [(points.min(axis=0), points.max(axis=0)) for points in (before, after)]
    spans = [(low - 0.15 * (high - low), high + 0.15 * (high - low)) for low, high in corners]

    def mesh(low: np.ndarray, high: np.ndarray, n: int) -> np.ndarray:
        return np.stack(np.meshgrid(*np.linspace(low, high, n).T), axis=-1)

    grid = mesh(*spans[0], _GRID)
    flowed = torch.as_tensor(kernel.transform(grid.reshape(-1, 2)))
    gram = kernel.kernel.gram(after.astype(np.float64))
    used = [row for row in run.metrics["evaluation"] if row["metric"] == "effective_regularization"]
    weights = np.linalg.solve(gram + used[-1]["mean"] * np.eye(len(gram)), _centred(values))
    predicted = (kernel.kernel.gram(flowed.numpy(), after.astype(np.float64)) @ weights).reshape(_GRID, _GRID)
    axes[0].contourf(grid[..., 0], grid[..., 1], np.sign(predicted), levels=[-2, 0, 2], colors=["#dfe8f2", "#f6e0da"])
    draw_positions(axes[0], before, values)
    axes[0].set_title(f"prediction from {len(values)} points, λ = {used[-1]['mean']:.3g}", fontsize=9)
    coarse = mesh(*spans[1], 22)
    points = torch.as_tensor(coarse.reshape(-1, 2))
    steps = [layer.step * layer.field(points) for layer in last]
    mean = torch.stack(steps).mean(dim=0)
    for panel, arrows, name in ((axes[1], steps[-1], "last layer"), (axes[2], mean, f"mean of {len(last)} layers")):
        draw_positions(panel, after, values)
        panel.quiver(points[:, 0], points[:, 1], arrows[:, 0], arrows[:, 1], color=DATA, alpha=0.6, width=0.004)
        panel.set_title(f"displacement, {name}", fontsize=9)
    picture.suptitle(title(run), fontsize=10)
    return picture


def _centred(values: np.ndarray) -> np.ndarray:
    """±1 for two classes."""
    return np.where(values == values.max(), 1.0, -1.0) if len(np.unique(values)) == 2 else values - values.mean()


def animate(run: Run, path: Path, seconds: float, advance: Any) -> None:
    """A film of the recorded positions: MP4 where ffmpeg is, else GIF, by the name of `path`."""
    from matplotlib.animation import FFMpegWriter, FuncAnimation, PillowWriter

    found = snapshots(run)
    picture, (axes,) = figure(width=5.0, height=5.0)
    rate = max(len(found) / seconds, 1.0)
    writer = FFMpegWriter(fps=round(rate)) if path.suffix == ".mp4" else PillowWriter(fps=round(rate))
    values = targets(run, len(found[0][1]))
    course = np.stack([train.reshape(len(train), -1) for _, train, _ in found])
    scales = limits(list(course))

    def frame(number: int) -> list[Any]:
        points, limit = course[number], scales[number]
        axes.clear()
        axes.grid(color="#e6e8ec", linewidth=0.8)
        if points.shape[1] == 1:
            axes.scatter(points[:, 0], course[0, :, 0] if values is None else values, s=9, color=COLOURS[0])
            axes.set(xlabel="F(x)", ylabel="x" if values is None else "y", xlim=(-limit, limit))
        else:
            trail = course[max(number - _TRAIL, 0) : number + 1]
            axes.plot(trail[..., 0], trail[..., 1], color=FAINT, linewidth=0.8, zorder=1)
            draw_positions(axes, points, values, limit)
        axes.set_title(f"{title(run)} · layer {found[number][0]}", fontsize=9)
        advance()
        return []

    FuncAnimation(picture, frame, frames=len(found), init_func=list).save(path, writer=writer)
