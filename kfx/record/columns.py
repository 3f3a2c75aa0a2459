"""Columns of the tables of a record."""

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
