"""The figures of a run, drawn from its recorded files alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kfx.config.registry import described
from kfx.outcomes import ConfigError, KfxError, RecordError
from kfx.plots import (
    attractors,
    calibration,
    conductivity,
    curve,
    draws,
    evaluation,
    flow,
    forecast,
    landscape,
    layers,
    lengths,
    plane,
    precision,
    style,
    surrogate,
    trace,
)
from kfx.record.reading import Run, load_run


def draw(
    directory: Path, formats: Sequence[str] = ("png",), look: str = "screen", only: Sequence[str] = ()
) -> list[Path]:
    """Draw the record's figures into `figures/` in each of the formats; return the paths of the pictures.

    look: one of `kfx.plots.style.LOOKS`. only: names of the figures to draw; ConfigError for one without data.
    """
    paths = []
    with style.looking(look):
        drawn = figures(directory, only)
    for name, figure in drawn.items():
        for suffix in formats:
            path = directory / "figures" / f"{name}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            style.save(figure, path)
            paths.append(path)
    return paths


FIGURES: dict[str, Callable[[Run], Figure | None]] = {
    "rho": trace.objective_over_iterations,
    "parameters": trace.parameters_over_iterations,
    "lengths": lengths.of_features,
    "forecast": forecast.beside_truth,
    "forecast_error": forecast.error_by_step,
    "attractor": forecast.attractor,
    "long_term": attractors.long_term,
    "sample_size": trace.sample_size_over_iterations,
    "evaluation": evaluation.before_and_after,
    "calibration": calibration.reliability,
    "landscape": landscape.objective_over_parameter,
    "displacement": trace.displacement_over_layers,
    "flow_positions": plane.positions,
    "flow_displacement": flow.displacement,
    "flow_images": flow.images,
    "flow_classes": flow.classes,
    "flow_errors": flow.errors_of_flow,
    "errors": flow.errors_of_fit,
    "flow_field": plane.velocities,
    "conductivity": conductivity.conductivities,
    "layers": layers.layers,
    "draws": draws.best_and_worst,
    "curve": curve.fitted_curve,
    "convergence": surrogate.convergence,
    "surrogate": surrogate.surface,
    "precision": precision.of_run,
    "kernel_check": precision.product_check,
}
"""What draws each picture from a run's record, by the picture's name: None where the record has no data for it. The
first paragraph of its docstring is the picture's caption."""


def caption(name: str) -> str:
    """The sentence that explains a picture; empty where Python leaves docstrings out."""
    return " ".join((FIGURES[name].__doc__ or "").partition("\n\n")[0].split())


def figures(directory: Path, only: Sequence[str] = ()) -> dict[str, Figure]:
    """The figures for which the record has data, by name; or those named in `only`, with ConfigError for one without
    data."""
    run = load_run(directory)
    if not only:
        names = [name for name in FIGURES if name != "precision" or precision.falls_short(run)]
        drawn = {name: _drawn(run, name) for name in names}
        return {name: figure for name, figure in drawn.items() if figure is not None}
    return {name: one(run, name) for name in only}


def one(run: Run, name: str, ax: Axes | None = None) -> Figure:
    """Draw one of `FIGURES`, on `ax` if it is given.

    ConfigError for an unknown name, for a picture that the record has no data for, and for one of several panels on
    `ax`.
    """
    if name not in FIGURES:
        raise ConfigError(f"picture {name!r}: expected one of {', '.join(FIGURES)}")
    with style.on(ax):
        drawn = _drawn(run, name)
    if drawn is None:
        raise ConfigError(f"picture {name!r}: {run.directory} has no data for it")
    return drawn


def _drawn(run: Run, name: str) -> Figure | None:
    """One of `FIGURES`; RecordError if it cannot be drawn, because tables and arrays of a damaged record may hold
    anything."""
    try:
        return FIGURES[name](run)
    except KfxError:
        raise
    except Exception as error:
        raise RecordError(f"{run.directory}: picture {name}: its record is damaged ({described(error)})") from error
