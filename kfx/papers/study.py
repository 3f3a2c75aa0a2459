"""`kfx study`: answer one question by several runs, with a table and a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kfx.commands.arguments import Commands
from kfx.outcomes import ConfigError
from kfx.screen.terminal import console

if TYPE_CHECKING:
    import pandas as pd

    from kfx.jobs.job import Job
    from kfx.papers.studies import Study
    from kfx.report.table import Table


_RECORDED = Path("runs") / "reproduction" / "studies"


def add(commands: Commands) -> None:
    """Register the command."""
    study = commands.add_parser("study", help="several runs that answer a question, as a table and a picture")
    study.add_argument("names", nargs="*", metavar="STUDY", help="without a name: list all")
    study.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a word for every run, as seed=1 (repeatable)"
    )
    study.add_argument("--jobs", type=int, default=1, help="runs at once (default: 1)")
    study.add_argument("--folder", type=Path, default=Path("runs") / "study", help="default: runs/study")
    study.add_argument("--record", action="store_true", help=f"keep the table, dated, in {_RECORDED}")
    study.add_argument("--smoke", action="store_true", help="apply each experiment's list `smoke`; ends in seconds")
    study.add_argument("--style", default="screen", help="of the picture: screen, or paper, which is a PDF too")
    study.set_defaults(call=_study)


def _study(parsed: argparse.Namespace) -> int:
    from kfx.config import catalogue
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
    asked = {name: studies.read(name) for name in parsed.names}
    folders = {name: _folder(name, parsed) for name in asked}
    jobs = {name: studies.jobs(each, folders[name], parsed.set, smoke=parsed.smoke) for name, each in asked.items()}
    return max(_one(name, each, jobs[name], folders[name], parsed) for name, each in asked.items())


def _folder(name: str, parsed: argparse.Namespace) -> Path:
    """The folder for the runs of a study; runs with other settings get another one."""
    more = [*parsed.set, *(["smoke"] if parsed.smoke else [])]
    own: Path = parsed.folder / ",".join([name, *(word.lstrip("-").replace("/", "_") for word in more)])
    return own


def _one(name: str, study: Study, runs: Mapping[str, Job], folder: Path, parsed: argparse.Namespace) -> int:
    from kfx.files import write_whole
    from kfx.papers import logged
    from kfx.papers.pictures import PICTURES
    from kfx.papers.studies import dated, table
    from kfx.plots.style import looking, require_look, save
    from kfx.record.reading import load_run
    from kfx.report.table import screen
    from kfx.screen.progress import say

    require_look(parsed.style)
    for old in ("table.csv", "picture.png", "picture.pdf"):
        (folder / old).unlink(missing_ok=True)
    failed = logged.run(runs.values(), parsed.jobs, tell=say)
    there = {label: job.directory for label, job in runs.items() if job not in failed}
    if not there:
        return 1
    is_as_published = not parsed.smoke and all(word.startswith("seed=") for word in parsed.set)
    frame = table(study, there, is_as_published=is_as_published)
    write_whole(folder / "table.csv", frame.to_csv(index=False))
    if parsed.record and failed:
        print(f"kfx: warning: {_RECORDED / name}.csv stays as it was, because runs failed", file=sys.stderr)
    elif parsed.record:
        _RECORDED.mkdir(parents=True, exist_ok=True)
        write_whole(_RECORDED / f"{name}.csv", dated(frame, there.values()).to_csv(index=False))
        print(_RECORDED / f"{name}.csv")
    console(180).print(screen(_shown(name, frame)))
    print(folder / "table.csv")
    unmeasured = [column for column in study.columns if frame[column].isna().all()]
    if unmeasured:
        print(f"kfx: warning: {', '.join(unmeasured)}: no run measures it", file=sys.stderr)
    if study.picture != "none":
        found = {label: load_run(directory) for label, directory in there.items()}
        with looking(parsed.style):
            picture = PICTURES[study.picture](found, study.x, study.y, frame)
        for suffix in (".png",) if parsed.style == "screen" else (".png", ".pdf"):
            path = (folder / "picture").with_suffix(suffix)
            save(picture, path)
            print(path)
    return int(bool(failed))


def _shown(name: str, frame: pd.DataFrame) -> Table:
    from kfx.report.table import Table

    rows = [
        [label, *("" if value is None or value != value else f"{value:.4g}" for value in values)]
        for label, *values in frame.itertuples(index=False)
    ]
    return Table(["run", *(f"{column}#" for column in frame.columns[1:])], rows, name)
