"""How much the choice of a few interpolation points matters: many disjoint draws, the best and the worst of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kfx.data.dataset import Dataset
from kfx.evaluation.scoring import metrics
from kfx.kernels.base import Kernel
from kfx.numerics.regression import coefficients
from kfx.numerics.regularization import Regularization

COLUMNS = ("draw", "n_interpolation", "metric", "value")
_BLOCK = 2000


def errors_of_draws(
    kernel: Kernel,
    data: Dataset,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    order: np.ndarray,
    size: int,
    count: int,
    regularization: Regularization,
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Rows of `draws.csv` for the successive parts of `order`, `size` points each, and each part's indices.

    The error of a part: misclassified test points, or the mean squared error. One Gram matrix serves all parts.
    """
    x_train, y_train, x_test = tensors
    parts = order[: size * count].reshape(count, size)
    points = x_train[torch.as_tensor(parts.ravel(), device=x_train.device)]
    gram = kernel.gram(points)
    cross = torch.cat([kernel.gram(block, points) for block in x_test.split(_BLOCK)])
    rows = []
    for draw, indices in enumerate(parts):
        own = slice(draw * size, (draw + 1) * size)
        used = gram[own, own]
        targets = y_train[torch.as_tensor(indices, device=x_train.device)].to(torch.float64)
        alpha = coefficients(used, targets, regularization.of(used))
        found = metrics((cross[:, own].to(torch.float64) @ alpha).cpu().numpy(), data)
        metric, value = ("error", 1 - found["accuracy"]) if "accuracy" in found else ("mse", found["mse"])
        rows.append({"draw": draw, "n_interpolation": size, "metric": metric, "value": value})
    return rows, parts


def extremes(rows: Sequence[dict[str, Any]], parts: np.ndarray, data: Dataset) -> dict[str, np.ndarray]:
    """The points of the worst and of the best draw, their targets and errors: `draws.npz`."""
    errors = np.array([row["value"] for row in rows])
    found: dict[str, np.ndarray] = {}
    for name, draw in (("worst", int(errors.argmax())), ("best", int(errors.argmin()))):
        indices = parts[draw]
        labels = data.y_train[:, 0] if data.labels_train is None else data.labels_train
        shown = indices[np.argsort(labels[indices], kind="stable")]
        found |= {f"{name}_points": data.x_train[shown], f"{name}_targets": labels[shown]}
        found[f"{name}_error"] = errors[draw]
    return found
