"""Errors of predictions whose outputs, or components, have a kernel each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from kfx.config.metrics import measured_by_plugins
from kfx.data.backtest import Predictor, side_by_side
from kfx.data.dataset import Dataset
from kfx.evaluation import calibrated
from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.judges import Tensors, errors
from kfx.evaluation.results import Result
from kfx.evaluation.scoring import EFFECTIVE, Scoring, evaluate, metric_names
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import in_numpy


def _geometric_mean(values: Sequence[float]) -> float:
    """0 if one of them is."""
    with np.errstate(divide="ignore"):
        return float(np.exp(np.mean(np.log(values))))


def evaluate_separately(
    kernels: Sequence[Kernel],
    data: Dataset,
    tensors: Tensors,
    order: np.ndarray,
    sizes: Sequence[int],
    scoring: Scoring,
    disk: DiskStores | None = None,
) -> list[Result]:
    """As `evaluate`, with a kernel for each column of `data.targets`; λ is the geometric mean over the kernels."""
    x_train, y_train, x_test = tensors
    inner = replace(scoring, clip=None, rollout=None, coefficients=scoring.rollout is not None)
    each = [
        evaluate(kernel, part, Tensors(x_train, y_train[:, [c]], x_test), order, sizes, inner, disk)
        for c, (kernel, part) in enumerate(zip(kernels, data.components(), strict=True))
    ]
    head = x_train[torch.as_tensor(order[: max(sizes)], device=x_train.device)]
    return [_together(parts, kernels, data, head, scoring) for parts in zip(*each, strict=True)]


def _together(
    parts: Sequence[Result], kernels: Sequence[Kernel], data: Dataset, head: torch.Tensor, scoring: Scoring
) -> Result:
    """The result of all columns, given that of each. head: interpolation points, (n, …), those of the results first."""
    size, used = parts[0].n_interpolation, _geometric_mean([part.used for part in parts])
    found = Result(size, parts[0].configured, used, dict.fromkeys(metric_names(data, scoring, True), math.nan))
    for c, (kernel, part) in enumerate(zip(kernels, parts, strict=True)):
        found.problems += [f"output {c}, {kernel!r}: {problem}" for problem in part.problems]
    lambdas = [part.metrics[EFFECTIVE] for part in parts]
    found.metrics |= {f"{EFFECTIVE}.{c}": value for c, value in enumerate(lambdas)}
    found.metrics |= {EFFECTIVE: _geometric_mean(lambdas), "jitter": max(part.metrics["jitter"] for part in parts)}
    if not all("mean" in part.arrays for part in parts):
        return found
    prediction = data.in_units(np.concatenate([part.arrays["mean"] for part in parts], axis=1))
    prediction = prediction if scoring.clip is None else prediction.clip(*scoring.clip)
    found.arrays["mean"] = prediction
    found.metrics |= errors(prediction, data) | measured_by_plugins(prediction, data)
    if all("deviation" in part.arrays for part in parts):
        of_parts = np.concatenate([part.arrays["deviation"] for part in parts], axis=1)
        spread = calibrated.deviations(of_parts, replace(data, inflation=1.0))  # the parts' are inflated
        found.arrays |= spread
        found.metrics |= calibrated.metrics(spread, prediction, data)
    if scoring.rollout is not None:
        x = in_numpy(head[:size])
        each = [Predictor(own, x, part.arrays["coefficients"]) for own, part in zip(kernels, parts, strict=True)]
        metrics, arrays = scoring.rollout(side_by_side(each), data)
        found.metrics |= metrics
        found.arrays |= arrays
    return found
