"""Tables of a run that few configs ask for: forecasts of series, draws of few points, and products by device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kfx.evaluation.options import TestPointsOption
from kfx.evaluation.results import COMPARED, of_place, place_of
from kfx.evaluation.rollout import Rollout
from kfx.evaluation.scoring import Scoring, interpolation_order
from kfx.files import Document, TableRow, whole_file
from kfx.kernels import Kernel
from kfx.numerics.formatting import number
from kfx.outcomes import Event
from kfx.record.record import Record
from kfx.running.context import RunContext


def write(
    context: RunContext,
    record: Record,
    rows: Sequence[TableRow],
    kernel: Kernel,
    order: np.ndarray,
    scoring: Scoring,
) -> None:
    """Write those that the config asks for. rows: of `evaluation.csv`. kernel: the trained one of the last fold. order:
    indices of its training points, of which the first N_I are interpolated."""
    node = context.config.evaluation
    if scoring.rollout is not None:
        _write_forecasts(context, record, scoring.rollout, scoring.regularizations[0].value)
        _remark_forecasts(context, rows)
    if isinstance(node, TestPointsOption) and node.draws:
        _draw_subsets(context, record, node, kernel, scoring)
    if context.config.kernel_check:
        _check_products(context, kernel, order, scoring)


def _write_forecasts(context: RunContext, record: Record, rollout: Rollout, regularization: float) -> None:
    """Write `forecasts.csv`, and `attractor.csv` of free runs: each origin and step, by the initial and the trained
    kernel at the largest N_I and the first λ."""
    from kfx.evaluation import rollout as of_series

    series = context.parts[0].series
    assert series is not None
    size = max(context.config.evaluation.n_interpolation or [len(context.parts[0].x_train)])
    written = {"forecast": ("forecasts.csv", rollout)}
    if rollout.attractor_steps is not None:
        written["attractor"] = ("attractor.csv", rollout.of_attractors)
    for kind, (file, of_kind) in written.items():
        rows: list[Document] = []
        for name in COMPARED:
            kept = record.evaluations.arrays(name)
            if (found := of_place(kept, place_of(name, size, 0, regularization)).get(kind)) is not None:
                rows += of_series.rows(name, found, of_kind, series)
        columns = [f"{what}.{name}" for name in series.coordinates for what in of_series.kinds(of_kind)]
        context.notes.table(file, [*of_series.COLUMNS, *columns], rows)


def _remark_forecasts(context: RunContext, rows: Sequence[TableRow]) -> None:
    """Note forecasts by the trained kernel that are no better than the last known value."""
    found: dict[str, list[float]] = {"nrmse": [], "persistence_nrmse": []}
    for row in rows:
        if row["kernel"] == "trained" and row["metric"] in found:
            found[row["metric"]].append(row["value"])
    own, last = (
        min(filter(math.isfinite, values), default=math.nan) for values in found.values()
    )  # the best λ and N_I
    if own >= 0.999 * last:
        text = f"nrmse {number(own)} of forecasts is no better than that of the last known value, {number(last)}"
        context.notes.remark(Event.NO_BETTER_THAN_CONSTANT, text)


def _draw_subsets(
    context: RunContext, record: Record, node: TestPointsOption, kernel: Kernel, scoring: Scoring
) -> None:
    """Evaluate many draws of a few interpolation points: all into `draws.csv`, the best and the worst into
    `draws.npz`."""
    from kfx.evaluation.draws import COLUMNS, errors_of_draws, extremes

    data = context.parts[-1]
    order = interpolation_order(data, node.balanced, context.streams["draws"])
    size = min(node.n_interpolation or [len(order)])
    rows, parts = errors_of_draws(kernel, data, context.tensors[-1], order, size, node.draws, scoring)
    context.notes.table("draws.csv", COLUMNS, rows)
    with whole_file(record.directory / "draws.npz") as stream:
        np.savez(stream, **extremes(rows, parts, data))  # type: ignore[arg-type]


def _check_products(context: RunContext, kernel: Kernel, order: np.ndarray, scoring: Scoring) -> None:
    """Write the errors of the trained kernel's products in each device and precision into `kernel_check.csv`."""
    from kfx.evaluation import device_products

    x_train, _, x_test = context.tensors[-1]
    sizes = context.config.evaluation.n_interpolation or [len(x_train)]
    own = scoring.regularization(kernel)
    found = device_products.compare(kernel, context.parts[-1], x_train, x_test, order, sizes, own)
    context.notes.table("kernel_check.csv", device_products.COLUMNS, found)
