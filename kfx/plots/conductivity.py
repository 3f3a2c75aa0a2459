"""The conductivity of a Green's function: initial, learned and true."""

from __future__ import annotations

from typing import cast

import numpy as np
from matplotlib.figure import Figure

from kfx.kernels.greens_function import GreensFunction
from kfx.numerics import elliptic
from kfx.plots.style import COLOURS, DATA, INITIAL, figure, legend, set_title
from kfx.record.fitted import recorded_parameters
from kfx.record.reading import Run


def conductivities(run: Run) -> Figure | None:
    """The conductivity that the kernel began with and the one that it learned, beside that of the data; on the
    right the solution that the points are taken from.

    See Owhadi & Yoo 2019, Figs. 5.1–5.3, 6.
    """
    config = run.config
    if config.get("kernel", {}).get("name") != "greens_function" or "final" not in run.metrics.get("parameters", {}):
        return None
    trained = run.kernel
    initial = recorded_parameters(run.directory, {"initial": run.metrics["parameters"]["initial"]})
    start = {name: np.asarray(initial[name]) for name in ("cosine", "sine")}
    inner = cast(GreensFunction, getattr(trained, "kernel", trained))
    middles, x = elliptic.midpoints(inner.intervals), elliptic.nodes(inner.intervals)
    a = elliptic.CONDUCTIVITIES[config.dataset.conductivity](middles)
    f = elliptic.smooth_source(x)
    picture, (left, middle, right) = figure(columns=3, width=4.0)
    left.plot(middles, a, color=DATA, linewidth=1.0, label="a, of the data")
    left.plot(middles, inner.with_parameters(**start).conductivity, "--", color=INITIAL, label="b, initial")
    left.plot(middles, inner.conductivity, color=COLOURS[1], linewidth=1.2, label="b, trained")
    left.set(xlabel="x", ylabel="conductivity", yscale="log")
    set_title(left, run)
    middle.plot(x, f, color=DATA)
    middle.set(xlabel="x", ylabel="f, the right-hand side")
    right.plot(x, elliptic.solution(a, f), color=DATA)
    right.set(xlabel="x", ylabel="u, the solution")
    legend(picture, left)
    return picture
