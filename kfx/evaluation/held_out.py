"""Kernels compared on the same batches, which no optimizer sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from kfx.files import Document, TableRow
from kfx.kernels.base import Kernel
from kfx.optimizers.loss import Evaluation, Loss
from kfx.sampling.samplers import FixedSampler

COLUMNS = ("kernel", "part", "batch", "rho", "objective")


def on_the_same_batches(
    kernels: Sequence[Kernel],
    loss: Callable[..., Loss],
    sampler: FixedSampler,
    data: Sequence[torch.Tensor],
    rng: np.random.Generator,
    count: int,
) -> list[list[Evaluation]]:
    """For each kernel the objective on each of `count` batches, drawn for this alone and the same for all kernels."""
    sampler.start(*data)
    batches = [sampler.draw(rng) for _ in range(count)]
    return [
        [evaluate(kernel.flat, b, gradient=False) for b in batches]
        for kernel in kernels
        for evaluate in [loss(kernel, *data)]
    ]


def mean_objectives(
    kernels: Sequence[Kernel],
    loss: Callable[..., Loss],
    sampler: FixedSampler,
    data: Sequence[torch.Tensor],
    rng: np.random.Generator,
    count: int = 10,
) -> list[float]:
    """The mean objective of each kernel over the same batches, drawn for this alone; infinite where it fails."""
    return [
        math.inf if any(value.failed for value in values) else float(np.mean([value.objective for value in values]))
        for values in on_the_same_batches(kernels, loss, sampler, data, rng, count)
    ]


def rows(name: str, part: int, evaluations: Sequence[Evaluation]) -> list[Document]:
    """Rows of `held_out.csv`; NaN where the objective could not be evaluated."""
    return [
        {
            "kernel": name,
            "part": part,
            "batch": i,
            "rho": math.nan if e.failed else e.rho,
            "objective": math.nan if e.failed else e.objective,
        }
        for i, e in enumerate(evaluations)
    ]


def summary(table: Sequence[TableRow]) -> Document:
    """For `metrics.json`: mean and standard deviation of ρ and the objective over the batches of all parts, of the
    initial kernel, the trained one and the change from one to the other, on batches where both could be had."""
    found: Document = {"batches": sum(row["kernel"] == "initial" for row in table)}
    for name in ("rho", "objective"):
        initial, trained = (
            np.array([row[name] for row in table if row["kernel"] == kernel], dtype=float)
            for kernel in ("initial", "trained")
        )
        both = np.isfinite(initial) & np.isfinite(trained)
        each = {"initial": initial, "trained": trained, "change": trained - initial}
        found[name] = {kernel: _mean_and_sd(values[both]) for kernel, values in each.items()}
        found["failed"] = int(len(both) - both.sum())
    return found


def _mean_and_sd(values: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(values.mean()) if len(values) else math.nan,
        "sd": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
    }
