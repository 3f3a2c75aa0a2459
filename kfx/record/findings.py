"""What a run found, worked out once from its `metrics.json`: the closing lines, pages, lists, comparisons and exports
show this."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kfx.config.metrics import main_metric
from kfx.files import Document, TableRow
from kfx.kernels.names import OF_FEATURES
from kfx.numerics.formatting import spread


class Place(NamedTuple):
    """Where an evaluation was made. regularization: the configured λ."""

    metric: str
    n_interpolation: int
    regularization: float | None


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
    def is_of_features(self) -> bool:
        """Whether it is a length for each feature, or its factor."""
        return self.name in OF_FEATURES and self.after[0].ndim > 0

    def texts(self, unit: str) -> tuple[str, str]:
        """The means before and after, over the values of an array, and over folds with their deviation; before: empty
        where there is none. unit: what has a fit of its own, `fold` or `kernel`."""
        before, after = ([each.mean() for each in arrays] for arrays in (self.before, self.after))
        folds, size = len(after), self.after[0].size
        over = f" ± {np.std(after, ddof=1):.2g} ({folds} {unit}s)" if folds > 1 else ""
        of = f" (mean of {size})" if size > 1 else ""
        return f"{np.mean(before):.4g}" if before else "", f"{np.mean(after):.4g}{over}{of}"


@dataclass(frozen=True)
class Findings:
    """The numbers of a run.

    evaluation: the row of each kernel (initial, trained, random-0, …), by place. changes: trained minus initial.
    targets: the names of several targets, where they have some.
    """

    parameters: Sequence[ParameterChange]
    evaluation: dict[Place, dict[str, TableRow]]
    changes: dict[Place, TableRow]
    targets: Sequence[str] = ()

    @classmethod
    def of(cls, metrics: Document) -> Findings:
        """Those in a `metrics.json`."""
        evaluation: dict[Place, dict[str, TableRow]] = {}
        for row in metrics.get("evaluation", []):
            evaluation.setdefault(_place(row), {})[row["kernel"]] = row
        changes = {_place(row): row for row in metrics.get("evaluation_change", [])}
        return cls(_parameters(metrics.get("parameters", {})), evaluation, changes, metrics.get("targets", ()))

    def target(self, number: str) -> str:
        """The name of a target, as `y0`, given its number."""
        return self.targets[int(number)] if self.targets else f"target {number}"

    @property
    def metric(self) -> str:
        """The metric that leads: the accuracy of classes, else the mse."""
        return main_metric({place.metric for place in self.evaluation})

    @property
    def kernels(self) -> list[str]:
        return list(dict.fromkeys(kernel for rows in self.evaluation.values() for kernel in rows))

    def places(self, metric: str | None = None, kernel: str = "trained") -> list[Place]:
        """Where a kernel was evaluated, by one metric or by all."""
        return [at for at, rows in self.evaluation.items() if kernel in rows and metric in (None, at.metric)]

    def at(self, metric: str | None = None, kernel: str = "trained", size: int | None = None) -> Place | None:
        """A kernel's place with the first λ, by default of the leading metric and at the largest N_I that it has; None
        if it has none."""
        own = [at for at in self.places(metric or self.metric, kernel) if size in (None, at.n_interpolation)]
        return max(own, key=lambda at: at.n_interpolation, default=None)

    def row(self, metric: str | None = None, kernel: str = "trained", size: int | None = None) -> TableRow | None:
        """A kernel's row at such a place."""
        at = self.at(metric, kernel, size)
        return None if at is None else self.evaluation[at][kernel]

    def pair(self, at: Place | None) -> tuple[TableRow, TableRow] | None:
        """The rows of the initial and the trained kernel; None unless both are there."""
        rows = {} if at is None else self.evaluation.get(at, {})
        return (rows["initial"], rows["trained"]) if {"initial", "trained"} <= rows.keys() else None


def _place(row: TableRow) -> Place:
    return Place(row["metric"], row["n_interpolation"], row.get("configured_regularization"))


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


def held_out(metrics: Document, objective: str) -> dict[str, TableRow]:
    """The objective, by its name, then ρ: each before, after and its change, as `initial`, `trained` and `change`, over
    the same batches. Empty if none were kept."""
    found = metrics.get("held_out")
    return {} if found is None else {objective: found["objective"], "rho": found["rho"]}


def reading_of_rho(metrics: Document) -> str:
    """ρ of draws of the kernel's own Gaussian process, and where the measured ρ lie, as people read it; empty where the
    record has no such law."""
    if (law := metrics.get("rho_law")) is None:
        return ""
    words, far = ("as", "rougher or noisier than", "smoother than"), law["deviations"]
    places = [f"{words[(z > 2) - (z < -2)]} its draws" for z in (far["initial"], far["trained"])]
    return f"a draw of this kernel: {spread(law['mean'], law['sd'])}: {' → '.join(dict.fromkeys(places))}"


def mean_of(row: TableRow | None) -> str:
    """A row's mean with its deviation, as people read it; empty where there is no row."""
    return "" if row is None else spread(row["mean"], row.get("sd"))


def difference_of(row: TableRow | None, before: TableRow) -> str:
    """A mean difference to the row `before`, as +0.010 ± 0.005; empty where there is none."""
    mean = math.nan if row is None or row["mean"] is None else row["mean"]
    if row is None or math.isnan(mean):
        return ""
    return f"{'+' if mean >= 0 else '−'}{spread(abs(mean), row.get('sd'), before['mean'])}"
