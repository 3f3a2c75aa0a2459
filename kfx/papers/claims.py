"""Claims of papers, and whether they hold, from conditions on measured numbers."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pandas as pd

from kfx.config.fields import Several, flag, nested, number, ranged
from kfx.config.nodes import make
from kfx.config.option import Option
from kfx.config.published import Quantity
from kfx.files import read_rows
from kfx.outcomes import ConfigError, RecordError
from kfx.papers import tables
from kfx.papers.numbers import Entry
from kfx.papers.studies import is_of_cells, names
from kfx.papers.tables import Command, Table
from kfx.report.naming import described
from kfx.yaml_file import read_yaml

FILE, STUDIES = "claims.yaml", "studies"
_MOST, _FEW = 0.8, 0.2  # as templates/rules.md says
_NEAR = 0.1  # likewise
_WORDS = 15
COMPLEMENTS = {"error": "accuracy", "head_error": "head_accuracy"}
"""Errors and the accuracies that tables may have in their place."""
RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "equals": lambda left, right: left == right,
    "near": lambda left, right: abs(left - right) <= _NEAR * abs(right),
    "not_near": lambda left, right: abs(left - right) > _NEAR * abs(right),
    "below": lambda left, right: left < right,
    "above": lambda left, right: left > right,
}


@dataclass(frozen=True)
class Measurements:
    """All that was measured: tables of commands, and of studies as study → run → column → value."""

    tables: Mapping[Command, Table]
    studies: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)


class Standing(StrEnum):
    """The verdict on a claim."""

    HOLDS = "holds"
    PARTLY = "partly"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


@dataclass
class Measured(Quantity):
    """A measured quantity of a command.

    run: an experiment, with overrides of `kfx run` after it; with `study` the name of one of its runs, and `metric` a
        column of its table.
    """

    run: str = ranged("", "text", lambda v: True, "an experiment, and overrides after it; or a run of the study")
    study: str = ranged("", "text", lambda v: True, "a study whose committed table has the quantity")
    times: float = number(1.0, "> 0", "factor by which the quantity is multiplied")

    @property
    def command(self) -> Command:
        experiment, *overrides = shlex.split(self.run)
        return Command.of(experiment, overrides)

    @property
    def measured_by(self) -> str:
        """The command that measures it."""
        return f"kfx study {self.study}" if self.study else str(self.command)

    def by_seed(self, measured: Measurements) -> dict[int, float]:
        """The measured values, times the factor, by seed; empty where nothing is measured."""
        if self.study:
            value = measured.studies.get(self.study, {}).get(self.run, {}).get(self.metric)
            return {} if value is None else {0: self.times * value}
        table = measured.tables.get(self.command)
        if table is None:
            return {}
        found = table.by_seed(self)
        if not found and self.metric in COMPLEMENTS and self.statistic == "mean":
            accuracies = table.by_seed(replace(self, metric=COMPLEMENTS[self.metric]))
            found = {seed: 1 - value for seed, value in accuracies.items()}
        return {seed: self.times * value for seed, value in found.items()}

    def __str__(self) -> str:
        named = described(self)
        return named if self.times == 1 else f"{self.times:g} × {named}"


def _bound(path: str, value: object) -> object:
    if value is None or (isinstance(value, Mapping) and not path.endswith("equals")):
        return value
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    raise ConfigError(f"{path}={value}: expected a finite number, or what differs from the quantity itself")


@dataclass
class Condition(Measured):
    """A relation between a measured quantity and a number or another measured quantity.

    control: whether the condition only has to be met as well, and is no support for the claim. can: whether one seed is
    enough to meet it. A mapping in place of a number has the settings of the other quantity that differ from those of
    this one.
    """

    control: bool = flag(False, "whether it is a control, which is no support for the claim")
    can: bool = flag(False, "whether it says what can happen: one seed is enough")
    equals: Several = nested(None, "a number", _bound, "the value, for yes/no facts")  # noqa: RUF009
    near: Several = nested(None, "a number or a mapping", _bound, "within 10 % of it")  # noqa: RUF009
    not_near: Several = nested(None, "a number or a mapping", _bound, "more than 10 % away from it")  # noqa: RUF009
    below: Several = nested(None, "a number or a mapping", _bound, "smaller than it")  # noqa: RUF009
    above: Several = nested(None, "a number or a mapping", _bound, "larger than it")  # noqa: RUF009

    @property
    def relation(self) -> str:
        return next(name for name in RELATIONS if getattr(self, name) is not None)

    @property
    def other(self) -> float | Measured:
        """The other side of the relation."""
        value = getattr(self, self.relation)
        if not isinstance(value, Mapping):
            return float(value)
        own = {name: getattr(self, name) for name in Measured.fields() if name != "times"}
        other: Measured = make(self.relation, Measured, {**own, **value})
        return other


@dataclass
class Claim(Option):
    """A claim of a paper, and the conditions under which it holds."""

    claim: str = ranged("", "a sentence", lambda v: v != "", "what the paper says")
    source: str = ranged("", "text", lambda v: v != "", "paper, section, table or figure")
    quote: str = ranged("", "at most 15 words", lambda v: len(v.split()) <= _WORDS, "the paper's own words")
    conditions: Several = nested(  # noqa: RUF009
        [], "a list of conditions", lambda path, value: _conditions(path, value), "all of what must hold"
    )
    unprinted: str = ranged("", "text", lambda v: True, "settings that decide, and that the paper does not print")
    reason: str = ranged("", "text", lambda v: True, "why the verdict is as it is, or what a measurement needs")
    command: str = ranged("", "text", lambda v: True, "the command that tests it, where no condition names one")


def _conditions(path: str, value: object) -> list[Condition]:
    if not isinstance(value, list):
        raise ConfigError(f"{path}={value}: expected a list of conditions")
    made = []
    for i, each in enumerate(value):
        condition: Condition = make(f"{path}[{i}]", Condition, each)
        relations = [name for name in RELATIONS if getattr(condition, name) is not None]
        if not condition.run.strip() or len(relations) != 1:
            raise ConfigError(f"{path}[{i}]: expected run, metric and one of {', '.join(RELATIONS)}")
        try:
            other = condition.other
        except ConfigError as error:
            raise ConfigError(f"{path}[{i}].{error}") from error
        if isinstance(other, Measured) and not other.run.strip():
            raise ConfigError(f"{path}[{i}].{relations[0]}.run: expected an experiment")
        made.append(condition)
    return made


@dataclass(frozen=True)
class Outcome:
    """A condition and for how many seeds it holds."""

    condition: Condition
    left: Sequence[float]
    right: Sequence[float]
    holds: Sequence[bool]

    @property
    def share(self) -> float | None:
        """The share of seeds for which the condition holds, all if one is enough; None where nothing is measured."""
        if not self.holds:
            return None
        return float(any(self.holds)) if self.condition.can else sum(self.holds) / len(self.holds)


@dataclass(frozen=True)
class Tested:
    """A claim, its verdict and the outcomes of its conditions."""

    claim: Claim
    standing: Standing
    outcomes: Sequence[Outcome] = field(default_factory=list)

    @property
    def paper(self) -> str:
        return self.claim.source.partition(",")[0]


def measurements(folder: Path, entries: Iterable[Entry] = ()) -> Measurements:
    """Read the tables of a folder, without those that are stale in `entries`, and those of its folder `studies`."""
    stale = {part.command for entry in entries for part in entry.parts if part.changed}
    studies: dict[str, dict[str, dict[str, float]]] = {}
    for path in sorted((folder / STUDIES).glob("*.csv")):
        if path.stem in names() and is_of_cells(path.stem):
            continue  # it has no runs
        try:
            table = read_rows(path, texts=["run"]).set_index("run").apply(pd.to_numeric, errors="coerce")
        except (OSError, ValueError, KeyError) as error:
            raise RecordError(f"{path}: {' '.join(str(error).split())}; record the study again") from error
        studies[path.stem] = {
            str(run): {str(key): float(value) for key, value in row.items() if math.isfinite(value)}
            for run, row in table.to_dict("index").items()
        }
    current = {command: table for command, table in tables.read(folder).items() if command not in stale}
    return Measurements(current, studies)


def read(folder: Path) -> list[Claim]:
    """Read the claims of a folder; ConfigError for a wrong entry."""
    path = folder / FILE
    if not path.is_file():
        return []
    content = read_yaml(path) or []
    if not isinstance(content, list):
        raise ConfigError(f"{path}: expected a list of claims")
    return [make(f"{path}[{i}]", Claim, each) for i, each in enumerate(content)]


def tested(claims: Sequence[Claim], measured: Measurements) -> list[Tested]:
    """Test each claim on what was measured."""
    found = []
    for claim in claims:
        outcomes = [_outcome(condition, measured) for condition in claim.conditions]
        found.append(Tested(claim, _standing(claim, outcomes), outcomes))
    return found


def _outcome(condition: Condition, measured: Measurements) -> Outcome:
    left, other = condition.by_seed(measured), condition.other
    values = dict.fromkeys(left, other) if isinstance(other, float) else other.by_seed(measured)
    pairs = [(left[seed], values[seed]) for seed in left if seed in values]
    holds = [all(map(math.isfinite, pair)) and RELATIONS[condition.relation](*pair) for pair in pairs]  # else it failed
    return Outcome(condition, [one for one, _ in pairs], [other for _, other in pairs], holds)


def _standing(claim: Claim, outcomes: Sequence[Outcome]) -> Standing:
    measured = [outcome for outcome in outcomes if outcome.share is not None]
    shares = np.array([outcome.share for outcome in measured if not outcome.condition.control])
    if not len(shares):
        return Standing.NOT_RUN
    met, failed = shares >= _MOST, shares <= _FEW
    if met.all() and all((outcome.share or 0.0) >= _MOST for outcome in measured):
        return Standing.HOLDS
    if failed.all():
        several = max(len(outcome.holds) for outcome in measured) > 1
        return Standing.FAILS if several and not claim.unprinted else Standing.UNDECIDED
    return Standing.PARTLY if met.any() else Standing.UNDECIDED
