"""One look for all figures; no pyplot, so that nothing global changes and threads may draw."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kfx.record import Run

COLOURS = ("#3b6ea8", "#c8553d", "#588157", "#8e6c8a", "#b08900", "#4a4e69", "#2a9d8f", "#9c6644")
INITIAL, TRAINED, DATA, FAINT = "#8d99ae", COLOURS[0], "#2b2d42", "#b9c1cc"
SYMBOLS = {
    "weight_variance": r"$\sigma_w^2$",
    "bias_variance": r"$\sigma_b^2$",
    "sigma": r"$\sigma$",
    "alpha": r"$\alpha$",
    "beta": r"$\beta$",
    "gamma": r"$\gamma$",
}
_STYLE: dict[Any, Any] = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}
_GRID: dict[Any, Any] = {
    "grid.color": "#e6e8ec",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def figure(rows: int = 1, columns: int = 1, width: float = 6.4, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """A figure ready to be saved, and its axes in reading order."""
    with rc_context({**_STYLE, **_GRID}):
        picture = Figure(figsize=(width * columns, height * rows), dpi=130, layout="constrained")
        FigureCanvasAgg(picture)
        axes = picture.subplots(rows, columns, squeeze=False).ravel()
    return picture, list(axes)


def title(run: Run) -> str:
    """Data set, kernel and optimizer of a run."""
    parts = [run.config[group].name for group in ("dataset", "kernel", "optimizer")]
    return " · ".join(parts) + f" · seed {run.config.seed}"


def symbol(name: str) -> str:
    """A parameter's symbol; `weight_variance.2` gets its layer as a second index."""
    base, _, index = name.rpartition(".")
    return f"{SYMBOLS.get(base, base)} [{index}]" if base else SYMBOLS.get(name, name)
