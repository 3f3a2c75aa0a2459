"""The figures of a run, drawn from its recorded files alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kfx.config.registry import described
from kfx.evaluation.device_products import COLUMNS
from kfx.numerics.precision import read as read_precision
from kfx.outcomes import ConfigError, KfxError, RecordError
from kfx.plots import (
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
from kfx.record.reading import Run, load_run, read_environment, read_table


@dataclass(frozen=True)
class Kind:
    """A kind of picture.

    draw: makes it from a run's record, or returns None if that has no data for it. says: a sentence that explains it.
        unasked: whether a run draws it, and reports it, without being told by name.
    """

    draw: Callable[[Run], Figure | None]
    says: str
    unasked: Callable[[Run], bool] = lambda run: True


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


def _errors_of_flow(run: Run) -> Figure | None:
    return flow.errors(run) if (run.directory / "flow.csv").is_file() else None


def _errors(run: Run) -> Figure | None:
    return None if (run.directory / "flow.csv").is_file() else flow.errors(run)


def _precision(run: Run) -> Figure | None:
    path = run.directory / "precision.json"
    return precision.error_against_size(read_precision([path])) if path.is_file() else None


def _falls_short(run: Run) -> bool:
    """Whether the precision check warned that the run's device delivers less than its dtype promises."""
    path, here = run.directory / "precision.json", read_environment(run.directory)
    if not path.is_file() or not here:
        return False
    used = "cpu" if here.get("device") == "cpu" else "cuda", run.config.device.dtype
    (content,) = read_precision([path]).values()
    return any((v["device"].split(":")[0], v["dtype"]) == used and not v["keeps_promise"] for v in content["verdicts"])


def _kernel_check(run: Run) -> Figure | None:
    path = run.directory / "kernel_check.csv"
    return precision.product_check(read_table(path, COLUMNS)) if path.is_file() else None


def _once_fitted(draw: Callable[[Run], Figure | None]) -> Callable[[Run], Figure | None]:
    return lambda run: draw(run) if run.metrics.get("parameters") else None


FIGURES: dict[str, Kind] = {
    "rho": Kind(
        trace.objective_over_iterations,
        "What was minimised, and ρ, at each iteration: single batches scatter, and lines are running medians.",
    ),
    "parameters": Kind(
        trace.parameters_over_iterations,
        "The kernel's parameters at each iteration: they have fixed where the lines are level.",
    ),
    "lengths": Kind(
        lengths.of_features,
        "The length of each feature: along one with a short length the kernel varies fast, and a feature with a long "
        "one hardly matters.",
    ),
    "forecast": Kind(
        forecast.beside_truth,
        "The truth and the forecast from the end of the training series: each value is predicted from those predicted "
        "before it.",
    ),
    "forecast_error": Kind(
        forecast.error_by_step,
        "The error of forecasts at each step: the median over origins, and the middle half of them.",
    ),
    "attractor": Kind(
        forecast.attractor,
        "The truth and the forecasts in the plane: one that has lost the trajectory may still stay on the attractor.",
    ),
    "sample_size": Kind(
        trace.sample_size_over_iterations,
        "How many points of the batch the sample kept at each iteration, and ρ with that many.",
    ),
    "evaluation": Kind(
        evaluation.before_and_after,
        "Predictions of test points by the kernel before training and after it: bars are one standard deviation over "
        "repeats or folds, where there are several.",
    ),
    "calibration": Kind(
        calibration.reliability,
        "Whether probabilities, or intervals of predicted values, hold as often as they say: on the diagonal they do.",
    ),
    "landscape": Kind(
        landscape.objective_over_parameter,
        "The objective as a function of one parameter: the line is its mean over batches, the band one standard "
        "deviation over them, the star the least mean.",
    ),
    "displacement": Kind(
        trace.displacement_over_layers,
        "How far the fastest point went in each layer, and the steps that were taken.",
    ),
    "flow_positions": Kind(
        plane.positions,
        "Where the training points are at a few layers, coloured by class or target: the shades are the sides on which "
        "the kernel puts the plane.",
    ),
    "flow_displacement": Kind(
        flow.displacement,
        "Where each point of the line went, and the targets over the old and the new positions.",
    ),
    "flow_images": Kind(
        _once_fitted(flow.images),
        "Some images, what the flow made of them, and the difference of the two.",
    ),
    "flow_classes": Kind(
        _once_fitted(flow.classes),
        "Class by class, images above what the flow made of them; at the right end the mean of all of the class.",
    ),
    "flow_errors": Kind(
        _errors_of_flow,
        "Test errors after each layer by so many interpolation points, and how far apart points of one class and of "
        "different classes are.",
    ),
    "errors": Kind(
        _errors,
        "Test errors in the course of the fit by so many interpolation points, and how far apart points of one class "
        "and of different classes are.",
    ),
    "flow_field": Kind(
        plane.velocities,
        "Where a few layers move the plane around the training points, and below the mean of many successive layers, "
        "ten times as long.",
    ),
    "conductivity": Kind(
        conductivity.conductivities,
        "The conductivity that the kernel began with and the one that it learned, beside that of the data; on the "
        "right the solution that the points are taken from.",
    ),
    "layers": Kind(
        layers.layers,
        "How well the batches are explained, and what each layer pays for its distance from the prior; with ρ of each "
        "layer's kernel where the run followed it.",
    ),
    "draws": Kind(
        draws.best_and_worst,
        "How much the choice of a few interpolation points matters: the errors of many draws, or the worst and the "
        "best draw.",
    ),
    "curve": Kind(
        curve.fitted_curve,
        "What the kernel predicts before training and after it, over the true targets.",
    ),
    "convergence": Kind(
        surrogate.convergence,
        "The search point by point: each dot is an evaluation on a batch, and the line the lowest value so far.",
    ),
    "surrogate": Kind(
        surrogate.surface,
        "What the search makes of its evaluations: colours are the surrogate's mean over two parameters, dots where it "
        "evaluated, the star the best of them.",
    ),
    "precision": Kind(
        _precision,
        "Errors of matrix products in each arithmetic of this machine: below the dashed line of its name it keeps what "
        "its type promises.",
        _falls_short,
    ),
    "kernel_check": Kind(
        _kernel_check,
        "How far predictions in each device and dtype are from those in float64 on the CPU, by number of interpolation "
        "points.",
    ),
}
"""All kinds of pictures by name."""


def figures(directory: Path, only: Sequence[str] = ()) -> dict[str, Figure]:
    """The figures for which the record has data, by name; or those named in `only`, with ConfigError for one without
    data."""
    run = load_run(directory)
    if not only:
        drawn = {name: _drawn(run, name) for name, kind in FIGURES.items() if kind.unasked(run)}
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
        return FIGURES[name].draw(run)
    except KfxError:
        raise
    except Exception as error:
        raise RecordError(f"{run.directory}: picture {name}: its record is damaged ({described(error)})") from error
