"""Kernel Flows as scikit-learn estimators: a regressor, a classifier, a forecaster of series, and a learned flow as a
transformer."""

from __future__ import annotations

from kfx.estimators.classifier import KernelFlowClassifier
from kfx.estimators.forecaster import KernelFlowForecaster
from kfx.estimators.regressor import KernelFlowRegressor
from kfx.estimators.transformer import KernelFlowTransformer

__all__ = ["KernelFlowClassifier", "KernelFlowForecaster", "KernelFlowRegressor", "KernelFlowTransformer"]
