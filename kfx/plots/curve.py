"""The fitted curve of a one-dimensional regression."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from kfx.evaluation.results import place_of
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
        axes.plot(x[order], arrays["y_test"][order, 0], color=FAINT, linewidth=4, label="target")
        last = "trained" if any(key.startswith("trained/") for key in arrays) else "initial"
        curves = (
            ("initial", largest, INITIAL, "--"),
            ("trained", largest, TRAINED, "-"),
            (last, largest // 2, TRAINED if last == "trained" else INITIAL, ":"),
        )
        for name, points, colour, style in curves:
            key = place_of(name, points, 0, float(regularization))
            if f"{key}/mean" not in arrays:
                continue
            mean = arrays[f"{key}/mean"][order, 0]
            at = "" if points == largest else f", $N_I$ = {points}"
            axes.plot(x[order], mean, style, color=colour, label=f"{name} kernel{at}")
            if f"{key}/variance" in arrays and style == "-":
                spread = 2 * np.sqrt(arrays[f"{key}/variance"][order])
                axes.fill_between(x[order], mean - spread, mean + spread, color=colour, alpha=0.15, label="± 2 sd")
        axes.plot(
            arrays["x_train"][:, 0], arrays["y_train"][:, 0], ".", color=DATA, markersize=4, label="training points"
        )
    axes.set(xlabel="x", ylabel="y")
    axes.margins(y=0.1)
    return finish(picture, axes, run, f"$N_I$ = {largest}")
