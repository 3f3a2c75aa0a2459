"""How well a kernel interpolates: kernel ridge regression on subsets of the training points."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from kfx.data.dataset import Dataset, predicted_labels
from kfx.kernels.base import Kernel
from kfx.notices import watch
from kfx.outcomes import NumericalError
from kfx.regression import coefficients, posterior_variance
from kfx.regularization import Regularization

_TEST_BLOCK = 2000


def interpolation_order(data: Dataset, balanced: bool, rng: np.random.Generator) -> np.ndarray:
    """A random order of the training points; each head of it is a subset. Balanced: each head holds the classes
    in equal numbers, as far as they go."""
    order = rng.permutation(len(data.x_train))
    if not balanced:
        return order
    assert data.labels_train is not None
    labels = data.labels_train[order]
    rank = np.empty(len(order), dtype=int)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rank[members] = np.arange(len(members))
    return order[np.argsort(rank, kind="stable")]


def evaluate(
    name: str,
    kernel: Kernel,
    data: Dataset,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    sizes: Sequence[int],
    orders: Sequence[np.ndarray],
    regularizations: Sequence[Regularization],
    solver: str = "cholesky",
    rcond: float | None = None,
    variance: bool = False,
    done: Container[int] = (),
) -> Iterator[tuple[list[dict[str, Any]], dict[str, np.ndarray], list[str]]]:
    """Rows of `evaluation.csv`, arrays of predictions and failures in words for one kernel, repeat by repeat.

    A system that cannot be solved gives NaN and a line among the failures.

    tensors: x_train, y_train, x_test. sizes: N_I, each a head of each of `orders` (one a repeat), so that one
    Gram matrix serves them all. done: repeats to leave out. Predictions are keyed
    `kernel/n/repeat/λ/mean` (and `/variance`).
    """
    x_train, y_train, x_test = tensors
    largest = max(sizes)
    for repeat, order in enumerate(orders):
        if repeat in done:
            continue
        head = torch.as_tensor(order[:largest], device=x_train.device)
        points, targets = x_train[head], y_train[head]
        gram = kernel.gram(points)
        cross = torch.cat([kernel.gram(block, points) for block in x_test.split(_TEST_BLOCK)])
        rows: list[dict[str, Any]] = []
        arrays: dict[str, np.ndarray] = {}
        failures: list[str] = []
        for size in sizes:
            for regularization in regularizations:
                used = gram[:size, :size]
                effective = regularization.of(used)
                key = f"{name}/{size}/{repeat}/{regularization.value!r}"
                measured: dict[str, float] = dict.fromkeys(metric_names(data, variance), math.nan)
                with watch() as notices:
                    try:
                        alpha = coefficients(used, targets[:size].to(torch.float64), effective, solver, rcond)
                        prediction = (cross[:, :size].to(torch.float64) @ alpha).cpu().numpy()
                        arrays[f"{key}/mean"] = prediction
                        measured |= metrics(prediction, data)
                        if variance:
                            spread = posterior_variance(used, cross[:, :size], kernel.diagonal(x_test), effective)
                            arrays[f"{key}/variance"] = spread.cpu().numpy()
                            measured["mean_posterior_variance"] = float(spread.mean())
                    except NumericalError as error:  # one bad kernel must not cost the others their evaluation
                        failures.append(f"{name} {kernel!r} at n_interpolation {size}: {error}")
                measured |= {"effective_regularization": effective, "jitter": notices.jitter}
                rows += [
                    {
                        "kernel": name,
                        "n_interpolation": size,
                        "repeat": repeat,
                        "regularization": regularization.value,
                        "metric": metric,
                        "value": value,
                    }
                    for metric, value in measured.items()
                ]
        yield rows, arrays, failures


def metrics(prediction: np.ndarray, data: Dataset) -> dict[str, float]:
    """MSE and MAE over test points and outputs, and the accuracy in [0, 1] where there are classes."""
    error = prediction - data.y_test
    result = {"mse": float(np.mean(error**2)), "mae": float(np.mean(np.abs(error)))}
    if data.labels_test is not None:
        return {"accuracy": float(np.mean(predicted_labels(prediction) == data.labels_test)), **result}
    return result


def metric_names(data: Dataset, variance: bool) -> list[str]:
    """What `evaluate` measures on this data."""
    accuracy = ["accuracy"] if data.labels_test is not None else []
    spread = ["mean_posterior_variance"] if variance else []
    return [*accuracy, "mse", "mae", *spread, "effective_regularization", "jitter"]


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over repeats, for `metrics.json`."""
    groups: dict[tuple, list[float]] = {}
    for row in rows:
        key = (row["kernel"], row["n_interpolation"], row["regularization"], row["metric"])
        groups.setdefault(key, []).append(row["value"])
    names = ("kernel", "n_interpolation", "regularization", "metric")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "mean": float(np.mean(values)),
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
            "repeats": len(values),
        }
        for key, values in groups.items()
    ]
