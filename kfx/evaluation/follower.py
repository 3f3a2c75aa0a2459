"""Errors, class distances and positions during a fit."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kfx.data.dataset import Dataset
from kfx.evaluation.judges import Tensors
from kfx.evaluation.scoring import evaluate, interpolation_order
from kfx.files import CsvFile, Document, read_rows, whole_file
from kfx.kernels.base import Kernel
from kfx.kernels.module_kernel import ModuleKernel
from kfx.kernels.wrapped import within
from kfx.numerics.arrays import MOST_SETTLING, digests, some_of
from kfx.numerics.linear_algebra import Factored
from kfx.objectives import interpolation_error, rho
from kfx.outcomes import CheckpointError, NumericalError
from kfx.sampling.samplers import Batch

if TYPE_CHECKING:
    import pandas as pd

    from kfx.config.parts import ConfigView

_MOST_COORDINATES = 10
_FAR = 1e150
_MOST_OF_LAYERS = 500
ERRORS = ("error", "head_error", "mse", "energy_error")
SQUARED_ERROR = "squared_error"
"""Metric of the mean squared error of the targets that stand for classes, beside the share of wrong classes."""
OF_LAYERS = "rho."
"""Prefix of the metric ρ of a layer's kernel."""
OF_FLOWS, OF_OTHERS = ("flow.csv", "layer"), ("follow.csv", "iteration")


def columns(counted: str) -> tuple[str, ...]:
    """Columns of the table; counted: `layer` or `iteration`."""
    return "part", counted, "n_interpolation", "regularization", "repeat", "metric", "value"


class Follower:
    """Write `flow.csv` for a flow, else `follow.csv`, and the `snapshots/` of a flow.

    Rows are measured every `follow.every` iterations and in the last `follow.last` iterations, which are at most a
    tenth of all. The subsets of interpolation points are drawn once, so that errors of different iterations can be
    compared, or anew each time.
    """

    def __init__(
        self,
        config: ConfigView,
        directory: Path,
        parts: Sequence[Dataset],
        tensors: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        rng: np.random.Generator,
    ) -> None:
        self.node, self.directory, self.parts, self.tensors = config.follow, directory, parts, tensors
        self.moves_points, self.flow = config.optimizer.moves_points, config.flow
        self.file, counted = OF_FLOWS if self.moves_points else OF_OTHERS
        self.columns = columns(counted)
        self.iterations = config.optimizer.iterations
        self.last = min(self.node.last, max(self.iterations // 10, 1)) if self.node.last else 0
        self.regularization = config.regularization.build()
        scoring = replace(config.evaluation.scoring(config), train_error=False, variance=False, rho=False)
        is_exact = scoring.approximation is None  # a measurement on the way makes no pass over all points
        self.scoring = scoring if is_exact else replace(scoring, approximation=None, solver="cholesky")
        self.sizes = self.node.n_interpolation or config.evaluation.n_interpolation
        self.orders = [self._orders(part, rng) for part in parts]
        self.seed = int(rng.integers(2**32))
        snapshots = self.flow.snapshots if self.moves_points else 0
        shown = np.linspace(0, self.iterations, snapshots + 1).round()
        self.shown = {int(layer) for layer in shown} if snapshots else set()
        flows = tensors if self.moves_points else ()
        self._first = [_first_of_equals(torch.cat([x, along])) for x, _, along in flows]
        size = config.sampler.batch_size or max(len(part.x_train) for part in parts)
        takes_batches = not config.objective.is_of_deep_kernels and size <= MOST_SETTLING
        follows = self.node.every + self.node.last > 0 and takes_batches
        self._batches = [self._batch(config, part) for part in range(len(parts))] if follows else []
        self._rows: CsvFile | None = None
        self._measured: tuple[int, int] | None = None

    def _batch(self, config: ConfigView, part: int) -> Batch:
        """The batch on which objectives are measured, the same in all iterations."""
        sampler = config.sampler.held_out()
        sampler.start(*self.tensors[part][:2])
        return sampler.draw(np.random.default_rng([self.seed, part]), 0)

    def _orders(self, part: Dataset, rng: np.random.Generator) -> list[np.ndarray]:
        balanced = part.labels_train is not None
        return [interpolation_order(part, balanced, rng) for _ in range(self.node.repeats)]

    def wants(self, part: int, iteration: int, final: bool) -> bool:
        """Whether something is measured or kept before this iteration, or at the end."""
        return self._measures(iteration, final) or self._shows(part, iteration, final)

    def _measures(self, iteration: int, final: bool) -> bool:
        every, last = self.node.every, self.last
        is_due = bool(every) and iteration % every == 0
        return is_due or (last > 0 and iteration > self.iterations - last) or (final and every + last > 0)

    def _shows(self, part: int, iteration: int, final: bool) -> bool:
        return part == 0 and (iteration in self.shown or (final and bool(self.shown)))

    def __call__(
        self, part: int, iteration: int, kernel: Kernel, x: torch.Tensor, along: torch.Tensor, final: bool
    ) -> int:
        """Measure and keep what is due before an iteration; return the size of the table in bytes.

        x: (n, …), training points. along: (m, …), points that a flow moves but does not learn from.
        """
        # a flow that stops early ends at the positions before its last layer
        if self._measures(iteration, final) and self._measured != (part, iteration):
            self._measure(part, iteration, kernel, x, along)
            self._measured = part, iteration
        if self._shows(part, iteration, final):
            folder = self.directory / "snapshots"
            folder.mkdir(exist_ok=True)
            data, count = self.parts[0], self.flow.snapshot_points
            labels = data.y_train[:, 0] if data.labels_train is None else data.labels_train
            train, test = (points[:count].cpu().numpy() for points in (x, along))
            with whole_file(self.directory / "targets.npy") as stream:
                np.save(stream, labels[:count])
            with whole_file(folder / f"{iteration:07d}.npz") as stream:
                np.savez(stream, train=train, test=test)
        return self._rows.size if self._rows is not None else 0

    def start(self, part: int, iteration: int) -> None:
        """Start the table, or continue that of an earlier process without the rows that will be measured again."""
        if not self.node.every + self.node.last:
            return
        path = self.directory / self.file
        head, *rows = path.read_bytes().splitlines(keepends=True) if path.is_file() else [b""]
        try:
            kept = list(
                itertools.takewhile(
                    lambda row: row.endswith(b"\n") and tuple(map(int, row.split(b",")[:2])) < (part, iteration), rows
                )
            )
        except ValueError as error:
            raise CheckpointError(f"{path}: damaged ({error}); start anew with kfx run") from error
        self._rows = CsvFile(path, self.columns, keep=len(head) + sum(map(len, kept)) if head.endswith(b"\n") else 0)

    def _measure(self, part: int, iteration: int, kernel: Kernel, x: torch.Tensor, along: torch.Tensor) -> None:
        assert self._rows is not None
        data, y, labels = self.parts[part], self.tensors[part][1], self.parts[part].labels_train
        if self.moves_points and (first := self._first[part]) is not None:
            x, along = torch.cat([x, along])[first].split([len(x), len(along)])
        kernel = kernel.fixed_on(some_of(x))
        wanted = ("mse", "energy_error") if data.labels_test is None else ("accuracy", "mse")
        names = {} if data.labels_test is None else {"mse": SQUARED_ERROR}
        rows: list[tuple[object, ...]] = []
        orders, sizes = self.orders[part], self.sizes or [len(x)]
        if self.node.draw == "anew":
            orders = self._orders(data, np.random.default_rng([self.seed, part, iteration]))
        for repeat, order in enumerate(orders):
            for i, result in enumerate(evaluate(kernel, data, Tensors(x, y, along), order, sizes, self.scoring)):
                for metric in filter(result.metrics.__contains__, wanted):
                    value = result.metrics[metric]
                    error = ("error", 1 - value) if metric == "accuracy" else (names.get(metric, metric), value)
                    rows.append((part, iteration, result.n_interpolation, result.configured, repeat, *error))
                if i == 0 and repeat == 0 and "head_accuracy" in result.metrics:
                    head_error = 1 - result.metrics["head_accuracy"]
                    rows.append((part, iteration, math.nan, math.nan, repeat, "head_error", head_error))
        more = [*self._of_layers(kernel, x, y), *self._of_batch(kernel, x, y, part)]
        rows += [(part, iteration, *[math.nan] * 2, 0, *each) for each in more]
        if not self.moves_points:  # then distances of the kernel's features, if it has any
            some, labels = some_of(x), None if labels is None else some_of(torch.as_tensor(labels)).numpy()
            network = _network(kernel)
            try:
                if network is None:
                    return self._rows.write(*rows)
                x = network.features(some)
            except NumericalError:
                return self._rows.write(*rows)
        of_points = mean_squared_distances(x, labels)
        if labels is not None and len(set(labels)) == 2 and x[0].numel() <= _MOST_COORDINATES:
            flat = x.reshape(len(x), -1).cpu().numpy()
            of_points["linearly_separable"] = linearly_separable(flat, labels)
            if flat.shape[1] == 2 and len(flat) <= _MOST_OF_LAYERS and np.isfinite(flat).all():
                of_points["misplaced_points"] = float(misplaced_points(flat, labels))
        self._rows.write(
            *rows, *((part, iteration, *[math.nan] * 2, 0, name, value) for name, value in of_points.items())
        )

    def _of_batch(self, kernel: Kernel, x: torch.Tensor, y: torch.Tensor, part: int) -> list[tuple[str, float]]:
        """ρ and e₂ of one batch, whichever of them is trained; NaN where the arithmetic fails."""
        if not self._batches:
            return []
        batch = self._batches[part]
        points, targets = batch.of(x, y)
        regularization = kernel.own_regularization or self.regularization
        objectives = {"rho": rho, "interpolation_error": interpolation_error}
        found = dict.fromkeys(objectives, math.nan)
        with contextlib.suppress(NumericalError):
            gram = Factored(kernel.gram(points))
            for name, objective in objectives.items():
                found[name], _ = objective(gram, targets, batch.sample_size, regularization, False)
        return list(found.items())

    def _of_layers(self, kernel: Kernel, x: torch.Tensor, y: torch.Tensor) -> list[tuple[str, float]]:
        """ρ of the kernel of each inner layer, with half of the points as the sample."""
        points, targets = some_of(x, _MOST_OF_LAYERS), some_of(y, _MOST_OF_LAYERS)
        found, network = [], _network(kernel)
        with contextlib.suppress(NumericalError):  # a layer that fails makes all later ones fail
            for name, gram in () if network is None else network.inner_grams(points):
                try:
                    regularization = kernel.own_regularization or self.regularization
                    value, _ = rho(Factored(gram), targets, len(points) // 2, regularization, False)
                except NumericalError:
                    value = math.nan
                found.append((OF_LAYERS + name, value))
        return found


def _network(kernel: Kernel) -> ModuleKernel | None:
    return next((each for each in within(kernel) if isinstance(each, ModuleKernel)), None)


def _first_of_equals(points: torch.Tensor) -> torch.Tensor | None:
    """Index of the first point equal to each point: a flowed kernel cannot tell them apart. None if all differ."""
    first: dict[bytes, int] = {}
    found = [first.setdefault(name.tobytes(), i) for i, name in enumerate(digests(points))]
    return torch.as_tensor(found, device=points.device) if len(first) < len(found) else None


def mean_squared_distances(x: torch.Tensor, labels: np.ndarray | None) -> dict[str, float]:
    """Mean of ‖x_i − x_j‖² over all pairs; with classes also within and between classes, and the ratio between /
    within.

    x: (n, …). labels: (n,), or None.
    """
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
    """1 if a hyperplane separates two classes, s_i (w·x_i + b) ≥ 1 for all i, else 0; NaN if the numbers are too large.

    x: (n, features). labels: (n,), of two values.
    """
    from scipy.optimize import linprog

    if not np.abs(x).max() < _FAR:
        return math.nan
    sides = np.where(labels == labels[0], 1.0, -1.0)[:, None]
    scaled = (x - x.mean(axis=0)) / max(float(np.abs(x).max()), 1e-300)
    constraints = -sides * np.column_stack([scaled, np.ones(len(x))])
    found = linprog(np.zeros(x.shape[1] + 1), A_ub=constraints, b_ub=-np.ones(len(x)), bounds=(None, None))
    return float(found.status == 0)


def misplaced_points(x: np.ndarray, labels: np.ndarray) -> int:
    """Return the least number of points on the wrong side of a line between two classes, over all lines.

    x: points in the plane, (n, 2), no three of them on a line. labels: (n,), of two values.
    """
    sides, least = np.where(labels == labels[0], 1.0, -1.0), len(x)
    for i in range(len(x) - 1):
        # turned and moved by little, the line through points i and j leaves either on either side
        along, others = x[i + 1 :] - x[i], x - x[i]
        where = sides * np.sign(along[:, :1] * others[:, 1] - along[:, 1:] * others[:, 0])
        where[:, i] = 0
        where[np.arange(len(along)), np.arange(i + 1, len(x))] = 0
        least = min(least, int((where < 0).sum(axis=1).min()), int((where > 0).sum(axis=1).min()))
    return least


def last_rows(directory: Path, count: int, of_flow: bool, whole: int | None = None) -> list[Document]:
    """Mean, min, max and standard deviation of each error over the last `count` evaluated layers or iterations.

    Number 0 is the initial kernel. Over repeats and parts the mean is taken, as in the tables of Owhadi & Yoo 2019.
    whole: as for `results.summary`.
    """
    errors, counted = _errors(directory, of_flow, whole)
    layers = sorted(set(errors[counted]) - {0})[-count:] if count else []
    return _statistics(errors[errors[counted].isin(layers)], counted)


def window_rows(
    directory: Path, windows: Sequence[Sequence[int]], of_flow: bool, whole: int | None = None
) -> list[Document]:
    """As `last_rows`, over the evaluated layers or iterations from the first to the last number of each window."""
    errors, counted = _errors(directory, of_flow, whole)
    return [
        {"window": [first, last], **row}
        for first, last in windows
        for row in _statistics(errors[errors[counted].between(first, last)], counted)
    ]


def _errors(directory: Path, of_flow: bool, whole: int | None) -> tuple[pd.DataFrame, str]:
    """The rows of errors, and the name of the column that counts layers or iterations."""
    file, counted = OF_FLOWS if of_flow else OF_OTHERS
    table = read_rows(directory / file, columns(counted))
    if whole is not None:
        table["n_interpolation"] = table["n_interpolation"].where(table["n_interpolation"].isna(), whole)
    return table[table["metric"].isin(ERRORS)], counted


def _statistics(chosen: pd.DataFrame, counted: str) -> list[Document]:
    found = []
    groups: Any = chosen.groupby(["metric", "n_interpolation", "regularization"], dropna=False)
    for (metric, size, regularization), rows in groups:
        each: pd.Series = rows.groupby(counted)["value"].mean(skipna=False)  # of a failed evaluation there is no mean
        found.append(
            {
                "metric": metric,
                "n_interpolation": None if math.isnan(size) else int(size),
                "regularization": None if math.isnan(regularization) else float(regularization),
                f"{counted}s": len(each),
                "mean": float(each.mean(skipna=False)),
                "min": float(each.min(skipna=False)),
                "max": float(each.max(skipna=False)),
                "sd": float(each.std(skipna=False)) if len(each) > 1 else 0.0,
            }
        )
    return found
