"""An HTML page of a run, or of the runs of a sweep: numbers, pictures, tables, and the commands that repeat it."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from kfx import plots
from kfx.experiment.config import typed as typed_config
from kfx.files import Document, TableRow
from kfx.numerics.formatting import in_bytes, number, spread
from kfx.outcomes import ConfigError, KfxError, Status
from kfx.plots.style import rasterize
from kfx.record.reading import Run, load_run, read_environment, typed_words
from kfx.record.search import runs_below
from kfx.report.html import render
from kfx.report.naming import described
from kfx.report.results import Results, as_typed, command_of, main_row, results
from kfx.report.table import Table

_TABLES = (
    *("trace.csv", "evaluation.csv", "held_out.csv", "flow.csv", "follow.csv", "starts.csv", "history.csv"),
    *("kernel_check.csv", "sweep.csv"),
)
_MOST_BYTES = 1_000_000
"""Largest size of a run's tables in its page; for tables that do not fit the page gives the path."""
_MOST_PARAMETERS = 24


@dataclass(frozen=True)
class Picture:
    """svg: the drawing. says: its explanation."""

    name: str
    says: str
    svg: str


@dataclass(frozen=True)
class Download:
    """uri: the file's content; empty if it is too large, then `note` gives its path."""

    name: str
    size: str
    uri: str
    note: str = ""


@dataclass(frozen=True)
class View:
    """What the template shows of a run."""

    name: str
    directory: str
    status: str
    reason: str
    summary: str
    command: str
    again: str
    published: Table | None
    parameters: Table | None
    evaluation: Table | None
    held_out: Table | None
    machine: Table
    pictures: Sequence[Picture]
    downloads: Sequence[Download]
    config: str
    typed: Sequence[str]
    metrics: Document
    own: Sequence[str] = field(default_factory=tuple)


def page(paths: Sequence[Path], left_out: list[str] | None = None) -> str:
    """The page of a run, or of every run at and below the paths; ConfigError if there is none.

    left_out: takes a message for each damaged run where there are others; without it, or them, its error is raised.
    """
    found = [run.directory for path in paths for run in runs_below([path])]
    directories = dict.fromkeys(found)
    runs: list[View] = []
    damaged: dict[Path, KfxError] = {}
    for directory in directories:
        try:
            runs.append(view(directory))
        except KfxError as error:
            damaged[directory] = error
    if damaged and (left_out is None or not runs):
        raise next(iter(damaged.values()))
    if not runs:
        raise ConfigError(f"kfx report {' '.join(map(str, paths))}: holds no run")
    if left_out is not None:
        lines = {path: str(error) for path, error in damaged.items()}
        left_out += [line if str(path) in line else f"{path}: {line}" for path, line in lines.items()]
    runs = _told_apart(runs)
    if len(directories) == 1:
        return render("run.html", title=runs[0].name, run=runs[0])
    return render("sweep.html", title=_shared_name(runs), runs=runs, table=_overview(runs))


def view(directory: Path) -> View:
    """Prepare a run for the template."""
    run = load_run(directory)
    metrics, typed = run.metrics, typed_words(directory)
    here = read_environment(directory)
    is_printed = "published" in run.config and metrics["status"] == Status.COMPLETED
    found = results(typed_config(run.config) if is_printed else None, metrics, directory)
    return View(
        name=_name(run, typed),
        directory=str(directory),
        status=str(metrics["status"]),
        reason=str(metrics.get("reason", "")),
        summary=_summary(run, here),
        command=command_of(metrics, typed),
        again=as_typed(["kfx", "rerun", str(directory)]),
        published=_published(found),
        parameters=_parameters(found),
        evaluation=_evaluation(found),
        held_out=_held_out(metrics.get("held_out")),
        machine=_machine(here),
        pictures=_pictures(directory),
        downloads=_downloads([directory / name for name in _TABLES if (directory / name).is_file()]),
        config=OmegaConf.to_yaml(run.config),
        typed=typed,
        metrics=metrics,
    )


def _name(run: Run, typed: Sequence[str]) -> str:
    experiment = next((word.split("=", 1)[1] for word in typed if word.startswith("+experiment=")), None)
    return experiment or " · ".join(run.config[group].name for group in ("dataset", "kernel", "optimizer"))


def _summary(run: Run, here: Document) -> str:
    config, timing = run.config, run.metrics.get("timing", {})
    chosen = [f"{group} {config[group].name}" for group in ("dataset", "kernel", "objective", "optimizer")]
    parts = [run.metrics["status"], *chosen, f"seed {config.seed}", f"{len(run.trace)} iterations"]
    if "fit_seconds" in timing:
        parts.append(f"fit {timing['fit_seconds']:.1f} s")
    if here.get("kfx"):
        parts.append(f"kfx {here['kfx']}")
    return " · ".join(map(str, parts))


def _published(found: Results) -> Table | None:
    rows = [
        [
            printed.source,
            described(printed, printed.metric),
            "a curve" if printed.value is None else f"{printed.value:g}",
            "not measured" if measured is None else f"{measured:.4g}",
        ]
        for printed, measured in found.published
    ]
    return Table(["source", "what", "published#", "measured#"], rows) if rows else None


def _parameters(found: Results) -> Table | None:
    if not found.parameters:
        return None
    rows = [
        [each.name, *("" if mean is None else number(mean) for mean in each.means)]
        for each in found.parameters[:_MOST_PARAMETERS]
    ]
    more = len(found.parameters) - _MOST_PARAMETERS
    if more > 0:
        rows.append([f"and {more} more", "", ""])
    return Table(["parameter", "before#", "after#"], rows)


def _evaluation(found: Results) -> Table | None:
    by: dict[tuple[str, int], dict[str, TableRow]] = {}
    for (metric, size, _), rows in found.evaluation.items():
        by.setdefault((metric, size), {}).update(rows)
    kernels = list(dict.fromkeys(kernel for rows in found.evaluation.values() for kernel in rows))
    cells = [
        [metric, "" if size is None else str(size), *(_spread(rows.get(kernel)) for kernel in kernels)]
        for (metric, size), rows in by.items()
    ]
    return Table(["metric", "N_I#", *(f"{kernel}#" for kernel in kernels)], cells) if cells else None


def _spread(row: TableRow | None) -> str:
    return "" if row is None or row.get("mean") is None else spread(row["mean"], row.get("sd"))


def _held_out(measured: Document | None) -> Table | None:
    if measured is None:
        return None
    rows = [
        [name, *(_spread(measured[name][when]) for when in ("initial", "trained", "change"))]
        for name in ("rho", "objective")
        if name in measured
    ]
    return Table([f"on {measured['batches']} held-out batches", "before#", "after#", "change#"], rows)


def _machine(here: Document) -> Table:
    keys = ("host", "platform", "processor", "cores", "device", "threads_of_fit", "python", "git_commit")
    rows = [[key.replace("_", " "), str(here[key])] for key in keys if here.get(key) not in (None, "")]
    rows += [[package, str(version)] for package, version in here.get("packages", {}).items()]
    rows += [[f"SHA-256 of {name}", str(value)] for name, value in here.get("data_sha256", {}).items()]
    return Table(["", ""], rows)


def _pictures(directory: Path) -> list[Picture]:
    found = plots.figures(directory)
    return [Picture(name, plots.FIGURES[name].says, svg(figure, name)) for name, figure in found.items()]


def svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element of a page, with unique identifiers that are the same at every call."""
    stream = io.StringIO()
    rasterize(figure)
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = _NAMED.sub(lambda found: f"{found[1]}{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{name.replace("_", " ")}" ', 1)


_NAMED = re.compile(r'(\bid="|\bhref="#|url\(#)')
"""Text that precedes an identifier or a reference to one."""


def _downloads(paths: Sequence[Path]) -> list[Download]:
    """The tables in the page, small ones first, as long as there is room."""
    found, room = [], _MOST_BYTES
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        size = path.stat().st_size
        room -= size
        if room < 0:
            found.append(Download(path.name, in_bytes(size), "", f"too large for a page: {path}"))
        else:
            data = base64.b64encode(path.read_bytes()).decode()
            found.append(Download(path.name, in_bytes(size), f"data:text/csv;base64,{data}"))
    return found


def _told_apart(runs: Sequence[View]) -> list[View]:
    """The runs with the words that not all of them share."""
    shared = set.intersection(*({*run.typed} for run in runs))
    return [replace(run, own=[w for w in run.typed if w not in shared and not w.startswith("hydra.")]) for run in runs]


def _shared_name(runs: Sequence[View]) -> str:
    names = list(dict.fromkeys(run.name for run in runs))
    return f"{names[0]}: {len(runs)} runs" if len(names) == 1 else f"{len(runs)} runs"


def _overview(runs: Sequence[View]) -> Table:
    rows = []
    for run in runs:
        best, rho = main_row(run.metrics), run.metrics.get("held_out", {}).get("rho", {})
        rows.append(
            [
                " ".join(run.own) or run.name,
                run.status,
                best["metric"] if best else "",
                _spread(best),
                _spread(rho.get("initial")),
                _spread(rho.get("trained")),
                f"{run.metrics.get('timing', {}).get('fit_seconds', math.nan):.1f}",
            ]
        )
    heads = ["run", "status", "metric", "value#", "ρ before#", "ρ after#", "seconds#"]
    return Table(heads, rows)
