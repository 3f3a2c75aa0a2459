"""Errors, distances and positions of a flow on its way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kfx.data.dataset import Dataset
from kfx.evaluation.scoring import evaluate, interpolation_order
from kfx.files import Rows, read_rows, whole_file
from kfx.flows.flowed import digests
from kfx.kernels.base import Kernel
from kfx.outcomes import CheckpointError

if TYPE_CHECKING:
    import pandas as pd

    from kfx.config.registry import Config

_MOST_COORDINATES = 10
_FAR = 1e150
COLUMNS = ("part", "layer", "n_interpolation", "regularization", "repeat", "metric", "value")


class FlowFollower:
    """Writes `flow.csv` every `flow.evaluate_every` layers and in the last `flow.evaluate_last`, though at most a tenth
    of all, and `snapshots/`.

    Subsets of interpolation points are drawn once, so that errors of different layers compare.
    """

    def __init__(
        self,
        config: Config,
        directory: Path,
        parts: Sequence[Dataset],
        tensors: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        rng: np.random.Generator,
    ) -> None:
        self.node, self.directory, self.parts, self.tensors = config.flow, directory, parts, tensors
        self.layers = config.optimizer.iterations
        self.last = min(self.node.evaluate_last, max(self.layers // 10, 1))
        self.scoring = config.evaluation.scoring(config)
        self.sizes = self.node.n_interpolation or config.evaluation.n_interpolation
        balanced = parts[0].labels_train is not None
        self.orders = [[interpolation_order(p, balanced, rng) for _ in range(self.node.repeats)] for p in parts]
        shown = np.linspace(0, self.layers, self.node.snapshots + 1).round()
        self.shown = {int(layer) for layer in shown} if self.node.snapshots else set()
        self._first = [_first_of_equals(torch.cat([x, along])) for x, _, along in tensors]
        self._rows: Rows | None = None
        self._measured: tuple[int, int] | None = None

    def __call__(self, part: int, layer: int, kernel: Kernel, x: torch.Tensor, along: torch.Tensor, final: bool) -> int:
        """Measure and keep what is due before a layer; how long `flow.csv` is then."""
        every, last = self.node.evaluate_every, self.last
        wanted = (every and layer % every == 0) or layer > self.layers - last or (final and every + last > 0)
        if wanted and self._measured != (part, layer):  # a flow that stops is where it was before its last layer
            self._measure(part, layer, kernel, x, along)
            self._measured = part, layer
        if part == 0 and (layer in self.shown or (final and self.shown)):
            folder = self.directory / "snapshots"
            folder.mkdir(exist_ok=True)
            data, count = self.parts[0], self.node.snapshot_points
            labels = data.y_train[:, 0] if data.labels_train is None else data.labels_train
            train, test = (points[:count].cpu().numpy() for points in (x, along))
            with whole_file(self.directory / "targets.npy") as stream:
                np.save(stream, labels[:count])
            with whole_file(folder / f"{layer:07d}.npz") as stream:
                np.savez(stream, train=train, test=test)
        return self._rows.size if self._rows is not None else 0

    def start(self, part: int, layer: int) -> None:
        """Start the table, or go on with that of an earlier process, without what comes again."""
        if not self.node.evaluate_every + self.node.evaluate_last:
            return
        path = self.directory / "flow.csv"
        head, *rows = path.read_bytes().splitlines(keepends=True) if path.is_file() else [b""]
        try:
            kept = list(
                itertools.takewhile(
                    lambda row: row.endswith(b"\n") and tuple(map(int, row.split(b",")[:2])) < (part, layer), rows
                )
            )
        except ValueError as error:
            raise CheckpointError(f"{path}: damaged ({error}); start anew with kfx run") from error
        self._rows = Rows(path, COLUMNS, keep=len(head) + sum(map(len, kept)) if head.endswith(b"\n") else 0)

    def _measure(self, part: int, layer: int, kernel: Kernel, x: torch.Tensor, along: torch.Tensor) -> None:
        assert self._rows is not None
        data, y = self.parts[part], self.tensors[part][1]
        if (first := self._first[part]) is not None:
            x, along = torch.cat([x, along])[first].split([len(x), len(along)])
        wanted = "mse" if data.labels_test is None else "accuracy"
        rows: list[tuple[Any, ...]] = []
        for repeat, order in enumerate(self.orders[part]):
            measured, _, _ = evaluate(
                "flowed", kernel, data, (x, y, along), repeat, order, self.sizes or [len(x)], self.scoring
            )
            for row in measured:
                if row["metric"] == wanted:
                    error = ("mse", row["value"]) if wanted == "mse" else ("error", 1 - row["value"])
                    rows.append((part, layer, row["n_interpolation"], row["regularization"], repeat, *error))
        of_points = mean_squared_distances(x, data.labels_train)
        if data.labels_train is not None and len(set(data.labels_train)) == 2 and x[0].numel() <= _MOST_COORDINATES:
            of_points["linearly_separable"] = linearly_separable(x.reshape(len(x), -1).cpu().numpy(), data.labels_train)
        self._rows.write(*rows, *((part, layer, *[math.nan] * 2, 0, name, value) for name, value in of_points.items()))


def _first_of_equals(points: torch.Tensor) -> torch.Tensor | None:
    """For each point the first that is equal to it: to a flowed kernel they are one. None where all differ."""
    first: dict[bytes, int] = {}
    found = [first.setdefault(name.tobytes(), i) for i, name in enumerate(digests(points))]
    return torch.as_tensor(found, device=points.device) if len(first) < len(found) else None


def mean_squared_distances(x: torch.Tensor, labels: np.ndarray | None) -> dict[str, float]:
    """Mean of ‖x_i − x_j‖² over all pairs and, with classes, over those in one class, between classes, and the ratio
    between / in."""
    flat = x.reshape(len(x), -1)

    def sums(points: torch.Tensor) -> tuple[float, float]:
        centred = points - points.mean(dim=0)
        return 2 * len(points) * float(centred.square_().sum(dtype=torch.float64)), float(len(points) ** 2)

    total, pairs = sums(flat)
    found = {"distance_all": total / pairs}
    if labels is not None:
        parts: Sequence[Any] = [sums(flat[torch.as_tensor(labels == label)]) for label in np.unique(labels)]
        inner, inner_pairs = sum(p[0] for p in parts), sum(p[1] for p in parts)
        found["distance_in_class"] = inner / inner_pairs
        found["distance_between"] = (total - inner) / max(pairs - inner_pairs, 1.0)
        found["distance_ratio"] = found["distance_between"] / max(found["distance_in_class"], 1e-300)
    return found


def linearly_separable(x: np.ndarray, labels: np.ndarray) -> float:
    """1 where a hyperplane has each of two classes on a side of its own, s_i (w·x_i + b) ≥ 1 has a solution; else 0;
    NaN for points too far out to say."""
    from scipy.optimize import linprog

    if not np.abs(x).max() < _FAR:
        return math.nan
    sides = np.where(labels == labels[0], 1.0, -1.0)[:, None]
    scaled = (x - x.mean(axis=0)) / max(float(np.abs(x).max()), 1e-300)
    constraints = -sides * np.column_stack([scaled, np.ones(len(x))])
    found = linprog(np.zeros(x.shape[1] + 1), A_ub=constraints, b_ub=-np.ones(len(x)), bounds=(None, None))
    return float(found.status == 0)


def last_layers(directory: Path, count: int) -> list[dict[str, Any]]:
    """Mean, min, max and standard deviation of each error over the last `count` layers that were evaluated, as the
    tables of Owhadi & Yoo 2019 have them; over repeats and parts it is the mean. Layer 0 is the initial kernel."""
    table = read_rows(directory / "flow.csv", COLUMNS)
    errors = table[table["metric"].isin(["error", "mse"])]
    layers = sorted(set(errors["layer"]) - {0})[-count:] if count else []
    found = []
    chosen = errors[errors["layer"].isin(layers)]
    groups: Any = chosen.groupby(["metric", "n_interpolation", "regularization"])
    for (metric, size, regularization), rows in groups:
        each: pd.Series = rows.groupby("layer")["value"].mean()
        found.append(
            {
                "metric": metric,
                "n_interpolation": int(size),
                "regularization": float(regularization),
                "layers": len(each),
                "mean": float(each.mean()),
                "min": float(each.min()),
                "max": float(each.max()),
                "sd": float(each.std(ddof=1)) if len(each) > 1 else 0.0,
            }
        )
    return found
