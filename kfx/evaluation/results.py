"""What an evaluation finds: a result for each kernel, N_I and λ, and statistics over repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kfx.data.dataset import Dataset
from kfx.files import Document, TableRow
from kfx.numerics.means import column_means
from kfx.numerics.round_off import is_constant

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Result:
    """One kernel, judged with so many interpolation points and one configured λ.

    used: the λ that was solved with, the kernel's own if it has one. metrics: NaN for what could not be measured.
    arrays: `mean`, (m, outputs), in the units of the targets; where they are asked for `variance`, (m,), `deviation`,
    (m, outputs), with reduced outputs `components`, `probability`, (m, classes), `forecast`, (origins, steps,
    coordinates), and `coefficients`, (k, outputs). problems: why something could not be measured.
    """

    n_interpolation: int
    configured: float
    used: float
    metrics: dict[str, float]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def rows(self, kernel: str, repeat: int) -> list[Document]:
        """Its rows of `evaluation.csv`."""
        place: Document = {"kernel": kernel, "n_interpolation": self.n_interpolation, "repeat": repeat}
        place["regularization"], own = self.used, {"configured_regularization": self.configured}
        return [{**place, "metric": name, "value": value, **own} for name, value in self.metrics.items()]

    def named(self, kernel: str, repeat: int) -> dict[str, np.ndarray]:
        """Its arrays by their names in `predictions.npz`."""
        place = place_of(kernel, self.n_interpolation, repeat, self.configured)
        return {f"{place}/{name}": array for name, array in self.arrays.items()}


def place_of(kernel: str, n_interpolation: int, repeat: int, configured: float) -> str:
    """What the names of a result's arrays in `predictions.npz` begin with. configured: λ."""
    return f"{kernel}/{n_interpolation}/{repeat}/{configured!r}"


def of_place(arrays: Mapping[str, np.ndarray], place: str) -> dict[str, np.ndarray]:
    """A result's arrays by their own names, out of those of `predictions.npz`. place: of `place_of`."""
    return {key.removeprefix(f"{place}/"): arrays[key] for key in arrays if key.startswith(f"{place}/")}


def derived(rows: Sequence[TableRow], parts: Mapping[int, Dataset]) -> list[TableRow]:
    """Rows of what follows from each `mse` of values: `rmse`, and `r2`, the share of the test targets' variance about
    their means that is predicted; NaN where they do not vary. Of each target too: `rmse.0` from `mse.0`.

    parts: the data set of each repeat. Classes have neither, and the `r2` of a series is that of its forecasts.
    """
    found: list[TableRow] = []
    variances: dict[tuple[int, str], float] = {}
    for row in rows:
        data, (metric, dot, target) = parts[row["repeat"]], row["metric"].partition(".")
        if metric != "mse" or data.labels_test is not None:
            continue
        found.append({**row, "metric": f"rmse{dot}{target}", "value": math.sqrt(row["value"])})
        if data.series is None:
            if (row["repeat"], target) not in variances:
                y = data.y_test[:, [int(target)]] if target else data.y_test
                variance = data.mean_over_test(np.square(y - column_means(y, data.weights_test)))
                variances[row["repeat"], target] = math.nan if is_constant(y).all() else variance
            share = 1 - row["value"] / variances[row["repeat"], target]
            found.append({**row, "metric": f"r2{dot}{target}", "value": share})
    return found


COMPARED = ("initial", "trained")
"""Kernels whose predictions are kept."""
_PLACE = ["n_interpolation", "configured_regularization", "metric"]


def summary(rows: Sequence[TableRow], whole: int | None = None) -> list[Document]:
    """Mean and standard deviation over repeats, for `metrics.json`.

    whole: the number of interpolation points to show when each fold takes all of its points, whose number may differ by
        one.
    """
    found = []
    groups: Any = _table(rows, whole).groupby(["kernel", *_PLACE], sort=False)
    for (kernel, size, configured, metric), group in groups:
        used = set(group["regularization"])
        found.append(
            {
                "kernel": kernel,
                "n_interpolation": int(size),
                "regularization": float(used.pop()) if len(used) == 1 else None,
                "metric": metric,
                "configured_regularization": float(configured),
                **_spread(group["value"].to_numpy(dtype=float)),
            }
        )
    return found


def changes(rows: Sequence[TableRow], whole: int | None = None) -> list[Document]:
    """Mean and standard deviation over repeats of the trained kernel's metric minus the initial kernel's, on the same
    points.

    whole: as for `summary`.
    """
    table = _table(rows, whole)
    keys = [*_PLACE, "repeat"]
    initial, trained = (table[table["kernel"] == name][[*keys, "value"]] for name in ("initial", "trained"))
    both = trained.merge(initial, on=keys, suffixes=("", "_initial"))
    both["change"] = both["value"] - both["value_initial"]
    groups: Any = both.groupby(_PLACE, sort=False)
    return [
        {
            "n_interpolation": int(size),
            "configured_regularization": float(configured),
            "metric": metric,
            **_spread(group["change"].to_numpy(dtype=float)),
        }
        for (size, configured, metric), group in groups
    ]


def _table(rows: Sequence[TableRow], whole: int | None) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(list(rows))
    return table if whole is None else table.assign(n_interpolation=whole)


def _spread(values: np.ndarray) -> Document:
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "sd": sd, "repeats": len(values)}
