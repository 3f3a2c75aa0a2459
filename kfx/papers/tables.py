"""Tables of measurements for printed numbers: one for each command, a row for each number and seed."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from omegaconf import DictConfig

from kfx.config.nodes import leaves
from kfx.config.published import Published, Quantity
from kfx.config.registry import GROUPS
from kfx.experiment.compose import of_job
from kfx.experiment.identity import content
from kfx.files import Document, write_whole
from kfx.outcomes import ConfigError, RecordError, Status
from kfx.record.environment import processor
from kfx.record.reading import load_run, read_config, read_environment, typed_words
from kfx.report.measured import measured_as
from kfx.version import __version__
from kfx.yaml_file import read_yaml

PLACE = ("metric", "kernel", "n_interpolation", "statistic", "window")
COLUMNS = ("seed", *PLACE, "measured", "iterations", "seconds", "date", "identity", "kfx", "machine")
NOT_OF_A_COMMAND = (
    *("+experiment=", "seed=", "hydra.", "resume=", "retries=", "checkpoint.", "figures=", "report="),
    *("device.threads=", "device.precision_check=", "cluster.", "evaluation.memory=", "evaluation.store="),
)
"""Prefixes of words that do not change what is computed, such as where and how fast."""
_SMOKE = "published=null"


@dataclass(frozen=True)
class Command:
    """An experiment with overrides: the words of `kfx run`, without the seed."""

    experiment: str
    overrides: tuple[str, ...] = ()

    @classmethod
    def of(cls, experiment: str, words: Sequence[str]) -> Command:
        """The command of these words; those that repeat the experiment's own choices are left out."""
        last = {word.lstrip("+").partition("=")[0]: word for word in words}  # of words for one key the last one holds
        own = sorted(word for word in last.values() if not word.startswith(NOT_OF_A_COMMAND))
        return cls(experiment, tuple(word for word in own if not _is_usual(experiment, word)))

    def holds(self, word: str) -> bool:
        """Whether an override is among its own, or is a choice of the experiment that its own do not change."""
        key = word.partition("=")[0]
        changed = any(own.partition("=")[0] == key for own in self.overrides)
        return word in self.overrides or (not changed and _is_usual(self.experiment, word))

    @classmethod
    def of_run(cls, directory: Path) -> Command:
        """The command of a run; ConfigError if the run was not of an experiment, or was a smoke run."""
        typed = typed_words(directory)
        if _SMOKE in typed:
            raise ConfigError(f"{directory}: is a smoke run, whose numbers mean nothing; run it in full")
        for word in typed:
            if word.startswith("+experiment="):
                return cls.of(word.removeprefix("+experiment="), typed)
        raise ConfigError(f"{directory}: is no run of an experiment, so nothing is printed for it")

    @property
    def words(self) -> list[str]:
        return [f"+experiment={self.experiment}", *self.overrides]

    @property
    def name(self) -> str:
        """The name of its files: the experiment, and a hash of the overrides."""
        digest = hashlib.sha256(" ".join(self.overrides).encode()).hexdigest()[:8]
        return f"{self.experiment.replace('/', '-')}-{digest}"

    def __str__(self) -> str:
        return " ".join(["kfx run", *self.words])


def _is_usual(experiment: str, word: str) -> bool:
    group, _, option = word.partition("=")
    return group in GROUPS and _usual(experiment)[group].get("name") == option


@cache
def _usual(experiment: str) -> DictConfig:
    return of_job([f"+experiment={experiment}"])


@dataclass(frozen=True)
class Table:
    """The measurements of the runs of a command.

    rows: with `COLUMNS`, as text. settings: the part of the config that determines the results, without the seed.
    """

    command: Command
    settings: Document
    rows: tuple[Mapping[str, str], ...]

    @property
    def seeds(self) -> list[int]:
        return sorted({int(row["seed"]) for row in self.rows})

    def seeds_with(self, quantities: Iterable[Quantity]) -> list[int]:
        """The seeds whose runs were asked for all of these quantities, whether they measured them or not."""
        wanted = {_as_text(quantity) for quantity in quantities}
        asked: dict[int, set[tuple[str, ...]]] = {seed: set() for seed in self.seeds}
        for row in self.rows:
            asked[int(row["seed"])].add(tuple(row[key] for key in PLACE))
        return [seed for seed, places in asked.items() if wanted <= places]

    def by_seed(self, quantity: Quantity) -> dict[int, float]:
        """The measurements of a quantity, by seed in ascending order."""
        place = _as_text(quantity)
        own = [row for row in self.rows if tuple(row[key] for key in PLACE) == place and row["measured"]]
        return {int(row["seed"]): float(row["measured"]) for row in sorted(own, key=lambda row: int(row["seed"]))}

    def at(self, quantity: Quantity) -> list[float]:
        """The measurements of a quantity, one for each seed."""
        return list(self.by_seed(quantity).values())

    def seconds(self) -> float:
        """The shortest time of a run in seconds; in longer ones the machine did other work too."""
        return min(float(row["seconds"]) for row in self.rows)

    def changed(self, raw: DictConfig) -> list[str]:
        """The settings that have changed since, as `key: then, now`.

        Keys that did not exist then do not count, because the default of a new option changes nothing.
        """
        return _differences(self.settings, settings(raw))


def _as_text(quantity: Quantity) -> tuple[str, ...]:
    """The place of a quantity as rows have it."""
    return tuple("" if part is None else str(part) for part in quantity.place)


def settings(raw: DictConfig) -> Document:
    """The settings of a composed config that a table keeps."""
    kept = json.loads(json.dumps(content(raw)))  # plain numbers, texts and lists, as when read from a file
    return {key: value for key, value in kept.items() if key != "seed"}


def _differences(then: Document, now: Document) -> list[str]:
    present = dict(leaves(now, into_lists=False))
    return [
        f"{key}: {value}, {present.get(key, 'no longer there')}"
        for key, value in leaves(then, into_lists=False)
        if key not in present or value != present[key]
    ]


def measure(directory: Path, entries: Sequence[Published], raw: DictConfig) -> Table:
    """The table of one completed run. entries: numbers printed for its command. raw: the command's config of today.

    RecordError for a run that is not completed or was changed, and for one with other settings than today's.
    """
    run = load_run(directory)
    if run.metrics["status"] != Status.COMPLETED:
        raise RecordError(f"{directory}: {run.metrics['status']}; kfx resume {directory}")
    run.require_unchanged()
    if changed := _differences(settings(run.config), settings(raw)):
        raise RecordError(f"{directory}: the experiment has changed since ({'; '.join(changed)}); run it again")
    common = {
        "seed": str(run.config.seed),
        "iterations": str(len(run.trace)),
        "seconds": f"{sum(run.metrics['timing'].values()):.0f}",
        "identity": str(run.metrics["identity"]),
        **made_on(directory),
    }
    rows = []
    for place in dict.fromkeys(printed.place for printed in entries):
        printed = next(each for each in entries if each.place == place)
        value = measured_as(printed, run.metrics, directory)
        named = dict(zip(PLACE, ("" if part is None else str(part) for part in place), strict=True))
        rows.append({**common, **named, "measured": "" if value is None else repr(value)})
    return Table(Command.of_run(directory), settings(raw), tuple(rows))


def made_on(directory: Path) -> dict[str, str]:
    """The date on which a run ended, the version of kfx, and the machine."""
    here = read_environment(directory)
    when = datetime.fromtimestamp((directory / "metrics.json").stat().st_mtime, UTC)
    dtype = read_config(directory).device.dtype
    machine = f"{here.get('processor')}, {here.get('device')}, {here.get('threads_of_fit')} threads, {dtype}"
    return {"date": when.date().isoformat(), "kfx": str(here.get("kfx")), "machine": machine}


def made_here() -> dict[str, str]:
    """Today's date, this version of kfx and this machine, one thread and float64, as `made_on` has those of a run."""
    machine = f"{processor()}, cpu, 1 threads, float64"
    return {"date": datetime.now(UTC).date().isoformat(), "kfx": __version__, "machine": machine}


def merged(old: Table | None, new: Table) -> Table:
    """The rows of both tables; for a seed in both the new ones.

    Rows with other settings are dropped, unless they only lack options that did not exist then.
    """
    if old is None or _differences(old.settings, new.settings):
        return new
    kept = [row for row in old.rows if int(row["seed"]) not in new.seeds]
    return replace(new, rows=tuple(sorted([*kept, *new.rows], key=lambda row: int(row["seed"]))))


def write(folder: Path, table: Table) -> Path:
    """Write the table as CSV, with its settings in a file beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = table.command
    about = {"experiment": command.experiment, "overrides": list(command.overrides), "settings": table.settings}
    write_whole(folder / f"{command.name}.yaml", yaml.safe_dump(about, default_flow_style=None, width=120))
    path = folder / f"{command.name}.csv"
    write_whole(path, pd.DataFrame(table.rows, columns=COLUMNS).to_csv(index=False))
    return path


def read(folder: Path) -> dict[Command, Table]:
    """Read every table of a folder; RecordError if one is damaged."""
    return {table.command: table for table in map(_read, sorted(folder.glob("*.csv")))}


def _read(path: Path) -> Table:
    beside = path.with_suffix(".yaml")
    try:
        about = read_yaml(beside)
        command = Command(about["experiment"], tuple(about["overrides"]))
        kept = dict(about["settings"])
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        why = str(error).removeprefix(f"{beside}: ")
        raise RecordError(f"{beside}: damaged: {why}; measure {path.stem} again") from error
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for i, row in enumerate(rows, start=2):
        problem = _problem(row)
        if problem:
            raise RecordError(f"{path}: line {i}: {problem}; measure it again, or take the table away")
    if not rows:
        raise RecordError(f"{path}: has no rows; measure it again, or take the table away")
    return Table(command, kept, tuple(rows))


def _problem(row: Mapping[str | None, Any]) -> str | None:
    """What is wrong with a row; None if nothing is."""
    if tuple(row) != COLUMNS or any(value is None for value in row.values()):
        return f"expected the columns {', '.join(COLUMNS)}"
    for key in ("seed", "iterations", "seconds", "measured"):
        try:
            float(row[key]) if row[key] or key != "measured" else None
        except ValueError:
            return f"{key}={row[key]}: expected a number"
    return None
