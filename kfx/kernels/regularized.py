"""A kernel with a λ of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from kfx.kernels.base import Kernel
from kfx.kernels.parameters import Bounds, Value
from kfx.kernels.wrapped import Wrapped
from kfx.numerics.regularization import Regularization


class Regularized(Wrapped[Kernel]):
    """`kernel` and the regularization to use it with, `regularization`: λ's value, in units of its scale.

    Gram matrices are the kernel's alone. An objective on such a kernel takes this λ in place of its own, and the
    pullback gives ∂/∂λ beside the gradient to the kernel's parameters when `trained`. For objectives of A = Θ + λI
    alone, as the likelihood and the leave-one-out error.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {"regularization": (1e-12, 1e4)}

    def __init__(self, kernel: Kernel, regularization: Regularization, trained: bool = False) -> None:
        self._scale = regularization.scale
        own = {"regularization": regularization.value}
        super().__init__(kernel, own, ["regularization"] if trained else [])

    @property
    def own_regularization(self) -> Regularization:
        """λ and its scale."""
        return Regularization(self._scalar("regularization"), self._scale)

    def _pull_own(self, cotangent: torch.Tensor, gram: torch.Tensor) -> dict[str, Value]:
        return {"regularization": self.own_regularization.slope(cotangent, gram)}


def as_recorded(start: Kernel, values: Mapping[str, Value]) -> Kernel:
    """The kernel of a record: `start` with these parameters. A λ among them that `start` does not bring is absolute."""
    if "regularization" in values and not isinstance(start, Regularized):
        own = {name: value for name, value in values.items() if name != "regularization"}
        return Regularized(start.with_parameters(**own), Regularization(float(values["regularization"]), "absolute"))
    return start.with_parameters(**values)
