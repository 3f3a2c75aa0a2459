"""Standard deviations and probabilities of predictions, calibrated by points that are left out one by one."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from kfx.data.dataset import Dataset
from kfx.evaluation.interpolants import Calibrated, Covariances, Interpolant
from kfx.numerics import calibration
from kfx.numerics.arrays import in_numpy

OF_CLASSES = ("log_loss", "brier", "calibration_error")
OF_VALUES = ("nlpd", "crps", "coverage_95")
OF_VECTORS = "nlpd_of_vector"


def names(data: Dataset) -> tuple[str, ...]:
    """The metrics of calibration on this data."""
    if data.labels_test is not None:
        return OF_CLASSES
    return OF_VALUES if data.reduction is None else (*OF_VALUES, OF_VECTORS)


def distribution(interpolant: Interpolant, at: Covariances, data: Dataset, ends: bool = False) -> dict[str, np.ndarray]:
    """Return `deviation`, (m, outputs), of targets observed at x*, in their units, with reduced outputs also
    `components`, the deviations of the components, (m, components); for classes `probability`, (m, classes).

    With transformed targets, and with `ends`, also `low` and `high`, the ends of the central interval of 95 %,
    `normal_score`, Φ⁻¹ of the predicted distribution at the target, and `learned` and `learned_deviation`, of the
    normal distribution. Empty for an interpolant without points left out.
    """
    if not isinstance(interpolant, Calibrated):
        return {}
    if ends or data.warp is not None:
        mean, deviation = map(in_numpy, interpolant.mean_and_deviation(at))
        found = {"learned": mean, "learned_deviation": deviation * data.inflation}
        low, high = data.interval(mean, deviation, calibration.COVERED)
        score = (data.as_learned(data.y_test) - mean) / found["learned_deviation"]
        return {"deviation": data.moments(mean, deviation)[1], "low": low, "high": high, "normal_score": score, **found}
    if data.labels_test is None:
        return deviations(in_numpy(interpolant.deviation(at)), data)
    targets, predicted, weights = interpolant.left_out()
    labels, of_training = _scores(targets), _scores(predicted)
    of_test = _scores(in_numpy(interpolant.mean(at)))
    sharpness = calibration.sharpness(of_training, labels.argmax(axis=1), weights)
    return {"probability": calibration.probabilities(of_test, sharpness)}


def deviations(as_learned: np.ndarray, data: Dataset) -> dict[str, np.ndarray]:
    """The entries of `distribution` for targets that are numbers. as_learned: of `data.targets`, (m, outputs)."""
    found = {"deviation": data.deviation_in_units(as_learned)}
    return found if data.reduction is None else found | {"components": as_learned * data.inflation}


def metrics(found: dict[str, np.ndarray], prediction: np.ndarray, data: Dataset) -> dict[str, float]:
    """How well a distribution of the test points' targets fits, constant ones left out; empty without one.

    prediction: (m, outputs).
    """
    if data.warp is not None and found:
        return _of_warped(data, *(found[name] for name in ("learned", "learned_deviation", "low", "high")))
    if "deviation" in found:
        mean, deviation, y = (data.of_varying(each) for each in (prediction, found["deviation"], data.y_test))
        fit = calibration.of_values(mean, deviation, y, data.weights_test)
        if "components" in found:
            covariance = map(data.of_varying, data.reduction_in_units())
            fit[OF_VECTORS] = calibration.of_vectors(y - mean, found["components"], *covariance)
        return fit
    if "probability" in found:
        assert data.labels_test is not None
        return calibration.of_classes(found["probability"], data.labels_test, weights=data.weights_test)
    return {}


def _of_warped(
    data: Dataset, mean: np.ndarray, deviation: np.ndarray, low: np.ndarray, high: np.ndarray
) -> dict[str, float]:
    """As `metrics`, with the density, the intervals and the quantiles of transformed targets in the units of y. mean,
    deviation: of the targets as learned, (m, 1). low, high: the ends of intervals, (m, 1)."""
    assert data.warp is not None
    y, z, levels = data.y_test, (data.as_learned(data.y_test) - mean) / deviation, calibration.LEVELS
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = data.warp.log_slope(y) - np.log(data.target_scale)
        density = np.where(np.isfinite(z), -np.square(z) / 2 - np.log(deviation * np.sqrt(2 * np.pi)) + slope, -np.inf)
    quantiles = data.in_units(mean[..., None] + deviation[..., None] * ndtri(levels))
    return {
        "nlpd": -data.mean_over_test(density),  # infinite where a target has no logarithm
        "crps": data.mean_over_test(calibration.crps_of_quantiles(quantiles, levels, y)),
        "coverage_95": data.mean_over_test((low <= y) & (y <= high)),
    }


def _scores(targets: np.ndarray) -> np.ndarray:
    """A column for each class, also for targets ±1, (n, 1)."""
    return np.concatenate([1 - targets, 1 + targets], axis=1) / 2 if targets.shape[1] == 1 else targets
