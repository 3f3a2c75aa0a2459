"""`kfx compare`: one table of many runs, on the screen, as CSV, in LaTeX, in Markdown or as a picture."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfx.commands.arguments import Commands
from kfx.outcomes import ConfigError
from kfx.screen.terminal import console

_LEVEL = 0.05
_NOT_WORSE = "not significantly worse than the best (Welch's one-tailed test, 5 %)"

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.table import Table


def add(commands: Commands) -> None:
    """Register the command."""
    compare = commands.add_parser("compare", help="one table of many runs, as CSV, LaTeX, Markdown")
    compare.add_argument("paths", nargs="+", type=Path, help="runs, sweeps, or folders of them")
    compare.add_argument("--by", default="kernel,optimizer", help="keys whose values make the rows")
    compare.add_argument("--metric", default="accuracy", help="accuracy, mse, mae, …")
    compare.add_argument("--kernel", default="trained", help="which kernel's evaluation (default: trained)")
    compare.add_argument("--n-interpolation", type=int, help="which N_I (default: the largest)")
    compare.add_argument("--mix", action="store_true", help="average runs that differ in more than their seed")
    compare.add_argument("--se", action="store_true", help="standard errors of the means in place of deviations")
    compare.add_argument("--csv", type=Path, help="write the table here")
    compare.add_argument("--latex", type=Path, help="write it in LaTeX here")
    compare.add_argument("--figure", type=Path, help="draw it with error bars here")
    compare.add_argument("--curve", type=Path, help="draw the metric against N_I here, a line for each row")
    compare.add_argument("--markdown", type=Path, help="write it in Markdown here")
    compare.add_argument("--style", default="screen", help="of pictures: screen, or paper, a column's width")
    compare.set_defaults(call=_compare)


def _compare(parsed: argparse.Namespace) -> int:
    from kfx.plots.style import looking, save
    from kfx.record.comparison import collect, table
    from kfx.record.output import is_stream, require_places, written

    by = parsed.by.split(",")
    for name in ("figure", "curve"):
        if getattr(parsed, name) is not None:
            check_picture_name(f"--{name}", getattr(parsed, name))
    outputs = "csv", "latex", "markdown", "figure", "curve"
    require_places({f"--{name}": getattr(parsed, name) for name in outputs})
    runs, left_out = collect(parsed.paths, parsed.metric, parsed.kernel, parsed.n_interpolation)
    if not runs:
        more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        raise ConfigError(f"kfx compare: no run to show: {left_out[0]}{more}")
    for line in left_out:
        print(f"kfx: left out: {line}", file=sys.stderr)
    frame = table(runs, by, parsed.metric, parsed.mix)
    frame.attrs["spread"] = "se" if parsed.se else "sd"
    console(180).print(screen(frame, by, parsed.metric))
    writers = (
        lambda path: frame.to_csv(path, index=False),
        lambda path: path.write_text(latex(frame, by, parsed.metric)),
        lambda path: path.write_text(markdown(frame, by, parsed.metric)),
        lambda path: save(picture(frame, by, parsed.metric), path),
        lambda path: save(_curve_of(parsed, by), path),
    )
    for name, write in zip(outputs, writers, strict=True):
        if (named := getattr(parsed, name)) is not None:
            with written(f"--{name}", named) as path, looking(parsed.style):
                write(path)
            if not is_stream(named):
                print(named)
    return 0


def _curve_of(parsed: argparse.Namespace, by: Sequence[str]) -> Figure:
    from kfx.record.comparison import over_sizes

    frame = over_sizes(parsed.paths, by, parsed.metric, parsed.kernel, parsed.mix)
    frame.attrs["spread"] = "se" if parsed.se else "sd"
    return curve(frame, by, parsed.metric)


def screen(frame: pd.DataFrame, by: Sequence[str], metric: str) -> Table:
    """The table for the screen."""
    from rich.table import Table

    note = f"* {_NOT_WORSE}"
    is_tested = bool((frame[f"{metric}_p"] < 1).any())
    title = f"{metric}: mean ± {_spread(frame)} over seeds · {frame.attrs['title']}"
    shown = Table(title=title, caption=note if is_tested else None)
    for key in by:
        shown.add_column(key)
    columns = _columns(metric, frame)
    for name in ("n", *(head for _, head, _ in columns)):
        shown.add_column(name, justify="right", no_wrap=True)  # never break a number
    for row in frame.to_dict("records"):
        cells = [_with_spread(row, name, digits, _spread(frame)) for name, _, digits in columns]
        if is_tested:
            cells[0] += " *" if row[f"{metric}_p"] >= _LEVEL else "  "
        shown.add_row(*(str(row[key]) for key in by), str(row["n"]), *cells)
    return shown


def _spread(frame: pd.DataFrame) -> str:
    """The spread beside the means: `sd` or `se`."""
    return str(frame.attrs.get("spread", "sd"))


def _columns(metric: str, frame: pd.DataFrame) -> list[tuple[str, str, int]]:
    """(column, heading, digits) of each column; the objective is shown if it is not ρ."""
    objective = [("objective_initial", "objective before", 4), ("objective_final", "objective after", 4)]
    return [
        (metric, metric, 4),
        *(objective if frame.attrs["other_objective"] else []),
        ("rho_initial", "rho before", 4),
        ("rho_final", "rho after", 4),
        ("seconds", "seconds", 1),
        ("kernel_evaluations", "kernel evaluations", 0),
    ]


def _with_spread(row: dict[Any, Any], name: str, digits: int, of: str) -> str:
    spread = row[f"{name}_{of}"]
    return f"{row[name]:.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")


def latex(frame: pd.DataFrame, by: Sequence[str], metric: str) -> str:
    """The table in LaTeX, with booktabs."""
    columns = _columns(metric, frame)
    heads = [*by, "n", *(head.replace("rho", r"$\rho$") for _, head, _ in columns)]
    lines = [
        f"% {metric}: mean and {_spread(frame)} over seeds; {frame.attrs['title'].replace(' · ', ', ')}",
        *([f"% bold: {_NOT_WORSE}"] if (frame[f"{metric}_p"] < 1).any() else []),
        rf"\begin{{tabular}}{{{'l' * len(by)}{'r' * (len(heads) - len(by))}}}",
        r"\toprule",
        " & ".join(_escaped(head) for head in heads) + r" \\",
        r"\midrule",
    ]
    for row in frame.to_dict("records"):
        cells = [_with_spread(row, name, digits, _spread(frame)).replace("±", r"$\pm$") for name, _, digits in columns]
        if row[f"{metric}_p"] >= _LEVEL and (frame[f"{metric}_p"] < 1).any():
            cells[0] = rf"\textbf{{{cells[0]}}}"
        lines.append(" & ".join([*(_escaped(str(row[key])) for key in by), str(row["n"]), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def markdown(frame: pd.DataFrame, by: Sequence[str], metric: str) -> str:
    """The table in Markdown."""
    columns = _columns(metric, frame)
    heads = [*by, "n", *(head for _, head, _ in columns)]
    is_tested = bool((frame[f"{metric}_p"] < 1).any())
    lines = [f"{metric}: mean ± {_spread(frame)} over seeds; {frame.attrs['title'].replace(' · ', ', ')}", ""]
    lines += [f"Bold: {_NOT_WORSE}.", ""] if is_tested else []
    lines += [_row(heads), _row(["---"] * len(by) + ["---:"] * (len(heads) - len(by)))]
    for row in frame.to_dict("records"):
        cells = [_with_spread(row, name, digits, _spread(frame)) for name, _, digits in columns]
        if is_tested and row[f"{metric}_p"] >= _LEVEL:
            cells[0] = f"**{cells[0]}**"
        lines.append(_row([*(str(row[key]).replace("|", r"\|") for key in by), str(row["n"]), *cells]))
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text if text.startswith("$") else text.replace("_", r"\_").replace("%", r"\%")


def check_picture_name(option: str, path: Path) -> None:
    """ConfigError for a file name that does not end in a picture format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if path.suffix[1:] not in known:
        raise ConfigError(f"{option} {path}: expected a name that ends in {', '.join(f'.{name}' for name in known)}")


def picture(frame: pd.DataFrame, by: Sequence[str], metric: str) -> Figure:
    """The metric of each row with its standard deviation, or standard error, over seeds."""
    import numpy as np

    from kfx.plots.style import COLOURS, figure, headline

    drawn, (axes,) = figure(height=1.2 + 0.42 * len(frame))
    places = np.arange(len(frame))[::-1]
    spread = frame[f"{metric}_{_spread(frame)}"].fillna(0.0)
    axes.errorbar(frame[metric], places, xerr=spread, fmt="o", color=COLOURS[0], capsize=3)
    axes.set_yticks(places, [" · ".join(str(row[key]) for key in by) for row in frame.to_dict("records")])
    axes.set(xlabel=f"{metric} (mean ± {_spread(frame)} over seeds)", ylim=(-0.6, len(frame) - 0.4))
    if metric.endswith("accuracy"):
        axes.set_xlim(max(axes.get_xlim()[0], 0.0), min(axes.get_xlim()[1], 1.0))
    headline(axes, frame.attrs["title"].replace("N_I", "$N_I$"))
    return drawn


def curve(frame: pd.DataFrame, by: Sequence[str], metric: str) -> Figure:
    """The metric, or for an accuracy the error, against the number of interpolation points, with its deviation."""
    from kfx.plots.style import COLOURS, MARKERS, above_noise, figure, headline, legend

    is_accuracy = metric.endswith("accuracy")
    drawn, (axes,) = figure(height=4.2)
    groups: Any = frame.groupby(list(by), sort=False)
    for i, (names, rows) in enumerate(groups):
        rows = rows.sort_values("n_interpolation")
        values = 1 - rows[metric] if is_accuracy else rows[metric]
        axes.errorbar(
            rows["n_interpolation"],
            above_noise(values),
            yerr=rows[f"{metric}_{_spread(frame)}"].fillna(0.0),
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            capsize=3,
            label=" · ".join(map(str, names)),
        )
    what = f"1 − {metric}" if is_accuracy else metric
    axes.set(
        xlabel="interpolation points $N_I$",
        ylabel=f"{what} (mean ± {_spread(frame)} over seeds)",
        xscale="log",
        yscale="log",
    )
    sizes = sorted(frame["n_interpolation"].unique())
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    headline(axes, frame.attrs["title"])
    legend(drawn, axes)
    return drawn
