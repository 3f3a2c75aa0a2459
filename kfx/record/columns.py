"""Columns of the tables of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

TRACE_COLUMNS = (
    "iteration",
    "rho",
    "objective",
    "told",
    "regularization",
    "seconds",
    "kernel_evaluations",
    "jitter",
    "event",
)
EVALUATION_COLUMNS = (
    "kernel",
    "n_interpolation",
    "repeat",
    "regularization",
    "metric",
    "value",
    "configured_regularization",
)


def untimed(trace: pd.DataFrame) -> pd.DataFrame:
    """A trace without its times: two runs of the same bits differ in nothing else."""
    return trace.drop(columns=[name for name in trace if str(name).endswith("seconds")])
