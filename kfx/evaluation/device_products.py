"""Predict with the same regression product in each device and dtype (Khalid 2022, Fig. 3.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from kfx.data.dataset import Dataset, predicted_labels
from kfx.files import Document
from kfx.kernels.base import Kernel
from kfx.numerics.regression import coefficients
from kfx.numerics.regularization import Regularization

COLUMNS = ("device", "dtype", "n_interpolation", "accuracy", "norm_of_difference")
_RCOND = 1e-8


def compare(
    kernel: Kernel,
    data: Dataset,
    x_train: torch.Tensor,
    x_test: torch.Tensor,
    order: np.ndarray,
    sizes: Sequence[int],
    regularization: Regularization,
) -> Iterator[Document]:
    """Yield the rows of `kernel_check.csv`: errors of K(x*, X) α in each device and dtype (Khalid 2022, Fig. 3.3).

    x_train: (n, …). x_test: (m, …). order: indices of training points; the first N_I of them, for each N_I of `sizes`,
        are interpolated.
    K and α = (K + λI)⁻¹Y (least squares, cutoff 1e-8, float64 on the CPU) are the same in all rows; only the product
    differs. norm_of_difference: Frobenius, against float64 on the CPU. accuracy: NaN for regression.
    """
    head = order[: max(sizes)]
    points = x_train[torch.as_tensor(head, device=x_train.device)]
    gram, cross = kernel.gram(points).cpu().double(), kernel.gram(x_test, points).cpu().double()
    targets = torch.as_tensor(data.targets[head])
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    for size in sizes:
        effective = regularization.of(gram[:size, :size])
        alpha = coefficients(gram[:size, :size], targets[:size], effective, "lstsq", _RCOND)
        exact = cross[:, :size] @ alpha
        for device in devices:
            for dtype in (torch.float32, torch.float64):
                product = (cross[:, :size].to(device, dtype) @ alpha.to(device, dtype)).double().cpu()
                accuracy = np.nan
                if data.labels_test is not None:
                    accuracy = float(np.mean(predicted_labels(product.numpy()) == data.labels_test))
                yield {
                    "device": device,
                    "dtype": str(dtype).removeprefix("torch."),
                    "n_interpolation": size,
                    "accuracy": accuracy,
                    "norm_of_difference": float(torch.linalg.norm(product - exact)),
                }
