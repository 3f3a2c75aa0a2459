"""Names of measured quantities."""

from __future__ import annotations

from kfx.config.published import Quantity

METRICS = {
    "rho": "ρ",
    "held_out_rho": "ρ on held-out batches",
    "mse": "mean squared error",
    "train_mse": "mean squared error, training",
    "mae": "mean absolute error",
    "train_mae": "mean absolute error, training",
    "energy_error": "energy error",
    "error": "test error",
    "accuracy": "accuracy",
    "linearly_separable": "linearly separable",
    "head_error": "test error of the network's own linear classifier",
    "distance_ratio": "ratio of the distances between and within classes",
    "undefined objectives": "iterations with ρ undefined or outside [0, 1]",
    "iterations to the optimum": "iterations until the best kernel was found",
    "0.sigma": "σ of the first Gaussian",
    "head_accuracy": "test accuracy",
    "head_log_likelihood": "test log-likelihood",
    "head_train_accuracy": "training accuracy",
    "head_train_log_likelihood": "training log-likelihood",
    "sigma": "σ",
    "alpha": "α",
    "beta": "β",
}


def described(quantity: Quantity, named: str = "") -> str:
    """A quantity with its statistic, kernel, window and N_I.

    named: the name of its metric, if not the usual one.
    """
    named = named or METRICS.get(quantity.metric, quantity.metric.replace("_", " "))
    named += "" if quantity.statistic == "mean" else f", {quantity.statistic}"
    named += " before training" if quantity.kernel == "initial" else ""
    named += "" if quantity.window is None else f", {quantity.window[0]} to {quantity.window[1]}"
    return named + ("" if quantity.n_interpolation is None else f", N_I {quantity.n_interpolation}")
