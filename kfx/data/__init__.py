"""Data sets: synthetic, embedded, images and tables, and their files."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfx.data.dataset import Dataset, one_hot, preprocess

__all__ = ["Dataset", "one_hot", "preprocess"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("kfx.data.dataset"), name)
    raise AttributeError(f"module 'kfx.data' has no attribute {name!r}")
