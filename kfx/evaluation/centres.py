"""Choose the centres of Nyström regression among training points, or move them by a kernel flow."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.kernels.names import lengths_of
from kfx.kernels.stationary_tensors import squared_distances_by_differences
from kfx.numerics.arrays import in_numpy
from kfx.numerics.nystrom import Centres, Spectrum, Sums
from kfx.numerics.pivoted_cholesky import randomly_pivoted
from kfx.numerics.regularization import Regularization
from kfx.objectives.relative_error import rho
from kfx.outcomes import NumericalError

_CANDIDATES = 20_000
"""Points, drawn at random, among which centres are chosen: their columns must be in memory."""
_LAYERS = 200
_RATE = 0.1
_BATCH = 1000
_BLOCK = 4096
_REGULARIZATIONS = [Regularization(10.0**exponent) for exponent in range(-8, 1)]


def chosen_centres(
    kernel: Kernel,
    x: torch.Tensor,
    y: torch.Tensor,
    count: int,
    how: str,
    regularization: Regularization,
    rng: np.random.Generator,
    follow: Callable[[str], None] = lambda state: None,
) -> torch.Tensor:
    """Return `count` centres, (M, …), or fewer where so many give the kernel exactly.

    how: `uniform` draws points; `rpcholesky` draws them by randomly pivoted Cholesky; `kmeans` takes the means of
    k-means clusters; `flow` moves the points of `rpcholesky` by a kernel flow, and leaves them in place where the flow
    fails, or where they then predict points worse that it has not seen. x: mapped points, (n, …). y: their targets,
    (n, outputs). regularization: λ of the flow. follow: called with the state in words.
    """
    some = rng.permutation(len(x))[: max(_CANDIDATES, count)]
    among, candidates = torch.from_numpy(some), x[torch.from_numpy(some)]
    if how == "uniform" or count >= len(x):
        return candidates[:count]
    if how == "kmeans":
        return _means(kernel, candidates, count, rng)
    pivots = _pivots(kernel, candidates, count, rng, follow)
    centres = candidates[torch.from_numpy(pivots)]
    if how == "rpcholesky":
        return centres
    others = np.delete(some, pivots)
    if len(others) < 5:  # too few to see whether they are predicted better
        return centres
    unseen, seen = (torch.from_numpy(part) for part in np.split(others, [len(others) // 5]))
    targets = y[among[torch.from_numpy(pivots)]]
    try:
        moved = _flowed(kernel, centres, targets, x, y, unseen, regularization, rng, follow)
    except NumericalError:
        return centres
    errors = [_error(kernel, z, x[seen], y[seen], x[unseen], y[unseen]) for z in (moved, centres)]
    return moved if errors[0] < errors[1] else centres


def _pivots(
    kernel: Kernel, x: torch.Tensor, count: int, rng: np.random.Generator, follow: Callable[[str], None]
) -> np.ndarray:
    """Return indices of points, at most `count`."""
    done = 0

    def columns(points: np.ndarray) -> torch.Tensor:
        nonlocal done
        done += len(points)
        follow(f"centres {done}/{count}")
        return kernel.gram(x, x[torch.from_numpy(points)])

    def among(points: np.ndarray) -> torch.Tensor:
        return kernel.gram(x[torch.from_numpy(points)])

    return randomly_pivoted(columns, among, kernel.diagonal(x), count, rng)[0]


def _means(kernel: Kernel, x: torch.Tensor, count: int, rng: np.random.Generator) -> torch.Tensor:
    """Return the means of clusters, in units of the kernel's lengths where each feature has one."""
    from sklearn.cluster import MiniBatchKMeans

    rows = in_numpy(x).reshape(len(x), -1)
    lengths = lengths_of(kernel.parameters)
    unit = np.ones(rows.shape[1]) if lengths is None else lengths
    seed = int(rng.integers(2**31))
    means = MiniBatchKMeans(count, random_state=seed, n_init=1, batch_size=4096).fit(rows / unit).cluster_centers_
    return torch.as_tensor(means * unit, dtype=x.dtype, device=x.device).reshape(-1, *x.shape[1:])


def _error(
    kernel: Kernel,
    centres: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    x_test: torch.Tensor,
    y_test: torch.Tensor,
) -> float:
    """Return the sum of squared errors at test points of regression through centres, with the best λ."""
    try:
        features = Centres.of(kernel, centres)
    except NumericalError:
        return math.inf
    sums = Sums.zero(len(centres), y.shape[1])
    for points, targets in zip(x.split(_BLOCK), y.split(_BLOCK), strict=True):
        phi, diagonal = features.features(points).cpu(), kernel.diagonal(points).cpu()
        sums = sums.with_points(phi, targets.to("cpu", torch.float64), diagonal)
    spectrum, phi, expected = Spectrum.of(sums), features.features(x_test).cpu(), y_test.to("cpu", torch.float64)
    weights = [spectrum.solve(sums.products, sums.effective(each)) for each in _REGULARIZATIONS]
    return min(float((phi.mT @ w - expected).square().sum()) for w in weights)


def _flowed(
    kernel: Kernel,
    centres: torch.Tensor,
    targets: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    unseen: torch.Tensor,
    regularization: Regularization,
    rng: np.random.Generator,
    follow: Callable[[str], None],
) -> torch.Tensor:
    """Return centres moved by Adam along −∂ρ/∂z, where ρ compares them, with the targets of the points that they were,
    to them and a batch of training points, none of them `unseen`.

    The rate is a share of the median distance between nearest centres, and falls linearly to zero.
    """
    m, moved, rows = len(centres), centres.clone(), centres.reshape(len(centres), -1)
    nearest = squared_distances_by_differences(rows, None).fill_diagonal_(torch.inf).min(dim=1).values.sqrt()
    adam = torch.optim.Adam([moved], lr=_RATE * float(nearest.median()) / rows.shape[1] ** 0.5)
    decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, _LAYERS)
    others = np.delete(np.arange(len(x)), unseen.numpy())
    for layer in range(_LAYERS):
        batch = torch.from_numpy(rng.choice(others, min(_BATCH, len(others)), replace=False))
        gram, pull = kernel.pullback(torch.cat([moved, x[batch]]))
        value, cotangent = rho(gram, torch.cat([targets, y[batch]]), m, regularization)
        assert cotangent is not None
        moved.grad = pull(cotangent, inputs=True)[1][:m]
        adam.step()
        decay.step()
        follow(f"flow of centres {layer + 1}/{_LAYERS}: rho {value:.4g}")
    return moved
