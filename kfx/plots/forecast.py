"""Figures of forecasts: beside the truth, their errors by step, and the attractor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.dates import AutoDateFormatter, AutoDateLocator
from matplotlib.figure import Figure

from kfx.data.times import parsed
from kfx.evaluation.rollout import COLUMNS, SPREAD
from kfx.plots.attractors import side_by_side
from kfx.plots.style import DATA, FAINT, OF_KERNELS, figure, finish, literal
from kfx.record.reading import Run, read_table


def beside_truth(run: Run) -> Figure | None:
    """The truth and the forecast from the end of the training series: each value is predicted from those predicted
    before it.

    A panel for each coordinate, against dates where the series has some, with the interval of 95 %; a line marks the
    valid time of the trained kernel.
    """
    rows = _rows(run)
    if rows.empty:
        return None
    names, first = _coordinates(rows), rows[rows["origin"] == 0]
    picture, panels = figure(rows=len(names), height=2.2 if len(names) > 1 else 3.2, width=7.0)
    valid = _valid_until(run, first)
    for axes, name in zip(panels, names, strict=True):
        truth = first[first["kernel"] == first["kernel"].iloc[0]]
        axes.plot(truth["time"], truth[f"truth.{name}"], color=FAINT, linewidth=3.5, label="truth")
        for kernel, (colour, style) in _shown(first).items():
            own = first[first["kernel"] == kernel]
            axes.plot(
                own["time"], own[f"forecast.{name}"], style, color=colour, linewidth=1.3, label=_label(kernel, first)
            )
        if f"low.{name}" in own and len(own):  # of the kernel that was drawn last
            ends = own[f"low.{name}"], own[f"high.{name}"]
            axes.fill_between(own["time"], *ends, color=colour, alpha=0.12, linewidth=0, label="95 %")
        if valid is not None:
            axes.axvline(valid, color=DATA, linewidth=1, linestyle=":", label="end of the valid time")
        axes.set_ylabel(literal(name))
        low, high = truth[f"truth.{name}"].min(), truth[f"truth.{name}"].max()
        if high > low:
            axes.set_ylim(low - 0.3 * (high - low), high + 0.3 * (high - low))
    is_dated = pd.api.types.is_datetime64_any_dtype(first["time"])
    for axes in panels if is_dated else ():
        few = AutoDateLocator(minticks=2, maxticks=max(int(picture.get_figwidth()), 3))  # a date is an inch wide
        axes.xaxis.set_major_locator(few)
        axes.xaxis.set_major_formatter(AutoDateFormatter(few))
    panels[-1].set_xlabel("date" if is_dated else "time")
    return finish(picture, panels[0], run)


def error_by_step(run: Run) -> Figure | None:
    """The error of forecasts at each step, as the valid time counts it: the median over origins, and the middle half of
    them."""
    rows = _rows(run)
    if rows.empty:
        return None
    picture, (axes,) = figure()
    for kernel, (colour, style) in _shown(rows).items():
        own = rows[rows["kernel"] == kernel]
        error = pd.Series(_errors(run, own), index=own["step"]).groupby(level=0)
        low, middle, high = (error.quantile(q) for q in (0.25, 0.5, 0.75))
        axes.plot(middle.index, middle, style, color=colour, label=_label(kernel, rows))
        axes.fill_between(middle.index, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.axhline(run.config.evaluation.threshold, color=DATA, linewidth=1, linestyle=":", label="threshold")
    count = rows["origin"].nunique()
    axes.set(xlabel="step", ylabel="error / standard deviation", yscale="log")
    return finish(picture, axes, run, f"{count} origin{'s' if count > 1 else ''}")


def attractor(run: Run) -> Figure | None:
    """The truth and the forecasts in the plane: one that has lost the trajectory may still stay on the attractor.

    The trained kernel in two coordinates, or in x(t) and x some steps before.
    """
    rows = _rows(run)
    if rows.empty:
        return None
    names = _coordinates(rows)
    own = rows[rows["kernel"] == list(_shown(rows))[-1]]
    back = max(own["step"].max() // 20, 1)
    picture, panels = figure(columns=2, width=8.0, height=3.9)
    side_by_side(panels, own, names, back)
    return picture


def _rows(run: Run) -> pd.DataFrame:
    rows = read_table(run.directory / "forecasts.csv", COLUMNS)
    how = run.config.dataset.get("date_format")
    return rows if how is None else rows.assign(time=parsed(rows["time"], how))


def coordinates(run: Run) -> list[str]:
    """The names of a series' coordinates; empty where a run has no forecasts."""
    return _coordinates(read_table(run.directory / "forecasts.csv", COLUMNS))


def _coordinates(rows: pd.DataFrame) -> list[str]:
    return [name.removeprefix("truth.") for name in rows.columns if name.startswith("truth.")]


def _shown(rows: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """The kernels that are drawn; one alone if both forecast the same."""
    there = [kernel for kernel in OF_KERNELS if (rows["kernel"] == kernel).any()]
    columns = [name for name in rows.columns if name.startswith("forecast.")]
    values = [rows.loc[rows["kernel"] == kernel, columns].to_numpy() for kernel in there]
    if len(there) == 2 and np.array_equal(values[0], values[1], equal_nan=True):
        there = there[1:]
    return {kernel: OF_KERNELS[kernel][::2] for kernel in there}


def _label(kernel: str, rows: pd.DataFrame) -> str:
    return f"forecast, {kernel} kernel" if len(_shown(rows)) > 1 else "forecast"


def _errors(run: Run, own: pd.DataFrame) -> np.ndarray:
    """The error of each forecast, (len(own),), in standard deviations of the training series, of records without them
    of the truth; 2 of one that has left the range, NaN where the truth is missing."""
    names = _coordinates(own)
    truth, forecast = (own[[f"{kind}.{name}" for name in names]].to_numpy() for kind in ("truth", "forecast"))
    scale = np.array([run.metrics.get(SPREAD, {}).get(name, np.nanstd(truth[:, i])) for i, name in enumerate(names)])
    error = np.sqrt(np.mean(np.square((forecast - truth) / scale.clip(1e-300)), axis=1))
    return np.where(np.isnan(truth).any(axis=1), np.nan, np.where(np.isnan(error), 2.0, error))


def _valid_until(run: Run, first: pd.DataFrame) -> Any:
    """The time of the last step before the error of the trained kernel's first forecast passes the threshold, where
    `valid_time` ends; None if it never does, or in the first step."""
    own = first[first["kernel"] == list(_shown(first))[-1]]
    wrong = _errors(run, own) > run.config.evaluation.threshold
    return own["time"].iloc[int(wrong.argmax()) - 1] if wrong.any() and not wrong[0] else None
