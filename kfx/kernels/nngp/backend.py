"""The protocol of what computes a dense network's kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

Gradient = tuple[Sequence[Any], Sequence[Any]]
"""To the weight and the bias variance of each layer."""


class Backend(Protocol):
    """K(x, y) of points (n, …), in x's dtype and on its device."""

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """K(x, y); with y None K(x, x), whose diagonal is not looked at."""

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        """K(x_i, x_i), (len(x),)."""

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        """Gradients of Σ G_ij K_ij(x, x), of which `gram` was called before, to the variances, and to x when asked."""
