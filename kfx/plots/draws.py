"""The best and the worst draw of a few interpolation points, and the errors of all draws."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from kfx.numerics.formatting import number
from kfx.plots.style import COLOURS, figure, headline, set_title, title
from kfx.record.reading import Run, read_table

_MOST_IMAGES = 20


def best_and_worst(run: Run) -> Figure | None:
    """How much the choice of a few interpolation points matters: the errors of many draws, or the worst and the
    best draw.

    Images by class (Owhadi & Yoo 2019, Fig. 26); for other points a histogram of errors.
    """
    directory = run.directory
    if not (directory / "draws.npz").is_file() or not (directory / "draws.csv").is_file():
        return None
    table = read_table(directory / "draws.csv", ("metric", "value"))
    with np.load(directory / "draws.npz", allow_pickle=False) as stored:
        held = {name: stored[name] for name in stored.files}
    values = table["value"].to_numpy(dtype=float)
    what = "test error" if table["metric"].iloc[0] == "error" else "test MSE"
    if not held:
        return None
    count = len(held["worst_points"])
    known = values[np.isfinite(values)]
    failed = f", {len(values) - len(known)} failed" if len(known) < len(values) else ""
    spread = (
        f"{number(known.mean())} ± {number(known.std(ddof=1), known.mean())}"
        if len(known) > 1
        else number(known.mean())
    )
    of_all = f"{len(values)} draws of {count}{failed}: {what} {spread}"
    if held["worst_points"].ndim != 4 or count > _MOST_IMAGES:
        picture, (panel,) = figure()
        panel.hist(known, bins=min(max(len(known) // 4, 5), 30), color=COLOURS[0])
        panel.set(xlabel=f"{what} of a draw of {count} points", ylabel="draws")
        set_title(panel, run, of_all)
        return picture
    picture, axes = figure(rows=2, columns=count, width=0.8, height=1.1)
    for row, name in enumerate(("worst", "best")):
        panels = axes[row * count : (row + 1) * count]
        for panel, image in zip(panels, held[f"{name}_points"], strict=True):
            panel.imshow(image.mean(axis=0), cmap="gray_r")
            panel.set(xticks=[], yticks=[])
            panel.grid(visible=False)
        panels[0].set_title(f"{name}, {what} {number(float(held[f'{name}_error']))}", fontsize=9, loc="left")
    headline(picture, title(run, of_all))
    return picture
