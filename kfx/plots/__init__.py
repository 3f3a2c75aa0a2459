"""Every figure of a run, drawn from its recorded files alone."""

from __future__ import annotations

from pathlib import Path

from kfx.plots import curve, evaluation, trace
from kfx.record import load_run


def draw(directory: Path) -> list[Path]:
    """Draw what the record has data for into `figures/`; the paths of the pictures."""
    run = load_run(directory)
    figures = {
        "rho": trace.objective_over_iterations(run),
        "parameters": trace.parameters_over_iterations(run),
        "evaluation": evaluation.error_against_points(run),
        "curve": curve.fitted_curve(run),
    }
    paths = []
    for name, figure in figures.items():
        if figure is not None:
            path = directory / "figures" / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            figure.savefig(path)
            paths.append(path)
    return paths
