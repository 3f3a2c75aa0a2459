"""Probabilities of classes from predicted targets, and how well predicted distributions fit what was observed."""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax, ndtr, ndtri, softmax

from kfx.numerics.means import weighted_mean

_SHARPEST = 1e3
COVERED = 0.95
_LEAST = 1e-12


def sharpness(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return a for which softmax(a · scores) has the least log loss, in [1e-3, 1e3].

    scores: predicted targets of points that were left out, (n, classes). labels: their classes, (n,). weights: of these
    points, (n,), or None. As in Platt 1999 one further point of any class counts, so that separable classes have
    finite a.
    """
    from scipy.optimize import minimize_scalar

    n = len(scores)
    relative = 1.0 if weights is None else (weights / weights.mean())[:, None]

    def loss(log_a: float) -> float:
        logs = relative * log_softmax(np.exp(log_a) * scores, axis=1)
        return float(-(logs[np.arange(n), labels].sum() * (n + 1) + logs.mean(axis=1).sum()) / n / (n + 2))

    ends = (-np.log(_SHARPEST), np.log(_SHARPEST))
    return float(np.exp(minimize_scalar(loss, bounds=ends, method="bounded").x))


def probabilities(scores: np.ndarray, a: float) -> np.ndarray:
    """Return softmax(a · scores), (n, classes). scores: predicted targets, (n, classes)."""
    found: np.ndarray = softmax(a * scores, axis=1)
    return found


def of_classes(
    chances: np.ndarray, labels: np.ndarray, bins: int = 15, weights: np.ndarray | None = None
) -> dict[str, float]:
    """Return the mean log loss, the Brier score and the expected calibration error of probabilities.

    chances: (n, classes). labels: classes that were observed, (n,), −1 for one without a probability. The Brier
    score is Σ_k (p_k − y_k)², in [0, 2].
    The calibration error is the mean of |accuracy − confidence| over `bins` equal ranges of the confidence, weighted by
    their numbers of points (Naeini et al. 2015). weights: of the points, (n,), which then count so; None for all alike.
    """
    of_label = np.where(labels >= 0, chances[np.arange(len(labels)), labels], 0.0)
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    relative = 1.0 if weights is None else weights / weights.mean()
    gaps = np.bincount(place, weights=relative * (right - confidence), minlength=bins)
    return {
        "log_loss": weighted_mean(-np.log(of_label.clip(1e-15)), weights),
        "brier": weighted_mean(np.square(chances).sum(axis=1) - 2 * of_label + 1, weights),
        "calibration_error": float(np.abs(gaps).sum() / len(labels)),
    }


def of_values(
    mean: np.ndarray, deviation: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None
) -> dict[str, float]:
    """Return the negative log density, the CRPS and the coverage of normal distributions.

    mean, deviation, y: (n, outputs), in the units of y. weights: of the points, (n,), or None. crps: continuous ranked
    probability score (Gneiting & Raftery 2007, eq. 21). coverage_95: the share of y within the central interval of
    95 %.
    """
    z = (y - mean) / deviation
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    crps = deviation * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return {
        "nlpd": weighted_mean(np.log(deviation) + 0.5 * np.log(2 * np.pi) + 0.5 * z**2, weights),
        "crps": weighted_mean(crps, weights),
        "coverage_95": weighted_mean(np.abs(z) < ndtri((1 + COVERED) / 2), weights),
    }


LEVELS = (np.arange(200) + 0.5) / 200
"""Levels of the quantiles from which a CRPS is computed."""


def crps_of_quantiles(quantiles: np.ndarray, levels: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the CRPS of distributions, (m, outputs), twice the mean pinball loss of their quantiles (Gneiting & Ranjan
    2011).

    quantiles: (m, outputs, levels). levels: evenly spaced in (0, 1). y: (m, outputs).
    """
    error = y[..., None] - quantiles
    found: np.ndarray = 2 * np.maximum(levels * error, (levels - 1) * error).mean(axis=-1)
    return found


def of_vectors(error: np.ndarray, deviation: np.ndarray, basis: np.ndarray, left_out: np.ndarray) -> float:
    """Return the negative log density of whole rows, for each output, with covariances Bᵀ diag(s²) B + diag(d).

    error: observed minus predicted, (n, outputs). deviation: s, (n, components). basis: B, (components, outputs).
    left_out: d, (outputs,). By the lemmas for determinants and inverses of sums only (components, components) matrices
    are factored, unless there are as many components as outputs. NaN where some of fewer components reproduce an output
    exactly.
    """
    outputs = error.shape[1]
    if not (left_out > _LEAST * np.square(basis).sum(axis=0)).all():
        if np.linalg.matrix_rank(basis) < outputs:
            return float("nan")
        whole = np.linalg.solve(basis.T, error.T).T / deviation  # BᵀS z = error
        log_determinant = 2 * (np.log(deviation).sum(axis=1) + np.linalg.slogdet(basis)[1])
        return float(
            np.mean(np.square(whole).sum(axis=1) + log_determinant + outputs * np.log(2 * np.pi)) / 2 / outputs
        )
    gram = (basis / left_out) @ basis.T
    inner = np.eye(len(basis)) + deviation[:, :, None] * gram * deviation[:, None, :]
    along = deviation * ((error / left_out) @ basis.T)
    explained = np.einsum("nc,nc->n", along, np.linalg.solve(inner, along[:, :, None])[:, :, 0])
    squares = np.square(error) @ (1 / left_out) - explained
    log_determinant = np.linalg.slogdet(inner)[1] + np.log(left_out).sum()
    return float(np.mean(squares + log_determinant + outputs * np.log(2 * np.pi)) / 2 / outputs)
