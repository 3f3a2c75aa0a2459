"""`sweep.csv`: a row for each job of a sweep."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from kfx.files import Document, TableRow, write_whole
from kfx.jobs.job import Job
from kfx.numerics.formatting import number
from kfx.outcomes import Status
from kfx.record.findings import Findings
from kfx.record.origin import TAKEN
from kfx.record.reading import typed_words
from kfx.record.search import Found, earlier, metrics_in, runs_below
from kfx.report.table import Table
from kfx.report.typed import own_words

COLUMNS = (
    *("overrides", "identity", "status", "reason", "rho_initial", "rho_final", "metric", "value", "directory"),
    "rho_last_batch",
)
"""Columns of `sweep.csv`; `rho_initial` and `rho_final` are means over the same held-out batches."""


Expected = tuple[Sequence[str], str, Path]
"""Overrides, identity and folder of a job."""


def rows(jobs: Sequence[Expected], roots: Iterable[Path]) -> list[Document]:
    """A row of `sweep.csv` for each job, from the files of the best run of its identity."""
    rank: dict[str, int] = {Status.COMPLETED: 3, Status.RUNNING: 2, Status.INTERRUPTED: 1, Status.FAILED: 1}
    best: dict[str, Found] = {}
    for run in runs_below(roots):
        held = best.get(run.identity or "")
        if run.identity and (held is None or rank.get(run.status, 0) >= rank.get(held.status, 0)):
            best[run.identity] = run
    return [_row(job, best.get(job[1])) for job in jobs]


def _row(job: Expected, run: Found | None) -> Document:
    overrides, identity, folder = job
    metrics = run.metrics if run else {}
    # written by the job's own run, it would have been found
    taken = {} if run or not (folder / "metrics.json").exists() else {"reason": f"{folder}: {TAKEN}"}
    best = Findings.of(metrics).row() or {}
    return {
        "overrides": " ".join(overrides),
        "identity": identity,
        "status": run.state if run else "missing",
        "reason": (metrics or taken).get("reason", ""),
        "rho_initial": metrics.get("rho", {}).get("initial", ""),
        "rho_final": metrics.get("rho", {}).get("final", ""),
        "metric": best.get("metric", ""),
        "value": best.get("mean", ""),
        "directory": os.path.relpath(run.directory) if run else "",
        "rho_last_batch": metrics.get("rho_batch", {}).get("last", ""),
    }


def expected(jobs: Iterable[Job]) -> list[Expected]:
    """What the rows of these jobs are looked up by."""
    return [(job.plan.words, job.plan.identity, job.directory) for job in jobs]


def jobs_in(folder: Path) -> list[Expected]:
    """Each run in a sweep's folder, for a sweeper that drew its jobs while it ran."""
    found = [run for run in runs_below([folder], depth=1) if run.identity]
    return [(typed_words(run.directory), str(run.identity), run.directory) for run in found]


def loss(job: Job) -> float | None:
    """The value that a sweeper minimises: the trained kernel's error rate, or its MSE; None if the job has no run, or
    this has neither. With `resume=true` the run may be an earlier one elsewhere."""
    found = earlier(job.plan.identity, job.roots) if job.plan.config.resume else None
    found = found or Found(job.directory, metrics_in(job.directory))
    if found.identity != job.plan.identity:
        return None
    row = _row(([], "", found.directory), found)
    if not isinstance(row["value"], float):
        return None
    return 1 - row["value"] if row["metric"] == "accuracy" else row["value"]


def write(path: Path, content: Sequence[TableRow]) -> None:
    """Write `sweep.csv`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(content)
    write_whole(path, text.getvalue())


def table(content: Sequence[TableRow]) -> Table:
    """The result of each job, and the reason of each failure."""
    done = sum(row["status"] == Status.COMPLETED for row in content)
    own = own_words([row["overrides"].split() for row in content])
    rows = [
        [
            " ".join(words),
            row["status"],
            row["metric"],
            number(row["value"]) if isinstance(row["value"], float) else "",
            row["directory"] if row["status"] == Status.COMPLETED else (row["reason"] or row["directory"]),
        ]
        for row, words in zip(content, own, strict=True)
    ]
    heads = ["overrides", "status", "metric", "value#", "directory, or why not"]
    return Table(heads, rows, f"{done} of {len(content)} jobs completed")
