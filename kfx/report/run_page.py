"""An HTML page of a run, or of the runs of a sweep: numbers, pictures, tables, and the commands that repeat it."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from kfx import plots
from kfx.config.published import Published
from kfx.experiment.config import typed as typed_config
from kfx.files import Document
from kfx.kernels.names import readable
from kfx.numerics.formatting import in_bytes, number
from kfx.outcomes import ConfigError, Status
from kfx.plots.style import rasterize
from kfx.record.findings import Findings, difference_of, held_out, mean_of, reading_of_rho
from kfx.record.fitted import lengths_of_features
from kfx.record.reading import Run, read_environment, typed_words
from kfx.record.search import each_of, runs_below
from kfx.record.verdict import explained_before_and_after, points_tested, verdict
from kfx.report import baselines
from kfx.report.baselines import Baselines
from kfx.report.compared import of_sweep
from kfx.report.html import render
from kfx.report.measured import printed_beside
from kfx.report.naming import described
from kfx.report.table import Table
from kfx.report.typed import as_typed, command_of, own_words

_TABLES = (
    *("trace.csv", "evaluation.csv", "held_out.csv", "flow.csv", "follow.csv", "starts.csv", "history.csv"),
    *("kernel_check.csv", "sweep.csv"),
)
_MOST_BYTES = 1_000_000
"""Largest size of a run's tables in its page; for tables that do not fit the page gives the path."""
_MOST_PARAMETERS, _MOST_LENGTHS = 24, 40


@dataclass(frozen=True)
class View:
    """What the template shows of a run.

    metrics: its `metrics.json`. verdict: what training did, in one sentence. beside: its errors beside those of simple
    predictors, on the page of one run. pictures: captions and drawings in SVG. downloads: path, size and content of a
    table each, as a URI; no content where it is too large. typed: its overrides; own: those that not all runs share.
    """

    directory: Path
    name: str
    metrics: Document
    summary: str
    verdict: str
    beside: Table | None
    command: str
    again: str
    published: Table | None
    measured: Sequence[Table]
    machine: Table
    pictures: Sequence[tuple[str, str]]
    downloads: Sequence[tuple[Path, str, str]]
    config: str
    typed: Sequence[str]
    own: Sequence[str] = ()


def page(paths: Sequence[Path], left_out: list[str] | None = None) -> str:
    """The page of a run, or of every run at and below the paths; ConfigError if there is none.

    left_out: takes a message for each damaged run where there are others; without it, or them, its error is raised.
    """
    directories = dict.fromkeys(run.directory for path in paths for run in runs_below([path]))
    runs, errors = each_of(directories, view if len(directories) > 1 else view_beside_baselines)
    if errors and (left_out is None or not runs):
        raise errors[0]
    if not runs:
        raise ConfigError(f"kfx report {' '.join(map(str, paths))}: holds no run")
    if left_out is not None:
        left_out += map(str, errors)
    if len(directories) == 1:
        return render("run.html", title=runs[0].name, run=runs[0])
    own = own_words([run.typed for run in runs])
    runs = [replace(run, own=words) for run, words in zip(runs, own, strict=True)]
    names = {run.name for run in runs}
    title = f"{runs[0].name}: {len(runs)} runs" if len(names) == 1 else f"{len(runs)} runs"
    compared = of_sweep([run.directory for run in runs], own)
    return render("sweep.html", title=title, runs=runs, table=_overview(runs), compared=compared)


def view_beside_baselines(run: Run) -> View:
    """Prepare a run for the template, with simple predictors fitted to its data."""
    return view(run, baselines.of_run(run))


def view(run: Run, simple: Baselines | None = None) -> View:
    """Prepare a run for the template. simple: predictors to show beside its own."""
    directory, metrics, typed = run.directory, run.metrics, typed_words(run.directory)
    here, found = read_environment(directory), Findings.of(metrics)
    is_printed = "published" in run.config and metrics["status"] == Status.COMPLETED
    sizes = _sizes(run, None if simple is None else simple.features)
    return View(
        directory=directory,
        name=_name(run, typed),
        metrics=metrics,
        summary=_summary(run, here),
        verdict=verdict(run) if simple is None else verdict(run, list(simple.values.items()), simple.points),
        beside=None if simple is None else _beside(run, found, simple),
        command=command_of(metrics, typed),
        again=as_typed(["kfx", "rerun", str(directory)]),
        published=_published(printed_beside(typed_config(run.config), metrics, directory)) if is_printed else None,
        measured=[table for table in (sizes, *_measured(run, found)) if table.rows],
        machine=_machine(here),
        pictures=_pictures(directory),
        downloads=_downloads([directory / name for name in _TABLES if (directory / name).is_file()]),
        config=OmegaConf.to_yaml(run.config),
        typed=typed,
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


def _published(found: Sequence[tuple[Published, float | None]]) -> Table | None:
    rows = [
        [
            printed.source,
            described(printed, printed.metric),
            "a curve" if printed.value is None else f"{printed.value:g}",
            "not measured" if measured is None else f"{measured:.4g}",
        ]
        for printed, measured in found
    ]
    return Table(["source", "what", "published#", "measured#"], rows) if rows else None


def _sizes(run: Run, features: int | None) -> Table:
    """Numbers of points, of features and N_I, as far as they are known."""
    features = features or len(run.metrics.get("features", []))
    sizes = run.evaluation["n_interpolation"].drop_duplicates()
    of_first = " of the first fold" if run.config.evaluation.name == "k_fold" else ""
    rows = [
        (f"training points{of_first}", str(run.metrics.get("n_train", ""))),
        ("test points", str(points_tested(run) or "")),
        ("features", str(features or "")),
        ("points N_I that predictions use", ", ".join(map(str, sizes))),
    ]
    return Table(["size", "number#"], [row for row in rows if row[1]])


def _beside(run: Run, found: Findings, simple: Baselines) -> Table | None:
    """The kernels before and after training beside predictors that know no kernel."""
    if (pair := found.pair(found.at())) is None:
        return None
    explained = explained_before_and_after(run)
    rows = [[n, number(value), simple.points, number(simple.explained.get(n))] for n, value in simple.values.items()]
    for i, name in enumerate(("the untrained kernel", "the trained kernel")):
        used = str(pair[i]["n_interpolation"])
        rows.append([name, mean_of(pair[i]), used, "" if explained is None else mean_of(explained[i])])
    columns = 4 if explained is not None else 3
    heads = ["predictor", f"test {found.metric}#", "from training points#", "R²#"][:columns]
    remarks = [f"Not computed: {simple.missing}"] if simple.missing else []
    return Table(heads, [row[:columns] for row in rows], remarks=remarks)


def _measured(run: Run, found: Findings) -> tuple[Table, ...]:
    return _evaluation(run, found), _held_out(run), _parameters(run, found), _lengths(run)


def _lengths(run: Run) -> Table:
    """The length of each feature, that of the most relevant first; of several folds the geometric mean."""
    heads = ["feature", "length before#", "length after#"]
    if (known := lengths_of_features(run.directory, run.metrics)) is None:
        return Table(heads, [])
    names, *both = known
    before, after = (np.exp(np.log(lengths).mean(axis=0)) for lengths in both)
    order = np.argsort(after)
    rows = [[names[i], f"{before[i]:.4g}", f"{after[i]:.4g}"] for i in order[:_MOST_LENGTHS]]
    more = len(names) - _MOST_LENGTHS
    return Table(heads, rows, remarks=[f"and {more} features with longer lengths"] if more > 0 else [])


def _parameters(run: Run, found: Findings) -> Table:
    others = [each for each in found.parameters if not each.is_of_features]
    shown = others[:_MOST_PARAMETERS]
    rows = [[readable(each.name, run.config.kernel), *each.texts(run.unit)] for each in shown]
    if (more := len(others) - _MOST_PARAMETERS) > 0:
        rows.append([f"and {more} more", "", ""])
    return Table(["parameter", "before#", "after#"], rows)


def _evaluation(run: Run, found: Findings) -> Table:
    """The kernels beside each other, by metric and N_I, and by λ where there are several. The R² of a series is that of
    its forecasts, not of the windows whose mse stands there."""
    several = len({place.regularization for place in found.evaluation}) > 1
    of = {"r2": "r2 of forecasts"} if (run.directory / "forecasts.csv").is_file() else {}
    rows = [
        [
            of.get(at.metric, _metric(at.metric, found)),
            str(at.n_interpolation),
            *(["" if at.regularization is None else f"{at.regularization:g}"] if several else []),
            *(mean_of(rows.get(kernel)) for kernel in found.kernels),
        ]
        for at, rows in found.evaluation.items()
    ]
    return Table(["metric", "N_I#", *(["λ#"] if several else []), *(f"{kernel}#" for kernel in found.kernels)], rows)


def _metric(name: str, found: Findings) -> str:
    """A metric's name, of a target with the target's: `mse of alcohol` for `mse.0`."""
    metric, _, target = name.partition(".")
    return f"{metric} of {found.target(target)}" if metric in ("mse", "rmse", "r2") and target else name


def _held_out(run: Run) -> Table:
    found = held_out(run.metrics, run.config.objective.name)
    rows = [
        [name, *map(mean_of, (own["initial"], own["trained"])), difference_of(own["change"], own["initial"])]
        for name, own in found.items()
    ]
    batches = run.metrics["held_out"]["batches"] if rows else 0
    remarks = [f"rho of {reading}"] if (reading := reading_of_rho(run.metrics)) else []
    return Table([f"on {batches} held-out batches", "before#", "after#", "change#"], rows, remarks=remarks)


def _machine(here: Document) -> Table:
    keys = ("host", "platform", "processor", "cores", "device", "threads_of_fit", "python", "git_commit")
    rows = [[key.replace("_", " "), str(here[key])] for key in keys if here.get(key) not in (None, "")]
    rows += [[package, str(version)] for package, version in here.get("packages", {}).items()]
    rows += [[f"SHA-256 of {name}", str(value)] for name, value in here.get("data_sha256", {}).items()]
    return Table(["", ""], rows)


def _pictures(directory: Path) -> list[tuple[str, str]]:
    return [(plots.caption(name), svg(figure, name)) for name, figure in plots.figures(directory).items()]


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


def _downloads(paths: Sequence[Path]) -> list[tuple[Path, str, str]]:
    """The tables in the page, small ones first, as long as there is room."""
    found, room = [], _MOST_BYTES
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        room -= (size := path.stat().st_size)
        data = "" if room < 0 else f"data:text/csv;base64,{base64.b64encode(path.read_bytes()).decode()}"
        found.append((path, in_bytes(size), data))
    return found


def _overview(runs: Sequence[View]) -> Table:
    rows = []
    for run in runs:
        best, rho = Findings.of(run.metrics).row(), run.metrics.get("held_out", {}).get("rho", {})
        rows.append(
            [
                " ".join(run.own) or run.name,
                run.metrics["status"],
                best["metric"] if best else "",
                mean_of(best),
                *(mean_of(rho.get(kernel)) for kernel in ("initial", "trained")),
                f"{run.metrics.get('timing', {}).get('fit_seconds', math.nan):.1f}",
            ]
        )
    return Table(["run", "status", "metric", "value#", "ρ before#", "ρ after#", "seconds#"], rows)
