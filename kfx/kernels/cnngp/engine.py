"""The protocol of what computes covariance maps."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from kfx.kernels.cnngp.layers import Instruction

Scalar = torch.Tensor | float
"""A number that may stay on its device: reading it would wait for the device."""
Gradient = tuple[list[Scalar], list[Scalar]]
"""To the weight and the bias of each instruction."""


class Engine(Protocol):
    """Gram matrices and gradients of a program of layers, in x's dtype and on its device, in the memory of a few tiles.

    Points are (n, channels, height, width).
    """

    program: tuple[Instruction, ...]

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """K(x, y), (len(x), len(y)); with y None K(x, x), whose diagonal is not looked at."""

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        """K(x_i, x_i), (len(x),)."""

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        """Gradients of Σ G_ij K_ij(x, x) to the weights and biases of each instruction, and to x when asked."""


@runtime_checkable
class ForwardEngine(Engine, Protocol):
    """An engine that carries derivatives along with the value."""

    def gram_along(
        self, x: torch.Tensor, along_weights: np.ndarray, along_biases: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K(x, x) as `gram`, and (2, n, n), its derivatives along two directions, (2, instructions)."""
