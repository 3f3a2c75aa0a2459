"""Flows: optimizers that move points."""
