"""What the predictions by a kernel's own head are judged by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kfx.data.dataset import Dataset, predicted_labels
from kfx.evaluation.judges import Tensors
from kfx.kernels.base import Kernel
from kfx.kernels.prediction import Headed
from kfx.kernels.wrapped import within
from kfx.numerics.arrays import in_numpy


@dataclass(frozen=True)
class OfHead:
    """The predictions by the kernel's own head: accuracy, mean log-likelihood and calibration error.

    It judges a kernel, whatever the interpolation points. training: also on training points.
    """

    training: bool

    def names(self) -> Sequence[str]:
        heads = ["head", "head_train"] if self.training else ["head"]
        return [f"{name}_{what}" for name in heads for what in ("accuracy", "log_likelihood", "calibration_error")]

    def __call__(self, kernel: Kernel, data: Dataset, tensors: Tensors) -> dict[str, float]:
        """Measure them; NaN for a kernel without a head. NumericalError where the arithmetic fails."""
        asked = [(tensors[2], data.y_test)] + ([(tensors[0], data.y_train)] if self.training else [])
        headed = next((each for each in within(kernel) if isinstance(each, Headed)), None)
        values: list[float] = []
        for x, y in asked:
            if headed is None:
                values += [math.nan] * 3
                continue
            prediction, targets = headed.predict(x), torch.as_tensor(y)
            likelihood = float(prediction.log_likelihood(targets).mean(dtype=torch.float64))
            right = predicted_labels(in_numpy(prediction.outputs)) == predicted_labels(y)
            values += [float(np.mean(right)), likelihood, prediction.calibration_error(targets)]
        return dict(zip(self.names(), values, strict=True))
