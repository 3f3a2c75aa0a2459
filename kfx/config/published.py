"""Numbers that papers print for an experiment, as its config lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kfx.config import catalogue
from kfx.config.fields import Several, is_window, number, ranged, word
from kfx.config.nodes import make
from kfx.config.option import Option
from kfx.outcomes import ConfigError
from kfx.yaml_file import read_yaml


@dataclass
class Quantity(Option):
    """A quantity that a run measures."""

    metric: str = ranged("", "text", lambda v: v != "", "name of the metric or parameter: accuracy, mse, error, …")
    kernel: str = word("initial | trained", "kernel to which the number belongs", default="trained")
    n_interpolation: int | None = number(None, "whole >= 1", "N_I at which the number was measured", null="the largest")
    statistic: str = word("mean | sd | se | min | max", "statistic over folds, repeats, layers or seeds")
    window: Several = ranged(  # noqa: RUF009
        None,
        "[first, last], whole numbers with 1 <= first <= last, or null",
        lambda v: v is None or is_window(v),
        "window of follow.windows for which the number is; null: the end of the fit",
    )

    @property
    def place(self) -> tuple[str, str, int | None, str, str | None]:
        """Metric, kernel, N_I, statistic and window, as tables of measurements have them."""
        window = None if self.window is None else "-".join(map(str, self.window))
        return self.metric, self.kernel, self.n_interpolation, self.statistic, window


@dataclass
class Published(Quantity):
    """A number that a paper prints for an experiment; value null: a curve without printed numbers."""

    value: float | None = ranged(
        0.0, "a number or null", lambda v: True, "number that the paper prints; null: only a picture shows it"
    )
    source: str = ranged("", "text", lambda v: True, "paper, table or figure, row")
    overrides: list[str] = field(
        default_factory=list, metadata={"meaning": "overrides of the experiment that give the number's setting"}
    )


@dataclass
class Printed(Published):
    """A published number with its digits as printed; None for a curve without numbers."""

    text: str | None = None


Numbers = TypeVar("Numbers", bound=Published)


def of_most_overrides(numbers: Sequence[Numbers]) -> list[Numbers]:
    """Of the numbers with the same metric, kernel, N_I, statistic and window those with the most overrides."""
    most: dict[tuple[object, ...], int] = {}
    for each in numbers:
        most[each.place] = max(most.get(each.place, 0), len(each.overrides))
    return [each for each in numbers if len(each.overrides) == most[each.place]]


_HEADS = ("n_interpolation", "metric", "kernel", "statistic")
"""Keys of an entry that may be a list, the heads of a table's columns; within each of them come those of the next."""


def published(path: str, value: object) -> list[Published]:
    """The numbers of a config's key `published`.

    An entry may stand for a table: with lists of metrics, kernels, N_I or statistics its value is a list for each of
    them, and `rows` are entries that have its other keys too; their sources and overrides follow its own.
    """
    return [make(where, Published, entry) for where, entry in _entries(path, value)]


def _entries(path: str, value: object) -> Iterator[tuple[str, Several]]:
    """Yield the entries of a list, one for each number, with their paths."""
    if not isinstance(value, list | None):
        raise ConfigError(f"{path}={value}: expected a list of {{metric: …, value: …, source: …}}, or null")
    for i, entry in enumerate(value or ()):
        yield from _numbers(f"{path}[{i}]", entry)


def _numbers(path: str, entry: object) -> Iterator[tuple[str, Several]]:
    """Yield the entries that one stands for, one for each number."""
    if not isinstance(entry, Mapping):
        yield path, entry
    elif "rows" in entry:
        rows = entry["rows"]
        whole = [_with_table(row, entry) for row in rows] if isinstance(rows, list) else rows
        yield from _entries(f"{path}.rows", whole)
    elif head := next((key for key in _HEADS if isinstance(entry.get(key), list)), None):
        names, value = entry[head], entry.get("value")
        values = value if isinstance(value, list) else [value] * len(names)
        if len(values) != len(names):
            raise ConfigError(f"{path}.value={value}: expected {len(names)} values, one for each {head}")
        for name, own in zip(names, values, strict=True):
            yield from _numbers(path, {**entry, head: name, "value": own})
    else:
        yield path, entry


def _with_table(row: object, table: Mapping[str, Several]) -> object:
    """A row with what its table says of all rows."""
    if not isinstance(row, Mapping):
        return row
    shared = {key: value for key, value in table.items() if key != "rows"}
    lists = [each["overrides"] for each in (table, row) if "overrides" in each]
    wrong = [each for each in lists if not isinstance(each, list)]
    overrides = wrong[0] if wrong else [word for each in lists for word in each]
    source = ", ".join(str(each["source"]) for each in (table, row) if each.get("source"))
    return {**shared, **row, "source": source, "overrides": overrides}


def read_published(experiment: str, own: str | None = None) -> list[Printed]:
    """The numbers in an experiment's file, with the digits as written.

    An experiment without its own list that builds on another one has the other's. own: a further folder of configs.
    ConfigError for a file that cannot be read.
    """
    path = catalogue.file_of("experiment", experiment, own)
    content = read_yaml(path) or {}
    if "published" not in content:
        bases = [word for word in content.get("defaults", []) if isinstance(word, str) and "/experiment/" in word]
        return read_published(bases[0].split("/experiment/", 1)[1], own) if bases else []
    where = f"{path}: published"
    listed = published(where, content["published"])
    if not listed:
        return []
    as_written = _entries(where, read_yaml(path, as_text=True)["published"])
    return [
        Printed(**vars(each), text=None if each.value is None else text.get("value"))
        for each, (_, text) in zip(listed, as_written, strict=True)
    ]
