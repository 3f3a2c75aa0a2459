"""Objectives: `(gram, y, sample_size, regularization, cotangent=True) → value, G`."""

from kfx.objectives.leave_one_out import loo
from kfx.objectives.likelihood import nll
from kfx.objectives.polarized import rho_polarized
from kfx.objectives.prediction import interpolation_error, rho_prediction
from kfx.objectives.relative_error import rho

__all__ = ["interpolation_error", "loo", "nll", "rho", "rho_polarized", "rho_prediction"]
