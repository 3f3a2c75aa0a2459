"""Objectives: `(gram, y, sample_size, regularization, cotangent=True) → value, G`."""

from kfx.objectives.leave_one_out import loo
from kfx.objectives.likelihood import nll
from kfx.objectives.polarized import rho_polarized
from kfx.objectives.prediction import interpolation_error, rho_prediction
from kfx.objectives.relative_error import rho

RATIOS = (rho, rho_polarized, rho_prediction)
"""Those that compare two norms: 0 is perfect, 1 nothing kept."""

__all__ = ["RATIOS", "interpolation_error", "loo", "nll", "rho", "rho_polarized", "rho_prediction"]
