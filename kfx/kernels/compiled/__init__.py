"""Compiled loops and the arithmetic in them that several kernels share."""
