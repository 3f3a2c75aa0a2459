"""Kernel Flows as scikit-learn estimators: a regressor, a classifier, a forecaster of series, and a learned flow as a
transformer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfx.estimators.classifier import KernelFlowClassifier
    from kfx.estimators.forecaster import KernelFlowForecaster
    from kfx.estimators.regressor import KernelFlowRegressor
    from kfx.estimators.transformer import KernelFlowTransformer

__all__ = ["KernelFlowClassifier", "KernelFlowForecaster", "KernelFlowRegressor", "KernelFlowTransformer"]


def __getattr__(name: str) -> Any:
    # A regressor imports what it needs alone: forecasts and flows bring torch.
    if name in __all__:
        module = importlib.import_module(f"kfx.estimators.{name.removeprefix('KernelFlow').lower()}")
        return getattr(module, name)
    raise AttributeError(f"module 'kfx.estimators' has no attribute {name!r}")
