"""The protocol of engines, which compute kernels of infinitely wide networks, and the choice of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import numpy as np
import torch

Scalar = torch.Tensor | float
"""A number that may stay on its device, since reading it would wait for the device."""
Gradient = tuple[Sequence[Scalar], Sequence[Scalar]]
"""The gradients of the weight and the bias variances, one of each for each layer, or for each instruction of a CNNGP's
program."""
COMPILED = (torch.float32, torch.float64)
"""The dtypes of the compiled loops."""


class Engine(Protocol):
    """Gram matrices and gradients in x's dtype and on its device.

    Points are (n, …) for a dense network, and (n, channels, height, width) for a convolutional one.
    """

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """Return K(x, y), (n, m); with y None K(x, x), (n, n), whose diagonal the caller ignores. x: (n, …)."""

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        """Return K(x_i, x_i), (n,). x: (n, …)."""

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        """Return the gradients of Σ_ij G_ij K_ij(x, x) with respect to the variances and, with `inputs`, to x, (n, …).

        cotangent: G, (n, n), symmetric, in x's dtype. `gram(x, None)` must have been called before.
        """


@runtime_checkable
class ForwardEngine(Engine, Protocol):
    """An engine with forward-mode derivatives."""

    def gram_along(
        self, x: torch.Tensor, along_weights: np.ndarray, along_biases: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K(x, x), (n, n), and its derivatives along two directions, (2, n, n).

        x: (n, channels, height, width). along_weights, along_biases: the directions, (2, instructions).
        """


def engine_on(chosen: str, device: torch.device) -> str:
    """Return the engine's name on a device; for `auto`, fused on a CPU with numba, else torch."""
    if chosen == "auto":
        return "fused" if device.type == "cpu" and find_spec("numba") else "torch"
    return chosen


def is_compiled(chosen: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether compiled loops are the engine for this dtype and device."""
    return engine_on(chosen, device) == "fused" and dtype in COMPILED


def engine_for(chosen: str, x: torch.Tensor, setting: str, instead: str) -> str:
    """Return the name of the engine for points like x, (n, …); for `auto`, of one that takes them.

    setting: the name of the option, `engine` or `backend`. instead: the alternative that an error suggests. Raises
    ValueError where `fused` is chosen for a device or dtype that it does not take, or `triton` is not installed.
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
