"""Transforms of the targets of a regression, under which a normal distribution describes them better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kfx.numerics.round_off import is_constant, scale
from kfx.outcomes import DataError


class _Rising(Protocol):
    """A rising function g of the targets y."""

    def __call__(self, y: np.ndarray) -> np.ndarray:
        """g(y); −∞ where y is outside its domain."""

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """g⁻¹(z); infinite beyond the range of g."""

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """log g'(y)."""


@dataclass(frozen=True)
class Warp:
    """A transform g of targets (Snelson, Rasmussen & Ghahramani 2004), and the normal distribution behind it.

    low, high: limits of the targets: the range of the training targets, and as much again on each side. Beyond it a
    logarithm's inverse makes any number of a small error.
    """

    function: _Rising
    low: float
    high: float

    @classmethod
    def of(cls, how: str, y: np.ndarray) -> Warp:
        """The transform `how` for training targets y, (n, 1). DataError for targets that it does not take."""
        if y.shape[1] != 1:
            raise DataError(f"dataset.targets={how}: takes one target, and there are {y.shape[1]}; take standardized")
        if how == "log" and not y.min() > 0:
            raise DataError(f"dataset.targets=log: takes targets above 0, and one is {y.min():g}; take yeo_johnson")
        low, high = float(y.min()), float(y.max())
        return cls(Logarithm() if how == "log" else PowerTransform.of(y), 2 * low - high, 2 * high - low)

    def __call__(self, y: np.ndarray) -> np.ndarray:
        """g(y)."""
        return self.function(y)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """g⁻¹(z), within the limits."""
        return self.function.inverse(z).clip(self.low, self.high)

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """log g'(y)."""
        return self.function.log_slope(y)

    def moments(self, mean: np.ndarray, deviation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the standard deviation of g⁻¹(z), z normal with this mean and deviation, any shape.

        By the trapezoidal rule, since the limits make kinks.
        """
        nodes = np.linspace(-_FARTHEST, _FARTHEST, _NODES)
        weights = np.exp(-np.square(nodes) / 2)
        values, weights = self.inverse(mean[..., None] + deviation[..., None] * nodes), weights / weights.sum()
        found = values @ weights
        return found, np.sqrt(np.square(values - found[..., None]) @ weights)


_FARTHEST, _NODES = 8.0, 161


def warp_for(y: np.ndarray) -> str:
    """The name of the transform for skewed targets y, of any shape."""
    return "log" if y.min() > 0 else "yeo_johnson"


@dataclass(frozen=True)
class Logarithm:
    """g(y) = log y."""

    def __call__(self, y: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(y > 0, np.log(y), -np.inf)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp(z)

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        return -self(y)


_POWERS = (-10.0, 12.0)


@dataclass(frozen=True)
class PowerTransform:
    """ψ((y − mean) / unit) with the power transform ψ of Yeo & Johnson (2000) and its exponent `power`."""

    mean: float
    unit: float
    power: float

    @classmethod
    def of(cls, y: np.ndarray) -> PowerTransform:
        """The transform after which values y are most likely to be draws of a normal distribution."""
        from scipy.stats import yeojohnson_normmax

        mean, unit = float(y.mean()), float(scale(y.ravel()))
        flat = (y.ravel() - mean) / unit
        power = 1.0 if is_constant(flat) else float(yeojohnson_normmax(flat))
        return cls(mean, unit, min(max(power, _POWERS[0]), _POWERS[1]))

    def __call__(self, y: np.ndarray) -> np.ndarray:
        from scipy.special import boxcox1p

        z = (y - self.mean) / self.unit
        up, down = np.maximum(z, 0.0), np.maximum(-z, 0.0)
        found: np.ndarray = np.where(z >= 0, boxcox1p(up, self.power), -boxcox1p(down, 2 - self.power))
        return found

    def inverse(self, z: np.ndarray) -> np.ndarray:
        up = _inverse_boxcox1p(np.maximum(z, 0.0), self.power)
        down = _inverse_boxcox1p(np.maximum(-z, 0.0), 2 - self.power)
        return self.mean + self.unit * np.where(z >= 0, up, -down)

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        z = (y - self.mean) / self.unit
        power = np.where(z >= 0, self.power - 1, 1 - self.power)
        found: np.ndarray = power * np.log1p(np.abs(z)) - np.log(self.unit)
        return found


def _inverse_boxcox1p(z: np.ndarray, power: float) -> np.ndarray:
    """The inverse of ((1 + y)^power − 1) / power, ∞ beyond its range. z: ≥ 0."""
    if power == 0:
        return np.expm1(z)
    with np.errstate(divide="ignore", over="ignore"):
        found: np.ndarray = np.expm1(np.log(np.maximum(1 + power * z, 0.0)) / power)
    return found
