"""A finished record in the form that other tools take: settings, series over steps, final numbers, files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from kfx.config.nodes import leaves
from kfx.files import Document, is_inside
from kfx.outcomes import ConfigError, RecordError, Status
from kfx.record.findings import Findings
from kfx.record.reading import Run
from kfx.record.search import each_of, runs_below

_SERIES = {"rho": "batch.rho", "objective": "batch.objective", "regularization": "regularization"}
"""Columns of the trace that have other names in other tools, which show a series by its last value."""
_NOT_FILES = ("checkpoint", "checkpoint.previous", "lock")
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_MOST_BYTES = 50_000_000
"""Largest size of a file that is copied; the layers of a flow are larger."""


@dataclass(frozen=True)
class Finished:
    """A run that has ended. name: its folder and the folder around it. started: seconds since 1970."""

    run: Run
    name: str
    started: float

    @property
    def identity(self) -> str:
        return str(self.run.metrics["identity"])

    @property
    def status(self) -> Status:
        return Status(self.run.metrics["status"])

    def settings(self) -> Document:
        """The config with dotted keys; lists are texts."""
        found = leaves(OmegaConf.to_container(self.run.config, resolve=False), into_lists=False)
        return {key: value if isinstance(value, (int, float, str, bool)) else str(value) for key, value in found}

    def series(self) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield (name, steps, seconds since 1970, values) for each column of the trace with finite numbers, (rows,)
        each."""
        trace = self.run.trace
        if trace.empty:
            return
        steps, when = trace["iteration"].to_numpy(), self.started + trace["seconds"].to_numpy(dtype=float)
        for column in trace.columns:
            if column in _SERIES or column.startswith(("parameter.", "diagnostic.")):
                values = trace[column].to_numpy(dtype=float)
                kept = np.isfinite(values)
                if kept.any() and not (column == "objective" and np.array_equal(values, trace["rho"])):
                    yield _SERIES.get(column, column), steps[kept], when[kept], values[kept]

    def results(self) -> dict[str, float]:
        """Final numbers: each kernel's metrics at the largest N_I and the first λ, ρ on held-out batches, and times."""
        found: dict[str, float] = {}
        evaluation = Findings.of(self.run.metrics).evaluation
        for at in sorted(evaluation, key=lambda at: -at.n_interpolation):
            for kernel, row in evaluation[at].items():
                if not kernel.startswith("random"):
                    found.setdefault(f"{kernel}.{at.metric}", row["mean"])
        held_out = self.run.metrics.get("held_out", {}).get("rho", {})
        found |= {f"held_out.rho.{kernel}": held_out[kernel]["mean"] for kernel in ("initial", "trained") if held_out}
        found |= {
            name: value for name, value in self.run.metrics.get("timing", {}).items() if name.endswith("_seconds")
        }
        return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}

    def files(self) -> list[Path]:
        """The files of the record to copy: without checkpoints, files that are too large, and links to elsewhere."""
        every = sorted(path for path in self.run.directory.rglob("*") if is_inside(self.run.directory, path))
        files = [path for path in every if path.is_file() and path.name not in _NOT_FILES]
        return [path for path in files if path.stat().st_size <= _MOST_BYTES]

    def pictures(self) -> list[Path]:
        return [path for path in self.files() if path.parent.name == "figures" and path.suffix == ".png"]


def read(paths: Sequence[Path]) -> tuple[list[Finished], list[str]]:
    """The ended runs at and below the paths, and a message for each that still runs or has changed since; ConfigError
    if there is no ended run."""
    found, errors = each_of((run.directory for path in paths for run in runs_below([path])), _finished)
    if not found:
        why = f": {errors[0]}" if errors else ""
        raise ConfigError(f"kfx export: {' '.join(map(str, paths))}: holds no run that has ended{why}")
    return found, list(map(str, errors))


def _finished(run: Run) -> Finished:
    directory = run.directory
    if run.metrics["status"] == Status.RUNNING:
        raise RecordError(f"{directory}: has not ended")
    if not _IDENTITY.fullmatch(str(run.metrics.get("identity"))):  # it becomes a part of paths and queries
        raise RecordError(f"{directory}: damaged: its identity is no 16 hexadecimal digits")
    run.require_unchanged()
    return Finished(run, f"{directory.parent.name}/{directory.name}", _started(directory))


def _started(directory: Path) -> float:
    """When the run began, from its history, or else from its config's file time."""
    try:
        first = (directory / "history.csv").read_text().splitlines()[1]
        return datetime.fromisoformat(first.split(",")[0]).timestamp()
    except (OSError, IndexError, ValueError):
        return (directory / "metrics.json").stat().st_mtime
