"""Kernel ridge regression with a kernel, and the errors of its predictions."""
