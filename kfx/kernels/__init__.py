"""Kernels. JAX is imported only by the kernel that needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kfx.kernels.base import Kernel
from kfx.kernels.combination import Product, Scaled, Sum
from kfx.kernels.dot_product import Linear, Polynomial
from kfx.kernels.regularized import Regularized
from kfx.kernels.stationary import RBF, Laplace, Matern, RationalQuadratic

if TYPE_CHECKING:
    from kfx.kernels.cnngp import CNNGP
    from kfx.kernels.layers import Conv2d, Erf, ReLU, Residual, Sequential
    from kfx.kernels.nngp import NNGP

__all__ = [
    "CNNGP",
    "NNGP",
    "RBF",
    "Conv2d",
    "Erf",
    "Kernel",
    "Laplace",
    "Linear",
    "Matern",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "ReLU",
    "Regularized",
    "Residual",
    "Scaled",
    "Sequential",
    "Sum",
]

_HOMES = {
    "NNGP": "nngp",
    "CNNGP": "cnngp",
    **dict.fromkeys(("Conv2d", "Erf", "ReLU", "Residual", "Sequential"), "layers"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"kfx.kernels.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kfx.kernels' has no attribute {name!r}")
