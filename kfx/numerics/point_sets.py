"""Sets of points of trajectories, and distances between them."""

from __future__ import annotations

import math

import numpy as np

_DELAYS = 3


def nearest(points: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distance of each point, (n, d), to the nearest of the others, (m, d), and the index of that, (n,) each."""
    from scipy.spatial import KDTree

    distances, indices = KDTree(others).query(points)
    return np.asarray(distances), np.asarray(indices)


def hausdorff(a: np.ndarray, b: np.ndarray) -> float:
    """The Hausdorff distance of two sets of points, (n, d) and (m, d): the largest distance of a point of either set to
    the nearest point of the other."""
    return float(max(nearest(a, b)[0].max(), nearest(b, a)[0].max()))


def modified_hausdorff(a: np.ndarray, b: np.ndarray) -> float:
    """The modified Hausdorff distance of Jahagirdar et al. 2025, eq. 5, of two sets of points, (n, d) and (m, d).

    ½ (mean of min |a − b|² over a + the same over b): means in place of the largest values, and *squared* distances.
    """
    return float(np.square(nearest(a, b)[0]).mean() + np.square(nearest(b, a)[0]).mean()) / 2


def modified_hausdorff_and_slope(a: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray]:
    """`modified_hausdorff`, and its derivative with respect to a, (n, d), where each point has one nearest point."""
    (to_b, of_a), (to_a, of_b) = nearest(a, b), nearest(b, a)
    slope = (a - b[of_a]) / len(a)
    np.add.at(slope, of_b, (a[of_b] - b) / len(b))
    return float(np.square(to_b).mean() + np.square(to_a).mean()) / 2, slope


def in_state_space(runs: np.ndarray, delay: int) -> np.ndarray:
    """The points of trajectories in state space, (runs, T', d): their coordinates, or of one coordinate its values at
    three times, `delay` steps apart (Takens 1981). runs: (runs, T, coordinates)."""
    if runs.shape[2] > 1:
        return runs
    count = runs.shape[1] - (_DELAYS - 1) * delay
    return np.concatenate([runs[:, i * delay : i * delay + count] for i in range(_DELAYS)], axis=2)


def to_runs(slopes: np.ndarray, steps: int, delay: int) -> np.ndarray:
    """The derivatives with respect to trajectories of `steps` steps, given those with respect to `in_state_space` of
    them, (runs, T', d)."""
    if slopes.shape[1] == steps:
        return slopes
    found = np.zeros((len(slopes), steps, 1))
    for i in range(_DELAYS):
        found[:, i * delay : i * delay + slopes.shape[1], 0] += slopes[:, :, i]
    return found


def delay_of(values: np.ndarray, steps: int) -> int:
    """The first delay at which the autocorrelation of the values, (T,), is below 1/e, or a quarter of `steps`."""
    most = max((steps - 1) // 4, 1)
    z = values - values.mean()
    products = (float(np.dot(z[: len(z) - k], z[k:])) for k in range(1, most + 1))
    return next((k for k, product in enumerate(products, 1) if product < float(np.dot(z, z)) / math.e), most)
