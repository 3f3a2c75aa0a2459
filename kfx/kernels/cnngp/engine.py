"""What computes covariance maps, and which of several does it where."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol

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
    has_forward_mode: bool
    """Whether `gram_along` is there."""

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """K(x, y), (len(x), len(y)); with y None K(x, x), whose diagonal is not looked at."""

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        """K(x_i, x_i), (len(x),)."""

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        """Gradients of Σ G_ij K_ij(x, x) to the weights and biases of each instruction, and to x when asked."""

    def gram_along(
        self, x: torch.Tensor, along_weights: np.ndarray, along_biases: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K(x, x) as `gram`, and (2, n, n), its derivatives along two directions, (2, instructions)."""


_COMPILED = (torch.float32, torch.float64)


def engine_on(chosen: str, device: torch.device) -> str:
    """The engine that `chosen`, which may be `auto`, means there."""
    if chosen == "auto":
        return "fused" if device.type == "cpu" and find_spec("numba") else "torch"
    return chosen


def prepare(chosen: str, dtype: torch.dtype, device: torch.device) -> None:
    """Do beforehand what the first Gram matrix would otherwise do once, as compiling."""
    if engine_on(chosen, device) == "fused":
        from kfx.kernels.cnngp.fused_engine import compile_for

        compile_for(dtype)


def engine_for(
    chosen: str,
    x: torch.Tensor,
    program: tuple[Instruction, ...],
    weights: Sequence[float],
    biases: Sequence[float],
    tile_megabytes: float,
) -> Engine:
    """The engine for points like x; ValueError where the chosen one does not take them."""
    if engine_on(chosen, x.device) == "fused" and (x.dtype in _COMPILED or chosen == "fused"):
        if x.device.type != "cpu" or x.dtype not in _COMPILED:
            raise ValueError(
                f"engine=fused takes float32 or float64 on a CPU, and the points are {x.dtype} on {x.device}; "
                "use torch or auto"
            )
        from kfx.kernels.cnngp.fused_engine import FusedEngine

        return FusedEngine(program, weights, biases)
    from kfx.kernels.cnngp.torch_engine import TorchEngine

    return TorchEngine(program, weights, biases, tile_megabytes)
