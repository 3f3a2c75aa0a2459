"""Every figure of a run, drawn from its recorded files alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kfx.files import read_rows
from kfx.plots import (
    conductivity,
    curve,
    draws,
    evaluation,
    flow,
    landscape,
    layers,
    plane,
    precision,
    style,
    surrogate,
    trace,
)
from kfx.record.reading import Run, load_run


def draw(directory: Path, formats: Sequence[str] = ("png",), look: str = "screen") -> list[Path]:
    """Draw what the record has data for into `figures/`, in each of the formats; the paths of the pictures. look: one
    of `kfx.plots.style.LOOKS`."""
    paths = []
    with style.looking(look):
        drawn = figures(directory)
    for name, figure in drawn.items():
        for suffix in formats:
            path = directory / "figures" / f"{name}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            style.save(figure, path)
            paths.append(path)
    return paths


def _errors_of_flow(run: Run) -> Figure | None:
    return flow.errors(run) if (run.directory / "flow.csv").is_file() else None


def _errors(run: Run) -> Figure | None:
    return None if (run.directory / "flow.csv").is_file() else flow.errors(run)


def _precision(run: Run) -> Figure | None:
    path = run.directory / "precision.json"
    return precision.error_against_size({"": json.loads(path.read_text())}) if path.is_file() else None


def _kernel_check(run: Run) -> Figure | None:
    path = run.directory / "kernel_check.csv"
    return precision.product_check(read_rows(path)) if path.is_file() else None


def _once_fitted(draw: Callable[[Run], Figure | None]) -> Callable[[Run], Figure | None]:
    return lambda run: draw(run) if run.metrics.get("parameters") else None


FIGURES: dict[str, Callable[[Run], Figure | None]] = {
    "rho": trace.objective_over_iterations,
    "parameters": trace.parameters_over_iterations,
    "sample_size": trace.sample_size_over_iterations,
    "evaluation": evaluation.before_and_after,
    "landscape": landscape.objective_over_parameter,
    "displacement": trace.displacement_over_layers,
    "flow_positions": plane.positions,
    "flow_displacement": flow.displacement,
    "flow_images": _once_fitted(flow.images),
    "flow_classes": _once_fitted(flow.classes),
    "flow_errors": _errors_of_flow,
    "errors": _errors,
    "flow_field": plane.velocities,
    "conductivity": conductivity.conductivities,
    "layers": layers.layers,
    "draws": draws.best_and_worst,
    "curve": curve.fitted_curve,
    "convergence": surrogate.convergence,
    "surrogate": surrogate.surface,
    "precision": _precision,
    "kernel_check": _kernel_check,
}
"""Every picture by its name: drawn from a run's record, None where that has no data for it."""


def figures(directory: Path) -> dict[str, Figure]:
    """Every figure that the record has data for, by its name."""
    run = load_run(directory)
    drawn = {name: draw_it(run) for name, draw_it in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def one(run: Run, name: str, ax: Axes | None = None) -> Figure | None:
    """One of `FIGURES`, on axes of one's own where they are given; ConfigError for a picture of several axes there."""
    with style.on(ax):
        return FIGURES[name](run)
