"""Initial parameters of a kernel: as configured, random, or with a length computed from the training points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kfx.config.choices import RANDOM
from kfx.kernels.base import Kernel
from kfx.outcomes import DataError

if TYPE_CHECKING:
    from kfx.kernels.kernel_option import KernelOption


class Points(Protocol):
    """Data with training points."""

    @property
    def x_train(self) -> np.ndarray:
        """The training points, (n, …)."""


def candidates(
    start: KernelOption, built: Kernel, parts: Sequence[Points], rng: np.random.Generator
) -> list[list[Kernel]]:
    """Return, for each part of the data, the kernels to choose the start from: the configured one, then random ones.

    built: the kernel with its configured values. parts: data with training points `x_train`, (n, …). Raises DataError
    where a length computed from the points is outside the kernel's bounds.
    """
    first = random_kernel(built, rng, start) if start.initial in RANDOM else built
    if start.initial not in RANDOM and start.draws_blocks():
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
    """Return the same kernel with random trainable parameters.

    They are drawn within `initial_range`. Those that it does not name stay if start.initial is partly_random; otherwise
    they are drawn as the kernel draws them, or within bounds.
    """
    return built.drawn(
        rng, start.initial_range, start.initial_distribution, in_ranges_only=start.initial == "partly_random"
    )


def _natural(x: np.ndarray) -> float:
    """σ² = Var ‖x‖, which reproduces σ̂ in Tables 5.1 to 5.8 of Darcy 2020; his ch. 5 prints the variance of the squared
    norms."""
    return float(np.std(np.linalg.norm(x.reshape(len(x), -1), axis=1)))


def _mean_squared_distance(x: np.ndarray) -> float:
    """2σ² = mean of ‖x − x'‖² over all pairs, those of a point with itself included (Owhadi & Yoo 2019, §8, γ⁻¹ = MSD;
    Darcy 2020, §5.0.1, prints 1/2σ² instead)."""
    flat = x.reshape(len(x), -1)
    return math.sqrt(float(np.mean(np.sum((flat - flat.mean(axis=0)) ** 2, axis=1))))


LENGTHS = {"natural": _natural, "mean_squared_distance": _mean_squared_distance}
"""Functions that compute σ from training points, (n, …), by the values of `kernel.initial`."""
