"""The columns of `predictions.csv`: targets of test points, their predictions, and deviations or probabilities."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kfx.data.dataset import Dataset, predicted_labels


def columns(arrays: Mapping[str, np.ndarray], data: Dataset) -> dict[str, np.ndarray]:
    """Return columns by name, (m,) each, in the order of the test points.

    arrays: `mean`, (m, outputs), and `deviation`, (m, outputs), or `probability`, (m, classes), where they are known.
    Of values `target`, `prediction`, `deviation`, with transformed targets `low`, `high` and `normal_score`, with
    the number of the output if there are several (`target.0`). Of classes, which are numbered from 0, `class`,
    `prediction`, the predicted target of each output, `score.0`, and the `probability.0` of each class. Of points
    with weights also `weight`.
    """
    mean = arrays["mean"]
    found: dict[str, np.ndarray] = {"point": np.arange(len(mean))}
    if data.labels_test is not None:
        found |= {"class": data.labels_test, "prediction": predicted_labels(mean)}
        parts = {"score": mean, "probability": arrays.get("probability")}
    else:
        parts = {"target": data.y_test, "prediction": mean, "deviation": arrays.get("deviation")}
        parts |= {name: arrays[name] for name in ("low", "high", "normal_score") if name in arrays}
    is_single = data.labels_test is None and mean.shape[1] == 1
    for name, array in parts.items():
        for i, column in enumerate(array.T if array is not None else ()):
            found[name if is_single else f"{name}.{i}"] = column
    if data.weights_test is not None:
        found["weight"] = data.weights_test
    return found
