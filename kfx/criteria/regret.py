"""What each criterion loses: the error of the kernel that it chooses over that of the best one in hindsight.

A criterion chooses a length scale on a grid, and where it may λ too, so that criteria are compared and not optimizers.
Problems of the same draw share points, values and halves.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.optimize import OptimizeResult, minimize
from scipy.spatial.distance import pdist

from kfx.config.option import Settings
from kfx.config.plugins import plugged_in
from kfx.config.registry import OPTIONS
from kfx.criteria.law import Row
from kfx.criteria.regret_table import WAYS, by_setting, shares, table
from kfx.criteria.truths import MODELS, function
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import as_tensor
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.regression import inverse_diagonal, left_out_scale
from kfx.numerics.regularization import Regularization
from kfx.objectives import loo
from kfx.objectives.base import Objective, as_objective
from kfx.outcomes import NumericalError
from kfx.plots.regret import by_collection, shares_of_best

__all__ = ["cells", "picture", "table"]
Criteria = Mapping[str, Settings]
"""Settings of `objective` by the name under which a criterion is listed."""
N_TEST = 300
LENGTHS = tuple(np.geomspace(0.05, 20, 12))
"""Length scales, as factors of the median distance of the training points."""
LAMBDAS = (1e-10, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""λ, absolute, as K(x, x) = 1; the first is the tiny one."""
FLOOR = 1e-5
"""Errors count as at least this share of the truth's deviation, because round-off decides below it."""
_HELD_OUT = 200
"""Random halves are drawn until they hold out so many points, at least two of them."""


def built(settings: Settings) -> tuple[Objective, bool]:
    """Return the objective of these settings, and whether λ may be trained on it."""
    own = dict(settings)
    option = OPTIONS["objective"][own.pop("name")](**own)
    return as_objective(option.build()), option.trains_regularization


@dataclass
class Problem:
    """Training points x, (n, d), with targets y, (n, outputs), and test points with the truth f and values y."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    f_test: np.ndarray
    y_test: np.ndarray
    halves: list[np.ndarray] = field(default_factory=list)
    """Orders of the training points, whose first half is the sample."""

    @cached_property
    def unit(self) -> float:
        """The median distance of training points, or their mean one if most points are the same."""
        distances = pdist(self.x)
        return float(np.median(distances) or distances.mean())


def posed(truth: str, d: int, n: int, noise: float, draw: int) -> Problem:
    """Return the problem of a draw: n + N_TEST uniform points of the unit cube, and noise of variance `noise`."""
    rng = np.random.default_rng([draw, d, n])
    x = rng.uniform(size=(n + N_TEST, d))
    f = function(truth, x, rng)
    y = f + math.sqrt(noise) * rng.normal(size=len(f))
    halves = _halves(n, rng)
    f, y = (each[:, None] - y[:n].mean() for each in (f, y))
    return Problem(x[:n], y[:n], x[n:], f[n:], y[n:], halves)


def of_data(dataset: Settings, most: int, draw: int) -> Problem:
    """Return the problem of a data set, at most `most` training and N_TEST · 3 test points, drawn at random.

    dataset: settings of `dataset`, whose split, if it has splits, is the draw. Features are standardized, targets, or
    classes as indicators, centred and in units of their deviation; the truth is what was observed.
    """
    own = dict(dataset)
    option = OPTIONS["dataset"][own.pop("name")]
    rng = np.random.default_rng(draw)
    data = option(**own, **({"split": draw} if "split" in option.fields() else {})).load(rng)
    train, test = rng.permutation(len(data.x_train))[:most], rng.permutation(len(data.x_test))[: 3 * N_TEST]
    x, x_test, y, y_test = (
        np.asarray(each, dtype=np.float64).reshape(len(each), -1)
        for each in (data.x_train[train], data.x_test[test], data.y_train[train], data.y_test[test])
    )
    spread = np.where((deviation := x.std(axis=0)) > 1e-9 * np.abs(x).max(axis=0), deviation, np.inf)
    x, x_test = ((each - x.mean(axis=0)) / spread for each in (x, x_test))
    y, y_test = ((each - y.mean(axis=0)) / (y.std() or 1.0) for each in (y, y_test))
    return Problem(x, y, x_test, y_test, y_test, _halves(len(x), rng))


def _halves(n: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.permutation(n) for _ in range(max(2, math.ceil(_HELD_OUT / (n / 2))))]


class Grid:
    """Criteria and errors of a family of kernels at every length and λ, (lengths, λ)."""

    def __init__(self, problem: Problem, model: Callable[[float], Kernel], criteria: Mapping[str, Objective]) -> None:
        self.problem, self.model = problem, model
        self.y = as_tensor(problem.y, dtype=torch.float64)
        self.criteria = {"": loo, **criteria}
        self.uses_sample: dict[str, bool] = {}
        shape = len(LENGTHS), len(LAMBDAS)
        self.values = {name: np.full(shape, np.inf) for name in self.criteria}
        self.errors = np.full(shape, np.inf)
        for i, length in enumerate(LENGTHS):
            self._measure(i, model(length * problem.unit))

    def _measure(self, i: int, kernel: Kernel) -> None:
        gram = as_tensor(kernel.gram(self.problem.x), dtype=torch.float64)
        across = as_tensor(kernel.gram(self.problem.x_test, self.problem.x), dtype=torch.float64)
        whole = Factored(gram)
        halves = [(Factored(gram[half][:, half]), self.y[half]) for half in map(torch.as_tensor, self.problem.halves)]
        for j, value in enumerate(LAMBDAS):
            regularization = Regularization(value, "absolute")
            for name, criterion in self.criteria.items():
                asked = halves if self._of_sample(name, whole) else [(whole, self.y)]
                self.values[name][i, j] = np.mean([_value(criterion, *each, regularization) for each in asked])
            try:
                factor = whole.factor(value)
            except NumericalError:
                continue
            error = across @ torch.cholesky_solve(self.y, factor) - as_tensor(self.problem.f_test)
            self.errors[i, j] = float(error.square().mean().sqrt())

    def _of_sample(self, name: str, whole: Factored) -> bool:
        """Whether a criterion depends on the sample."""
        if name not in self.uses_sample:
            usual = Regularization(1e-2, "absolute")
            of = [self.criteria[name](whole, self.y, size, usual, False)[0] for size in (1, len(self.y) // 2)]
            self.uses_sample[name] = of[0] != of[1]
        return self.uses_sample[name]

    def chosen(self, name: str, how: str) -> tuple[int, int]:
        """The length and λ that a criterion chooses with λ `tiny`, by `leave_one_out` for each length, or `trained`."""
        values = self.values[name]
        if how == "trained":
            i, j = divmod(int(values.argmin()), values.shape[1])
            return i, j
        columns = np.zeros(len(LENGTHS), int) if how == "tiny" else self.values[""].argmin(axis=1)
        least = int(values[np.arange(len(LENGTHS)), columns].argmin())
        return least, int(columns[least])

    def best(self, how: str) -> float:
        """The least error of the lengths and λ among which is chosen."""
        return float((self.errors[:, 0] if how == "tiny" else self.errors).min())

    def coverage(self, i: int, j: int) -> float:
        """The share of noisy test values in their intervals of 95 %, the scale by leave-one-out errors."""
        kernel, value = self.model(LENGTHS[i] * self.problem.unit), LAMBDAS[j]
        whole = Factored(as_tensor(kernel.gram(self.problem.x), dtype=torch.float64))
        across = as_tensor(kernel.gram(self.problem.x_test, self.problem.x), dtype=torch.float64)
        try:
            factor = whole.factor(value)
        except NumericalError:
            return math.nan
        alpha = torch.cholesky_solve(self.y, factor)
        scale = left_out_scale(alpha, inverse_diagonal(factor))
        known = torch.linalg.solve_triangular(factor, across.mT, upper=False).square().sum(dim=0)
        deviation = (scale * (1 + value - known).clamp_min(0.0)[:, None]).sqrt()
        error = across @ alpha - as_tensor(self.problem.y_test)
        return float((error.abs() <= 1.96 * deviation).double().mean())


def _value(criterion: Objective, gram: Factored, y: torch.Tensor, regularization: Regularization) -> float:
    try:
        value = criterion(gram, y, len(y) // 2, regularization, False)[0]
    except NumericalError:
        return math.inf
    return value if math.isfinite(value) else math.inf


def on_truth(
    truth: str, d: int, n: int, models: Sequence[str], noises: Sequence[float], draws: int, criteria: Criteria
) -> list[Row]:
    """Rows of one cell: each noise, draw, model, way to λ and criterion; see `lost`."""
    rows: list[Row] = []
    for noise, draw in itertools.product(noises, range(draws)):
        at: Row = {"truth": truth, "d": d, "n": n, "noise": noise, "draw": draw}
        rows += [at | row for row in lost(posed(truth, d, n, noise, draw), models, criteria)]
    return rows


def on_data(
    dataset: Settings, name: str, most: int, models: Sequence[str], draws: int, criteria: Criteria
) -> list[Row]:
    """Rows of one data set: each draw, model, way to λ and criterion; see `lost` and `of_data`."""
    rows: list[Row] = []
    for draw in range(draws):
        problem = of_data(dataset, most, draw)
        at: Row = {"truth": name, "collection": dataset["name"], "n": len(problem.x), "draw": draw}
        rows += [at | row for row in lost(problem, models, criteria)]
    return rows


def lost(problem: Problem, models: Sequence[str], criteria: Criteria) -> list[Row]:
    """Each model, way to λ and criterion, with the error of the chosen kernel, its regret and its coverage.

    regret: the logarithm of the error over the best one, both relative to the truth's deviation and at least `FLOOR`.
    """
    made = {name: built(settings) for name, settings in criteria.items()}
    rows: list[Row] = []
    for model in models:
        grid = Grid(problem, MODELS[model], {name: objective for name, (objective, _) in made.items()})
        at: Row = {"model": model}
        rows += [at | row for row in _rows(grid, {name: trains for name, (_, trains) in made.items()})]
    return rows


def _rows(grid: Grid, trains: Mapping[str, bool]) -> list[Row]:
    covered: dict[tuple[int, int], float] = {}
    rows: list[Row] = []
    for how, name in itertools.product(WAYS, trains):
        if how == "trained" and not trains[name]:
            continue
        i, j = grid.chosen(name, how)
        if (i, j) not in covered:
            covered[i, j] = grid.coverage(i, j)
        error, best = (max(float(each), FLOOR) for each in (grid.errors[i, j], grid.best(how)))
        chosen: Row = {"length": float(LENGTHS[i]), "regularization": LAMBDAS[j]}
        found: Row = {"error": error, "regret": math.log(error / best), "coverage": covered[i, j]}
        rows.append({"lambda": how, "criterion": name} | chosen | found)
    return rows


def cost(n: int, d: int, draws: int, criteria: Criteria) -> list[Row]:
    """Rows of what training costs: evaluations and seconds of L-BFGS for one length scale, from the median distance.

    The truth is a draw of the model, Matérn 5/2, with noise of variance 0.1; λ is 0.1. The first half is the sample.
    """
    rows: list[Row] = []
    for name, draw in itertools.product(criteria, range(draws)):
        criterion, problem = built(criteria[name])[0], posed("matern52", d, n, 0.1, draw)
        began = time.perf_counter()
        found = trained(criterion, MODELS["matern52"](problem.unit), problem.x, problem.y, 0.1)
        seconds = time.perf_counter() - began
        rows.append({"criterion": name, "draw": draw, "evaluations": found.nfev, "seconds": seconds})
    return rows


def trained(criterion: Objective, kernel: Kernel, x: np.ndarray, y: np.ndarray, value: float) -> OptimizeResult:
    """The minimum over the logarithms of a kernel's parameters, by exact gradients. value: λ, absolute."""

    def at(log: np.ndarray) -> tuple[float, np.ndarray]:
        gram, pull = kernel.with_flat(np.exp(log)).pullback(x)
        loss, to_gram = criterion(gram, y, len(y) // 2, Regularization(value, "absolute"))
        assert to_gram is not None
        return loss, np.asarray(pull(to_gram)[0]) * np.exp(log)

    start = np.log(np.asarray(kernel.flat))
    ends = [(each + math.log(LENGTHS[0]), each + math.log(LENGTHS[-1])) for each in start]
    return minimize(at, start, jac=True, method="L-BFGS-B", bounds=ends)


# ---- the study


def cells(
    blocks: Sequence[Settings], draws: int, criteria: Criteria, costs: Mapping[str, int] | None = None
) -> dict[str, Callable[[], list[Row]]]:
    """Return a cell for each truth, dimension and number of points of a block, or for each of its data sets, and one of
    costs.

    blocks: each with `models`, and with lists `truths`, `d`, `n` and `noise`; or with settings of a `dataset`, the
    `values` of its setting `key`, and the number of points, `most`. criteria: those of plugins come in addition.
    costs: n, d and draws.
    """
    own = {plugin.module for plugin in plugged_in()}
    plugins = {name: {"name": name} for name, each in OPTIONS["objective"].items() if each.__module__ in own}
    criteria = {**criteria, **plugins}
    for settings in criteria.values():
        built(settings)
    made: dict[str, Callable[[], list[Row]]] = {}
    for block in blocks:
        if "dataset" in block:
            for value in block["values"]:
                dataset = {**block["dataset"], block["key"]: value}
                made[f"{dataset['name']}={value}"] = partial(
                    on_data, dataset, value, block["most"], block["models"], draws, criteria
                )
            continue
        for n, d, truth in itertools.product(block["n"], block["d"], block["truths"]):
            made[f"{truth},d={d},n={n}"] = partial(
                on_truth, truth, d, n, block["models"], block["noise"], draws, criteria
            )
    return {**made, "cost": partial(cost, **costs, criteria=criteria)} if costs else made


def picture(rows: pd.DataFrame) -> Figure:
    """Which criteria are among the best where, or their mean regret over collections; see `kfx.plots.regret`."""
    return by_collection(by_setting(rows)) if "collection" in rows else shares_of_best(shares(rows))
