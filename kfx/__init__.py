"""kfx: an experiment runner for Kernel Flows."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["KernelFlowClassifier", "KernelFlowRegressor", "KernelFlowTransformer", "__version__", "load_run"]

if TYPE_CHECKING:
    from kfx.estimators import KernelFlowClassifier, KernelFlowRegressor, KernelFlowTransformer
    from kfx.record.reading import load_run

_HOMES = {
    "load_run": "kfx.record.reading",
    **dict.fromkeys(("KernelFlowClassifier", "KernelFlowRegressor", "KernelFlowTransformer"), "kfx.estimators"),
}


def __getattr__(name: str) -> Any:
    # `kfx --help` must answer at once: pandas and torch wait until they are used.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kfx' has no attribute {name!r}")
