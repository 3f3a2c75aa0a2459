"""Objectives: `(gram, y, sample_size, regularization, cotangent=True) → value, G`."""

from kfx.objectives.relative_error import rho

__all__ = ["rho"]
