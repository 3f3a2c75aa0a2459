"""`kfx study`: answer one question by several runs, with a table and a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kfx.commands.arguments import Commands, add_plugins
from kfx.outcomes import ConfigError
from kfx.screen.terminal import show

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from kfx.jobs.job import Job
    from kfx.papers.cells import Cells
    from kfx.papers.studies import Study
    from kfx.report.table import Table


_RECORDED = Path("runs") / "reproduction" / "studies"


def add(commands: Commands) -> None:
    """Register the command."""
    study = commands.add_parser("study", help="several runs that answer a question, as a table and a picture")
    study.add_argument("names", nargs="*", metavar="STUDY", help="without a name: list all")
    study.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a word for every run, as seed=1, or a setting of a study of cells (repeatable)",
    )
    study.add_argument("--jobs", type=int, default=1, help="runs or cells at once (default: 1)")
    add_plugins(study)
    study.add_argument("--folder", type=Path, default=Path("runs") / "study", help="default: runs/study")
    study.add_argument("--record", action="store_true", help=f"keep the table, dated, in {_RECORDED}")
    study.add_argument("--smoke", action="store_true", help="apply each experiment's list `smoke`; ends in seconds")
    study.add_argument("--style", default="screen", help="of the picture: screen, or paper, which is a PDF too")
    study.set_defaults(call=_study)


def _study(parsed: argparse.Namespace) -> int:
    from kfx.config import catalogue
    from kfx.config.plugins import load_plugins
    from kfx.papers import studies
    from kfx.record.output import require_no_record

    if parsed.record and (parsed.smoke or parsed.set):
        raise ConfigError("--record: keeps the study's own settings alone; leave --smoke and --set out")
    require_no_record("--folder", parsed.folder)
    if parsed.jobs < 1:
        raise ConfigError(f"--jobs {parsed.jobs}: expected a whole number >= 1")
    if not parsed.names:
        for name in studies.names():
            print(f"{name:<28} {catalogue.description('study', name)}")
        return 0
    load_plugins(parsed.plugin)
    asked = {name: studies.read(name) for name in parsed.names}
    measured = {name: _measured(name, study, _folder(name, parsed), parsed) for name, study in asked.items()}
    return max(_one(name, asked[name], each, _folder(name, parsed), parsed) for name, each in measured.items())


def _measured(name: str, study: Study, folder: Path, parsed: argparse.Namespace) -> Mapping[str, Job] | Cells:
    """What answers a study, composed and checked: its runs, or its cells."""
    from kfx.papers import studies
    from kfx.papers.cells import Cells

    if not study.cells:
        return studies.jobs(study, folder, parsed.set, smoke=parsed.smoke)
    return Cells.of(study.cells, studies.with_settings(study, parsed.set, smoke=parsed.smoke), folder / "cells")


def _folder(name: str, parsed: argparse.Namespace) -> Path:
    """The folder for the runs of a study; runs with other settings get another one."""
    more = [*parsed.set, *(["smoke"] if parsed.smoke else [])]
    own: Path = parsed.folder / ",".join([name, *(word.lstrip("-").replace("/", "_") for word in more)])
    return own


def _one(name: str, study: Study, measured: Mapping[str, Job] | Cells, folder: Path, parsed: argparse.Namespace) -> int:
    from kfx.files import write_whole
    from kfx.papers.cells import Cells
    from kfx.plots.style import looking, require_look, save

    require_look(parsed.style)
    for old in ("table.csv", "picture.png", "picture.pdf"):
        (folder / old).unlink(missing_ok=True)
    answer = _by_cells(measured, parsed) if isinstance(measured, Cells) else _by_runs(study, measured, parsed)
    if answer.frame.empty:
        return 1
    write_whole(folder / "table.csv", answer.frame.to_csv(index=False))
    if parsed.record and answer.failed:
        print(f"kfx: warning: {_RECORDED / name}.csv stays as it was, because runs failed", file=sys.stderr)
    elif parsed.record:
        _RECORDED.mkdir(parents=True, exist_ok=True)
        write_whole(_RECORDED / f"{name}.csv", answer.recorded().to_csv(index=False))
        print(_RECORDED / f"{name}.csv")
    show(_shown(name, answer.frame), 240)
    print(folder / "table.csv")
    if parsed.smoke:
        print("kfx: warning: --smoke may set what names of the runs say; the numbers mean nothing", file=sys.stderr)
    if answer.draw is not None:
        with looking(parsed.style):
            picture = answer.draw()
        for suffix in (".png",) if parsed.style == "screen" else (".png", ".pdf"):
            path = (folder / "picture").with_suffix(suffix)
            save(picture, path)
            print(path)
    return int(bool(answer.failed))


@dataclass(frozen=True)
class _Answer:
    """A study's table, its table as it is recorded, whether something failed, and how its picture is drawn."""

    frame: pd.DataFrame
    recorded: Callable[[], pd.DataFrame]
    failed: bool
    draw: Callable[[], Figure] | None


def _by_runs(study: Study, runs: Mapping[str, Job], parsed: argparse.Namespace) -> _Answer:
    from kfx.papers import logged
    from kfx.papers.pictures import PICTURES
    from kfx.papers.studies import dated, table
    from kfx.papers.tables import made_on
    from kfx.record.reading import load_run
    from kfx.screen.progress import say

    fresh = "MB of the fit" in study.columns
    failed = logged.run(runs.values(), parsed.jobs, tell=say, fresh=fresh)
    there = {label: job.directory for label, job in runs.items() if job not in failed}
    is_as_published = not parsed.smoke and all(word.startswith("seed=") for word in parsed.set)
    frame = table(study, there, is_as_published=is_as_published)
    unmeasured = [column for column in study.columns if there and frame[column].isna().all()]
    if unmeasured:
        print(f"kfx: warning: {', '.join(unmeasured)}: no run measures it", file=sys.stderr)

    def draw() -> Figure:
        found = {label: load_run(directory) for label, directory in there.items()}
        return PICTURES[study.picture](found, study.x, study.y, frame)

    drawn = draw if study.picture != "none" else None
    return _Answer(frame, lambda: dated(frame, map(made_on, there.values())), bool(failed), drawn)


def _by_cells(cells: Cells, parsed: argparse.Namespace) -> _Answer:
    from kfx.papers.studies import dated
    from kfx.papers.tables import made_here
    from kfx.screen.progress import say

    failed, rows = cells.run(parsed.jobs, say), cells.rows()
    frame = rows if rows.empty else cells.module.table(rows)
    recorded = lambda: dated(frame, [made_here()] * len(frame))  # noqa: E731
    return _Answer(frame, recorded, bool(failed), lambda: cells.module.picture(rows))


def _shown(name: str, frame: pd.DataFrame) -> Table:
    from pandas.api.types import is_numeric_dtype

    from kfx.report.table import Table

    rows = [[label, *(_text(value) for value in values)] for label, *values in frame.itertuples(index=False)]
    first, *others = map(str, frame.columns)
    head = [first, *(f"{other}#" if is_numeric_dtype(frame[other]) else other for other in others)]
    return Table(head, rows, name)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None or value != value else f"{value:.4g}"
