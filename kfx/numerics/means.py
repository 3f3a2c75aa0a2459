"""Means in which points count as their weights."""

from __future__ import annotations

import numpy as np


def weighted_mean(values: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean of values, (n, …). weights: of the n points, (n,); None for all alike."""
    if weights is None:
        return float(np.mean(values))
    return float(np.average(values.reshape(len(values), -1).mean(axis=1), weights=weights))


def column_means(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the mean of each column of values, (n, k). weights: as of `weighted_mean`."""
    means: np.ndarray = values.mean(axis=0) if weights is None else np.average(values, axis=0, weights=weights)
    return means


def mean_and_deviation(values: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the standard deviation of each column of values, (n, k). weights: as of `weighted_mean`."""
    mean = column_means(values, weights)
    return mean, values.std(axis=0) if weights is None else np.sqrt(column_means(np.square(values - mean), weights))
