"""Kernel ridge regression with a kernel, and what its predictions are worth."""
