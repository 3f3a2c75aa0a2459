"""A kernel on a network's features with a linear head, to train the network without kernels for comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.kernels.network_features import NetworkFeatures
from kfx.kernels.parameters import ANYWHERE, Bounds, Value
from kfx.kernels.prediction import Prediction
from kfx.kernels.wrapped import Extended
from kfx.numerics.arrays import as_kind

WEIGHT, BIAS = "head.weight", "head.bias"
_BLOCK = 2000


class KernelWithHead(Extended[NetworkFeatures]):
    """`kernel` with a linear head F(x) Wᵀ + b on its features; the predicted class is the largest output.

    W is `head.weight`, (outputs, features), and b is `head.bias`, (outputs,). Gram matrices do not depend on the head.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {WEIGHT: ANYWHERE, BIAS: ANYWHERE}

    def __init__(self, kernel: NetworkFeatures, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__(kernel, {WEIGHT: weight, BIAS: bias}, signed=(WEIGHT, BIAS))

    @classmethod
    def over(cls, kernel: Kernel, x: torch.Tensor, outputs: int, rng: np.random.Generator) -> Self:
        """Return `kernel` with a head drawn at random, uniform in ±1/√features.

        x: one point, (1, …). Raises ValueError for a kernel without a network.
        """
        if not isinstance(kernel, NetworkFeatures):
            raise ValueError("expected a kernel of a network's features")
        features = kernel.features(x)
        return cls(kernel, *_drawn(outputs, features.shape[1], features, rng))

    @property
    def head(self) -> dict[str, torch.Tensor]:
        """Weight, (outputs, features), and bias, (outputs,), by name."""
        return self._own

    def predict(self, x: torch.Tensor) -> Prediction:
        kernel, head = self.kernel, {name: value.to(x) for name, value in self.head.items()}
        blocks = [torch.nn.functional.linear(kernel.features(b), head[WEIGHT], head[BIAS]) for b in x.split(_BLOCK)]
        return Prediction.of_logits(torch.cat(blocks))

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        weight = self.head[WEIGHT]
        head = _drawn(weight.shape[0], weight.shape[1], weight, rng)
        return {**super().fresh(rng), **dict(zip((WEIGHT, BIAS), head, strict=True))}


def _drawn(outputs: int, features: int, like: torch.Tensor, rng: np.random.Generator) -> list[torch.Tensor]:
    span = 1 / math.sqrt(features)
    return [as_kind(rng.uniform(-span, span, shape), like) for shape in ((outputs, features), (outputs,))]
