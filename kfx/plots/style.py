"""Colours, sizes and axes of all figures, without pyplot and its global state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kfx.config import registry
from kfx.files import whole_path
from kfx.kernels.names import NORM, readable
from kfx.outcomes import ConfigError
from kfx.record.reading import Run

# Distinct with protanopia and deuteranopia too (Okabe & Ito 2008), without their yellow, which is faint on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#4d4d4d", "#7a4b1e", "#7b3fa0", "#a3b600")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h")
INITIAL, TRAINED, DATA, FAINT = "#7b8794", COLOURS[0], "#2b2d42", "#b9c1cc"
SYMBOLS = {
    "weight_variance": r"$\sigma_w^2$",
    "bias_variance": r"$\sigma_b^2$",
    "sigma": r"$\sigma$",
    "alpha": r"$\alpha$",
    "beta": r"$\beta$",
    "gamma": r"$\gamma$",
    "regularization": "λ",
}
OF_KERNELS = {"initial": (INITIAL, "s", "--"), "trained": (TRAINED, "o", "-")}
"""Colour, marker and line of the initial and the trained kernel."""
_WIDTH, _WIDE = 6.4, 8.0
"""Width of the usual figure in inches, and the width from which a figure of several panels takes the page."""
_TALLER = 1.25
"""Additional height that a smaller figure needs for its text."""
_MOST_SHAPES = 1000
"""Largest number of points of a cloud that are drawn as separate shapes."""
Drawn = dict[str, Any]
"""Keywords of matplotlib's that say how a thing is drawn."""
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ec",
    "grid.linewidth": 0.8,
}


@dataclass(frozen=True)
class Look:
    """The look of figures: text size in points, factor of widths and heights, whether to draw titles, dots per inch."""

    text: float
    legend: float
    has_titles: bool
    dpi: int
    widths: tuple[float, float] | None = None
    """Widths in inches of a figure of one panel, and of several side by side; None: each figure has its own."""


LOOKS = {
    "screen": Look(text=10, legend=9, has_titles=True, dpi=130),
    "paper": Look(text=8, legend=7, has_titles=False, dpi=300, widths=(3.25, 6.75)),
}
"""paper: as wide as a column, or the page, of a two-column layout, without titles, because papers have captions."""
_look: ContextVar[Look] = ContextVar("look", default=LOOKS["screen"])


def require_look(name: str) -> None:
    """ConfigError for a name that is not in `LOOKS`."""
    if name not in LOOKS:
        raise ConfigError(f"--style {name}: expected one of {', '.join(LOOKS)}")


@contextmanager
def looking(name: str) -> Iterator[None]:
    """Within the block figures have this look; ConfigError for a name that is not in `LOOKS`."""
    require_look(name)
    token = _look.set(LOOKS[name])
    try:
        yield
    finally:
        _look.reset(token)


def save(picture: Figure, path: Path) -> None:
    """Write a figure in the format of the path's ending; PDF with fonts that journals accept."""
    rasterize(picture)
    with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path"}), whole_path(path) as partial:
        picture.savefig(partial, metadata={"Date": None} if path.suffix == ".svg" else None)


def rasterize(picture: Figure) -> None:
    """Draw meshes and clouds of many points as pixels in vector formats too: a mesh of 60 × 60 shapes takes 23 MB of
    SVG."""
    for part in picture.findobj(Collection):
        if isinstance(part, QuadMesh) or len(cast(Any, part.get_offsets())) > _MOST_SHAPES:
            part.set_rasterized(True)


_given: ContextVar[Axes | None] = ContextVar("axes", default=None)


@contextmanager
def on(axes: Axes | None) -> Iterator[None]:
    """Within the block a figure of one panel is drawn on these axes, if they are given."""
    token = _given.set(axes)
    try:
        yield
    finally:
        _given.reset(token)


def figure(rows: int = 1, columns: int = 1, width: float = 6.4, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """A new figure and its axes in reading order; ConfigError for several panels if it is to be drawn on given axes."""
    if (given := _given.get()) is not None:
        if rows * columns > 1:
            raise ConfigError(f"ax: this picture has {rows * columns} pairs of axes of its own; leave ax out")
        return cast(Figure, given.get_figure(root=True)), [given]
    look = _look.get()
    size = width * columns, height * rows
    if look.widths is not None:
        whole = look.widths[columns > 1 and size[0] > _WIDE]
        size = whole, size[1] * whole / size[0] * _TALLER
    with rc_context({**_STYLE, "font.size": look.text}):
        picture = Figure(figsize=size, dpi=look.dpi, layout="constrained")
        FigureCanvasAgg(picture)
        axes = picture.subplots(rows, columns, squeeze=False).ravel()
    return picture, list(axes)


def title(run: Run, *more: str) -> str:
    """Data set, kernel and optimizer of a run; below, what distinguishes it from similar runs."""
    config = run.config
    path = config.dataset.get("path")  # the name of a person's file says more than "table"
    name = " ".join([config.dataset.name, *([config.dataset.set] if "set" in config.dataset else [])])
    parts = [Path(path).name if path else name, config.kernel.name, config.optimizer.name]
    size = config.sampler.batch_size
    own = config.regularization
    of_lambda = f"λ = {own.value:g} {own.scale}" if own.selection == "fixed" else f"λ by {own.selection}"
    of_batch = f"$N_f$ = {size}" if size is not None else "full batch"
    n = run.metrics.get("n_train")
    second = [
        *([f"N = {n}"] if n else []),
        of_batch,
        of_lambda.replace("by trained", "trained").replace("_", "-"),
        *more,
        f"seed {config.get('seed', 0)}",
    ]
    return " · ".join(parts) + "\n" + " · ".join(second)


def set_title(axes: Axes, run: Run, *more: str) -> None:
    """The title of a picture over its axes."""
    headline(axes, title(run, *more))


def headline(above: Axes | Figure, text: str) -> None:
    """A title over axes or over a whole figure, if the look has titles; on given axes it is theirs."""
    above = _given.get() or above
    if _look.get().has_titles:
        if isinstance(above, Figure):
            above.suptitle(text, fontsize=9)
        else:
            above.set_title(text, fontsize=9, pad=10)


def legend(picture: Figure, axes: Axes, most: int = 5) -> None:
    """A legend below the axes."""
    handles, labels = axes.get_legend_handles_labels()
    if handles and _given.get() is not None:
        axes.legend(handles, labels, fontsize=8, frameon=False)
    elif handles:
        letters = 80 * picture.get_figwidth() / _WIDTH * 9 / _look.get().legend
        columns = max(min(len(handles), most, int(letters) // (max(map(len, labels)) + 8)), 1)
        size = _look.get().legend
        picture.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=size, frameon=False)


def finish(picture: Figure, axes: Axes, run: Run, *more: str) -> Figure:
    """The picture with the title of its run over these axes, and their legend below."""
    set_title(axes, run, *more)
    legend(picture, axes)
    return picture


def literal(text: str) -> str:
    """A text in which matplotlib takes no dollar sign for the start of a formula."""
    return text.replace("$", r"\$")


def objective(run: Run) -> str:
    """The minimised objective as papers print it: its symbol, or else its name."""
    registry.load()
    name = run.config.objective.name
    option = registry.OPTIONS["objective"].get(name)  # None for the objective of a missing plugin
    shown = str(option.symbol) if option is not None else ""
    return shown.replace("ρ", r"$\rho$").replace("e₂", "$e_2$") or name.replace("_", " ")


def count_along(axes: Axes, what: str) -> None:
    """Label the x axis with the counted quantity, such as iterations, and set ticks at whole numbers only."""
    axes.set_xlabel(what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def end_at_one(axes: Axes) -> None:
    """Limit the y axis of an accuracy to [0, 1]; markers at its ends are drawn whole."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 1.0))
    for line in axes.lines:
        if line.get_marker() not in ("_", "None", "", None):
            line.set_clip_on(False)


def symbol(name: str, run: Run) -> str:
    """The symbol of a parameter; in `weight_variance.2` the layer is a second index, a part of a sum gets its name, and
    a length that of its feature."""
    said = readable(name, run.config.kernel)
    if said.endswith(NORM):
        return f"‖{said.removesuffix(NORM)}‖"
    head, is_length, feature = said.partition("lengths.")
    if is_length:
        return f"{head}ℓ [{literal(feature)}]"
    head, _, last = said.rpartition(" ")
    base, _, index = last.rpartition(".")
    shown = f"{SYMBOLS.get(base, base)} [{index}]" if base else SYMBOLS.get(last, last)
    return f"{head} {shown}".strip()


def running(values: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The running median of the values, (n,), with the tenth and the ninetieth percentile, (n,) each."""
    series = pd.Series(values).rolling(window, min_periods=1, center=True)
    return series.median().to_numpy(), series.quantile(0.1).to_numpy(), series.quantile(0.9).to_numpy()


def above_noise(values: pd.Series) -> pd.Series:
    """The values for a logarithmic axis: NaN for 0 and for round-off relative to the largest value."""
    return values.where(values > 1e-14 * values.max())
