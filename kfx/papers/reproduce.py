"""`kfx reproduce`: compare printed numbers with measured ones; list, run what is missing, write the page."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kfx.commands.arguments import Commands
from kfx.outcomes import ConfigError
from kfx.screen.terminal import console, show

if TYPE_CHECKING:
    from kfx.jobs.job import Job
    from kfx.papers.missing import Missing
    from kfx.papers.numbers import Entry

_PAGE = Path("REPRODUCTION.md")


def add(commands: Commands) -> None:
    """Register the command."""
    reproduce = commands.add_parser(
        "reproduce", help="published numbers beside measured ones: list, run what is missing, write the page"
    )
    reproduce.add_argument("names", nargs="*", metavar="PAPER|EXPERIMENT", help="as darcy, or khalid/swiss_roll")
    reproduce.add_argument("--seeds", type=int, help="run what is missing for this many seeds")
    reproduce.add_argument("--budget", type=float, metavar="HOURS", help="run what is missing, for at most so long")
    reproduce.add_argument("--jobs", type=int, default=1, help="runs at once (default: 1)")
    reproduce.add_argument("--add", nargs="+", type=Path, metavar="RUN", help="add runs that were made by kfx run")
    reproduce.add_argument("--page", action="store_true", help=f"write {_PAGE}")
    reproduce.add_argument("--check", action="store_true", help=f"check that {_PAGE} agrees with the tables")
    reproduce.add_argument("--tables", type=Path, help="folder of the tables (default: runs/reproduction)")
    reproduce.set_defaults(call=_reproduce)


def _reproduce(parsed: argparse.Namespace) -> int:
    from kfx.papers.numbers import FOLDER, experiments, gather
    from kfx.record.output import require_no_record

    folder = parsed.tables or FOLDER
    require_no_record("--tables", folder)
    for name, value in (("seeds", parsed.seeds), ("jobs", parsed.jobs), ("budget", parsed.budget)):
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} {value:g}: expected a number above 0")
    asked = experiments(parsed.names)
    if parsed.add:
        _take_in(parsed.add, folder)
        if not (parsed.page or parsed.check or parsed.seeds or parsed.budget):
            return 0
    wanted = None if parsed.page or parsed.check else asked
    entries = gather(folder, wanted)
    chosen = [entry for entry in entries if entry.experiment in asked]
    if parsed.names and not chosen:
        raise ConfigError(f"{' '.join(parsed.names)}: no number is printed for it; see kfx reproduce")
    failed = False
    if parsed.seeds is not None or parsed.budget is not None:
        failed = _run(parsed, folder, chosen)
        entries = gather(folder, wanted)
        chosen = [entry for entry in entries if entry.experiment in asked]
    if parsed.page or parsed.check:
        return max(_pages(entries, folder, parsed.check), int(failed))
    _show(chosen, bool(parsed.names))
    return int(failed)


def _run(parsed: argparse.Namespace, folder: Path, entries: Sequence[Entry]) -> bool:
    from kfx.papers import logged, missing
    from kfx.papers.words import duration
    from kfx.screen.progress import Steps

    runs = missing.missing(entries, parsed.seeds or 1)
    known = sum(each.seconds for each in runs if each.seconds is not None) / parsed.jobs
    unknown = sum(each.seconds is None for each in runs)
    note = f", and {unknown} of which nothing is known" if unknown else ""
    print(f"{len(runs)} runs are missing: about {duration(known)}{note}", flush=True)
    by_folder = {each.directory: each for each in runs}
    wrong: list[Missing] = []

    def jobs() -> Iterator[Job]:
        for each in runs:
            try:
                job = each.job()
            except ConfigError as error:  # such as a package that is missing here; the others can be run
                wrong.append(each)
                print(f"{each}: {error}", flush=True)
            else:
                yield job

    with Steps("kfx reproduce", len(runs)) as bar:

        def done(job: Job) -> None:
            print(missing.add(job.directory, by_folder.pop(job.directory).part, folder))
            left = sum(each.seconds or 0.0 for each in by_folder.values()) / parsed.jobs
            bar.reach(len(runs) - len(by_folder), f"about {duration(left)} left", telling=True)

        failed = logged.run(
            jobs(),
            parsed.jobs,
            tell=lambda line: print(line, flush=True),
            done=done,
            deadline=None if parsed.budget is None else time.monotonic() + 3600 * parsed.budget,
        )
    return bool(failed or wrong)


def _take_in(directories: Sequence[Path], folder: Path) -> None:
    from kfx.papers import missing
    from kfx.papers.numbers import part_of
    from kfx.papers.tables import Command

    for directory in directories:
        print(missing.add(directory, part_of(Command.of_run(directory)), folder))


def _pages(entries: Sequence[Entry], folder: Path, is_check: bool) -> int:
    from kfx.files import write_whole
    from kfx.papers import claims, pages
    from kfx.papers.numbers import read_notes

    content = entries, claims.tested(claims.read(folder), claims.measurements(folder, entries)), read_notes(folder)
    text = pages.markdown(*content)
    if is_check:
        wrong = not _PAGE.is_file() or _PAGE.read_text() != text
        if wrong:
            print(f"kfx: {_PAGE}: not what {folder} gives; run kfx reproduce --page", file=sys.stderr)
        return int(wrong)
    write_whole(_PAGE, text)
    print(_PAGE)
    return 0


def _show(entries: Sequence[Entry], in_detail: bool) -> None:
    from kfx.papers import words
    from kfx.papers.verdict import Verdict
    from kfx.report.table import Table

    sums = sum((entry.counts() for entry in entries), Counter[Verdict]())
    kinds, rows = [kind for kind in Verdict if sums[kind]], []
    for entry in entries:
        for part in entry.parts if in_detail else []:
            counts = Counter(item.verdict for item in part.items)
            made = str(len(part.table.seeds)) if part.table else "0"
            named = " ".join(part.command.words) + (" (another reading)" if part.is_reading else "")
            rows.append([named, *(str(counts[kind] or "") for kind in kinds), made, words.cost(part, entry)])
        if not in_detail:
            own = [part for part in entry.parts if not part.is_reading]
            seeds = sorted({len(part.table.seeds) if part.table else 0 for part in own})
            spread = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
            known = [part.table.seconds() for part in own if part.table]
            cost = f"{words.duration(sum(known))} in all" if len(known) == len(own) else words.cost(own[0], entry)
            counts = entry.counts()
            rows.append([entry.experiment, *(str(counts[kind] or "") for kind in kinds), spread, cost])
    heads = ["command" if in_detail else "experiment", *(f"{kind}#" for kind in kinds), "seeds#", "a run takes"]
    show(Table(heads, rows, "Published numbers, by verdict"), 180)
    console(180).print(", ".join(f"{sums[kind]} {kind}" for kind in kinds))
