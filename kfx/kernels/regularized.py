"""A kernel with a λ of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch

from kfx.kernels.base import Kernel, Pull
from kfx.kernels.parameters import Bounds
from kfx.numerics.regularization import Regularization


class Regularized(Kernel):
    """`kernel` and the regularization to use it with, `regularization`: λ's value, in units of its scale.

    Gram matrices are the kernel's alone. An objective on such a kernel takes this λ in place of its own, and the
    pullback gives ∂/∂λ beside the gradient to the kernel's parameters when `trained`. For objectives of A = Θ + λI
    alone, as the likelihood and the leave-one-out error.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {"regularization": (1e-12, 1e4)}

    def __init__(self, kernel: Kernel, regularization: Regularization, trained: bool = False) -> None:
        self._kernel, self._scale = kernel, regularization.scale
        self.may_be_zero, self.signed = kernel.may_be_zero, kernel.signed
        super().__init__(
            {**kernel.parameters, "regularization": regularization.value},
            [*kernel.trainable, *(["regularization"] if trained else [])],
            {**kernel.limits, **self.default_bounds},
        )

    @property
    def kernel(self) -> Kernel:
        """The kernel itself, with its present parameters."""
        return self._kernel._replaced({name: self._values[name] for name in self._kernel.parameters})

    @property
    def own_regularization(self) -> Regularization:
        """λ and its scale."""
        return Regularization(self._scalar("regularization"), self._scale)

    def fresh(self, rng: np.random.Generator) -> dict[str, Any]:
        return self._kernel.fresh(rng)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel.features(x)

    def predict(self, x: torch.Tensor) -> torch.Tensor | None:
        return self.kernel.predict(x)

    def settled(self, x: torch.Tensor) -> Self:
        kernel = self.kernel
        settled = kernel.settled(x)
        return self if settled is kernel else self._replaced(settled.parameters)

    def unfolded(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Kernel]:
        return self.kernel.unfolded()

    def backend_on(self, device: torch.device) -> str:
        return self._kernel.backend_on(device)

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        self._kernel.prepare(dtype, device)

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self.kernel._gram(x, y)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel._diagonal(x)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        gram, pull = self.kernel._pullback(x)

        def pull_both(cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, Any], torch.Tensor | None]:
            by_name, to_inputs = pull(cotangent, inputs)
            return {**by_name, "regularization": self.own_regularization.slope(cotangent, gram)}, to_inputs

        return gram, pull_both


def as_recorded(start: Kernel, values: Mapping[str, Any]) -> Kernel:
    """The kernel of a record: `start` with these parameters. A λ among them that `start` does not bring is absolute."""
    if "regularization" in values and not isinstance(start, Regularized):
        own = {name: value for name, value in values.items() if name != "regularization"}
        return Regularized(start.with_parameters(**own), Regularization(values["regularization"], "absolute"))
    return start.with_parameters(**values)
