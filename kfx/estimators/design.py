"""Which inputs to simulate next, and which of them matter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kfx.estimators.regressor import KernelFlowRegressor
from kfx.outcomes import ConfigError


def design(emulator: KernelFlowRegressor, candidates: ArrayLike, count: int) -> np.ndarray:
    """Indices of the candidates to simulate next, (count,), in order: each has the largest posterior variance given the
    training points and those chosen before it.

    candidates: inputs, (n, features). This is a Cholesky factorisation of the posterior covariance of the candidates
    with pivots (Harbrecht, Peters & Schneider 2012); of several outputs the variances are added, in units of each
    output's variance. ConfigError if count is not between 1 and n.
    """
    x = emulator._points_of(candidates)
    if not 1 <= count <= len(x):
        raise ConfigError(f"count={count}: expected a whole number from 1 to the {len(x)} candidates")
    parts, weights = emulator._predictor.parts, _weights(emulator)
    variances, columns = zip(*(part.variance_and_columns(x) for part in parts), strict=True)
    left = np.stack(variances)
    factors = [np.zeros((count, len(x))) for _ in parts]
    chosen: list[int] = []
    for step in range(count):
        total = weights @ left
        total[chosen] = -np.inf
        best = int(total.argmax())
        chosen.append(best)
        for column_of, factor, own, part in zip(columns, factors, left, parts, strict=True):
            column = column_of(best) - factor[:step, best] @ factor[:step]
            factor[step] = column / np.sqrt(max(own[best], 0.0) + part.interpolant.effective)
            own -= factor[step] ** 2
    return np.array(chosen)


def _weights(emulator: KernelFlowRegressor) -> np.ndarray:
    """What the variance of each kernel counts, (kernels,): the outputs' variance per unit of the kernel's."""
    if not emulator.components_:
        return np.ones(1)
    scales = np.concatenate([part.scale for part in emulator._predictor.parts])
    reduction = emulator._predictor.units.reduction
    return scales if reduction is None else scales * np.square(reduction.basis).sum(axis=1)


def sensitivities(
    emulator: KernelFlowRegressor,
    ranges: Mapping[str, tuple[float, float]] | Sequence[tuple[float, float]],
    count: int = 1024,
    random_state: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """First-order and total Sobol indices of the emulator's mean, (outputs, features) each: the shares of an output's
    variance that an input explains alone, and with all its interactions (Saltelli et al. 2010).

    ranges: (low, high) of each input, which is uniform there: by the names of the features, or in their order. count: a
    power of two; the emulator predicts at count · (features + 2) points. ConfigError unless each feature has a range.
    """
    from scipy.stats import sobol_indices, uniform

    units = emulator._predictor.units
    points = units.x_train
    pairs = _in_order(ranges, units.features, math.prod(points.shape[1:]))
    found = sobol_indices(
        func=lambda x: emulator._predictor(units.mapped(x.T.reshape(-1, *points.shape[1:])))[0].T,
        n=count,
        dists=[uniform(low, high - low) for low, high in pairs],
        random_state=np.random.default_rng(random_state),
    )
    shape = -1, len(pairs)
    return np.reshape(found.first_order, shape), np.reshape(found.total_order, shape)


def _in_order(ranges: Any, features: Sequence[str], count: int) -> list[tuple[float, float]]:
    """The range of each feature in their order; ConfigError names the one that is missing, unknown or empty."""
    names = list(features) or [str(number) for number in range(count)]
    if hasattr(ranges, "keys"):  # a mapping, or a Series or frame with the names of the features
        if not features:
            raise ConfigError("ranges: the emulator has no names of features; give (low, high) in their order")
        given = {str(name): ranges[name] for name in ranges.keys()}  # noqa: SIM118  # a Series iterates its values
        for name in [*given, *names]:
            if name not in given or name not in names:
                what = "is no feature" if name in given else "has no range"
                raise ConfigError(f"ranges: {name} {what}; expected (low, high) of {', '.join(names)}")
        ranges = [given[name] for name in names]
    pairs = [tuple(map(float, pair)) for pair in ranges]
    if len(pairs) != count:
        raise ConfigError(f"ranges: holds {len(pairs)} ranges; expected (low, high) of {count} features")
    for name, pair in zip(names, pairs, strict=True):
        if len(pair) != 2 or not -math.inf < pair[0] < pair[1] < math.inf:
            raise ConfigError(f"ranges: feature {name} has {pair}; expected (low, high), two rising numbers")
    return [(low, high) for low, high in pairs]
