"""A kernel whose parameters are those of a torch module."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import torch
from torch import nn

from kfx.kernels.base import Kernel
from kfx.kernels.parameters import Value

T = TypeVar("T")


class ModuleKernel(Kernel):
    """A kernel whose blocks are the parameters of a torch module, `_module`, with the module's names."""

    _module: nn.Module

    def _hold(self, module: nn.Module) -> None:
        """Keep a copy of the module in evaluation mode, so that dropout has no effect."""
        self._module = copy.deepcopy(module).eval().requires_grad_(False)

    @property
    def module(self) -> nn.Module:
        """A copy of the module with the present weights."""
        made = copy.deepcopy(self._module).requires_grad_(True)
        made.load_state_dict({**made.state_dict(), **self._blocks()})
        return made

    @abc.abstractmethod
    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features that the kernel compares, (n, features). x: points, (n, …)."""

    def inner_grams(self, x: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """Yield the name and the Gram matrix, (n, n), of each of the kernel's layers; none by default. x: (n, …)."""
        return ()

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        other = self._replaced({name: value.to(device, dtype) for name, value in self._blocks().items()})
        other._module = copy.deepcopy(self._module).to(device, dtype)
        return other

    def multiplications(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return math.inf

    def _blocks(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self._values.items() if isinstance(value, torch.Tensor)}

    def _weights(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: value.to(x) for name, value in self._blocks().items()}

    def _leaves(self, x: torch.Tensor, further: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights and further tensors, by name, as leaves of the autograd graph."""
        return {k: v.to(x).detach().requires_grad_() for k, v in {**self._blocks(), **further}.items()}


@dataclass(frozen=True)
class Tape(Generic[T]):
    """A recorded forward pass.

    points: (n, …). leaves: the weights by name. inner: the outputs of inner layers. made: the result.
    """

    points: torch.Tensor
    leaves: Mapping[str, torch.Tensor]
    inner: Sequence[torch.Tensor]
    made: T

    def pull(
        self, outputs: Sequence[tuple[torch.Tensor, torch.Tensor | None]], inputs: bool = False
    ) -> tuple[Mapping[str, Value], torch.Tensor | None]:
        """Return the gradients with respect to the weights, by name, and with `inputs` to the points, (n, …).

        outputs: pairs of an output of the pass and its cotangent in the same shape, as (n, features); None stands for
        1 where the output is a scalar.
        """
        made, cotangents = zip(*outputs, strict=True)
        wanted = [*self.leaves.values(), *([self.points] if inputs else [])]
        slopes = torch.autograd.grad(made, wanted, cotangents, retain_graph=True, allow_unused=True)
        found = [torch.zeros_like(at) if slope is None else slope for at, slope in zip(wanted, slopes, strict=True)]
        return dict(zip(self.leaves, found, strict=False)), found[-1] if inputs else None
