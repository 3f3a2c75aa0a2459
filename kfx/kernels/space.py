"""Where an optimizer moves: the parameters themselves or their logarithms, within bounds."""

from __future__ import annotations

import numpy as np

_LOWEST = 1e-12  # stands for a lower bound of 0 where a logarithm is taken


class Space:
    """A box in raw or logarithmic coordinates. bounds: (n, 2) in the parameters' own units."""

    def __init__(self, name: str, bounds: np.ndarray) -> None:
        self.is_log = name == "log"
        self.bounds = np.maximum(bounds, _LOWEST) if self.is_log else bounds
        self.low, self.high = (np.log(self.bounds) if self.is_log else self.bounds).T

    def to_coordinates(self, vector: np.ndarray) -> np.ndarray:
        return np.log(vector) if self.is_log else vector

    def to_parameters(self, coordinates: np.ndarray) -> np.ndarray:
        # the logarithm of a bound and back may overshoot it by a bit
        return _within(np.exp(coordinates), *self.bounds.T) if self.is_log else coordinates

    def gradient(self, vector: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """From the gradient to the parameters to that to the coordinates."""
        return slope * vector if self.is_log else slope

    def project(self, coordinates: np.ndarray) -> np.ndarray:
        """The nearest point of the box. NaN stays NaN, for the caller to see."""
        return _within(coordinates, self.low, self.high)


def _within(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)  # what np.clip does at a tenth of its price for a short vector


def random_within(bounds: np.ndarray, rng: np.random.Generator, distribution: str = "log_uniform") -> np.ndarray:
    """A point within the bounds: `uniform`, or, for scales that may be off by decades, with uniform logarithms."""
    space = Space("log" if distribution == "log_uniform" else "raw", bounds)
    return space.to_parameters(rng.uniform(space.low, space.high))
