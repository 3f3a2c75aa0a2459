"""Where a kernel's parameters start: as configured, drawn, or with a length taken from the training points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kfx.kernels.base import Kernel
from kfx.outcomes import DataError

if TYPE_CHECKING:
    from kfx.kernels.kernel_option import KernelOption


class Points(Protocol):
    """What holds training points."""

    @property
    def x_train(self) -> np.ndarray:
        """(n, …)."""


def candidates(
    start: KernelOption, built: Kernel, parts: Sequence[Points], rng: np.random.Generator
) -> list[list[Kernel]]:
    """For each part the kernels to choose its start from: the one that the config describes, then random ones.

    built: the kernel with its configured values. DataError where a length taken from the points is none that an
    optimizer may start from.
    """
    first = random_kernel(built, rng, start) if start.initial == "random" else built
    if start.initial != "random" and start.draws_blocks():
        first = first.with_fresh_blocks(rng)
    lengths = [LENGTHS[start.initial](part.x_train) for part in parts] if start.initial in LENGTHS else []
    for length in lengths:
        low, high = built.limits["sigma"]
        if not low <= length <= high:
            raise DataError(
                f"kernel.initial={start.initial}: gives sigma={length:.3g}, outside kernel.bounds.sigma=[{low:g}, "
                f"{high:g}]; norms of unit_norm points do not vary: use mean_squared_distance, or explicit"
            )
    others = [random_kernel(built, rng, start) for _ in range(start.starts - 1)]
    if not lengths:
        return [[first, *others]] * len(parts)
    return [[first.with_parameters(sigma=length), *others] for length in lengths]


def random_kernel(built: Kernel, rng: np.random.Generator, start: KernelOption) -> Kernel:
    """The same kernel, its trainable parameters drawn within `initial_range`, or, where that is silent, as the kernel
    draws them or within their bounds."""
    return built.drawn(rng, start.initial_range, start.initial_distribution)


def _natural(x: np.ndarray) -> float:
    """σ² = Var ‖x‖: what gives the numbers of Darcy 2020, Tables 5.1 to 5.8, for his σ̂; ch. 5 prints the variance of
    the squared norms."""
    return float(np.std(np.linalg.norm(x.reshape(len(x), -1), axis=1)))


def _mean_squared_distance(x: np.ndarray) -> float:
    """2σ² = mean of ‖x − x'‖² over all pairs, a point with itself among them (Owhadi & Yoo 2019, §8, γ⁻¹ = MSD; Darcy
    2020, §5.0.1, prints 1/2σ² for it)."""
    flat = x.reshape(len(x), -1)
    return math.sqrt(float(np.mean(np.sum((flat - flat.mean(axis=0)) ** 2, axis=1))))


LENGTHS = {"natural": _natural, "mean_squared_distance": _mean_squared_distance}
"""σ from the training points, by the words of `kernel.initial`."""
