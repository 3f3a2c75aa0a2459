"""Arithmetic that the rest is built on."""
