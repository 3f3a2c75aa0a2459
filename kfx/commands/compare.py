"""`kfx compare`: one table of many runs, on the screen, as CSV, in LaTeX, in Markdown or as a picture."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kfx.commands.arguments import Commands
from kfx.screen.terminal import show

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add(commands: Commands) -> None:
    """Register the command."""
    compare = commands.add_parser("compare", help="one table of many runs, as CSV, LaTeX, Markdown")
    compare.add_argument("paths", nargs="+", type=Path, help="runs, sweeps, or folders of them")
    compare.add_argument("--by", default="kernel,optimizer", help="keys whose values make the rows")
    compare.add_argument("--metric", help="accuracy, mse, rmse, r2, … (default: accuracy of classes, else mse)")
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
    from kfx.plots import comparison as pictures
    from kfx.plots.style import looking, save
    from kfx.record import comparison
    from kfx.record.output import is_stream, require_places, written
    from kfx.report import table as tables
    from kfx.report.compared import shown_table

    by, of = [key.strip() for key in parsed.by.split(",") if key.strip()], "se" if parsed.se else "sd"
    for name in ("figure", "curve"):
        if getattr(parsed, name) is not None:
            pictures.check_name(f"--{name}", getattr(parsed, name))
    outputs = "csv", "latex", "markdown", "figure", "curve"
    require_places({f"--{name}": getattr(parsed, name) for name in outputs})
    asked = parsed.metric, parsed.kernel, parsed.n_interpolation
    runs, metric, found, left_out = comparison.gather(parsed.paths, *asked)
    for line in left_out:
        print(f"kfx: left out: {line}", file=sys.stderr)
    frame = comparison.table(found, by, metric, parsed.mix, comparison.better_in(runs, metric))
    shown = shown_table(frame, by, metric, of)
    show(shown, 180)
    in_symbols = replace(shown, heads=[head.replace("rho ", "ρ ") for head in shown.heads])

    def curve() -> Figure:
        over = comparison.over_sizes(runs, by, metric, parsed.kernel, parsed.mix)
        return pictures.curve(over, by, metric, of)

    writers = (
        lambda path: frame.to_csv(path, index=False),
        lambda path: path.write_text(tables.latex(in_symbols)),
        lambda path: path.write_text(tables.markdown(shown)),
        lambda path: save(pictures.by_row(frame, by, metric, of), path),
        lambda path: save(curve(), path),
    )
    for name, write in zip(outputs, writers, strict=True):
        if (named := getattr(parsed, name)) is not None:
            with written(f"--{name}", named) as path, looking(parsed.style):
                write(path)
            if not is_stream(named):
                print(named)
    return 0
