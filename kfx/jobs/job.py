"""A job: one run among those of a command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kfx.experiment.plan import Plan


@dataclass(frozen=True)
class Job:
    """A plan and the directory of its run.

    roots: folders in which `resume=true` looks for an earlier run. number, of: its number among the jobs of the
        command.
    log: a file for the output of the run; None for the streams of the command.
    is_checked: whether machine, data files and disk have been checked for it, and its folder made.
    """

    plan: Plan
    directory: Path
    roots: Sequence[Path]
    number: int = 1
    of: int = 1
    log: Path | None = None
    is_checked: bool = True

    def __str__(self) -> str:
        return " ".join(["kfx run", *self.plan.words])
