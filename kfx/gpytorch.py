"""A kfx kernel as a kernel of GPyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kfx.version import to_install

try:
    import gpytorch
except ImportError as error:
    raise ImportError(f"kfx.gpytorch needs GPyTorch: {to_install('gpytorch')}") from error

from kfx.kernels.base import Kernel
from kfx.torch import KernelModule, gram

__all__ = ["KfxKernel"]


class KfxKernel(gpytorch.kernels.Kernel):
    """A kfx kernel in a GPyTorch model, such as an exact Gaussian process with a CNNGP; its gradients are exact
    pullbacks.

    kernel: any kernel of kfx.
    image_shape: (channels, height, width) into which GPyTorch's points, rows, are folded for a kernel of images.
    space: `log` or `raw`, as for `KernelModule`.
    options: of GPyTorch's kernels, such as `active_dims`.
    ValueError for batches of Gaussian processes, because a kernel of kfx has one set of parameters.
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
        """The kfx kernel with its present parameters."""
        return self.module.kernel

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **params: Any) -> torch.Tensor:
        """K(x1, x2), (n, m), or with `diag` its diagonal, (n,). x1: (n, features). x2: (m, features)."""
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
