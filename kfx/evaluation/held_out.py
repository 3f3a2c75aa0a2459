"""Compare kernels on the same batches, which no optimizer sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from kfx.files import Document, TableRow
from kfx.kernels.base import Kernel
from kfx.numerics.rho_law import effective_outputs, mean_and_deviation
from kfx.optimizers.loss import Evaluation, Loss
from kfx.sampling.samplers import Batch, Sampler

COLUMNS = ("kernel", "part", "batch", "rho", "objective")


def drawn(sampler: Sampler, data: Sequence[torch.Tensor], rng: np.random.Generator, count: int) -> list[Batch]:
    """Draw `count` batches of the data: x (n, …), y (n, outputs). rng: draws nothing but these batches."""
    sampler.start(*data)
    return [sampler.draw(rng) for _ in range(count)]


def on_the_same_batches(
    kernels: Sequence[Kernel], make_loss: Callable[..., Loss], batches: Sequence[Batch], data: Sequence[torch.Tensor]
) -> list[list[Evaluation]]:
    """Evaluate the objective of each kernel on the batches. data: x (n, …), y (n, outputs)."""
    found = []
    for kernel in kernels:
        evaluate = make_loss(kernel, *data)
        found.append([evaluate(kernel.flat, batch, gradient=False) for batch in batches])
    return found


def mean_objectives(
    kernels: Sequence[Kernel],
    make_loss: Callable[..., Loss],
    sampler: Sampler,
    data: Sequence[torch.Tensor],
    rng: np.random.Generator,
    count: int = 10,
) -> list[float]:
    """Mean objective of each kernel over the same `count` batches; infinite if it fails on one of them.

    data: x (n, …), y (n, outputs).
    """
    return [
        math.inf if any(value.failed for value in values) else float(np.mean([value.objective for value in values]))
        for values in on_the_same_batches(kernels, make_loss, drawn(sampler, data, rng, count), data)
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
    """Means and standard deviations of ρ and the objective over the batches of all parts, for `metrics.json`.

    They are given for the initial kernel, the trained one and the change between them, over batches where neither
    failed.
    """
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


def beside_law(rho: Document, batch: Batch, y: torch.Tensor) -> Document:
    """ρ of draws of the kernel's own process, and how far from their mean the measured ones lie, for `metrics.json`.

    rho: of `summary`. batch: one of those that were measured. y: targets from which the batches were drawn, (n,
    outputs). sd: of one batch; the mean of several, which overlap, has at most this deviation.
    """
    mean, sd = mean_and_deviation(len(batch.indices), batch.sample_size, effective_outputs(y))
    deviations = {kernel: (rho[kernel]["mean"] - mean) / sd for kernel in ("initial", "trained")}
    return {"mean": mean, "sd": sd, "deviations": deviations}


def _mean_and_sd(values: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(values.mean()) if len(values) else math.nan,
        "sd": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
    }
