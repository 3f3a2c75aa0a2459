"""Data sets made from formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kfx.data.dataset import Dataset
from kfx.data.splits import take
from kfx.outcomes import DataError


def three_bumps(n_train: int, n_test: int, points: str, rng: np.random.Generator) -> Dataset:
    """f(x) = sin 2x + 3 sin 3x + 2 sin 4x on [−π, π] (Khalid 2022, eq. 4.1).

    points: `grid`, training points on a uniform grid with both ends; `random`, drawn uniformly. Test points are a grid.
    """
    x_train = np.linspace(-np.pi, np.pi, n_train) if points == "grid" else np.sort(rng.uniform(-np.pi, np.pi, n_train))
    x_test = np.linspace(-np.pi, np.pi, n_test)

    def f(x: np.ndarray) -> np.ndarray:
        return np.sin(2 * x) + 3 * np.sin(3 * x) + 2 * np.sin(4 * x)

    return Dataset("three_bumps", x_train[:, None], f(x_train)[:, None], x_test[:, None], f(x_test)[:, None])


def noisy_sine(n_train: int, n_test: int, noise: float, rng: np.random.Generator) -> Dataset:
    """y = sin x + ε on [0, 3π] (Darcy 2020, §2.2.3 and eq. 2.5); noise: the standard deviation of ε.

    Training points are uniform at random; test points are a grid, without noise.
    """
    x_train = np.sort(rng.uniform(0, 3 * np.pi, n_train))
    x_test = np.linspace(0, 3 * np.pi, n_test)
    y_train = np.sin(x_train) + noise * rng.standard_normal(n_train)
    return Dataset("noisy_sine", x_train[:, None], y_train[:, None], x_test[:, None], np.sin(x_test)[:, None])


def line(n_train: int, n_test: int, noise: float, rng: np.random.Generator) -> Dataset:
    """y = x + ε on [0, 1], as `noisy_sine`: a kernel should fit a straight line."""
    x_train, x_test = np.sort(rng.uniform(0, 1, n_train)), np.linspace(0, 1, n_test)
    y_train = x_train + noise * rng.standard_normal(n_train)
    return Dataset("line", x_train[:, None], y_train[:, None], x_test[:, None], x_test[:, None])


def swiss_roll(n_train: int, n_test: int, variant: str, t_range: tuple[float, float]) -> Dataset:
    """Two spirals, x = ±(t sin t, t cos t) with labels ±1; n points in all, half on each arm.

    variant: `symmetric`, t uniform over `t_range`, which no paper states (Owhadi & Yoo 2019, §7, show a picture);
    `darcy`, as his code: x = ±r (sin t, cos t), r = 1.5 t + 2, t uniform over [0, 2π], so that his σ apply;
    `khalid`, as the thesis's code: t uniform over [1.5π, 4.5π] of which the first 65 % are kept, the second
    spiral shifted by 0.25 in both coordinates. These two do not use `t_range`.
    Test points lie on the same arms, at the midpoints of a finer uniform grid.
    """
    if variant == "khalid":
        t_range, shift = (1.5 * np.pi, 1.5 * np.pi + 0.65 * 3 * np.pi), 0.25
    else:
        t_range, shift = (0.0, 2 * np.pi) if variant == "darcy" else t_range, 0.0
    low, high = t_range

    def arms(n: int, midpoints: bool) -> tuple[np.ndarray, np.ndarray]:
        first, second = n - n // 2, n // 2
        points, labels = [], []
        for count, sign in ((first, 1), (second, -1)):
            t = low + (high - low) * (np.arange(count) + 0.5) / count if midpoints else np.linspace(low, high, count)
            radius = 1.5 * t + 2 if variant == "darcy" else t
            arm = sign * np.stack([radius * np.sin(t), radius * np.cos(t)], axis=1)
            points.append(arm if sign > 0 else arm + shift)
            labels.append(np.full(count, sign))
        return np.concatenate(points), np.concatenate(labels)

    x_train, signs_train = arms(n_train, midpoints=False)
    x_test, signs_test = arms(n_test, midpoints=True)
    return Dataset(
        "swiss_roll",
        x_train,
        signs_train[:, None].astype(float),
        x_test,
        signs_test[:, None].astype(float),
        (signs_train > 0).astype(int),
        (signs_test > 0).astype(int),
    )


def gp_sample(
    n_train: int,
    n_test: int,
    dimensions: int,
    width: float,
    noise: float,
    gram: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
    function: str = "sample",
) -> Dataset:
    """One draw of a Gaussian process at points uniform in [−width/2, width/2]^dimensions.

    Its covariance has known parameters, so that studies can try to recover them.
    function: `sample`, the draw; `kernel`, K(x, 0) instead, as in the scripts of Darcy 2020, whose text ("generated
        according to the Gaussian kernel") allows both.
    gram: the covariance, (n, features) → (n, n). noise: standard deviation added to the training targets alone.
    """
    x = rng.uniform(-width / 2, width / 2, (n_train + n_test, dimensions))
    if function == "kernel":
        y = gram(np.concatenate([x, np.zeros((1, dimensions))]))[:-1, -1]
        y_train = y[:n_train] + noise * rng.standard_normal(n_train)
        return Dataset("gp_sample", x[:n_train], y_train[:, None], x[n_train:], y[n_train:, None])
    covariance = gram(x)
    # An eigenvalue may be negative by round-off; setting it to 0 changes nothing visible.
    eigenvalues, vectors = np.linalg.eigh(covariance)
    if eigenvalues[0] < -1e-8 * eigenvalues[-1]:
        raise DataError(f"dataset.kernel: its Gram matrix has the eigenvalue {eigenvalues[0]:.3g}; it is no covariance")
    y = vectors @ (np.sqrt(eigenvalues.clip(min=0.0)) * rng.standard_normal(len(x)))
    y_train = y[:n_train] + noise * rng.standard_normal(n_train)
    return Dataset("gp_sample", x[:n_train], y_train[:, None], x[n_train:], y[n_train:, None])


def elliptic_1d(
    n_train: int, n_test: int | None, intervals: int, points: str, conductivity: str, rng: np.random.Generator
) -> Dataset:
    """The solution u of −(a u')' = f on (0, 1) with u = 0 at both ends, at nodes i/intervals, by linear finite
    elements.

    Errors are also measured in the energy norm ∫ a v'² on all nodes (Owhadi & Yoo 2019, eq. 5.1 and Fig. 5.1–5.3).
    """
    from kfx.numerics import elliptic

    x = elliptic.nodes(intervals)
    a = elliptic.CONDUCTIVITIES[conductivity](elliptic.midpoints(intervals))
    u = elliptic.solution(a, elliptic.smooth_source(x))
    order = rng.permutation(len(x)) if points == "random" else _coarse_to_fine(intervals)
    train = order[:n_train]
    test = take("n_test", len(x), n_test, rng)
    energy = elliptic.energy_matrix(a) if n_test is None else None
    return Dataset("elliptic_1d", x[train, None], u[train, None], x[test, None], u[test, None], energy=energy)


def _coarse_to_fine(intervals: int) -> np.ndarray:
    """Numbers of the inner nodes: the middle one, then those of the halves, of the quarters, and so on."""
    step = intervals
    found: dict[int, None] = {}
    while step > 1:
        step //= 2
        found |= dict.fromkeys(range(step, intervals, step))
    return np.array(list(found)) - 1
