"""`kfx report`: write runs as one self-contained HTML page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kfx.commands.arguments import Commands, add_plugins
from kfx.outcomes import ConfigError


def add(commands: Commands) -> None:
    """Register the command."""
    report = commands.add_parser("report", help="a run, or a sweep, as one HTML page: numbers, pictures, tables")
    report.add_argument("paths", nargs="+", type=Path, metavar="RUN|SWEEP")
    report.add_argument("--output", type=Path, help="the page (default: report.html in the first folder)")
    add_plugins(report)
    report.set_defaults(call=_report)


def _report(parsed: argparse.Namespace) -> int:
    from kfx.config.plugins import load_plugins
    from kfx.files import write_whole
    from kfx.record.output import is_stream, require_places, written
    from kfx.record.reading import change_of
    from kfx.record.search import runs_below
    from kfx.report import run_page

    load_plugins(parsed.plugin)
    for path in parsed.paths:
        if not path.is_dir():
            raise ConfigError(f"kfx report {path}: is no folder")
    output: Path = parsed.output or parsed.paths[0] / "report.html"
    if output.suffix not in (".html", ".htm"):
        raise ConfigError(f"--output {output}: expected a name that ends in .html")
    require_places({"--output": parsed.output})
    for run in runs_below(parsed.paths):
        if (changed := change_of(run.directory)) is not None:
            print(f"kfx: warning: {changed}", file=sys.stderr)
    left_out: list[str] = []
    text = run_page.page(parsed.paths, left_out)
    for line in left_out:
        print(f"kfx: left out: {line}", file=sys.stderr)
    if parsed.output is None:  # the page of a record belongs to it
        write_whole(output, text)
    else:
        with written("--output", output) as path:
            path.write_text(text)
    if not is_stream(output):
        print(output)
    return 0
