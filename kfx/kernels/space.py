"""Coordinates in which an optimizer moves: the parameters themselves or their logarithms, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kfx.numerics.arrays import Array, Vector, as_kind, in_numpy

_LOWEST = 1e-12  # replaces a lower bound of 0 before taking logarithms


class Space:
    """A box in raw or logarithmic coordinates.

    name: `raw` or `log`. bounds: in the parameters' own units, (n, 2). A parameter that may be negative is always raw.
    raw: (n,), parameters that are raw in any case, as weights that may be zero; None for none.
    """

    def __init__(self, name: str, bounds: np.ndarray, raw: np.ndarray | None = None) -> None:
        logged = (bounds[:, 0] >= 0) if name == "log" else np.zeros(len(bounds), dtype=bool)
        logged = logged if raw is None else logged & ~raw
        self.is_logged = logged
        self.logged = logged if logged.any() else None
        self.is_log = bool(logged.all()) and len(logged) > 0
        self.bounds = np.where(logged[:, None], np.maximum(bounds, _LOWEST), bounds)
        self.low, self.high = in_numpy(self._of_logged(np.log, self.bounds.T, 1.0))
        self.is_free = not np.isfinite(self.bounds).any()

    def to_coordinates(self, vector: Vector) -> Vector:
        """Return the coordinates, (n,), of parameters (n,): the logarithms of those with a logarithmic coordinate."""
        return self._of_logged(_module(vector).log, vector, 1.0)

    def to_parameters(self, coordinates: Vector) -> Vector:
        """Return the parameters, (n,), at coordinates (n,); those with a logarithmic one lie within the bounds."""
        if self.logged is None:
            return coordinates
        # exp(log(bound)) may exceed the bound by round-off
        low, high = (as_kind(bound, coordinates) for bound in self.bounds.T)
        return _within(self._of_logged(_module(coordinates).exp, coordinates, 0.0), low, high)

    def gradient(self, vector: Vector, by_parameters: Vector) -> Vector:
        """Return the gradient with respect to the coordinates, (n,): ∂/∂log θ = θ ∂/∂θ.

        vector: the parameters, (n,). by_parameters: the gradient with respect to them, (n,).
        """
        if self.logged is None:
            return by_parameters
        return by_parameters * (vector if self.is_log else _module(vector).where(self._mask(vector), vector, 1.0))

    def project(self, coordinates: Vector) -> Vector:
        """Return the point of the box nearest to coordinates (n,). NaN stays NaN."""
        if self.is_free:
            return coordinates
        return _within(coordinates, as_kind(self.low, coordinates), as_kind(self.high, coordinates))

    def _of_logged(self, function: Callable[[Vector], Vector], vector: Vector, harmless: float) -> Vector:
        """Apply `function` to the logarithmic entries alone; it sees `harmless` in place of the others."""
        if self.logged is None:
            return vector
        if self.is_log:
            return function(vector)
        module, mask = _module(vector), self._mask(vector)
        return module.where(mask, function(module.where(mask, vector, harmless)), vector)

    def _mask(self, vector: Vector) -> Array | None:
        return torch.as_tensor(self.logged, device=vector.device) if isinstance(vector, torch.Tensor) else self.logged


def _module(vector: Vector) -> Any:
    return torch if isinstance(vector, torch.Tensor) else np


def _within(x: Vector, low: Vector, high: Vector) -> Vector:
    module = _module(x)
    return module.minimum(module.maximum(x, low), high)  # as clip, but ten times faster for a short vector


def random_within(bounds: np.ndarray, rng: np.random.Generator, distribution: str = "log_uniform") -> np.ndarray:
    """Return a random point, (n,), within bounds (n, 2).

    distribution: `uniform`, or `log_uniform` for parameters whose order of magnitude is unknown.
    """
    space = Space("log" if distribution == "log_uniform" else "raw", bounds)
    return np.asarray(space.to_parameters(rng.uniform(space.low, space.high)))
