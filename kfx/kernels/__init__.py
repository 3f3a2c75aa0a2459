"""Kernels, each imported at first use, so that options are read without torch and JAX is loaded only where needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kfx.kernels.ard import ARD
    from kfx.kernels.base import Kernel, Product, Scaled, Sum
    from kfx.kernels.cnngp.kernel import CNNGP, CNTK
    from kfx.kernels.cnngp.layers import AvgPool2d, Conv2d, Dense, Erf, GlobalAvgPool, ReLU, Residual, Sequential
    from kfx.kernels.conv_dkm.kernel import ConvDKM
    from kfx.kernels.dictionary import Dictionary
    from kfx.kernels.dot_product import Linear, Polynomial
    from kfx.kernels.flipped import Flipped
    from kfx.kernels.formula import Formula
    from kfx.kernels.greens_function import GreensFunction
    from kfx.kernels.network_features import NetworkFeatures
    from kfx.kernels.nngp.kernel import NNGP, NTK
    from kfx.kernels.regularized import Regularized
    from kfx.kernels.smooth_and_rough import SmoothAndRough
    from kfx.kernels.stationary import RBF, Laplace, Matern, RationalQuadratic

__all__ = [
    "ARD",
    "CNNGP",
    "CNTK",
    "NNGP",
    "NTK",
    "RBF",
    "AvgPool2d",
    "Conv2d",
    "ConvDKM",
    "Dense",
    "Dictionary",
    "Erf",
    "Flipped",
    "Formula",
    "GlobalAvgPool",
    "GreensFunction",
    "Kernel",
    "Laplace",
    "Linear",
    "Matern",
    "NetworkFeatures",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "ReLU",
    "Regularized",
    "Residual",
    "Scaled",
    "Sequential",
    "SmoothAndRough",
    "Sum",
]

_HOMES = {
    "ARD": "ard",
    "CNNGP": "cnngp.kernel",
    "CNTK": "cnngp.kernel",
    "ConvDKM": "conv_dkm.kernel",
    "Dictionary": "dictionary",
    "Flipped": "flipped",
    "Formula": "formula",
    "GreensFunction": "greens_function",
    "NNGP": "nngp.kernel",
    "NTK": "nngp.kernel",
    "NetworkFeatures": "network_features",
    "Regularized": "regularized",
    "SmoothAndRough": "smooth_and_rough",
    **dict.fromkeys(
        ("AvgPool2d", "Conv2d", "Dense", "Erf", "GlobalAvgPool", "ReLU", "Residual", "Sequential"), "cnngp.layers"
    ),
    **dict.fromkeys(("Kernel", "Product", "Scaled", "Sum"), "base"),
    **dict.fromkeys(("Linear", "Polynomial"), "dot_product"),
    **dict.fromkeys(("RBF", "Laplace", "Matern", "RationalQuadratic"), "stationary"),
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"kfx.kernels.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kfx.kernels' has no attribute {name!r}")
