"""Errors of predictions whose outputs, or components, have a kernel each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from kfx.config.metrics import measured_by_plugins
from kfx.data.backtest import predictor, side_by_side
from kfx.data.dataset import Dataset
from kfx.evaluation import calibrated
from kfx.evaluation.on_disk import DiskStores
from kfx.evaluation.scoring import Scoring, evaluate, metric_names, metrics
from kfx.files import Document
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import in_numpy

EFFECTIVE = "effective_regularization"


def names(data: Dataset, scoring: Scoring) -> list[str]:
    """The metrics: those of one kernel, and the effective λ of each kernel."""
    return [*metric_names(data, scoring), *(f"{EFFECTIVE}.{c}" for c in range(data.targets.shape[1]))]


def _geometric_mean(values: Sequence[float]) -> float:
    """0 if one of them is."""
    with np.errstate(divide="ignore"):
        return float(np.exp(np.mean(np.log(values))))


def evaluate_separately(
    name: str,
    kernels: Sequence[Kernel],
    data: Dataset,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    repeat: int,
    order: np.ndarray,
    sizes: Sequence[int],
    scoring: Scoring,
    disk: DiskStores | None = None,
) -> tuple[list[Document], dict[str, np.ndarray], list[str]]:
    """As `evaluate`, with a kernel for each column of `data.targets`; λ is the geometric mean over the kernels."""
    x_train, y_train, x_test = tensors
    inner = replace(scoring, clip=None, rollout=None, coefficients=scoring.rollout is not None)
    each = [
        evaluate(name, kernel, part, (x_train, y_train[:, [c]], x_test), repeat, order, sizes, inner, disk)
        for c, (kernel, part) in enumerate(zip(kernels, data.components(), strict=True))
    ]
    rows: list[Document] = []
    arrays: dict[str, np.ndarray] = {}
    for size in sizes:
        for regularization in scoring.regularizations:
            key = f"{name}/{size}/{repeat}/{regularization.value!r}"
            measured = dict.fromkeys(names(data, scoring), math.nan)
            place = size, regularization.value
            of_parts = [
                [row for row in found if (row["n_interpolation"], row["configured_regularization"]) == place]
                for found, _, _ in each
            ]
            own = [{row["metric"]: row["value"] for row in found} for found in of_parts]
            lambdas = [found[EFFECTIVE] for found in own]
            measured |= {f"{EFFECTIVE}.{c}": value for c, value in enumerate(lambdas)}
            measured |= {EFFECTIVE: _geometric_mean(lambdas), "jitter": max(found["jitter"] for found in own)}
            if all(f"{key}/mean" in of_part for _, of_part, _ in each):
                whole = {
                    what: np.concatenate([of_part[f"{key}/{what}"] for _, of_part, _ in each], axis=1)
                    for what in ("mean", "deviation")
                    if all(f"{key}/{what}" in of_part for _, of_part, _ in each)
                }
                prediction = data.in_units(whole["mean"])
                arrays[f"{key}/mean"] = prediction if scoring.clip is None else prediction.clip(*scoring.clip)
                measured |= metrics(arrays[f"{key}/mean"], data) | measured_by_plugins(arrays[f"{key}/mean"], data)
                if "deviation" in whole:
                    spread = calibrated.deviations(whole["deviation"], data)
                    arrays |= {f"{key}/{name}": array for name, array in spread.items()}
                    measured |= calibrated.metrics(spread, arrays[f"{key}/mean"], data)
                if scoring.rollout is not None:
                    points = in_numpy(x_train[torch.as_tensor(order[:size], device=x_train.device)])
                    predicts = [
                        predictor(kernel, points, of_part[f"{key}/coefficients"])
                        for kernel, (_, of_part, _) in zip(kernels, each, strict=True)
                    ]
                    found, arrays[f"{key}/forecast"] = scoring.rollout(side_by_side(predicts), data)
                    measured |= found
            mean = _geometric_mean([found[0]["regularization"] for found in of_parts])
            rows += [
                {
                    "kernel": name,
                    "n_interpolation": size,
                    "repeat": repeat,
                    "regularization": mean,
                    "metric": metric,
                    "value": value,
                    "configured_regularization": regularization.value,
                }
                for metric, value in measured.items()
            ]
    return rows, arrays, [f"output {c}: {text}" for c, (_, _, failures) in enumerate(each) for text in failures]
