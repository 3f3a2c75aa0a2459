"""Objectives, called as `(gram, y, sample_size, regularization, cotangent=True) → value, G`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfx.objectives.autograd import by_autograd
    from kfx.objectives.base import Objective, objective, ratio
    from kfx.objectives.centred_alignment import alignment
    from kfx.objectives.generalized_cross_validation import gcv
    from kfx.objectives.leave_one_out import crps, loo, loo_likelihood
    from kfx.objectives.likelihood import nll
    from kfx.objectives.polarized import rho_polarized
    from kfx.objectives.prediction import interpolation_error, rho_prediction
    from kfx.objectives.relative_error import rho

__all__ = [
    "Objective",
    "alignment",
    "by_autograd",
    "crps",
    "gcv",
    "interpolation_error",
    "loo",
    "loo_likelihood",
    "nll",
    "objective",
    "ratio",
    "rho",
    "rho_polarized",
    "rho_prediction",
]

_HOMES = {
    "Objective": "base",
    "alignment": "centred_alignment",
    "by_autograd": "autograd",
    "crps": "leave_one_out",
    "gcv": "generalized_cross_validation",
    "interpolation_error": "prediction",
    "objective": "base",
    "loo": "leave_one_out",
    "loo_likelihood": "leave_one_out",
    "nll": "likelihood",
    "ratio": "base",
    "rho": "relative_error",
    "rho_polarized": "polarized",
    "rho_prediction": "prediction",
}


def __getattr__(name: str) -> Any:  # options are read without torch
    if name in _HOMES:
        return getattr(importlib.import_module(f"kfx.objectives.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kfx.objectives' has no attribute {name!r}")
