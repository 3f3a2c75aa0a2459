"""`kfx runs`, `resume`, `rerun`, `plot` and `animate`: commands for existing runs."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from kfx.commands.arguments import Commands, add_cluster, add_plugins, of_cluster
from kfx.config.plugins import load_plugins, require_plugins
from kfx.outcomes import ConfigError, KfxError, RecordError
from kfx.screen.terminal import show

_DEPTH = 4
"""Folders below `runs` to look in: runs/<paper>/<experiment>/<time of a sweep>/<job>."""


def add(commands: Commands) -> None:
    """Register the commands."""
    listed = commands.add_parser("runs", help="the runs of a folder, newest first: status, metric, command")
    listed.add_argument("folders", nargs="*", type=Path, default=[Path("runs")], help="where (default: runs)")
    listed.add_argument("--last", type=int, metavar="N", help="only the N newest")
    listed.set_defaults(call=_list)

    again = commands.add_parser("resume", help="continue an interrupted or killed run from its last checkpoint")
    again.add_argument("directory", type=Path)
    again.set_defaults(call=_resume)

    rerun = commands.add_parser("rerun", help="repeat a run from its record, and say whether the results agree")
    rerun.add_argument("directory", type=Path)
    rerun.add_argument("--output", type=Path, help="folder of the repetition (default: beside the run)")
    rerun.add_argument("--tolerance", type=float, default=1e-6, help="largest relative difference (default: 1e-6)")
    rerun.set_defaults(call=_rerun)

    plot = commands.add_parser("plot", help="draw the pictures of runs anew, from their records")
    plot.add_argument("directories", nargs="+", type=Path, metavar="RUN")
    plot.add_argument("--format", default="png", help="png, pdf, svg, or several with commas (default: png)")
    plot.add_argument("--only", default="", metavar="NAMES", help="rho, or several with commas (default: what it has)")
    plot.add_argument("--style", default="screen", help="screen, or paper: a column's width, small text, no titles")
    plot.set_defaults(call=_plot)

    animate = commands.add_parser("animate", help="a film of a flow's recorded positions")
    animate.add_argument("directory", type=Path)
    animate.add_argument("--output", type=Path, help="film.mp4 or film.gif (default: flow in the run's figures)")
    animate.add_argument("--seconds", type=float, default=10.0, help="length of the film (default: 10)")
    animate.set_defaults(call=_animate)
    for parser in (again, rerun):
        add_cluster(parser)
        parser.add_argument("--store", type=Path, metavar="DIR", help="as evaluation.store; a record's own is not used")
    for parser in (again, rerun, plot, animate):
        add_plugins(parser)


def _list(parsed: argparse.Namespace) -> int:
    from kfx.record.findings import Findings, mean_of
    from kfx.record.reading import read_metrics, typed_words
    from kfx.record.search import runs_below
    from kfx.report.table import Table
    from kfx.report.typed import command_of
    from kfx.screen.summary import relative

    if parsed.last is not None and parsed.last < 1:
        raise ConfigError(f"--last {parsed.last}: expected a whole number >= 1")
    found = runs_below(parsed.folders, depth=_DEPTH)[::-1][: parsed.last]
    if not found:
        raise ConfigError(f"kfx runs {' '.join(map(str, parsed.folders))}: holds no run; name the folder of your runs")
    rows = []
    for run in found:
        typed: list[str] = []
        try:
            read_metrics(run.directory)
            typed = typed_words(run.directory)
        except RecordError as error:  # it does not hide the others
            print(f"kfx: {error}", file=sys.stderr)
        best = Findings.of(run.metrics).row()
        rows.append(
            [
                time.strftime("%Y-%m-%d %H:%M", time.localtime(run.written)),
                str(run.state),
                "" if best is None else f"{best['metric']} {mean_of(best)}",
                str(relative(run.directory)),
                command_of(run.metrics, typed),
            ]
        )
    show(Table(["written#", "status#", "metric#", "run", "command"], rows), 200)
    return 0


def _places(parsed: argparse.Namespace) -> dict[str, object]:
    """Where a repetition or continuation computes and keeps, by config key."""
    return of_cluster(parsed) | ({} if parsed.store is None else {"evaluation.store": str(parsed.store)})


def _resume(parsed: argparse.Namespace) -> int:
    from kfx.running.story import resume

    load_plugins(parsed.plugin)
    return resume(parsed.directory, _places(parsed))


def _rerun(parsed: argparse.Namespace) -> int:
    from kfx.experiment.config import typed
    from kfx.record.comparison import same_results
    from kfx.record.environment import changes
    from kfx.record.origin import require_same_config, require_same_data
    from kfx.record.reading import environments, load_run, read_environment
    from kfx.running.story import plan_of, run
    from kfx.screen.progress import say

    directory: Path = parsed.directory
    if not (directory / "config.yaml").is_file() or not (directory / "metrics.json").is_file():
        raise ConfigError(f"{directory}: holds no run to repeat")
    if not 0 <= parsed.tolerance < 1:
        raise ConfigError(f"--tolerance {parsed.tolerance:g}: expected a number from 0 to below 1")
    recorded = load_run(directory, parsed.plugin)
    require_plugins(recorded.plugins, str(directory), no_others=True)
    environment = read_environment(directory)
    if (difference := require_same_config(directory, recorded.config, recorded.metrics, environment)) is not None:
        say(f"kfx: warning: {difference}")
    require_same_data(directory, typed(recorded.config), environment)
    plan = plan_of(directory, recorded.config, _places(parsed))
    repeated = parsed.output or directory.with_name(f"{directory.name}_rerun_{time.strftime('%Y-%m-%d_%H-%M-%S')}")
    code = run(plan, repeated)
    if code:
        return code
    if changed := changes(*environments(directory), *environments(repeated)):
        say(f"kfx: warning: {directory}: {changed} since it began: its last digits may differ")
    same, line = same_results(recorded, load_run(repeated), parsed.tolerance)
    print(f"{'the same' if same else 'DIFFERENT'}: {line}")
    return 0 if same else 1


def _plot(parsed: argparse.Namespace) -> int:
    from kfx import plots
    from kfx.config.choices import FORMATS
    from kfx.record.reading import change_of

    load_plugins(parsed.plugin)
    formats = parsed.format.split(",")
    if not set(formats) <= set(FORMATS):
        raise ConfigError(f"--format {','.join(formats)}: expected {', '.join(FORMATS)}, or several with commas")
    code = 0
    for directory in parsed.directories:
        try:
            if not (directory / "metrics.json").is_file():
                raise ConfigError(f"kfx plot {directory}: holds no run")
            if (changed := change_of(directory)) is not None:
                print(f"kfx: warning: {changed}", file=sys.stderr)
            for path in plots.draw(directory, formats, parsed.style, list(filter(None, parsed.only.split(",")))):
                print(path)
        except KfxError as error:  # continue with the other runs
            print(f"kfx: {' '.join(str(error).split())}", file=sys.stderr)
            code = max(code, error.exit_code)
    return code


def _animate(parsed: argparse.Namespace) -> int:
    from matplotlib.animation import FFMpegWriter

    from kfx.files import whole_path
    from kfx.plots import flow
    from kfx.record.output import is_stream, require_places, written
    from kfx.record.reading import load_run
    from kfx.screen.progress import Steps

    directory, seconds = parsed.directory, parsed.seconds
    if not (directory / "metrics.json").is_file():
        raise ConfigError(f"kfx animate {directory}: holds no run")
    if not seconds > 0:
        raise ConfigError(f"--seconds {seconds:g}: expected a number > 0")
    usual = ".mp4" if FFMpegWriter.isAvailable() else ".gif"
    require_places({"--output": parsed.output})
    path = parsed.output or directory / "figures" / f"flow{usual}"
    if path.suffix not in (".mp4", ".gif"):
        raise ConfigError(f"--output {path}: expected a name that ends in .mp4 or .gif")
    if path.suffix == ".mp4" and usual == ".gif":
        raise ConfigError(f"--output {path}: MP4 needs ffmpeg, which is not here; write a .gif")
    run = load_run(directory, parsed.plugin)
    try:
        shown = flow.snapshots(run)
    except Exception as error:
        raise RecordError(f"{directory}: a snapshot is damaged ({type(error).__name__}: {error})") from error
    if len(shown) < 2:
        raise ConfigError(f"kfx animate {directory}: takes a flow with flow.snapshots above 0")
    if parsed.output is None:
        path.parent.mkdir(exist_ok=True)
    place = whole_path(path) if parsed.output is None else written("--output", path)
    with place as partial, Steps("film", len(shown)) as steps:
        flow.animate(run, partial, seconds, steps.advance)
    if not is_stream(path):
        print(path)
    return 0
