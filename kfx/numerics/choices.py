"""Names that settings of the arithmetic take."""

SCALES = ("absolute", "mean_diagonal", "centered")
"""Of λ: see `kfx.numerics.regularization`."""
SOLVERS = ("cholesky", "lstsq", "inverse")
"""Of kernel ridge regression: see `kfx.numerics.regression`."""
