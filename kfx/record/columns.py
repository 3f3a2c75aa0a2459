"""Columns of the tables of a record, and how `metrics.json` names ρ."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kfx.files import Document

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


def rho_of(held_out: Document) -> Document:
    """`rho` of `metrics.json`: means over the held-out batches, the same for the initial and the final kernel. None
    where no batch could be evaluated."""
    initial, final = (held_out["rho"][kernel]["mean"] for kernel in ("initial", "trained"))
    return {"initial": initial, "final": final, "best": None if final is None else min(initial, final)}


def with_rho_of_today(metrics: Document) -> Document:
    """`metrics.json` as it is written now. Records of versions 0.1 and 0.2 hold under `rho` what single batches gave
    in the fit, which is `rho_batch` now."""
    old = metrics.get("rho")
    if not isinstance(old, dict) or "rho_batch" in metrics:
        return metrics
    today = {name: value for name, value in metrics.items() if name != "rho"}
    with contextlib.suppress(KeyError, TypeError):  # there were none, or they are damaged
        today["rho"] = rho_of(metrics["held_out"])
    return {**today, "rho_batch": {"first": old.get("initial"), "last": old.get("final"), "best": old.get("best")}}


def untimed(trace: pd.DataFrame) -> pd.DataFrame:
    """A trace without its times: two runs of the same bits differ in nothing else."""
    return trace.drop(columns=[name for name in trace if str(name).endswith("seconds")])
