"""Long-term statistics: how the points, the spectra and the divergence of forecasts that run free differ from the
series'. All values are in units of the coordinates' scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kfx.data.windows import Predict, Windows
from kfx.numerics.point_sets import delay_of, hausdorff, in_state_space, modified_hausdorff

BINS, PSEUDO_COUNT, MOST_BINNED = 30, 1e-5, 3
"""Bins of each coordinate, what each bin counts before its points, and the largest number of coordinates with bins."""
BANDWIDTH = 20 / 10_000
"""Deviation of the Gaussian that smooths spectra, in cycles a step: 20 frequencies of a run of 10,000 steps."""
_SAMPLES, _SHIFT = 1000, 1e-6


def state_space_divergence(truth: np.ndarray, forecast: np.ndarray) -> float:
    """D_stsp, the Kullback-Leibler divergence KL(p | q) of where two sets of points lie, (n, d) and (m, d).

    Up to three coordinates: p and q are shares of 30 bins in each coordinate (Koppe et al. 2019), over the truth's
    range and a tenth of its deviation on both sides, where each bin counts 1e-5 in advance (as in Hemmer & Durstewitz
    2025). What lies outside counts for no bin, but for the total. More coordinates: p and q are means of
    unit Gaussians at the points, and the mean of log p − log q is over 1000 draws of p (Brenner et al. 2022).
    """
    if truth.shape[1] > MOST_BINNED:
        rng = np.random.default_rng(0)
        drawn = truth[rng.integers(len(truth), size=_SAMPLES)] + rng.normal(size=(_SAMPLES, truth.shape[1]))
        return float(np.mean(_log_density(drawn, truth) - _log_density(drawn, forecast)))
    margin = 0.1 * truth.std(axis=0)
    ranges = list(zip(truth.min(axis=0) - margin, truth.max(axis=0) + margin, strict=True))
    p, q = (
        (np.histogramdd(points, BINS, ranges)[0] + PSEUDO_COUNT) / (len(points) + PSEUDO_COUNT * BINS ** len(ranges))
        for points in (truth, forecast)
    )
    return float(np.sum(p * np.log(p / q)))


def _log_density(at: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The logarithm of the mean of unit Gaussians at the centres, (m, d), without their constant, (n,)."""
    from scipy.spatial.distance import cdist
    from scipy.special import logsumexp

    return np.asarray(logsumexp(-0.5 * cdist(at, centres, "sqeuclidean"), axis=1) - math.log(len(centres)))


def spectrum(runs: np.ndarray) -> np.ndarray:
    """The power of each coordinate at the frequencies 0, 1/T, … ½ cycles a step, (T // 2 + 1, coordinates), with sum 1.

    The mean over runs, (runs, T, coordinates), each without its mean, smoothed by a Gaussian of 0.002 cycles a step; 0
    where a coordinate is constant.
    """
    from scipy.ndimage import gaussian_filter1d

    power = np.square(np.abs(np.fft.rfft(runs - runs.mean(axis=1, keepdims=True), axis=1))).mean(axis=0)
    smooth = gaussian_filter1d(power, BANDWIDTH * runs.shape[1], axis=0)
    return np.asarray(smooth / np.maximum(smooth.sum(axis=0), 1e-300))


def spectral_distance(truths: np.ndarray, forecasts: np.ndarray) -> float:
    """D_H, the Hellinger distance of the spectra of two sets of runs of the same length, (runs, T, coordinates), in [0,
    1]: the mean over coordinates of √(1 − Σ √(f g)) (Mikhaeil et al. 2022; Hemmer & Durstewitz 2025).

    They smooth over 20 frequencies of runs of 10,000 steps; `spectrum` keeps this width in cycles a step.
    """
    shared = np.sqrt(spectrum(truths) * spectrum(forecasts)).sum(axis=0)
    return float(np.sqrt((1 - shared).clip(0)).mean())


def statistics(whole: Sequence[np.ndarray], truths: np.ndarray, runs: np.ndarray) -> dict[str, float]:
    """How forecasts that run free, (runs, T, coordinates), differ: their spectra from those of the truth at the same
    times, in the same shape, and their points from those of the whole series, (steps, coordinates) each."""
    delay = delay_of(whole[0][:, 0], runs.shape[1])
    there = np.concatenate([in_state_space(each[None], delay)[0] for each in whole])
    found = in_state_space(runs, delay).reshape(-1, there.shape[1])
    return {
        "hausdorff": hausdorff(there, found),
        "modified_hausdorff": modified_hausdorff(there, found),
        "state_space_divergence": state_space_divergence(there, found),
        "spectral_distance": spectral_distance(truths, runs),
    }


NAMES = ("hausdorff", "modified_hausdorff", "state_space_divergence", "spectral_distance", "lyapunov_exponent")


def free_runs(
    windows: Windows, predict: Predict, history: np.ndarray, time: np.ndarray, steps: int, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Forecasts of m origins, (m, steps, coordinates), and the largest Lyapunov exponent of each, (m,), per unit of
    time; arguments as of `Windows.forecast`. spread: the unit of each coordinate, (coordinates,).

    The exponent is the mean rate at which a second forecast, from a history that differs by 1e-6, leaves the first; it
    is drawn back to that distance after each window (Benettin et al. 1980). The first fifth is left out, in which the
    difference turns to the direction that grows most. It is the fitted map's: nothing is estimated from the points.
    """
    m, reach = history.shape[:2]
    away = np.random.default_rng(0).normal(size=history.shape[1:])
    away *= _SHIFT / np.linalg.norm(away)
    pairs, times = np.concatenate([history, history + spread * away]), np.concatenate([time, time])
    runs, growth, used = [], np.zeros(m), 0.0
    with np.errstate(all="ignore"):
        for at in range(0, steps, reach):
            count = min(reach, steps - at)
            found = windows.forecast(predict, pairs, times[:, at : at + reach + count], count)
            runs.append(found[:m])
            pairs = np.concatenate([pairs, found], axis=1)[:, -reach:]
            apart = pairs[m:] - pairs[:m]
            size = np.sqrt(np.square(apart / spread).sum(axis=(1, 2)))
            pairs[m:] = pairs[:m] + apart * (_SHIFT / size)[:, None, None]
            if at >= steps // 5:
                growth += np.log(size / _SHIFT)
                used += count
        exponents = growth / (used * (time[:, -1] - time[:, reach - 1]) / steps)
    return np.concatenate(runs, axis=1), exponents
