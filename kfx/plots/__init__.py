"""Every figure of a run, drawn from its recorded files alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

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
    surrogate,
    trace,
)
from kfx.record.reading import load_run


def draw(directory: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw what the record has data for into `figures/`, in each of the formats; the paths of the pictures."""
    paths = []
    for name, figure in figures(directory).items():
        for suffix in formats:
            path = directory / "figures" / f"{name}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            figure.savefig(path, metadata={"Date": None} if suffix == "svg" else None)
            paths.append(path)
    return paths


def figures(directory: Path) -> dict[str, Figure]:
    """Every figure that the record has data for, by its name."""
    run = load_run(directory)
    drawn: dict[str, Figure | None] = {
        "rho": trace.objective_over_iterations(run),
        "parameters": trace.parameters_over_iterations(run),
        "sample_size": trace.sample_size_over_iterations(run),
        "evaluation": evaluation.before_and_after(run),
        "landscape": landscape.objective_over_parameter(run),
        "displacement": trace.displacement_over_layers(run),
        "flow_positions": plane.positions(run),
        "flow_displacement": flow.displacement(run),
        "flow_images": flow.images(run) if run.metrics.get("parameters") else None,
        "flow_classes": flow.classes(run) if run.metrics.get("parameters") else None,
        "flow_errors" if (directory / "flow.csv").is_file() else "errors": flow.errors(run),
        "flow_field": plane.velocities(run),
        "conductivity": conductivity.conductivities(run),
        "layers": layers.layers(run),
        "draws": draws.best_and_worst(run),
        "curve": curve.fitted_curve(run),
        "convergence": surrogate.convergence(run),
        "surrogate": surrogate.surface(run),
    }
    if (directory / "precision.json").is_file():
        drawn["precision"] = precision.error_against_size({"": json.loads((directory / "precision.json").read_text())})
    if (directory / "kernel_check.csv").is_file():
        drawn["kernel_check"] = precision.product_check(read_rows(directory / "kernel_check.csv"))
    return {name: figure for name, figure in drawn.items() if figure is not None}
