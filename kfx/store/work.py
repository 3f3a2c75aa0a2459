"""Work on tiles: an ordered list of tasks, one for each tile, and a process that does them in this order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class TileTask(NamedTuple):
    """One tile of one matrix of a store; workers are sent this, never the tile."""

    matrix: str
    row: int
    column: int


class Work(Protocol):
    """Computes the tiles of a store. It is pickled for other processes, so it holds file names, never tiles."""

    @property
    def folder(self) -> str:
        """The folder of the store that it writes to."""

    @property
    def store(self) -> str:
        """The folder of the Gram store that it belongs to."""

    def within(self, processes: int) -> Work:
        """The same work for one of `processes` processes that share its memory."""

    def tasks(self) -> list[TileTask]:
        """The tasks not done yet, each after those that it needs."""

    def total(self) -> int:
        """Number of all tasks, done or not."""

    def bytes_to_come(self) -> int:
        """Bytes on disk that the missing tiles will take."""

    def needs(self, task: TileTask) -> Iterable[TileTask]:
        """The tasks whose tiles this one reads; those that they need in turn may be left out."""

    def cost(self, task: TileTask) -> float:
        """The size of a task, in a unit of the work's own."""

    def do(self, task: TileTask) -> None:
        """Compute the tile, unless it is there. Any process may call it, but only one at a time for a task."""


def fields_of(work: DataclassInstance) -> dict[str, object]:
    """The fields of a work without its open files, as other processes get it."""
    return {field.name: getattr(work, field.name) for field in dataclasses.fields(work)}


Watch = Callable[[TileTask], None]
"""Called after each completed task."""


def in_this_process(work: Work, watch: Watch) -> None:
    """Do the remaining tasks, one after another."""
    for task in work.tasks():
        work.do(task)
        watch(task)
