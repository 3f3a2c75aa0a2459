"""A kfx kernel as a kernel of GPyTorch's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

try:
    import gpytorch
except ImportError as error:
    raise ImportError("kfx.gpytorch needs GPyTorch: pip install 'kfx[gpytorch]'") from error

from kfx.kernels.base import Kernel
from kfx.torch import KernelModule, gram

__all__ = ["KfxKernel"]


class KfxKernel(gpytorch.kernels.Kernel):
    """A kfx kernel in a GPyTorch model: an exact Gaussian process with a CNNGP, say; its gradients are exact pullbacks.

    kernel: any of kfx's. image_shape: (channels, height, width) that points, rows for GPyTorch, are folded into, for a
    kernel of images. space: `log` or `raw`, as `KernelModule`. options: of GPyTorch's kernels, as
    `active_dims`. Batches of Gaussian processes are refused: a kernel of
    kfx has one set of parameters.
    """

    has_lengthscale = False

    def __init__(
        self, kernel: Kernel, image_shape: Sequence[int] | None = None, space: str = "log", **options: Any
    ) -> None:
        super().__init__(**options)
        self.image_shape = None if image_shape is None else tuple(image_shape)
        self.module = KernelModule(kernel, space)

    @property
    def kernel(self) -> Kernel:
        """kfx's kernel with its present parameters."""
        return self.module.kernel

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **params: Any) -> torch.Tensor:
        if params.get("last_dim_is_batch"):
            raise ValueError("last_dim_is_batch: a kernel of kfx takes whole points")
        one, two = self._points(x1), self._points(x2)
        same = one is two or (one.shape == two.shape and torch.equal(one, two))
        if diag and not torch.is_grad_enabled() and same:
            return self.kernel.diagonal(one)
        found = gram(self.module, one) if same else gram(self.module, one, two)
        return found.diagonal() if diag else found

    def _points(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 2:
            raise ValueError(f"expected points (n, features) without a batch dimension, got {tuple(x.shape)}")
        if self.image_shape is None:
            return x
        if math.prod(self.image_shape) != x.shape[1]:
            raise ValueError(f"image_shape={self.image_shape}: points have {x.shape[1]} features")
        return x.reshape(len(x), *self.image_shape)
