"""Errors of kernel ridge regression on subsets of the training points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kfx.config.metrics import METRICS, measured_by_plugins
from kfx.data.backtest import predictor
from kfx.data.dataset import Dataset, predicted_labels
from kfx.evaluation import calibrated
from kfx.evaluation.calibrated import distribution
from kfx.evaluation.nystrom import Approximation, NystromSystem, passed
from kfx.evaluation.on_disk import DiskStores, OnDisk
from kfx.evaluation.rollout import Rollout
from kfx.evaluation.rollout import names as rollout_names
from kfx.evaluation.systems import InMemory
from kfx.files import Document, TableRow
from kfx.kernels.base import Kernel
from kfx.kernels.prediction import Headed
from kfx.kernels.wrapped import within
from kfx.numerics.arrays import in_numpy
from kfx.numerics.incidents import collect
from kfx.numerics.regularization import Regularization
from kfx.numerics.round_off import is_constant
from kfx.outcomes import Event, NumericalError

if TYPE_CHECKING:
    import pandas as pd


def interpolation_order(data: Dataset, balanced: bool, rng: np.random.Generator | None) -> np.ndarray:
    """An order of the training points, (n,), random with `rng`, else as they are; its first N_I are interpolated.

    balanced: the first N_I hold the classes in equal numbers, as far as the classes reach.
    """
    order = np.arange(len(data.x_train)) if rng is None else rng.permutation(len(data.x_train))
    if not balanced:
        return order
    assert data.labels_train is not None
    labels = data.labels_train[order]
    rank = np.empty(len(order), dtype=int)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rank[members] = np.arange(len(members))
    return order[np.argsort(rank, kind="stable")]


@dataclass(frozen=True)
class Scoring:
    """How predictions are made and judged.

    regularizations: the values of λ to evaluate.
    own: evaluate a kernel that has its own λ with that, under the name of the first of `regularizations`.
    clip: lowest and highest value that a prediction may have.
    train_error: also measure errors on the training points.
    rho: also measure the relative distance, in the RKHS norm, of the interpolant to that of the largest N_I.
    head: also measure accuracy, log-likelihood and calibration of the predictions by the kernel's own head; they do not
        depend on N_I.
    calibration: also compute deviations or probabilities, and measure how well they fit.
    rollout: also forecast the test series.
    coefficients: also return those of the interpolation points, (n, outputs).
    approximation: with solver `nystrom`: also return the arrays of `ThroughCentres`, `…/solution/…`.
    """

    regularizations: Sequence[Regularization]
    own: bool = True
    solver: str = "cholesky"
    rcond: float | None = None
    tolerance: float = 1e-6
    variance: bool = False
    clip: tuple[float, float] | None = None
    train_error: bool = False
    rho: bool = False
    head: bool = False
    calibration: bool = False
    rollout: Rollout | None = None
    coefficients: bool = False
    approximation: Approximation | None = None


def evaluate(
    name: str,
    kernel: Kernel,
    data: Dataset,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    repeat: int,
    order: np.ndarray,
    sizes: Sequence[int],
    scoring: Scoring,
    disk: DiskStores | None = None,
) -> tuple[list[Document], dict[str, np.ndarray], list[str]]:
    """Evaluate one kernel in one repeat: rows of `evaluation.csv`, arrays of predictions, and messages of failures.

    tensors: x_train (n, …), y_train (n, outputs), x_test (m, …).
    order: indices of training points. sizes: the values of N_I; the first N_I points of `order` are interpolated, so
        that one Gram matrix serves all sizes.
    disk: takes Gram matrices that do not fit in memory.
    Predictions, (m, outputs), have the keys `kernel/n/repeat/λ/mean` (variances, (m,), `…/variance`; `…/deviation` and
    `…/probability` with calibration; `…/forecast`, (origins, steps, coordinates), with a rollout;
    `…/coefficients` where they are asked for). A system that cannot be solved gives NaN and a message.
    """
    x_train, y_train, x_test = tensors
    head = torch.as_tensor(order[: max(sizes)], device=x_train.device)
    points, targets = x_train[head], y_train[head]
    rows: list[Document] = []
    arrays: dict[str, np.ndarray] = {}
    failures: list[str] = []
    of_head: dict[str, float] = {}
    if scoring.head:
        try:
            of_head = _of_head(kernel, data, tensors, scoring)
        except NumericalError as error:
            failures.append(f"the head of {name} {kernel!r}: {error}")
            of_head = dict.fromkeys(_head_metrics(scoring), math.nan)
    system: InMemory | OnDisk | NystromSystem | None = None
    held = ExitStack()
    try:
        if scoring.approximation is not None:
            assert disk is not None
            found_pass = held.enter_context(passed(kernel, x_train, y_train, scoring.approximation, disk))
            disk.used.append(found_pass.store.folder)
            system = NystromSystem(kernel, found_pass, x_test)
        elif disk is not None and disk.takes(len(points), len(x_test), points.element_size()):
            store = held.enter_context(disk.store(kernel, points, x_test))
            system = OnDisk(store, disk, kernel, len(points), scoring.solver, scoring.tolerance, points.device)
        else:
            system = InMemory(kernel, points, x_test, scoring.solver, scoring.rcond, scoring.tolerance)
    except NumericalError as error:
        failures.append(f"{name} {kernel!r}: {error}")
    with held:
        for size in sizes:
            for regularization in scoring.regularizations:
                own = (kernel.own_regularization if scoring.own else None) or regularization
                measured: dict[str, float] = dict.fromkeys(metric_names(data, scoring), math.nan)
                measured["effective_regularization"] = own.value if own.scale == "absolute" else math.nan
                key = f"{name}/{size}/{repeat}/{regularization.value!r}"
                with collect() as incidents:
                    try:
                        if system is None:
                            raise NumericalError(Event.DIVERGED, "there is no Gram matrix")
                        measured["effective_regularization"] = system.effective(own, size)
                        alpha = system.coefficients(own, targets[:size])
                        if scoring.coefficients:
                            arrays[f"{key}/coefficients"] = in_numpy(alpha)
                        if isinstance(system, NystromSystem) and regularization == scoring.regularizations[0]:
                            solution = system.interpolant(own).arrays()
                            arrays |= {f"{key}/solution/{name}": array for name, array in solution.items()}
                        prediction = predicted(system.predictions(alpha), data, scoring.clip)
                        if not np.isfinite(prediction).all():
                            raise NumericalError(Event.DIVERGED, "a prediction is not finite")
                        arrays[f"{key}/mean"] = prediction
                        found = metrics(prediction, data)
                        if not all(map(math.isfinite, found.values())):
                            raise NumericalError(Event.DIVERGED, "an error leaves the range of float64")
                        measured |= found | measured_by_plugins(prediction, data) | system.report()
                        if scoring.rho:
                            assert not isinstance(system, NystromSystem)  # evaluation.rho is refused before
                            energy = system.energies(own, targets)
                            measured["rho"] = float(energy[size:].sum() / energy.sum())
                        if scoring.train_error:
                            fitted = predicted(system.fitted(x_train, head, alpha), data, scoring.clip)
                            measured |= _errors(fitted, data.y_train, "train_")
                        if scoring.variance:
                            unit = float(np.mean(np.square(data.target_scale)))  # the mean over outputs
                            spread = unit * in_numpy(system.variance(own, size, kernel.diagonal(x_test)))
                            arrays[f"{key}/variance"] = spread
                            measured["mean_posterior_variance"] = float(spread.mean())
                        if scoring.calibration:
                            own_targets, prior = targets[:size].to(torch.float64), kernel.diagonal(x_test)
                            spread_of = distribution(system, own, alpha, own_targets, prior, data)
                            arrays |= {f"{key}/{name}": array for name, array in spread_of.items()}
                            measured |= calibrated.metrics(spread_of, prediction, data)
                        if scoring.rollout is not None:
                            of_targets = predictor(kernel, in_numpy(points[:size]), in_numpy(alpha))
                            found, forecasts = scoring.rollout(of_targets, data)
                            measured |= found
                            arrays[f"{key}/forecast"] = forecasts
                    except NumericalError as error:  # a kernel that fails must not stop the evaluation of the others
                        failures.append(f"{name} {kernel!r} at n_interpolation {size}: {error}")
                measured |= of_head
                measured["jitter"] = incidents.jitter
                rows += [
                    {
                        "kernel": name,
                        "n_interpolation": size,
                        "repeat": repeat,
                        "regularization": own.value,
                        "metric": metric,
                        "value": value,
                        "configured_regularization": regularization.value,
                    }
                    for metric, value in measured.items()
                ]
    return rows, arrays, failures


_HEAD = ("accuracy", "log_likelihood", "calibration_error")


def _of_head(
    kernel: Kernel, data: Dataset, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], scoring: Scoring
) -> dict[str, float]:
    """Metrics of the predictions by the kernel's own head, on test points and, if asked, on training points."""
    x_train, _, x_test = tensors
    headed = next((each for each in within(kernel) if isinstance(each, Headed)), None)
    asked = {"head": (x_test, data.y_test)} | ({"head_train": (x_train, data.y_train)} if scoring.train_error else {})
    found: dict[str, float] = {}
    for name, (x, y) in asked.items():
        targets, values = torch.as_tensor(y), [math.nan] * len(_HEAD)
        if headed is not None:
            prediction = headed.predict(x)
            likelihood = float(prediction.log_likelihood(targets).mean(dtype=torch.float64))
            right = predicted_labels(in_numpy(prediction.outputs)) == predicted_labels(y)
            values = [float(np.mean(right)), likelihood, prediction.calibration_error(targets)]
        found |= {f"{name}_{what}": value for what, value in zip(_HEAD, values, strict=True)}
    return found


def _head_metrics(scoring: Scoring) -> list[str]:
    heads = ["head", "head_train"] if scoring.train_error else ["head"]
    return [f"{name}_{what}" for name in heads for what in _HEAD] if scoring.head else []


def predicted(prediction: torch.Tensor, data: Dataset, clip: tuple[float, float] | None) -> np.ndarray:
    """The prediction, (m, outputs), in the units of the targets, limited to the range `clip`."""
    found = data.in_units(in_numpy(prediction))
    return found if clip is None else found.clip(*clip)


def metrics(prediction: np.ndarray, data: Dataset) -> dict[str, float]:
    """Errors of a prediction on the test points, (m, outputs): MSE, MAE, and with classes the accuracy in [0, 1].

    If the data have an energy norm, also the squared error in that norm over that of the targets.
    """
    result = _errors(prediction, data.y_test)
    if data.energy is not None:
        error, y = prediction - data.y_test, data.y_test
        result["energy_error"] = float(np.sum(error * (data.energy @ error)) / np.sum(y * (data.energy @ y)))
    if data.labels_test is not None:
        return {"accuracy": float(np.mean(predicted_labels(prediction) == data.labels_test)), **result}
    return result


def _errors(prediction: np.ndarray, y: np.ndarray, prefix: str = "") -> dict[str, float]:
    error = prediction - y
    with np.errstate(over="ignore"):  # an infinite error is reported as a failure
        return {f"{prefix}mse": float(np.mean(error**2)), f"{prefix}mae": float(np.mean(np.abs(error)))}


_OF_SOLVERS = {"conjugate_gradients": ["residual", "iterations"], "nystrom": ["centres", "unexplained", "lost"]}


def metric_names(data: Dataset, scoring: Scoring) -> list[str]:
    """Names of the metrics that `evaluate` measures on this data."""
    accuracy = ["accuracy"] if data.labels_test is not None else []
    energy = ["energy_error"] if data.energy is not None else []
    kept = [*(["rho"] if scoring.rho else []), *_head_metrics(scoring)]
    train = ["train_mse", "train_mae"] if scoring.train_error else []
    spread = ["mean_posterior_variance"] if scoring.variance else []
    solved = _OF_SOLVERS.get(scoring.solver, [])
    fit = calibrated.names(data) if scoring.calibration else ()
    forecasts = rollout_names(data) if scoring.rollout is not None else []
    of_plugins = [name for name, each in METRICS.items() if each.measure is not None]
    own = [*accuracy, "mse", "mae", *energy, *of_plugins, *kept, *train, *spread, *fit, *forecasts, *solved]
    return [*own, "effective_regularization", "jitter"]


def derived(rows: Sequence[TableRow], parts: Mapping[int, Dataset]) -> list[TableRow]:
    """Rows of what follows from each `mse` of values: `rmse`, and `r2`, the share of the test targets' variance about
    their means that is predicted; NaN where they do not vary.

    parts: the data set of each repeat. Classes have neither, and the `r2` of a series is that of its forecasts.
    """
    found: list[TableRow] = []
    variances: dict[int, float] = {}
    for row in rows:
        data = parts[row["repeat"]]
        if row["metric"] != "mse" or data.labels_test is not None:
            continue
        found.append({**row, "metric": "rmse", "value": math.sqrt(row["value"])})
        if data.series is None:
            if row["repeat"] not in variances:
                variance = float(np.mean(np.square(data.y_test - data.y_test.mean(axis=0))))
                variances[row["repeat"]] = math.nan if is_constant(data.y_test).all() else variance
            share = 1 - row["value"] / variances[row["repeat"]]
            found.append({**row, "metric": "r2", "value": share})
    return found


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


def constant_prediction(data: Dataset) -> tuple[str, float]:
    """The main metric of a data set, and its value for a constant: the largest class, or the mean of the training
    targets."""
    if data.labels_train is not None and data.labels_test is not None:
        largest = np.bincount(data.labels_train).argmax()
        return "accuracy", float(np.mean(data.labels_test == largest))
    with np.errstate(over="ignore"):
        return "mse", float(np.mean((data.y_test - data.y_train.mean(axis=0)) ** 2))
