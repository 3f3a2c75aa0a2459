"""Steps of preprocessing: each learns its statistics from training points, and maps any points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kfx.config.choices import STEPS
from kfx.numerics.round_off import is_constant, scale
from kfx.outcomes import DataError

Map = Callable[[np.ndarray], np.ndarray]
"""Points, (n, …), to points of the same shape."""

MOST_CODES = 10
"""A feature with at most so many different values is a code or a word: it keeps them."""


@dataclass(frozen=True)
class StepSettings:
    """The settings of steps. window: features of a derivative, an odd number; None: a tenth of the features, from 5 to
    25."""

    zca_epsilon: float = 0.1
    zca_unit: str = "absolute"
    window: int | None = None


USUAL = StepSettings()


def fitted(x: np.ndarray, steps: Sequence[str], own: StepSettings = USUAL) -> tuple[np.ndarray, list[Map]]:
    """The training points x, (n, …), after the steps in their order, and the maps that take other points there; every
    statistic comes from x alone.

    center: subtract the mean of each feature.
    normalize: also divide by its standard deviation (a constant feature is only centred); normalize_channels: the same
        for each channel of images.
    unit_norm: divide each point by its Euclidean norm (a zero point stays); mean_norm: the same, times the mean norm of
        the training points.
    zca: subtract the mean and multiply by (C + ε)^(-1/2), C the covariance of the features; ε is zca_epsilon, times C's
        mean eigenvalue if zca_unit is `mean_eigenvalue`.
    quantile: replace a feature by normal scores, Φ⁻¹ of its rank among the training values (van der Waerden); values
        beyond them get the outermost score.
    yeo_johnson: the power transform of each feature that is most nearly normal (Yeo & Johnson 2000).
    snv: subtract the mean of a spectrum, a point, and divide by its standard deviation (Barnes et al. 1989).
    msc: subtract a and divide by b, where a + b m is the fit of the mean training spectrum m to the spectrum (Geladi et
        al. 1985).
    derivative, second_derivative: of a spectrum along its features, by local parabolas (Savitzky & Golay 1964).
    ValueError for another word; DataError for points that a step does not take.
    """
    maps: list[Map] = []
    for step in steps:
        if step not in STEPS:
            raise ValueError(f"preprocess takes {', '.join(STEPS)}; got {step!r}")
        maps.append(_learned(step, x, own))
        x = maps[-1](x)
    return x, maps


def _learned(step: str, x: np.ndarray, own: StepSettings) -> Map:
    if step in ("unit_norm", "mean_norm"):
        unit = np.linalg.norm(x.reshape(len(x), -1), axis=1).mean() if step == "mean_norm" else 1.0
        return partial(_on_sphere, radius=unit)
    if step == "zca":
        return _whitening(x, own.zca_epsilon, own.zca_unit == "mean_eigenvalue")
    if step in ("quantile", "yeo_johnson"):
        from kfx.data.warps import PowerTransform

        flat = x.reshape(len(x), -1)
        varying = np.flatnonzero(~is_constant(flat)).tolist()  # ranks would make a feature of round-off
        columns = [i for i in varying if len(np.unique(flat[:, i])) > MOST_CODES]
        of_column: Callable[[np.ndarray], Map] = _normal_scores if step == "quantile" else PowerTransform.of
        return partial(_by_column, maps={i: of_column(flat[:, i]) for i in columns})
    if step in SPECTRAL:
        return _spectral(step, x, own)
    over: tuple[int, ...] = (0, 2, 3) if step == "normalize_channels" else (0,)
    mean = x.mean(axis=over, keepdims=True)
    return partial(_affine, mean=mean, unit=np.ones_like(mean) if step == "center" else scale(x, over, keepdims=True))


def _affine(x: np.ndarray, mean: np.ndarray, unit: np.ndarray) -> np.ndarray:
    moved: np.ndarray = (x - mean) / unit
    return moved


def _on_sphere(x: np.ndarray, radius: float) -> np.ndarray:
    norms = np.linalg.norm(x.reshape(len(x), -1), axis=1).reshape(-1, *[1] * (x.ndim - 1))
    moved: np.ndarray = x / np.where(norms > 0, norms, 1.0) * radius
    return moved


# ---- whitening


def _whitening(x: np.ndarray, epsilon: float, relative: bool) -> Map:
    from scipy.linalg import eigh

    flat = x.reshape(len(x), -1)
    mean = flat.mean(axis=0)
    centred = flat - mean
    values, vectors = eigh(centred.T @ centred / len(centred), overwrite_a=True)
    values = np.maximum(values, 0.0)
    added = epsilon * values.mean() if relative else epsilon
    added = added or 1.0  # the mean eigenvalue is 0 if all points are equal
    return partial(_whitened, mean=mean, whitening=(vectors / np.sqrt(values + added)) @ vectors.T)


def _whitened(x: np.ndarray, mean: np.ndarray, whitening: np.ndarray) -> np.ndarray:
    moved: np.ndarray = ((x.reshape(len(x), -1) - mean) @ whitening).reshape(x.shape)
    return moved


# ---- features with heavy tails


def _by_column(x: np.ndarray, maps: dict[int, Map]) -> np.ndarray:
    flat = x.reshape(len(x), -1).copy()
    for i, own in maps.items():
        flat[:, i] = own(flat[:, i])
    return flat.reshape(x.shape)


def _normal_scores(column: np.ndarray) -> Map:
    from scipy.special import ndtri

    values, counts = np.unique(column, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # equal values share the mean of their ranks
    return partial(_interpolated, values=values, scores=ndtri(ranks / (len(column) + 1)))


def _interpolated(column: np.ndarray, values: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return np.interp(column, values, scores)


# ---- spectra: points whose features are in an order

SPECTRAL = ("snv", "msc", "derivative", "second_derivative")
_FEWEST_CHANNELS = 5


def _spectral(step: str, x: np.ndarray, own: StepSettings) -> Map:
    if x.ndim != 2 or x.shape[1] < _FEWEST_CHANNELS:
        what = f"points of shape {x.shape[1:]} are no spectra, which have {_FEWEST_CHANNELS} features or more in order"
        raise DataError(f"dataset.preprocess: {step}: {what}; leave {step} out")
    if step == "snv":
        return _standard_normal_variate
    if step == "msc":
        return partial(_scatter_corrected, spectrum=x.mean(axis=0))
    width = x.shape[1]
    window = own.window or min(max(width // 10 // 2 * 2 + 1, 5), 25)
    if window > width:
        raise DataError(f"dataset.derivative_window={window}: is wider than the {width} features; take fewer")
    return partial(_derivative, window=window, order=1 + (step == "second_derivative"))


def _standard_normal_variate(x: np.ndarray) -> np.ndarray:
    moved: np.ndarray = (x - x.mean(axis=1, keepdims=True)) / scale(x, 1, keepdims=True)
    return moved


def _scatter_corrected(x: np.ndarray, spectrum: np.ndarray) -> np.ndarray:
    centred, mean = spectrum - spectrum.mean(), x.mean(axis=1, keepdims=True)
    slope = (x @ centred / (centred @ centred or 1.0))[:, None]
    steep = np.abs(slope) > np.finfo(float).eps * np.abs(x).max(axis=1, keepdims=True)
    moved: np.ndarray = (x - mean) / np.where(steep, slope, 1.0) + spectrum.mean()
    return moved


def _derivative(x: np.ndarray, window: int, order: int) -> np.ndarray:
    from scipy.signal import savgol_filter

    moved: np.ndarray = savgol_filter(x, window, 2, deriv=order, axis=1)
    return moved
