"""Initial parameters of a kernel: as configured, random, or with a length computed from the training points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kfx.kernels.base import Kernel
from kfx.kernels.kernel_option import RANDOM, KernelOption
from kfx.numerics.round_off import is_constant, round_off
from kfx.outcomes import DataError

if TYPE_CHECKING:
    from kfx.kernels.ard import ARD


_MOST_COMPARED = 1000


class Points(Protocol):
    """Data with training points."""

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features; empty if they have none."""

    @property
    def x_train(self) -> np.ndarray:
        """The training points, (n, …)."""


def candidates(
    option: KernelOption, built: Kernel, parts: Sequence[Points], rng: np.random.Generator
) -> list[list[Kernel]]:
    """Return, for each part of the data, the kernels to choose the start from: the configured one, then random ones.

    built: the kernel with its configured values. parts: data with training points `x_train`, (n, …). Raises DataError
    where a length computed from the points is outside the kernel's bounds.
    """
    width = math.prod(parts[0].x_train.shape[1:])
    built = built.for_features(width, parts[0].features)
    first = random_kernel(built, rng, option) if option.initial in RANDOM else built
    if option.initial not in RANDOM and option.draws_blocks():
        first = first.with_fresh_blocks(rng)
    lengths = [_lengths(option.initial, built, part) for part in parts] if option.initial in LENGTHS else []
    others = [random_kernel(built, rng, option) for _ in range(option.starts - 1)]
    if not lengths:
        return [[first, *others]] * len(parts)
    name = str(built.length)
    is_bounded = bool({name, getattr(option, "length", name)} & option.own_bounds())
    return [[_with_length(first, option.initial, own, is_bounded), *others] for own in lengths]


def with_one_length(option: KernelOption, kernel: ARD, part: Points) -> Kernel:
    """Return the kernel with one length for all features: computed from the points as `option` says, or the median of
    its lengths."""
    alone = kernel.with_one_length()
    if option.initial not in LENGTHS:
        return alone
    return _with_length(alone, option.initial, _lengths(option.initial, alone, part), is_bounded=True)


def _lengths(how: str, kernel: Kernel, part: Points) -> float | np.ndarray:
    """Return the kernel's length computed from the points, or the length of each feature, (features,).

    With D features each length is that of its feature times √D (D for a kernel of ‖x − x'‖₁), so that distances with
    all features together are about 1. A feature that is the same at all points is not counted, and gets an infinite
    length. DataError if all points are equal.
    """
    flat, name = part.x_train.reshape(len(part.x_train), -1), str(kernel.length)
    rule, is_same = partial(LENGTHS[how], norm=kernel.distance_norm), is_constant(flat)
    if is_same.all():
        raise DataError("all training points are equal, so a kernel cannot tell them apart; check the features")
    found: float | np.ndarray = rule(flat)
    if isinstance(kernel.parameters[name], np.ndarray):
        pairs = zip(flat.T, is_same, strict=True)
        each = np.array([0.0 if same else rule(column[:, None]) for column, same in pairs])
        count = np.count_nonzero(each)
        found = np.where(each > 0, each * count ** (1 / kernel.distance_norm), np.inf)
    return found


def _with_length(kernel: Kernel, how: str, found: float | np.ndarray, is_bounded: bool) -> Kernel:
    """Return the kernel with its length as found.

    With `median_distance` the range is widened to [1e-3, 1e3] times the length; if `is_bounded`, it is kept, and a
    length outside it becomes the nearer end. An infinite length becomes a tenth of the upper end, if that is long, or
    that end. Raises DataError where another length is outside the kernel's bounds.
    """
    name = str(kernel.length)
    low, high = kernel.limits[name]
    least, most = float(np.min(found)), float(np.max(found, initial=0.0, where=np.isfinite(found)))
    if how == "median_distance":
        if not is_bounded:
            low, high = min(low, least * 1e-3), max(high, most * 1e3)
            kernel = kernel.with_limits(**{name: (low, high)})
    elif not (low <= least and most <= high):
        raise DataError(
            f"kernel.initial={how}: gives {name}={least:.3g}, outside kernel.bounds.{name}=[{low:g}, {high:g}]; "
            "norms of unit_norm points do not vary: use mean_squared_distance, or explicit"
        )
    if isinstance(found, np.ndarray):
        long = high / 10 if high / 10 > 10 * most else high
        found = np.clip(np.where(np.isfinite(found), found, long), low, high)
    else:
        found = min(max(found, low), high)
    return kernel.with_parameters(**{name: found})


def random_kernel(built: Kernel, rng: np.random.Generator, option: KernelOption) -> Kernel:
    """Return the same kernel with random trainable parameters.

    They are drawn within `initial_range`. Those that it does not name stay if `initial` is partly_random; otherwise
    they are drawn as the kernel draws them, or within bounds.
    """
    return built.drawn(
        rng, option.initial_range, option.initial_distribution, in_ranges_only=option.initial == "partly_random"
    )


def _natural(x: np.ndarray, norm: float) -> float:
    """σ² = Var ‖x‖, which reproduces σ̂ in Tables 5.1 to 5.8 of Darcy 2020; his ch. 5 prints the variance of the squared
    norms."""
    return float(np.std(np.linalg.norm(x, axis=1)))


def _median_distance(x: np.ndarray, norm: float) -> float:
    """The median distance of two different points, of at most 1000 points spread over the rows; 0 if all are equal."""
    from scipy.spatial.distance import pdist

    some = x[np.linspace(0, len(x) - 1, min(len(x), _MOST_COMPARED)).astype(int)]
    if is_constant(some).all():
        return 0.0
    distances = pdist(some, "minkowski", p=norm)
    apart = distances[distances > round_off(some)]
    return float(np.median(apart)) if len(apart) else 0.0


def _mean_squared_distance(x: np.ndarray, norm: float) -> float:
    """2σ² = mean of ‖x − x'‖² over all pairs, those of a point with itself included (Owhadi & Yoo 2019, §8, γ⁻¹ = MSD;
    Darcy 2020, §5.0.1, prints 1/2σ² instead)."""
    return math.sqrt(float(np.mean(np.sum((x - x.mean(axis=0)) ** 2, axis=1))))


LENGTHS = {
    "natural": _natural,
    "mean_squared_distance": _mean_squared_distance,
    "median_distance": _median_distance,
}
"""Functions that compute a length from training points, (n, features), and the norm of the kernel's distance, by the
values of `kernel.initial`."""
