"""Figures of a flow: positions of its points and errors. Those of the plane are in `plane`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from omegaconf.errors import OmegaConfBaseException

from kfx.config import registry
from kfx.config.nodes import make_option, plain
from kfx.config.parts import DatasetPart
from kfx.evaluation.follower import OF_FLOWS, OF_OTHERS, columns
from kfx.outcomes import KfxError
from kfx.plots.style import COLOURS, DATA, FAINT, MARKERS, Drawn, count_along, figure, headline, set_title, title
from kfx.record.reading import Run, read_table

_IMAGES, _OF_A_CLASS = 12, 24
_ONE_SCALE = 4
_TRAIL = 12  # number of snapshots


def snapshots(run: Run) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """(layer, training points (n, …), test points (m, …)) of each recorded position, in order."""
    found = []
    for path in sorted((run.directory / "snapshots").glob("*.npz")):
        with np.load(path) as stored:
            found.append((int(path.stem), stored["train"], stored["test"]))
    return found


def targets(run: Run, count: int) -> np.ndarray | None:
    """Class or first target of the `count` points of a snapshot, (count,); None if the run did not keep them."""
    path = run.directory / "targets.npy"
    return np.load(path)[:count] if path.is_file() else None


def limits(positions: Sequence[np.ndarray]) -> np.ndarray:
    """Axis limits of each picture, for positions (n, 2) each.

    They are the same for all; if the points spread more than fourfold, they grow in steps of √2.
    """
    extents = np.maximum.accumulate([float(np.abs(points).max()) for points in positions]) * 1.05
    if extents[-1] <= _ONE_SCALE * extents[0]:
        return np.full(len(extents), extents[-1])
    return 2 ** (np.ceil(2 * np.log2(np.maximum(extents, 1e-12))) / 2)


def draw_positions(
    axes: Axes, points: np.ndarray, values: np.ndarray | None, limit: float | None = None
) -> PathCollection:
    """A scatter plot of points in the plane, (n, 2), coloured by class or target, (n,); axes from −limit to limit."""
    colours: str | np.ndarray | list[str] = DATA if values is None else values
    is_flat = values is not None and len(np.unique(values)) <= len(COLOURS)
    if values is not None and is_flat:
        colours = [COLOURS[int(np.searchsorted(np.unique(values), value))] for value in values]
    cloud = axes.scatter(points[:, 0], points[:, 1], s=9, c=colours, cmap=None if is_flat else "viridis", linewidths=0)
    axes.set_aspect("equal")
    if limit is not None:
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit))
    return cloud


def displacement(run: Run) -> Figure | None:
    """Where each point of the line went, and the targets over the old and the new positions."""
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


def _image_size(run: Run) -> tuple[int, ...] | None:
    """Height, width and channels of the data set's images; None for other points, and before a fit."""
    registry.load()
    if not run.metrics.get("parameters"):
        return None
    try:
        return cast(DatasetPart, make_option("dataset", "dataset", plain(run.config.dataset))).image
    except (KfxError, OmegaConfBaseException):  # the data set's plugin or file is missing
        return None


def images(run: Run) -> Figure | None:
    """Some images, what the flow made of them, and the difference of the two.

    Training and test images (Owhadi & Yoo 2019, Fig. 15).
    """
    found, size = snapshots(run), _image_size(run)
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
            panel.imshow(
                pixels,
                cmap="RdBu_r" if signed else "gray_r",
                vmin=-span if signed else min(0.0, float(shown.min())),
                vmax=span,
            )
            panel.set(xticks=[], yticks=[])
            panel.grid(visible=False)
        axes[i * count].set_title(name, fontsize=8, loc="left")
    return picture


def classes(run: Run) -> Figure | None:
    """Class by class, images above what the flow made of them; at the right end the mean of all of the class.

    The means are the archetypes of Owhadi & Yoo 2019, Figs. 4, 15, 21 and 22.
    """
    found, size = snapshots(run), _image_size(run)
    if len(found) < 2 or size is None:
        return None
    (_, before, _), (layer, after, _) = found[0], found[-1]
    labels = targets(run, len(before))
    if labels is None:
        return None
    names = np.unique(labels)
    picture, axes = figure(rows=-(-len(names) // 2), columns=min(len(names), 2), width=6.2, height=1.05)
    for panel, label in zip(axes, names, strict=False):
        own = labels == label
        rows = [_strip(points[own].reshape(own.sum(), -1, *size[:2]).mean(axis=1)) for points in (before, after)]
        panel.imshow(np.concatenate(rows), cmap="gray_r", vmin=min(0.0, float(before.min())))
        height = len(rows[0])
        panel.set_yticks([height / 2, height * 1.5], ["$x$", "$F(x)$"], fontsize=8)
        panel.set_xticks([(_OF_A_CLASS + 0.5) * rows[0].shape[1] / (_OF_A_CLASS + 1)], ["mean"], fontsize=8)
        panel.set_title(f"class {int(label)}, mean of {int(own.sum())}", fontsize=8, loc="left")
        panel.grid(visible=False)
    for panel in axes[len(names) :]:
        panel.set_axis_off()
    headline(picture, f"{title(run)} · layer {layer}")
    return picture


def _strip(found: np.ndarray) -> np.ndarray:
    """The first images and the mean of all, side by side; white if there are fewer."""
    shown = np.full((_OF_A_CLASS + 1, *found.shape[1:]), np.nan)
    shown[: min(len(found), _OF_A_CLASS)] = found[:_OF_A_CLASS]
    shown[-1] = found.mean(axis=0)
    return np.concatenate(list(np.pad(shown, ((0, 0), (1, 1), (1, 1)), constant_values=np.nan)), axis=1)


_ERROR_NAMES = {"error": "test error", "mse": "test MSE", "energy_error": "error in the energy norm, squared"}


def errors_of_flow(run: Run) -> Figure | None:
    """Test errors after each layer by so many interpolation points, and how far apart points of one class and of
    different classes are.

    See Owhadi & Yoo 2019, Figs. 14, 25 and 27.
    """
    return _errors(run, *OF_FLOWS)


def errors_of_fit(run: Run) -> Figure | None:
    """Test errors in the course of the fit by so many interpolation points, and how far apart points of one class and
    of different classes are."""
    return None if (run.directory / OF_FLOWS[0]).is_file() else _errors(run, *OF_OTHERS)


def _errors(run: Run, file: str, counted: str) -> Figure | None:
    if not (run.directory / file).is_file():
        return None
    table = read_table(run.directory / file, columns(counted))
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
        count_along(panel, counted)
        panel.margins(y=0.08)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=8, frameon=False)
    set_title(axes[0], run)
    return picture


def _draw_errors(panel: Axes, rows: pd.DataFrame, of_head: pd.DataFrame, counted: str) -> None:
    """A curve for each number of interpolation points, the mean over subsets and folds, and one for a network's own
    head.

    The axis is logarithmic if the errors differ much.
    """
    several = rows["regularization"].nunique() > 1
    rows = rows.assign(size=rows.groupby("part")["n_interpolation"].rank("dense"))  # folds may differ by a point or two
    groups = rows.groupby(["size", "regularization"])
    for i, ((_, value), own) in enumerate(groups):
        curve, sizes = own.groupby(counted)["value"].mean(), own["n_interpolation"].astype(int)
        of = f"{sizes.min()} to {sizes.max()}" if sizes.nunique() > 1 else f"{sizes.min()}"
        label = f"{of} points" + (f", λ {value:g}" if several else "")
        panel.plot(curve.index, curve, "-", **_look(i, len(curve)), label=label)
    if len(of_head):
        curve = of_head.groupby(counted)["value"].mean()
        panel.plot(curve.index, curve, "--", color=DATA, linewidth=1.3, label="its head")
    finite = rows["value"][rows["value"] > 0]
    if len(finite) and finite.max() > 20 * finite.min():
        panel.set_yscale("log")


def _look(i: int, points: int) -> Drawn:
    marks = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4, "markevery": max(points // 40, 1)}
    return {"color": COLOURS[i % len(COLOURS)], "linewidth": 1.3, **(marks if points <= 120 else {})}


def in_plane(course: Sequence[np.ndarray]) -> np.ndarray:
    """Positions after each snapshot, (snapshots, n, dimensions), in the plane in which the last ones vary most, with
    their mean at 0: (snapshots, n, 2). In one or two dimensions they stay as they are."""
    if course[-1].shape[1] <= 2:
        return np.stack(course)
    mean = course[-1].mean(axis=0)
    plane = np.linalg.svd(course[-1] - mean, full_matrices=False)[2][:2]
    return np.stack([(points - mean) @ plane.T for points in course])


def animate(run: Run, path: Path, seconds: float, advance: Callable[[], object]) -> None:
    """Write a film of the recorded positions, those in more dimensions as `in_plane` has them: MP4 or GIF, by the name
    of `path`."""
    from matplotlib.animation import FFMpegWriter, PillowWriter

    found = snapshots(run)
    picture, (axes,) = figure(width=5.0, height=5.0)
    rate = round(max(len(found) / seconds, 1.0))
    writer = FFMpegWriter(fps=rate) if path.suffix == ".mp4" else PillowWriter(fps=rate)
    values = targets(run, len(found[0][1]))
    course = in_plane([train.reshape(len(train), -1) for _, train, _ in found])
    scales, trail = limits(list(course)), LineCollection([], colors=FAINT, linewidths=0.8, zorder=1)
    axes.grid(color="#e6e8ec", linewidth=0.8)
    is_line = course.shape[2] == 1
    if is_line:  # over the targets, or over where the points began
        heights = course[0, :, 0] if values is None else values
        course = np.stack(np.broadcast_arrays(course[..., 0], heights), axis=2)
        axes.set(xlabel="F(x)", ylabel="x" if values is None else "y")
        points = axes.scatter(course[0, :, 0], heights, s=9, color=COLOURS[0])
    else:
        axes.add_collection(trail)
        points = draw_positions(axes, course[0], values)
    heading = axes.set_title("", fontsize=9)

    def show(number: int) -> None:
        points.set_offsets(course[number])
        trail.set_segments(list(course[max(number - _TRAIL, 0) : number + 1].transpose(1, 0, 2)))
        axes.set_xlim(-scales[number], scales[number])
        if not is_line:
            axes.set_ylim(-scales[number], scales[number])
        heading.set_text(f"{title(run)} · layer {found[number][0]}")

    show(len(found) - 1)
    picture.draw_without_rendering()
    picture.set_layout_engine("none")  # one layout serves all frames
    with writer.saving(picture, str(path), picture.dpi):
        for number in range(len(found)):
            show(number)
            writer.grab_frame()
            advance()
