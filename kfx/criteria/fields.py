"""Draws and Gram matrices of processes on grids, by fast Fourier transforms."""

from __future__ import annotations

import numpy as np

_FINE = 4
"""Modes for each interval of the grid: 2¹⁰ for 2⁸, as in the authors' script `matern_recover_s.m`."""


class SineField:
    """The Gaussian process on the unit cube with covariance (−Δ)⁻ˢ, zero on its boundary, at the inner nodes of a grid.

    side: intervals along each of the `dimensions`. The nodes of the grid with half as many intervals are the first
    `sample_size` points. The process is the odd part of one on the torus of side 2.
    """

    def __init__(self, dimensions: int, side: int) -> None:
        self.dimensions = dimensions
        waves = np.fft.fftfreq(2 * side * _FINE, 1 / (2 * side * _FINE))
        self._laplacian = np.sum(np.meshgrid(*[(np.pi * waves) ** 2] * dimensions, indexing="ij"), axis=0)
        self._nodes = np.arange(1, side)
        is_coarse = np.all(np.meshgrid(*[self._nodes % 2 == 0] * dimensions), axis=0).ravel()
        self._order = np.argsort(~is_coarse, kind="stable")
        self.sample_size = int(is_coarse.sum())

    def gram(self, s: float) -> np.ndarray:
        """Return the covariance of the points, (n, n)."""
        matrix = np.fft.ifftn(self._spectrum(s)).real * self._laplacian.size / 2**self.dimensions
        to, fro = self._nodes[:, None] - self._nodes, self._nodes[:, None] + self._nodes
        for axis in range(0, 2 * self.dimensions, 2):  # each axis becomes two, a point's and the other's
            matrix = matrix.take(_FINE * to, axis, mode="wrap") - matrix.take(_FINE * fro, axis, mode="wrap")
        pairs = (*range(0, 2 * self.dimensions, 2), *range(1, 2 * self.dimensions, 2))
        return matrix.transpose(pairs).reshape((len(self._order),) * 2)[np.ix_(self._order, self._order)]

    def draw(self, s: float, rng: np.random.Generator) -> np.ndarray:
        """Return a draw at the points, (n,)."""
        white = np.fft.fftn(rng.standard_normal(self._laplacian.shape))
        values = np.fft.ifftn(np.sqrt(self._spectrum(s) * self._laplacian.size) * white).real / 2**self.dimensions
        for axis in range(self.dimensions):
            at = _FINE * self._nodes
            values = values.take(at, axis) - values.take(-at, axis, mode="wrap")
        return values.ravel()[self._order]

    def _spectrum(self, s: float) -> np.ndarray:
        spectrum = np.zeros_like(self._laplacian)
        spectrum.flat[1:] = self._laplacian.flat[1:] ** -s  # the constant, which is not odd, stays 0
        return spectrum


def fractional_brownian(hurst: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return fractional Brownian motion at 0, 1/n, …, 1, (n + 1,): its increments embedded in a circle.

    hurst: H, 0 < H < 1; an increment over h has the variance h^(2H).
    """
    lags = np.arange(n + 1.0)
    covariance = ((lags + 1) ** (2 * hurst) + np.abs(lags - 1) ** (2 * hurst) - 2 * lags ** (2 * hurst)) / 2
    eigenvalues = np.fft.fft(np.concatenate([covariance, covariance[-2:0:-1]])).real.clip(min=0.0)
    white = rng.standard_normal((2, len(eigenvalues)))
    increments = np.fft.fft(np.sqrt(eigenvalues / len(eigenvalues)) * (white[0] + 1j * white[1])).real[:n]
    return np.concatenate([[0.0], np.cumsum(increments)]) / n**hurst
