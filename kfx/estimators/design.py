"""Which inputs to simulate next, and which of them matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    parts = emulator.components_ or [emulator]
    weights = _weights(emulator)
    covariances = [part._covariance(x, False) for part in parts]
    left = np.stack([covariance.diagonal() for covariance in covariances]).copy()
    factors = [np.zeros((count, len(x))) for _ in parts]
    chosen: list[int] = []
    for step in range(count):
        total = weights @ left
        total[chosen] = -np.inf
        best = int(total.argmax())
        chosen.append(best)
        for covariance, factor, own, part in zip(covariances, factors, left, parts, strict=True):
            column = covariance[best] - factor[:step, best] @ factor[:step]
            factor[step] = column / np.sqrt(max(own[best], 0.0) + part._interpolant.effective)
            own -= factor[step] ** 2
    return np.array(chosen)


def _weights(emulator: KernelFlowRegressor) -> np.ndarray:
    """What the variance of each kernel counts, (kernels,): the outputs' variance per unit of the kernel's."""
    if not emulator.components_:
        return np.ones(1)
    scales = np.concatenate([part.scale_ for part in emulator.components_])
    reduction = emulator._units.reduction
    return scales if reduction is None else scales * np.square(reduction.basis).sum(axis=1)


def sensitivities(
    emulator: KernelFlowRegressor,
    ranges: Mapping[str, tuple[float, float]] | Sequence[tuple[float, float]],
    count: int = 1024,
    random_state: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """First-order and total Sobol indices of the emulator's mean, (outputs, features) each: the shares of an output's
    variance that an input explains alone, and with all its interactions (Saltelli et al. 2010).

    ranges: (low, high) of each input, which is uniform there. count: a power of two; the emulator predicts at
    count · (features + 2) points.
    """
    from scipy.stats import sobol_indices, uniform

    pairs = list(ranges.values()) if isinstance(ranges, Mapping) else list(ranges)
    found = sobol_indices(
        func=lambda x: emulator.predict(x.T).reshape(x.shape[1], -1).T,
        n=count,
        dists=[uniform(low, high - low) for low, high in pairs],
        random_state=np.random.default_rng(random_state),
    )
    shape = -1, len(pairs)
    return np.reshape(found.first_order, shape), np.reshape(found.total_order, shape)
