"""Work on tiles: an ordered list of tasks, one for each tile, and a process that does them in this order."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple


class TileTask(NamedTuple):
    """One tile of one matrix of a store; workers are sent this, never the tile."""

    matrix: str
    row: int
    column: int


@dataclass(frozen=True)
class Work(abc.ABC):
    """Computes the tiles of a store. It is pickled for other processes, so it holds file names and the kernel, never
    tiles.

    folder: that of the store that it writes to.
    """

    folder: str

    @property
    def store(self) -> str:
        """The folder of the Gram store that it belongs to."""
        return self.folder

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without open files

    def within(self, processes: int) -> Work:
        """The same work for one of `processes` processes that share its memory."""
        return self

    @abc.abstractmethod
    def tasks(self) -> list[TileTask]:
        """The tasks not done yet, each after those that it needs."""

    @abc.abstractmethod
    def total(self) -> int:
        """Number of all tasks, done or not."""

    @abc.abstractmethod
    def bytes_to_come(self) -> int:
        """Bytes on disk that the missing tiles will take."""

    def needs(self, task: TileTask) -> Iterable[TileTask]:
        """The tasks whose tiles this one reads; those that they need in turn may be left out."""
        return ()

    @abc.abstractmethod
    def cost(self, task: TileTask) -> float:
        """The size of a task, in a unit of the work's own."""

    @abc.abstractmethod
    def do(self, task: TileTask) -> None:
        """Compute the tile, unless it is there. Any process may call it, but only one at a time for a task."""


Watch = Callable[[TileTask], None]
"""Called after each completed task."""


def in_this_process(work: Work, watch: Watch) -> None:
    """Do the remaining tasks, one after another."""
    for task in work.tasks():
        work.do(task)
        watch(task)
