"""What a run found, worked out once: the closing lines and the run's page write it down."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kfx.config.metrics import main_metric
from kfx.config.published import Published
from kfx.experiment.config import Config
from kfx.files import Document, TableRow
from kfx.outcomes import Status
from kfx.record.reading import typed_words
from kfx.report.measured import applicable, measured_as


@dataclass(frozen=True)
class ParameterChange:
    """A parameter before and after: an array for each fold, of shape () for one number. before: empty where the fit
    brought the parameter in."""

    name: str
    before: Sequence[np.ndarray]
    after: Sequence[np.ndarray]

    @property
    def is_moved(self) -> bool:
        pairs = zip(self.before, self.after, strict=True) if self.before else []
        return not self.before or any(not np.array_equal(a, b) for a, b in pairs)

    @property
    def means(self) -> tuple[float | None, float]:
        """Before and after, over folds and the values of an array."""
        before, after = ([each.mean() for each in arrays] for arrays in (self.before, self.after))
        return float(np.mean(before)) if before else None, float(np.mean(after))


@dataclass(frozen=True)
class Results:
    """The numbers of a run.

    parameters: before and after the fit. evaluation: by metric, N_I and configured λ, the row of each kernel.
    published: what a paper printed for it, and what the run measured for that.
    """

    parameters: Sequence[ParameterChange]
    evaluation: dict[tuple[str, int, float | str | None], dict[str, TableRow]]
    published: Sequence[tuple[Published, float | None]]


def main_row(metrics: Document) -> TableRow | None:
    """The row of a run's main metric: the trained kernel's accuracy, or mse, at the largest N_I; None if it has none.
    metrics: its `metrics.json`."""
    rows = [row for row in metrics.get("evaluation", []) if row["kernel"] == "trained"]
    main = main_metric({row["metric"] for row in rows})
    return max((row for row in rows if row["metric"] == main), key=lambda row: row["n_interpolation"], default=None)


def as_typed(words: Sequence[str]) -> str:
    """A command line that a shell splits into these words, quoted where needed: '…', and "…" around '."""
    return " ".join(
        f'"{word}"' if "'" in word and not set(word) & set('"$`!\\\n') else shlex.quote(word) for word in words
    )


def command_of(metrics: Document, typed: Sequence[str]) -> str:
    """The command that made a run, but for its place. metrics: its `metrics.json`. typed: its overrides."""
    plugins = [word for plugin in metrics.get("plugins", []) for word in ("--plugin", plugin["path"])]
    return as_typed(["kfx", "run", *plugins, *(word for word in typed if not word.startswith("hydra."))])


def results(config: Config | None, metrics: Document, directory: Path) -> Results:
    """The numbers of a run. config: with what papers printed; None where that does not matter. metrics: its
    `metrics.json`."""
    evaluation: dict[tuple[str, int, float | str | None], dict[str, TableRow]] = {}
    for row in metrics.get("evaluation", []):
        place = row["metric"], row["n_interpolation"], row.get("configured_regularization")
        evaluation.setdefault(place, {})[row["kernel"]] = row
    return Results(_parameters(metrics.get("parameters", {})), evaluation, _published(config, metrics, directory))


def _parameters(parameters: Document) -> list[ParameterChange]:
    if "final" not in parameters:
        return []
    finals = parameters.get("folds") or [parameters["final"]]
    starts = parameters.get("initial_folds") or [parameters["initial"]] * len(finals)
    return [
        ParameterChange(
            name, *([np.asarray(each[name], float) for each in of if name in each] for of in (starts, finals))
        )
        for name in finals[0]
    ]


def _published(config: Config | None, metrics: Document, directory: Path) -> list[tuple[Published, float | None]]:
    """Without a deviation over runs, which one run does not have, and a curve that was not measured."""
    if config is None or metrics.get("status") != Status.COMPLETED:
        return []
    found = [(each, measured_as(each, metrics, directory)) for each in applicable(config, typed_words(directory))]
    return [
        (printed, measured)
        for printed, measured in found
        if measured is not None or (printed.statistic == "mean" and printed.value is not None)
    ]
