"""Sweeps: which runs exist already, and the table of what became of each job."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from kfx.outcomes import Status
from kfx.writer import is_held

COLUMNS = ("overrides", "identity", "status", "reason", "rho_initial", "rho_final", "metric", "value", "directory")


@dataclass(frozen=True)
class Found:
    """A run that is on disk. `metrics` is empty where they cannot be read."""

    directory: Path
    metrics: dict[str, Any]

    @property
    def identity(self) -> str | None:
        return self.metrics.get("identity")

    @property
    def status(self) -> str:
        return self.metrics.get("status", "unreadable")


def runs_below(roots: Iterable[Path], depth: int = 3) -> list[Found]:
    """Every run at most `depth` folders below the roots, newest last."""
    paths: set[Path] = set()
    for root in roots:
        for level in range(depth + 1):
            paths |= {path.parent.resolve() for path in Path(root).glob("/".join(["*"] * level + ["metrics.json"]))}
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # another process may have moved it aside meanwhile
            found.append(((path / "metrics.json").stat().st_mtime, Found(path, _metrics(path))))
    return [run for _, run in sorted(found, key=lambda pair: (pair[0], pair[1].directory))]


def _metrics(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / "metrics.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def earlier(identity: str, roots: Iterable[Path]) -> Found | None:
    """The run of this identity that a new one may stand back for: a completed one, else one that can go on. A failed
    run is never taken for a result."""
    same = [run for run in runs_below(roots) if run.identity == identity]
    completed = [run for run in same if run.status == Status.COMPLETED]
    unfinished = [run for run in same if run.status in (Status.RUNNING, Status.INTERRUPTED)]
    candidates = completed or unfinished
    return candidates[-1] if candidates else None


def rows(jobs: Sequence[tuple[Sequence[str], str]], roots: Iterable[Path]) -> list[dict[str, Any]]:
    """A row of `sweep.csv` for each (overrides, identity): the best that is known of it, read from files alone."""
    rank: dict[str, int] = {Status.COMPLETED: 3, Status.RUNNING: 2, Status.INTERRUPTED: 1, Status.FAILED: 1}
    best: dict[str, Found] = {}
    for run in runs_below(roots):
        held = best.get(run.identity or "")
        if run.identity and (held is None or rank.get(run.status, 0) >= rank.get(held.status, 0)):
            best[run.identity] = run
    return [_row(overrides, identity, best.get(identity)) for overrides, identity in jobs]


def _row(overrides: Sequence[str], identity: str, run: Found | None) -> dict[str, Any]:
    metrics = run.metrics if run else {}
    measured = [r for r in metrics.get("evaluation", []) if r["kernel"] == "trained"]
    shown = [r for r in measured if r["metric"] in ("accuracy", "mse")]
    best: dict[str, Any] = max(shown, key=lambda r: (r["metric"] == "accuracy", r["n_interpolation"]), default={})
    status = run.status if run else "missing"
    if run and status == Status.RUNNING and not is_held(run.directory):
        status = "killed"  # nobody writes to it any more, and it could not say so itself
    return {
        "overrides": " ".join(overrides),
        "identity": identity,
        "status": status,
        "reason": metrics.get("reason", ""),
        "rho_initial": metrics.get("rho", {}).get("initial", ""),
        "rho_final": metrics.get("rho", {}).get("final", ""),
        "metric": best.get("metric", ""),
        "value": best.get("mean", ""),
        "directory": os.path.relpath(run.directory) if run else "",
    }


def jobs_in(folder: Path) -> list[tuple[list[str], str]]:
    """(overrides, identity) of each run in a sweep's folder, for a sweeper that drew them while it ran."""
    found = [run for run in runs_below([folder], depth=1) if run.identity]
    return [(list(OmegaConf.load(run.directory / "overrides.yaml")), str(run.identity)) for run in found]


def loss(directory: Path) -> float | None:
    """What a sweeper may minimise: the trained kernel's error rate, or its MSE; None where a run has neither."""
    row = _row([], "", Found(directory, _metrics(directory)))
    if not isinstance(row["value"], float):
        return None
    return 1 - row["value"] if row["metric"] == "accuracy" else row["value"]


def write(path: Path, content: Sequence[dict[str, Any]]) -> None:
    """`sweep.csv`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(content)
    os.replace(partial, path)


def table(content: Sequence[dict[str, Any]]) -> Any:
    """A table for the screen: what each job came to, and why the failed ones failed."""
    from rich.table import Table

    done = sum(row["status"] == Status.COMPLETED for row in content)
    shown = Table(title=f"{done} of {len(content)} jobs completed")
    for name in ("overrides", "status", "metric"):
        shown.add_column(name)
    shown.add_column("value", justify="right")
    shown.add_column("directory, or why not", overflow="fold")
    shared = set.intersection(*({*row["overrides"].split()} for row in content)) if len(content) > 1 else set()
    for row in content:
        own = " ".join(word for word in row["overrides"].split() if word not in shared)
        value = f"{row['value']:.4f}" if isinstance(row["value"], float) else ""
        last = row["directory"] if row["status"] == Status.COMPLETED else (row["reason"] or row["directory"])
        shown.add_row(own, row["status"], row["metric"], value, last)
    return shown
