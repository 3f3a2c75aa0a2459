"""What computes the kernels of infinitely wide networks, `NNGP` and `CNNGP`: the protocol, and which engine where."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import numpy as np
import torch

Scalar = torch.Tensor | float
"""A number that may stay on its device: reading it would wait for the device."""
Gradient = tuple[Sequence[Scalar], Sequence[Scalar]]
"""To the weight and the bias variance of each layer, or of each instruction of a CNNGP's program."""
COMPILED = (torch.float32, torch.float64)
"""What compiled loops take."""


class Engine(Protocol):
    """Gram matrices and gradients in x's dtype and on its device.

    Points are (n, …) for a dense network, and (n, channels, height, width) for a convolutional one.
    """

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """K(x, y), (len(x), len(y)); with y None K(x, x), whose diagonal is not looked at."""

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        """K(x_i, x_i), (len(x),)."""

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        """Gradients of Σ G_ij K_ij(x, x) to the weight and bias variances, and to x, in its shape, when asked.

        `gram(x, None)` was called before. cotangent: G, (n, n), symmetric, in x's dtype.
        """


@runtime_checkable
class ForwardEngine(Engine, Protocol):
    """An engine that carries derivatives along with the value."""

    def gram_along(
        self, x: torch.Tensor, along_weights: np.ndarray, along_biases: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K(x, x) as `gram`, and (2, n, n), its derivatives along two directions, (2, instructions)."""


def engine_on(chosen: str, device: torch.device) -> str:
    """Return the name of the engine that `chosen`, which may be `auto`, means on a device."""
    if chosen == "auto":
        return "fused" if device.type == "cpu" and find_spec("numba") else "torch"
    return chosen


def is_compiled(chosen: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether compiled loops compute there."""
    return engine_on(chosen, device) == "fused" and dtype in COMPILED


def engine_for(chosen: str, x: torch.Tensor, setting: str, instead: str) -> str:
    """Return the name of the engine for points like x: of `auto` one that takes them.

    setting: the option that `chosen` is of, `engine` or `backend`. instead: what else to set, for the error.
    ValueError where compiled loops were chosen and do not take such points, or Triton and it is not installed.
    """
    name = engine_on(chosen, x.device)
    if name == "fused" and not (x.is_cpu and x.dtype in COMPILED):
        if chosen == "auto":
            return "torch"
        raise ValueError(
            f"{setting}=fused takes float32 or float64 on a CPU, and the points are {x.dtype} on {x.device}; "
            f"use {instead}"
        )
    if name == "triton" and not find_spec("triton"):
        raise ValueError(f"{setting}=triton needs Triton, which comes with torch for CUDA: pip install triton")
    return name
