"""Kernels with additional parameters that do not affect their Gram matrices."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
import torch

from kfx.kernels.base import Kernel, Pull
from kfx.kernels.parameters import Bounds, Value
from kfx.kernels.prediction import Prediction

K = TypeVar("K", bound=Kernel)


class Wrapped(Kernel, Generic[K]):
    """`kernel` with additional parameters.

    A subclass states `default_bounds` of the additional parameters and gives their gradients by `_pull_own`.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]]

    def __init__(
        self, kernel: K, own: Mapping[str, Value], trainable: Iterable[str], signed: Iterable[str] = ()
    ) -> None:
        self._kernel, self.may_be_zero, self.labels = kernel, kernel.may_be_zero, kernel.labels
        self.signed = kernel.signed | frozenset(signed)
        self.weight_names = kernel.weight_names
        limits = {**kernel.limits, **self.default_bounds}
        super().__init__({**kernel.parameters, **own}, [*kernel.trainable, *trainable], limits)

    @property
    def kernel(self) -> K:
        """The wrapped kernel, with the present parameters."""
        return self._kernel._replaced({name: self._values[name] for name in self._kernel.parameters})

    @abc.abstractmethod
    def _pull_own(self, cotangent: torch.Tensor, gram: torch.Tensor) -> dict[str, Value]:
        """Return the gradients of the additional parameters by name. cotangent, gram: (n, n)."""

    def proximal(self, values: Mapping[str, Value], amount: float) -> dict[str, Value]:
        return self._kernel.proximal(values, amount)

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        return self._kernel.fresh(rng)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel.features(x)

    def inner_grams(self, x: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        return self.kernel.inner_grams(x)

    def predict(self, x: torch.Tensor) -> Prediction | None:
        return self.kernel.predict(x)

    def fixed_on(self, x: torch.Tensor) -> Self:
        kernel = self.kernel
        fixed = kernel.fixed_on(x)
        return self if fixed is kernel else self._replaced(fixed.parameters)

    def feature_map_and_kernel(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Kernel]:
        return self.kernel.feature_map_and_kernel()

    def backend_on(self, device: torch.device) -> str:
        return self._kernel.backend_on(device)

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        self._kernel.prepare(dtype, device)

    def multiplications(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return self._kernel.multiplications(x, y)

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self.kernel._gram(x, y)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel._diagonal(x)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        gram, pull = self.kernel._pullback(x)

        def pull_all(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            by_name, to_inputs = pull(cotangent, inputs)
            return {**by_name, **self._pull_own(cotangent, gram)}, to_inputs

        return gram, pull_all
