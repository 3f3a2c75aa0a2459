"""A kernel with its own regularization λ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from kfx.kernels.base import Kernel
from kfx.kernels.parameters import Bounds, Value
from kfx.kernels.wrapped import Extended
from kfx.numerics.regularization import Regularization


class Regularized(Extended[Kernel]):
    """`kernel` with its own λ, as the further parameter `regularization`: λ's value in units of its scale.

    Gram matrices do not contain λ. Objectives use this λ instead of the configured one. Where `trained`, the pullback
    also gives the derivative with respect to `regularization`; it is valid for objectives that depend on A = Θ + λI
    alone, as the likelihood and the leave-one-out error.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {"regularization": (1e-12, 1e4)}

    def __init__(self, kernel: Kernel, regularization: Regularization, trained: bool = False) -> None:
        self._scale = regularization.scale
        trainable = [*kernel.trainable, *(["regularization"] if trained else [])]
        super().__init__(kernel, {"regularization": regularization.value}, trainable)

    @property
    def own_regularization(self) -> Regularization:
        """λ and its scale."""
        return Regularization(self._scalar("regularization"), self._scale)

    def _pull_own(self, cotangent: torch.Tensor, gram: torch.Tensor) -> dict[str, Value]:
        return {"regularization": self.own_regularization.slope(cotangent, gram)}


def as_recorded(start: Kernel, values: Mapping[str, Value]) -> Kernel:
    """Return `start` with recorded parameters. A recorded λ is absolute where `start` has no λ of its own."""
    if "regularization" in values and not isinstance(start, Regularized):
        own = {name: value for name, value in values.items() if name != "regularization"}
        return Regularized(start.with_parameters(**own), Regularization(float(values["regularization"]), "absolute"))
    return start.with_parameters(**values)


def bare(kernel: Kernel) -> Kernel:
    """The kernel without its own λ."""
    return kernel.kernel if isinstance(kernel, Regularized) else kernel
