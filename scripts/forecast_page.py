"""Writes docs/forecasting.md and its pictures from runs/forecasts/page.md and the recorded rows alone."""

from __future__ import annotations

import chaotic_forecasts as chaotic
import numpy as np
import pandas as pd
import real_forecasts as real
from compare_attractors import as_markdown as of_attractors
from compare_dictionaries import as_markdown
from forecast_rivals import GRIDS, short_enough
from forecast_rows import FOLDER, table
from series_sets import SOURCES, names
from table_page import critical_difference

from kfx.data.choice import FACTORS, LAGS, VALUES

DIGITS = {"kfx is better on": 0, "beyond 10": 0, "seconds": 1}
SEASONS = {1: "no season", 4: "quarters", 7: "days", 12: "months", 24: "hours", 52: "weeks"}
KINDS = {"page": "series", "kept_back": "series that were kept back", "further": "further series"}


def page() -> str:
    """The page docs/forecasting.md."""
    median = chaotic.errors("gilpin", 100).median()
    parts = {
        "gilpin": of_gilpin(),
        "disturbed": of_disturbed(),
        "real": of_real(),
        "attractors": of_attractors(),
        "grids": of_grids(),
        "dictionaries": as_markdown(),
        "factors": ", ".join(f"{factor:g}" for factor in FACTORS[:-1]) + f" or {FACTORS[-1]:g}",
        "one step": "with the same windows for all systems and λ by leave-one-out errors, the median sMAPE is "
        f"{median['one step: untrained']:.1f} without training, {median['one step: rho']:.1f} trained by ρ, "
        f"{median['one step: e2']:.1f} by e₂ and {median['one step: nll']:.1f} by the likelihood; chosen by forecasts "
        f"it is {median['kfx']:.1f}, and {median['Gaussian process']:.1f} for the rival Gaussian process with the same "
        "choice: the choice decides more than the program.",
    }
    text = (FOLDER / "page.md").read_text()
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def as_rows(found: pd.DataFrame, first: str) -> list[str]:
    """A table of Markdown."""
    lines = [f"| {first} | " + " | ".join(found.columns) + " |", "|---|" + "---:|" * len(found.columns)]
    for name, row in found.iterrows():
        cells = ["-" if np.isnan(cell) else f"{cell:.{DIGITS.get(column, 2)}f}" for column, cell in row.items()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def of_gilpin() -> str:
    """The tables of the clean series."""
    lines = []
    for points in (100, 15):
        if table("gilpin", chaotic.COLUMNS).query("points == @points").empty:
            continue
        found, of_all = chaotic.summary("gilpin", points), chaotic.errors("gilpin", points)
        best = of_all[[name for name in of_all if name not in chaotic.METHODS]].min(axis=1)
        counts = f"{len(of_all)} systems, {points} steps a period"
        beside = ", ".join(f"*{name}* on {(of_all['kfx'] < of_all[name]).sum()}" for name in GRIDS)
        won = int((of_all["kfx"] < best).sum()), int((of_all["kfx"] < of_all["NBEATSModel"]).sum())
        lines += [
            f"**{counts}.** kfx is better than N-BEATS, the best of the sixteen stored methods by its median, on "
            f"{won[1]}, and better than the best of the sixteen, chosen for each system by its error, on {won[0]}. "
            f"Of the rivals with its own choice it is better than {beside}. By mean rank {near(found, len(of_all))} "
            "cannot be told from kfx at 5 % (Nemenyi).",
            "",
            *as_rows(found, "method"),
        ]
    return "\n".join(lines)


def of_disturbed() -> str:
    """The tables of the series with noise and with gaps, with 100 steps a period."""
    lines = []
    kinds = (
        ("noisy", False, "with noise"),
        ("noisy", True, "with noise that were kept back"),
        ("gaps", None, "with gaps"),
    )
    for name, kept_back, words in kinds:
        found = chaotic.errors(name, 100, kept_back)
        if "kfx" in found:
            lines += [f"**{len(found)} systems {words}, 100 steps a period.**", ""]
            lines += as_rows(chaotic.summary(name, 100, kept_back), "method")
    return "\n".join(lines)


def of_real() -> str:
    """The tables of the real series: those of the page, the others by kind, and what to use for which."""
    lines = []
    for kind, words in KINDS.items():
        if real.errors(names(kind)).empty:
            continue
        found = real.summary(kind)
        lines += [f"**{len(real.errors(names(kind)))} {words}, {real.ORIGINS} origins each.**{of_training(found)}", ""]
        lines += as_rows(found, "method")
    found = real.summary("page", "real_gaps")
    if "kfx" in found.index:
        lines += [
            f"**{len(real.errors(names('page'), 'real_gaps'))} series with gaps, {real.ORIGINS} origins each.**",
            "",
        ]
        lines += as_rows(found, "method")
    for_what = guide()
    kfx_first = for_what.index[for_what["kfx"] < for_what["error of the best other"]]
    lines += [
        f"**For which series what.** kfx has the least error on {', '.join(kfx_first) or 'none of these'}; elsewhere "
        "take the method that is named, which is the best of the others by the same rows.",
        "",
        "| series | measure | kfx | best other method | its error |",
        "|---|---|---:|---|---:|",
    ]
    for series, row in for_what.iterrows():
        measure, kfx, other, error = row
        lines.append(f"| {series} | {measure} | {kfx:.2f} | {other} | {error:.2f} |")
    return "\n".join([*lines, ""])


def of_training(found: pd.DataFrame) -> str:
    """What training the chosen kernel by ρ changes."""
    if "kfx, then trained by rho" not in found.index:
        return ""
    untrained, trained = found.loc[["kfx", "kfx, then trained by rho"], "MASE"]
    return f" Training the chosen kernel by ρ gives a MASE of {trained:.3f} in place of {untrained:.3f}."


def guide() -> pd.DataFrame:
    """For each kind of series with rows of kfx: the measure, kfx's error, and the best other method with its error."""
    found = {
        f"chaotic, {words}": ("median sMAPE", chaotic.errors(name, 100).median())
        for name, words in (("gilpin", "clean"), ("noisy", "5 % noise"), ("gaps", "10 % missing"))
    }
    for season, words in SEASONS.items():
        of_season = [name for name in names("page") if SOURCES[name].season == season]
        found[f"real, {words} ({len(of_season)})"] = "MASE", real.geometric(real.errors(of_season))
    lines = {}
    for series, (measure, errors) in found.items():
        others = errors.drop([name for name in (*chaotic.OWN, chaotic.FILLED) if name in errors])
        if "kfx" in errors:
            lines[series] = measure, errors["kfx"], others.idxmin(), others.min()
    columns = ["measure", "kfx", "best other method", "error of the best other"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def of_grids() -> str:
    """How many candidates the rivals choose among and how many kfx does, on the known parts of both samplings."""
    rivals, own = [], []
    for points in (100, 15):
        known = round(chaotic.KNOWN * chaotic.PERIODS * points)
        offered = [short_enough(settings, reach, known) for _, settings, _, reach in GRIDS.values()]
        rivals.append([len(each) * len(grid[2]) for each, grid in zip(offered, GRIDS.values(), strict=True)])
        own.append(sum(lags < known / 4 for lags in LAGS) * len(FACTORS) * len(VALUES))
    fewer = ", ".join(f"{count} ({name})" for name, count in zip(GRIDS, rivals[1], strict=True))
    return (
        f"Each chooses among {max(rivals[0])} candidates and kfx among {own[0]}; with 15 steps a period, where windows "
        f"must be shorter than a quarter of the series, they choose among {fewer}, and kfx among {own[1]}. "
        f"{at_the_edge(100)}"
    )


def at_the_edge(points: int) -> str:
    """On how many systems each method takes the longest window that it is offered."""
    longest = {name: max(map(reach, settings)) for name, (_, settings, _, reach) in GRIDS.items()}
    rows, taken = table("gilpin", chaotic.COLUMNS).query("points == @points"), []
    for name, most in {"kfx": max(LAGS), **longest}.items():
        if most:
            count = int(((rows["method"] == name) & (rows["lags"] == most)).sum())
            taken.append(f"{most} values on {count} systems by {name}")
    return f"With {points} steps the longest window on offer is taken often: {', '.join(taken)}."


def near(found: pd.DataFrame, systems: int) -> str:
    """The other methods whose mean rank is within the critical difference of kfx's."""
    ranks = found["mean rank"].drop(chaotic.OWN, errors="ignore")
    close = ranks - found.loc["kfx", "mean rank"] < critical_difference(len(found), systems)
    return ", ".join(f"*{name}*" for name in ranks.index[close]) or "no other method"


def draw(points: int) -> None:
    """Draw the mean ranks on the clean series with the critical difference into runs/forecasts/."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = chaotic.summary("gilpin", points)[::-1]
    systems = len(chaotic.errors("gilpin", points))
    picture = Figure(figsize=(6.4, 0.26 * len(found) + 1.3), dpi=130, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    far, own = critical_difference(len(found), systems), found.loc["kfx", "mean rank"]
    axes.axvspan(own - far, own + far, color="#eef0f4", label="not different from kfx at 5 % (Nemenyi)")
    colours = ["#d55e00" if name == "kfx" else "#e69f00" if name in chaotic.OWN else "#0072b2" for name in found.index]
    axes.scatter(found["mean rank"], np.arange(len(found)), color=colours)
    axes.set_yticks(np.arange(len(found)), found.index)
    axes.set_xlabel(f"mean rank over {systems} systems (1 is best)")
    axes.grid(axis="x", color="#d5d9e0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(frameon=False, loc="outside lower center", fontsize=8)
    picture.savefig(FOLDER / f"ranks_{points}.png")
