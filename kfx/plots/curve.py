"""The fitted curve of a one-dimensional regression."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtri

from kfx.evaluation.results import of_place, place_of
from kfx.numerics.calibration import COVERED
from kfx.plots.style import DATA, FAINT, INITIAL, TRAINED, figure, finish
from kfx.record.reading import Run


def fitted_curve(run: Run) -> Figure | None:
    """What the kernel predicts before training and after it, over the true targets.

    At the largest N_I, and by the trained kernel at half of it where that was measured (Khalid 2022, Fig. 5.1).
    """
    path = run.directory / "predictions.npz"
    if not path.is_file() or run.evaluation.empty:
        return None
    with np.load(path, allow_pickle=False) as arrays:
        if "x_train" not in arrays:
            return None
        largest = run.evaluation["n_interpolation"].max()
        regularization = run.evaluation["configured_regularization"].iloc[0]
        x = arrays["x_test"][:, 0]
        order = np.argsort(x)
        picture, (axes,) = figure()
        # targets with noise lie on no curve
        own = {"marker": "o", "linestyle": ""} if "path" in run.config.dataset else {"linewidth": 4}
        axes.plot(x[order], arrays["y_test"][order, 0], color=FAINT, label="target", **own)
        last = "trained" if any(key.startswith("trained/") for key in arrays) else "initial"
        curves = (
            ("initial", largest, INITIAL, "--"),
            ("trained", largest, TRAINED, "-"),
            (last, largest // 2, TRAINED if last == "trained" else INITIAL, ":"),
        )
        for name, points, colour, style in curves:
            result = of_place(arrays, place_of(name, points, 0, float(regularization)))
            if "mean" not in result:
                continue
            mean = result["mean"][order, 0]
            at = "" if points == largest else f", $N_I$ = {points}"
            axes.plot(x[order], mean, style, color=colour, label=f"{name} kernel{at}")
            if style == "-" and (band := _band(result)):
                low, high, label = band
                axes.fill_between(x[order], low[order], high[order], color=colour, alpha=0.15, label=label)
        axes.plot(
            arrays["x_train"][:, 0], arrays["y_train"][:, 0], ".", color=DATA, markersize=4, label="training points"
        )
    (prepared, *_) = run.metrics.get("preparation") or [{}]
    steps = prepared.get("preprocess", run.config.dataset.preprocess)
    axes.set(xlabel="x after " + ", ".join(steps) if steps else "x", ylabel="y")
    axes.margins(y=0.1)
    return finish(picture, axes, run, f"$N_I$ = {largest}")


def _band(result: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, str] | None:
    """The ends of a band around a result's prediction at the test points, (m,) each, and what it is: where 95 % of
    targets are expected, or else what the kernel's posterior variance says."""
    mean, label = result["mean"][:, 0], f"{100 * COVERED:g} % of targets"
    if "low" in result:
        return result["low"][:, 0], result["high"][:, 0], label
    if "deviation" in result:
        half = ndtri((1 + COVERED) / 2) * result["deviation"][:, 0]
        return mean - half, mean + half, label
    if "variance" in result:
        half = 2 * np.sqrt(result["variance"])
        return mean - half, mean + half, "± 2 posterior sd of a kernel of scale 1"
    return None
