"""Kernels. JAX is imported only by the kernel that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfx.kernels.base import Kernel
from kfx.kernels.stationary import RBF, RationalQuadratic

if TYPE_CHECKING:
    from kfx.kernels.nngp import NNGP

__all__ = ["NNGP", "RBF", "Kernel", "RationalQuadratic"]


def __getattr__(name: str) -> Any:
    if name == "NNGP":
        from kfx.kernels.nngp import NNGP

        return NNGP
    raise AttributeError(f"module 'kfx.kernels' has no attribute {name!r}")
