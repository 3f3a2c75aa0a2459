"""Find the commands of printed numbers that have not been run, and add finished runs to their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kfx.experiment.compose import of_job
from kfx.jobs.job import Job
from kfx.papers import tables
from kfx.papers.logged import logged
from kfx.papers.numbers import CommandNumbers, Entry, part_of
from kfx.papers.tables import Command

RUNS = Path("runs") / "reproduce"


@dataclass(frozen=True)
class Missing:
    """A command with a seed. seconds: its expected time; None if nothing similar has been run."""

    part: CommandNumbers
    seed: int
    seconds: float | None

    @property
    def directory(self) -> Path:
        return RUNS / self.part.command.name / f"seed-{self.seed}"

    @property
    def words(self) -> list[str]:
        return [*self.part.command.words, f"seed={self.seed}"]

    def __str__(self) -> str:
        return " ".join(["kfx run", *self.words])

    def job(self) -> Job:
        """Compose and check its job; ConfigError if it cannot be run here."""
        return logged(self.words, self.directory)


def missing(entries: Sequence[Entry], seeds: int) -> list[Missing]:
    """The commands that have not been run for all `seeds`, or only with other settings; the fastest first, unknown ones
    last."""
    found = []
    for entry in entries:
        siblings = [part.table.seconds() for part in entry.parts if part.table is not None and not part.is_reading]
        usual = max(siblings, default=None)
        for part in [*entry.parts, *_readings(entry)]:
            own = part.table.seconds() if part.table is not None else usual
            printed = [item.printed for item in part.items]
            known = part.table.seeds_with(printed) if part.table is not None and not part.changed else []
            if not part.is_reading or part.command.overrides in entry.remark.readings:
                found += [Missing(part, seed, own) for seed in range(seeds) if seed not in known]
    return sorted(found, key=lambda each: (each.seconds is None, each.seconds or 0.0))


def _readings(entry: Entry) -> list[CommandNumbers]:
    """Variants that a remark names and that have not been run."""
    there = {part.command for part in entry.parts}
    named = [Command(entry.experiment, overrides) for overrides in entry.remark.readings]
    return [replace(part_of(command), is_reading=True) for command in named if command not in there]


def add(directory: Path, part: CommandNumbers, folder: Path) -> Path:
    """Add the measurements of a run to the table of its command."""
    raw = of_job(part.command.words)
    table = tables.measure(directory, [item.printed for item in part.items], raw)
    return tables.write(folder, tables.merged(tables.read(folder).get(table.command), table))
