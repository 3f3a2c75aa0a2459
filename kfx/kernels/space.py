"""Where an optimizer moves: the parameters themselves or their logarithms, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kfx.numerics.arrays import Array, Vector, as_kind, in_numpy

_LOWEST = 1e-12  # stands for a lower bound of 0 where a logarithm is taken


class Space:
    """A box in raw or logarithmic coordinates. bounds: (n, 2) in the parameters' own units; a parameter that may be
    negative is always raw."""

    def __init__(self, name: str, bounds: np.ndarray) -> None:
        logged = (bounds[:, 0] >= 0) if name == "log" else np.zeros(len(bounds), dtype=bool)
        self.is_logged = logged
        self.logged = logged if logged.any() else None
        self.is_log = bool(logged.all()) and len(logged) > 0
        self.bounds = np.where(logged[:, None], np.maximum(bounds, _LOWEST), bounds)
        self.low, self.high = in_numpy(self._of_logged(np.log, self.bounds.T, 1.0))
        self.is_free = not np.isfinite(self.bounds).any()

    def to_coordinates(self, vector: Vector) -> Vector:
        """Return the coordinates, (n,), of parameters (n,): their logarithms where they are logged."""
        return self._of_logged(_module(vector).log, vector, 1.0)

    def to_parameters(self, coordinates: Vector) -> Vector:
        """Return the parameters, (n,), at coordinates (n,), within the bounds where they are logged."""
        if self.logged is None:
            return coordinates
        # the logarithm of a bound and back may overshoot it by a bit
        low, high = (as_kind(bound, coordinates) for bound in self.bounds.T)
        return _within(self._of_logged(_module(coordinates).exp, coordinates, 0.0), low, high)

    def gradient(self, vector: Vector, slope: Vector) -> Vector:
        """Return the gradient to the coordinates, (n,), at parameters (n,), from the gradient `slope` to those."""
        if self.logged is None:
            return slope
        return slope * vector if self.is_log else slope * _module(vector).where(self._mask(vector), vector, 1.0)

    def project(self, coordinates: Vector) -> Vector:
        """Return the nearest point of the box to coordinates (n,). NaN stays NaN, for the caller to see."""
        if self.is_free:
            return coordinates
        return _within(coordinates, as_kind(self.low, coordinates), as_kind(self.high, coordinates))

    def _of_logged(self, function: Callable[[Vector], Vector], vector: Vector, harmless: float) -> Vector:
        """`function` of the entries whose logarithms are moved; the others, shown to it as `harmless`, as they are."""
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
    return module.minimum(module.maximum(x, low), high)  # what clip does at a tenth of its price for a short vector


def random_within(bounds: np.ndarray, rng: np.random.Generator, distribution: str = "log_uniform") -> np.ndarray:
    """Return a point, (n,), in bounds (n, 2): `uniform`, or `log_uniform` for scales that may be off by decades."""
    space = Space("log" if distribution == "log_uniform" else "raw", bounds)
    return np.asarray(space.to_parameters(rng.uniform(space.low, space.high)))
