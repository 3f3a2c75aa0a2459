"""Work over tiles: tasks in an order, each of which makes one tile, and one process that does them in that order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class TileTask(NamedTuple):
    """One tile of one matrix of a store: what is sent to a worker, in place of the tile."""

    matrix: str
    row: int
    column: int


class Work(Protocol):
    """What makes the tiles of a store. Other processes get it pickled, so it holds file names, never tiles."""

    @property
    def folder(self) -> str:
        """Of the store that it writes to."""

    @property
    def store(self) -> str:
        """The folder of the Gram store that it is part of."""

    def within(self, processes: int) -> Work:
        """The same, for so many processes that share its memory."""

    def tasks(self) -> list[TileTask]:
        """Those not done yet, each after the ones that it needs."""

    def total(self) -> int:
        """All, done or not."""

    def bytes_to_come(self) -> int:
        """Of disk, for the tiles that are not there."""

    def needs(self, task: TileTask) -> Iterable[TileTask]:
        """The tasks whose tiles this one reads; those that they need in turn may be left out."""

    def cost(self, task: TileTask) -> float:
        """How much there is to do, in units of the work's own."""

    def do(self, task: TileTask) -> None:
        """Make the tile, unless it is there. May be called in any process, by one at a time for one task."""


def fields_of(work: DataclassInstance) -> dict[str, object]:
    """The fields of a work without what it has opened meanwhile: what other processes get."""
    return {field.name: getattr(work, field.name) for field in dataclasses.fields(work)}


Watch = Callable[[TileTask], None]
"""Called after each task that is done."""


def in_this_process(work: Work, watch: Watch) -> None:
    """Do what is left, one task after another."""
    for task in work.tasks():
        work.do(task)
        watch(task)
