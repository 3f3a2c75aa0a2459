"""Errors for many disjoint draws of a few interpolation points, with the best and the worst draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from kfx.data.dataset import Dataset
from kfx.evaluation.judges import Tensors, errors, in_units
from kfx.evaluation.scoring import Scoring
from kfx.evaluation.systems import InMemory
from kfx.files import Document
from kfx.kernels.base import Kernel
from kfx.numerics.regression import ROWS
from kfx.outcomes import NumericalError

COLUMNS = ("draw", "n_interpolation", "metric", "value")


def errors_of_draws(
    kernel: Kernel,
    data: Dataset,
    tensors: Tensors,
    order: np.ndarray,
    size: int,
    count: int,
    scoring: Scoring,
) -> tuple[list[Document], np.ndarray]:
    """Return the rows of `draws.csv` and the indices of each draw, (count, size).

    order: indices of training points, at least size ·
        count; draw i takes its i-th stretch of `size` indices.
    The error of a draw is the share of misclassified test points, or the mean squared error; NaN if its system cannot
    be solved.
    """
    x_train, y_train, x_test = tensors
    parts = order[: size * count].reshape(count, size)
    mapped, compare = kernel.feature_map_and_kernel()
    test = torch.cat([mapped(block) for block in x_test.split(ROWS)])
    regularization = scoring.regularization(kernel)
    metric, rows = "mse" if data.labels_test is None else "error", []
    for draw, indices in enumerate(parts):
        own = torch.as_tensor(indices, device=x_train.device)
        try:
            weights = None if data.weights is None else data.weights[indices]
            system = InMemory(compare, mapped(x_train[own]), test, scoring.solver, scoring.rcond, weights=weights)
            mean = system.interpolant(regularization, y_train[own]).mean(system.test)
            found = errors(in_units(mean, data, scoring.clip), data)
            value = 1 - found["accuracy"] if metric == "error" else found["mse"]
        except NumericalError:
            value = math.nan
        rows.append({"draw": draw, "n_interpolation": size, "metric": metric, "value": value})
    return rows, parts


def extremes(rows: Sequence[Document], parts: np.ndarray, data: Dataset) -> dict[str, np.ndarray]:
    """Points, targets and errors of the worst and of the best draw, for `draws.npz`; empty if all draws failed.

    parts: (count, size), the indices of each draw's points.
    """
    errors = np.array([row["value"] for row in rows])
    if np.isnan(errors).all():
        return {}
    found: dict[str, np.ndarray] = {}
    for name, draw in (("worst", int(np.nanargmax(errors))), ("best", int(np.nanargmin(errors)))):
        indices = parts[draw]
        labels = data.y_train[:, 0] if data.labels_train is None else data.labels_train
        shown = indices[np.argsort(labels[indices], kind="stable")]
        found |= {f"{name}_points": data.x_train[shown], f"{name}_targets": labels[shown]}
        found[f"{name}_error"] = errors[draw]
    return found
