"""kfx: an experiment runner for Kernel Flows."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from kfx.version import __version__

_HOMES = {
    **dict.fromkeys(("Run", "Sweep", "compare", "load_run", "plug_in", "run", "sweep"), "kfx.interactive"),
    **dict.fromkeys(
        ("KernelFlowClassifier", "KernelFlowForecaster", "KernelFlowRegressor", "KernelFlowTransformer"),
        "kfx.estimators",
    ),
    **dict.fromkeys(("design", "sensitivities"), "kfx.estimators.design"),
    **dict.fromkeys(("ConfigError", "DataError", "KfxError", "NumericalError", "RunError"), "kfx.outcomes"),
}
__all__ = [
    "ConfigError",
    "DataError",
    "KernelFlowClassifier",
    "KernelFlowForecaster",
    "KernelFlowRegressor",
    "KernelFlowTransformer",
    "KfxError",
    "NumericalError",
    "Run",
    "RunError",
    "Sweep",
    "__version__",
    "compare",
    "design",
    "load_run",
    "plug_in",
    "run",
    "sensitivities",
    "sweep",
]

if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
    os.environ["GOMP_SPINCOUNT"] = "1000"  # see kfx.numerics.threads

if TYPE_CHECKING:
    from kfx.estimators import KernelFlowClassifier, KernelFlowForecaster, KernelFlowRegressor, KernelFlowTransformer
    from kfx.estimators.design import design, sensitivities
    from kfx.interactive import Run, Sweep, compare, load_run, plug_in, run, sweep
    from kfx.outcomes import ConfigError, DataError, KfxError, NumericalError, RunError


def __getattr__(name: str) -> Any:
    # `kfx --help` must answer at once: pandas and torch wait until they are used.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kfx' has no attribute {name!r}")
