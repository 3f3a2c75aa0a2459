"""Collect printed numbers with their measurements, from experiments, tables and remarks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kfx.config import catalogue
from kfx.config.nodes import near
from kfx.config.published import Printed, of_most_overrides, read_published
from kfx.experiment.compose import of_job
from kfx.outcomes import ConfigError, RecordError
from kfx.papers import tables
from kfx.papers.tables import Command, Table
from kfx.papers.verdict import AGREE, RANKED, Verdict, verdict
from kfx.report.measured import SHARES
from kfx.yaml_file import read_yaml

FOLDER = Path("runs") / "reproduction"
_REMARKS = "remarks.yaml"
_NOTES = {"Contradictions and misprints in the papers": "contradictions.yaml", "Not covered": "not_covered.yaml"}
_TIMES = ("seconds an iteration", "fit seconds", "MB of the fit", *SHARES)
"""Metrics that depend on the machine and cannot be reproduced."""
YES_OR_NO = ("linearly_separable",)
"""Metrics that are 1 or 0."""
_DEVIATIONS = {"sd": 1, "se": 8}
"""Of one run, what is printed is a deviation, or a standard error over eight seeds (Milsom et al. 2023 alone)."""


Notes = Mapping[str, Sequence[str]]
"""Notes of the page, by title."""


@dataclass(frozen=True)
class Remark:
    """Remarks on the numbers of an experiment.

    why: the reason of differences, or what the numbers show. readings: overrides of other readings that the text
        allows. takes: the cost of a run that has not been made.
    """

    why: str = ""
    readings: tuple[tuple[str, ...], ...] = ()
    takes: str = ""


@dataclass(frozen=True)
class Reading:
    """Measurements of a published number by another reading of the text."""

    command: Command
    measured: Sequence[float]


@dataclass(frozen=True)
class Item:
    """A published number and its measurements.

    deviation: the published one. reading: what another reading of the text measured, if the command is judged by it;
    the verdict is then that of the reading.
    """

    printed: Printed
    deviation: str | None
    measured: Sequence[float]
    verdict: Verdict
    reading: Reading | None = None


@dataclass(frozen=True)
class CommandNumbers:
    """The numbers of one command.

    is_reading: whether the command is a variant of the one for which the numbers were printed. changed: settings that
        have changed since its table was measured. judged_by: the reading that agrees best with all of the numbers; None
        if that is the command itself.
    """

    command: Command
    items: Sequence[Item]
    table: Table | None
    is_reading: bool = False
    changed: Sequence[str] = ()
    judged_by: Command | None = None

    @property
    def compared(self) -> list[Item]:
        """The items whose measurements can agree with a printed number."""
        return [item for item in self.items if item.verdict in RANKED and item.printed.text is not None]

    @property
    def agreeing(self) -> int:
        """How many of them agree."""
        return sum(item.verdict in AGREE for item in self.compared)


@dataclass(frozen=True)
class Entry:
    """An experiment with its commands, those of the paper first."""

    experiment: str
    description: str
    parts: Sequence[CommandNumbers]
    remark: Remark = field(default_factory=Remark)

    @property
    def paper(self) -> str:
        """The paper, as its sources name it."""
        return next(item.printed.source for part in self.parts for item in part.items).partition(",")[0]

    def counts(self) -> Counter[Verdict]:
        return Counter(item.verdict for part in self.parts if not part.is_reading for item in part.items)


def gather(folder: Path, asked: Sequence[str] | None = None, *, is_checked: bool = True) -> list[Entry]:
    """Every experiment with printed numbers, or those asked for.

    is_checked: compare the present config of each command with that of its table, which takes a while.
    """
    measured = tables.read(folder)
    remarks = read_remarks(folder)
    known = experiments()
    for command in measured:
        if command.experiment not in known:
            raise RecordError(f"{folder / command.name}.csv: is of {command.experiment}, which is no experiment")
    entries = []
    for experiment in known if asked is None else [each for each in known if each in asked]:
        own = {command: table for command, table in measured.items() if command.experiment == experiment}
        printed = read_published(experiment)
        if printed:
            entries.append(_entry(experiment, printed, own, remarks.get(experiment, Remark()), is_checked))
    return entries


def experiments(names: Sequence[str] = ()) -> list[str]:
    """The names of all experiments, or of those that `names` of papers or experiments stand for; ConfigError for other
    names."""
    every = catalogue.options("experiment")
    if not names:
        return every
    found: list[str] = []
    for name in names:
        of = [each for each in every if each == name or each.startswith(f"{name.rstrip('/')}/")]
        if not of:
            known = sorted({*every, *(each.split("/")[0] for each in every)})
            raise ConfigError(f"{name}: is no paper or experiment; it takes {near(name, known)}")
        found += [each for each in of if each not in found]
    return found


def commands(printed: Iterable[Printed], experiment: str) -> list[Command]:
    """The commands for which the numbers of an experiment were printed."""
    return list(dict.fromkeys(Command.of(experiment, each.overrides) for each in printed))


def part_of(command: Command) -> CommandNumbers:
    """The numbers with which a run of this command is compared; ConfigError if there are none."""
    if command.experiment not in experiments():
        raise ConfigError(f"{command.experiment}: is no experiment; it takes {near(command.experiment, experiments())}")
    own = of_command(read_published(command.experiment), command)
    if not own:
        raise ConfigError(f"{command}: no number is printed for it; see `published` in its experiment")
    return CommandNumbers(command, [Item(each, None, [], Verdict.NOT_RUN) for each in own], None)


def of_command(printed: Sequence[Printed], command: Command) -> list[Printed]:
    """The numbers printed for a command, or for the one of which it is a variant: those with the most matching
    overrides."""
    return of_most_overrides([each for each in printed if all(command.holds(word) for word in each.overrides)])


def read_remarks(folder: Path) -> dict[str, Remark]:
    """The remarks by experiment; ConfigError for a wrong entry."""
    path = folder / _REMARKS
    if not path.is_file():
        return {}
    try:
        content = read_yaml(path) or {}
        return {
            name: Remark(
                " ".join(each.get("why", "").split()),
                tuple(tuple(sorted(words.split())) for words in each.get("readings", [])),
                " ".join(each.get("takes", "").split()),
            )
            for name, each in content.items()
        }
    except (AttributeError, TypeError) as error:
        expected = "expected why, readings (a list of overrides) and takes for each experiment"
        raise ConfigError(f"{path}: {' '.join(str(error).split())}; {expected}") from error


def read_notes(folder: Path) -> Notes:
    """Notes of the page by title: where papers contradict themselves, and what they have and kfx does not."""
    found = {}
    for title, name in _NOTES.items():
        if (path := folder / name).is_file():
            found[title] = [" ".join(text.split()) for text in read_yaml(path)]
    return found


def _entry(
    experiment: str, printed: Sequence[Printed], own: Mapping[Command, Table], remark: Remark, is_checked: bool
) -> Entry:
    asked = commands(printed, experiment)
    others = {command: table for command, table in own.items() if command not in asked}
    readings = [_part(command, printed, table, True, is_checked) for command, table in others.items()]
    parts = [_part(command, printed, own.get(command), False, is_checked) for command in asked]
    parts = [_judged(part, readings) for part in parts]
    return Entry(experiment, catalogue.description("experiment", experiment), [*parts, *readings], remark)


def _judged(part: CommandNumbers, readings: Sequence[CommandNumbers]) -> CommandNumbers:
    """The numbers of a command with the verdicts of one reading, that with which most of them agree; the command's own
    where no reading agrees with more."""
    best, most = part, _agreement(part.compared)
    for reading in readings:
        by_number = {id(other.printed): other for other in reading.compared}
        items = [_by_reading(item, by_number.get(id(item.printed)), reading.command) for item in part.items]
        judged = replace(part, items=items, judged_by=reading.command)
        if part.compared and by_number and _agreement(judged.compared) > most:
            best, most = judged, _agreement(judged.compared)
    return best


def _by_reading(item: Item, other: Item | None, command: Command) -> Item:
    if other is None:
        return item
    return replace(item, verdict=other.verdict, reading=Reading(command, other.measured))


def _agreement(items: Sequence[Item]) -> list[int]:
    """How many agree, and how many have each verdict or a better one: the larger, the better."""
    counts = [sum(RANKED.index(item.verdict) <= rank for item in items) for rank in range(len(RANKED))]
    return [sum(item.verdict in AGREE for item in items), *counts]


def _part(
    command: Command, printed: Sequence[Printed], table: Table | None, is_reading: bool, checked: bool
) -> CommandNumbers:
    own = of_command(printed, command)
    if not is_reading:
        own = [each for each in own if Command.of(command.experiment, each.overrides) == command]
    changed = table.changed(of_job(command.words)) if table is not None and checked else []
    items = []
    for each in own:
        if each.statistic in _DEVIATIONS:
            continue
        measured = table.at(each) if table is not None else []
        beside = _deviation(each, own)
        runs = _DEVIATIONS[beside.statistic] if beside else 1
        said = verdict(
            None if each.metric in _TIMES else each.text,
            measured,
            float(beside.text) * math.sqrt(runs) if beside and beside.text else None,
            runs=runs,
            is_yes_or_no=each.metric in YES_OR_NO,
            is_accuracy=each.metric.endswith("accuracy"),
            before=_before(each, own, table),
        )
        if measured and changed:
            said = Verdict.STALE
        items.append(Item(each, beside.text if beside else None, measured, said))
    return CommandNumbers(command, items, table, is_reading, changed)


def _deviation(mean: Printed, own: Sequence[Printed]) -> Printed | None:
    """The deviation that is printed beside a mean."""

    def at(number: Printed) -> tuple[object, ...]:
        metric, kernel, n, _, window = number.place
        return metric, kernel, n, window, number.source

    found = (each for each in own if each.statistic in _DEVIATIONS and at(each) == at(mean))
    return next(found, None) if mean.statistic == "mean" else None


def _before(trained: Printed, own: Sequence[Printed], table: Table | None) -> tuple[float, list[float]] | None:
    """The published and the measured values of the untrained kernel for a number of the trained one."""
    place = trained.place
    if table is None or trained.kernel != "trained":
        return None
    for each in own:
        if each.place == (place[0], "initial", *place[2:]) and each.value is not None:
            return each.value, table.at(each)
    return None
