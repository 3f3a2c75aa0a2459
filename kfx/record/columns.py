"""Columns of the tables of a record, and the names of ρ in `metrics.json`."""

from __future__ import annotations

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

SEAL = "checksums"
"""The entry of `metrics.json` with the SHA-256 of the config and of each file of results of a completed run."""
REJECTED = "rejected"
"""The kernel that training reached where the initial one is kept because its errors at points left out are smaller."""


def rho_of(held_out: Document) -> Document:
    """`rho` of `metrics.json`: mean ρ of the initial and the final kernel over the same held-out batches.

    None if no batch could be evaluated.
    """
    initial, final = (held_out["rho"][kernel]["mean"] for kernel in ("initial", "trained"))
    return {"initial": initial, "final": final, "best": None if final is None else min(initial, final)}


def untimed(trace: pd.DataFrame) -> pd.DataFrame:
    """A trace without its times: two runs with the same bits agree in all that is left."""
    return trace.drop(columns=[name for name in trace if str(name).endswith("seconds")])
