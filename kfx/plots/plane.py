"""Figures of a flow in the plane: positions, decision boundaries and velocities."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kfx.evaluation.systems import InMemory
from kfx.experiment.config import check
from kfx.flows.flowed import FlowedKernel
from kfx.kernels.base import Kernel
from kfx.numerics.regularization import Regularization
from kfx.outcomes import NumericalError
from kfx.plots.flow import draw_positions, limits, snapshots, targets
from kfx.plots.style import DATA, figure, headline, title
from kfx.record.reading import Run

_PANELS = 8
_GRID = 80
_ARROWS = 18
_COLUMNS = 5
_AVERAGED = 300  # layers, as in Owhadi & Yoo 2019, Fig. 13


def positions(run: Run) -> Figure | None:
    """Where the training points are at a few layers, coloured by class or target: the shades are the sides on which
    the kernel puts the plane.

    Eight layers; the sides for two classes only (Owhadi & Yoo 2019, Figs. 3, 9 to 11).
    """
    found = snapshots(run)
    if len(found) < 2 or found[0][1][0].size != 2:
        return None
    chosen = [found[int(i)] for i in np.linspace(0, len(found) - 1, min(_PANELS, len(found))).round()]
    columns = max(math.ceil(len(chosen) / 2), 2)
    picture, axes = figure(rows=math.ceil(len(chosen) / columns), columns=columns, width=3.0, height=3.0)
    scales = limits([train for _, train, _ in chosen])
    values = targets(run, len(chosen[0][1]))
    kernel = _unmoved_kernel(run) if values is not None and len(np.unique(values)) == 2 else None
    for panel, (layer, train, _), limit in zip(axes, chosen, scales, strict=False):
        if kernel is not None and values is not None:
            regularization = kernel.own_regularization or check(run.config).regularization.build()
            _draw_boundary(panel, kernel, regularization, train, values, limit)
        draw_positions(panel, train, values, limit)
        panel.set_title(f"layer {layer}", fontsize=9)
    for panel in axes[len(chosen) :]:
        panel.set_axis_off()
    headline(picture, title(run))
    return picture


def _unmoved_kernel(run: Run) -> Kernel | None:
    """The kernel of the flow, if its parameters do not move and the record has all of its points; else None."""
    completed = run.metrics.get("status") == "completed"
    several = len(run.metrics.get("parameters", {}).get("folds", [0])) > 1
    if not completed or several or run.config.optimizer.name == "hybrid":
        return None
    flowed = cast(FlowedKernel, run.kernel)
    return flowed.kernel if run.metrics.get("n_train") == len(snapshots(run)[0][1]) else None


def _draw_boundary(
    panel: Axes,
    kernel: Kernel,
    regularization: Regularization,
    points: np.ndarray,
    values: np.ndarray,
    limit: float,
) -> None:
    """Shade the two sides of a kernel ridge regression from points (n, 2) with values (n,)."""
    x = torch.as_tensor(points, dtype=torch.float64).reshape(len(points), -1)
    signs = torch.as_tensor(np.where(values == values.max(), 1.0, -1.0))[:, None]
    line = np.linspace(-limit, limit, _GRID)
    mesh = torch.as_tensor(np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2))
    system = InMemory(kernel, x, mesh)
    try:
        predicted = system.interpolant(regularization, signs).mean(system.test).reshape(_GRID, _GRID).numpy()
    except NumericalError:
        return
    sides = np.ma.masked_equal(np.sign(predicted), 0)  # far from all points the kernel is 0 and predicts nothing
    panel.contourf(line, line, sides, levels=[-2, 0, 2], colors=["#dfe8f2", "#f6e0da"])


def velocities(run: Run) -> Figure | None:
    """Where a few layers move the plane around the training points, and below the mean of many successive layers,
    ten times as long.

    Five single layers, and means over 300 layers from five layers on. It needs recorded layers. See Owhadi & Yoo
    2019, Figs. 12 and 13.
    """
    found = snapshots(run)
    if len(found) < 2 or found[0][1][0].size != 2 or not (run.directory / "layers-0.bin").is_file():
        return None
    if run.metrics.get("status") != "completed" or len(run.metrics["parameters"].get("folds", [0])) > 1:
        return None
    count, there = found[-1][0], {layer: points for layer, points, _ in found}
    span = min(_AVERAGED, max(count // _COLUMNS, 1))

    def kept(n: float) -> int:
        """The recorded position nearest to layer n from which the flow can be continued far enough."""
        return min((layer for layer in there if layer <= count - span), key=lambda layer: abs(layer - n))

    starts = sorted({kept(n) for n in np.linspace(0, count - span, _COLUMNS)})
    middle = kept(count / 2)
    instants = dict.fromkeys(range(middle, min(middle + _COLUMNS - 1, count - 1)), there[middle])
    instants[count - 1] = there[count]
    shown = _arrows(run, instants, {n: there[n] for n in starts}, span)
    values = targets(run, len(found[0][1]))
    picture, axes = figure(rows=2, columns=_COLUMNS, width=3.0, height=3.1)
    for panel in axes:
        panel.set_axis_off()
    for row, wanted in enumerate((sorted(instants), starts)):
        for column, n in enumerate(wanted):
            panel, (points, mesh, moved) = axes[row * _COLUMNS + column], shown[row, n]
            panel.set_axis_on()
            draw_positions(panel, points, values)
            panel.quiver(*mesh.T.numpy(), *moved.T.numpy(), color=DATA, alpha=0.6, width=0.004)
            name = f"layer {n + 1}" if row == 0 else f"10 × mean of {n + 1} to {n + span}"
            longest = float(moved.norm(dim=1).max())
            panel.set_title(f"{name}\nlongest arrow {longest:.2g}", fontsize=8)
    headline(picture, title(run))
    return picture


Arrows = tuple[np.ndarray, torch.Tensor, torch.Tensor]
"""The training points, the points of a mesh around them, and the displacements of these."""


def _arrows(
    run: Run, instants: dict[int, np.ndarray], starts: dict[int, np.ndarray], span: int
) -> dict[tuple[int, int], Arrows]:
    """Displacements by key: (0, n), by layer n; (1, n), ten times the mean over the `span` layers from n on."""
    shown: dict[tuple[int, int], Arrows] = {}
    on_the_way: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for n, layer in enumerate(cast(FlowedKernel, run.kernel).layers):
        if n in instants:
            mesh = _mesh_around(instants[n])
            shown[0, n] = instants[n], mesh, layer.move(mesh) - mesh
        if n in starts:
            on_the_way[n] = (_mesh_around(starts[n]),) * 2
        on_the_way = {start: (mesh, layer.move(moved)) for start, (mesh, moved) in on_the_way.items()}
        if (start := n - span + 1) in on_the_way:
            mesh, moved = on_the_way.pop(start)
            shown[1, start] = starts[start], mesh, 10 * (moved - mesh) / span
    return shown


def _mesh_around(points: np.ndarray) -> torch.Tensor:
    flat = points.reshape(len(points), -1).astype(np.float64)
    low, high = flat.min(axis=0), flat.max(axis=0)
    margin = 0.15 * (high - low)
    lines = np.linspace(low - margin, high + margin, _ARROWS).T
    return torch.as_tensor(np.stack(np.meshgrid(*lines), axis=-1).reshape(-1, 2))
