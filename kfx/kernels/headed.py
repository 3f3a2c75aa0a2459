"""A kernel on a network's features with a linear head: the network as people train it without kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch

from kfx.kernels.base import Kernel, Pull
from kfx.kernels.network_features import NetworkFeatures
from kfx.kernels.parameters import ANYWHERE, Bounds
from kfx.numerics.arrays import as_kind

WEIGHT, BIAS = "head.weight", "head.bias"
_BLOCK = 2000


class Headed(Kernel):
    """`kernel`, and a linear map of its features, F(x) Wᵀ + b, whose largest output is the class: `head.weight`,
    (outputs, features), and `head.bias`. Gram matrices are the kernel's alone."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = {WEIGHT: ANYWHERE, BIAS: ANYWHERE}

    def __init__(self, kernel: NetworkFeatures, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self._kernel, self.may_be_zero = kernel, kernel.may_be_zero
        self.signed = kernel.signed | {WEIGHT, BIAS}
        blocks = {WEIGHT: weight, BIAS: bias}
        limits = {**kernel.limits, **self.default_bounds}
        super().__init__({**kernel.parameters, **blocks}, [*kernel.trainable, WEIGHT, BIAS], limits)

    @classmethod
    def over(cls, kernel: Any, x: torch.Tensor, outputs: int, rng: np.random.Generator) -> Self:
        """With a head drawn at random, uniform in ±1/√features. x: a point. ValueError for a kernel without a
        network."""
        if not isinstance(kernel, NetworkFeatures):
            raise ValueError("expected a kernel of a network's features")
        features = kernel.features(x)
        return cls(kernel, *_drawn(outputs, features.shape[1], features, rng))

    @property
    def kernel(self) -> NetworkFeatures:
        """The kernel itself, with its present parameters."""
        return self._kernel._replaced({name: self._values[name] for name in self._kernel.parameters})

    @property
    def head(self) -> dict[str, torch.Tensor]:
        """Weight and bias, by name."""
        return {name: value for name in (WEIGHT, BIAS) if isinstance(value := self._values[name], torch.Tensor)}

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        head = {name: value.to(x) for name, value in self.head.items()}
        blocks = [torch.nn.functional.linear(self.features(b), head[WEIGHT], head[BIAS]) for b in x.split(_BLOCK)]
        return torch.cat(blocks)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel.features(x)

    def settled(self, x: torch.Tensor) -> Self:
        kernel = self.kernel
        settled = kernel.settled(x)
        return self if settled is kernel else self._replaced(settled.parameters)

    def unfolded(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Kernel]:
        return self.kernel.unfolded()

    def fresh(self, rng: np.random.Generator) -> dict[str, Any]:
        weight = self.head[WEIGHT]
        head = _drawn(weight.shape[0], weight.shape[1], weight, rng)
        return {**self._kernel.fresh(rng), **dict(zip((WEIGHT, BIAS), head, strict=True))}

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self.kernel._gram(x, y)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel._diagonal(x)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        gram, pull = self.kernel._pullback(x)

        def pull_all(cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, Any], torch.Tensor | None]:
            by_name, to_points = pull(cotangent, inputs)
            return {**by_name, **{name: torch.zeros_like(value) for name, value in self.head.items()}}, to_points

        return gram, pull_all


def _drawn(outputs: int, features: int, like: torch.Tensor, rng: np.random.Generator) -> list[torch.Tensor]:
    span = 1 / math.sqrt(features)
    return [as_kind(rng.uniform(-span, span, shape), like) for shape in ((outputs, features), (outputs,))]
