"""Other forecasters of a series with one coordinate, with settings by kfx's own backtest.

A Gaussian process, NG-RC and an echo state network take the best of eight settings with five penalties each: the one
whose forecasts of the five blocks of `kfx.data.backtest` have the least geometric mean of their sMAPE. As kfx's, a fit
sees the stretches before and after the block. *parrot* and *persistence* choose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement, product

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.spatial.distance import cdist, pdist

from kfx.data.backtest import Backtest, mean_error
from kfx.data.windows import Trajectory, Windows, smape

Forecast = Callable[[np.ndarray, int], tuple[np.ndarray, int]]
"""Maps the known values, (T,), and a number of steps to a forecast, (steps,), and the number of values in a window, 0
for none."""
Setting = tuple[float, ...]
Rollout = Callable[[np.ndarray, int], np.ndarray]
"""Maps the values before an origin, (T,), and a number of steps to a forecast for each penalty, (penalties, steps)."""
Fit = Callable[[Setting, Sequence[float], Sequence[np.ndarray]], Rollout]
"""Fits stretches of a series with a setting and each of some penalties."""
Features = Callable[[np.ndarray], np.ndarray]
"""Maps points, (n, lags), to their features, (n, features)."""
Solve = Callable[[np.ndarray, np.ndarray], tuple[Features, np.ndarray]]
"""Maps points and targets, (n,), to features and their weights with each penalty, (penalties, features)."""
UNITS = 300


def by_backtest(
    fit: Fit, settings: Sequence[Setting], penalties: Sequence[float], reach: Callable[[Setting], int]
) -> Forecast:
    """Forecasts with the setting and the penalty that are best in kfx's backtest.

    reach: the number of values in the window of a setting.
    """

    def run(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
        offered = short_enough(settings, reach, len(known))
        errors = [backtested(fit, setting, penalties, max(reach(setting), 1), known, steps) for setting in offered]
        best, penalty = divmod(int(np.argmin(errors)), len(penalties))
        return fit(offered[best], penalties[penalty : penalty + 1], [known])(known, steps)[0], reach(offered[best])

    return run


def short_enough(settings: Sequence[Setting], reach: Callable[[Setting], int], known: int) -> list[Setting]:
    """The settings whose windows are shorter than a quarter of the known values, as kfx's."""
    return [setting for setting in settings if reach(setting) < known / 4]


def backtested(
    fit: Fit, setting: Setting, penalties: Sequence[float], reach: int, known: np.ndarray, steps: int
) -> np.ndarray:
    """The error of kfx's backtest with each penalty, (penalties,)."""
    test = Backtest.of(Windows(reach), [series(known)], steps)
    errors = []
    for at, truth in zip(test.time[:, reach].astype(int), test.truth, strict=True):
        found = fit(setting, penalties, [known[:at], known[at + len(truth) :]])(known[:at], len(truth))
        errors.append(smape(found[..., None], truth))
    return mean_error(np.stack(errors))


def series(values: np.ndarray) -> Trajectory:
    return Trajectory(np.arange(len(values), dtype=float), values[:, None])


def solutions(gram: np.ndarray, right: np.ndarray, penalties: Sequence[float]) -> np.ndarray:
    """(gram + penalty I)⁻¹ right for each penalty, (penalties, n); NaN where that is not positive definite."""
    found = np.full((len(penalties), len(right)), np.nan)
    for row, penalty in zip(found, penalties, strict=True):
        system = gram.copy()
        np.fill_diagonal(system, gram.diagonal() + penalty)
        try:
            row[:] = cho_solve(cho_factor(system, overwrite_a=True, check_finite=False), right)
        except LinAlgError:
            continue
    return found


def on_windows(windows: Windows, stretches: Sequence[np.ndarray], solve: Solve) -> Rollout:
    """Forecasts by a linear prediction of the next change from the windows that lie within the stretches."""
    windows = windows.fitted([series(np.concatenate(stretches))])
    cut = [windows.cut(series(each))[:2] for each in stretches if len(each) > windows.reach]
    x, y = (np.concatenate(kind) for kind in zip(*cut, strict=True))
    features, weights = solve(x, y[:, 0])

    def rollout(history: np.ndarray, steps: int) -> np.ndarray:
        past = np.repeat(history[None, -windows.reach :, None], len(weights), axis=0)
        time = np.zeros((1, windows.reach + steps))
        with np.errstate(all="ignore"):  # a forecast that leaves every range counts 200
            return windows.forecast(lambda x: (features(x) * weights).sum(axis=1)[:, None], past, time, steps)[..., 0]

    return rollout


def next_generation_reservoir(setting: Setting, penalties: Sequence[float], stretches: Sequence[np.ndarray]) -> Rollout:
    """Ridge regression on a constant, delays, and their products (Gauthier et al. 2021).

    setting: the number of delays, their stride, and the largest number of factors.
    """
    delays, stride, degree = map(int, setting)
    factors = [np.array(list(combinations_with_replacement(range(delays), k))) for k in range(1, degree + 1)]

    def features(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ones((len(x), 1)), *(x[:, each].prod(axis=2) for each in factors)], axis=1)

    def solve(x: np.ndarray, y: np.ndarray) -> tuple[Features, np.ndarray]:
        phi = features(x)
        return features, solutions(phi.T @ phi, phi.T @ y, penalties)

    return on_windows(Windows(delays, stride), stretches, solve)


def gaussian_process(setting: Setting, penalties: Sequence[float], stretches: Sequence[np.ndarray]) -> Rollout:
    """A Gaussian process with a Gaussian kernel; penalties: the variance of the noise, in units of the kernel's.

    setting: the number of lags, and the length in units of the median distance of two windows.
    """
    lags, factor = setting

    def solve(x: np.ndarray, y: np.ndarray) -> tuple[Features, np.ndarray]:
        length = factor * float(np.median(pdist(x[:: len(x) // 300 + 1])))

        def kernel(at: np.ndarray) -> np.ndarray:
            return np.exp(cdist(at, x, "sqeuclidean") / (-2 * length**2))

        return kernel, solutions(kernel(x), y, penalties)

    return on_windows(Windows(int(lags)), stretches, solve)


@lru_cache(maxsize=1)
def reservoir() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights between units, with spectral radius one, those of the input, and the biases, as reservoirpy draws
    them."""
    from reservoirpy.mat_gen import uniform
    from reservoirpy.nodes import Reservoir

    node = Reservoir(UNITS, bias=uniform, seed=0)
    node.run(np.zeros((1, 1)))
    return node.W.toarray(), node.Win.toarray(), np.asarray(node.bias).reshape(-1, 1)


def states(setting: Setting, values: np.ndarray, state: np.ndarray) -> np.ndarray:
    """The states after each of the values, (T, units, m).

    setting: the spectral radius, the leak and the scale of the input. values: (T, m). state: before them, (units, m).
    """
    radius, leak, scale = setting
    between, inputs, bias = reservoir()
    found = np.empty((len(values), *state.shape))
    for t, value in enumerate(values):
        state = (1 - leak) * state + leak * np.tanh(radius * (between @ state) + scale * inputs * value + bias)
        found[t] = state
    return found


def echo_state_network(setting: Setting, penalties: Sequence[float], stretches: Sequence[np.ndarray]) -> Rollout:
    """An echo state network, whose readout sees a constant, the input and the state.

    As many states as a tenth of the stretches together are left out at the start of each, where they depend on the
    initial state.
    """
    whole = np.concatenate(stretches)
    mean, deviation, wash = whole.mean(), whole.std(), len(whole) // 10
    rest = np.zeros((UNITS, 1))

    x, y = [], []
    for z in ((each - mean) / deviation for each in stretches if len(each) > wash + 1):
        x.append(np.c_[np.ones(len(z)), z, states(setting, z[:, None], rest)[..., 0]][wash:-1])
        y.append(np.diff(z)[wash:])
    phi = np.concatenate(x)
    weights = solutions(phi.T @ phi, phi.T @ np.concatenate(y), penalties)
    constant, of_input, of_state = weights[:, 0], weights[:, 1], weights[:, 2:].T

    def rollout(history: np.ndarray, steps: int) -> np.ndarray:
        z = (history[-2 * wash :] - mean) / deviation
        state = np.repeat(states(setting, z[:, None], rest)[-1], len(weights), axis=1)
        now, found = np.full(len(weights), z[-1]), []
        for _ in range(steps):
            now = now + constant + of_input * now + (of_state * state).sum(axis=0)
            state = states(setting, now[None], state)[0]
            found.append(now)
        return np.stack(found, axis=1) * deviation + mean

    return rollout


def parrot(known: np.ndarray, steps: int, lags: int = 30) -> tuple[np.ndarray, int]:
    """What followed the window of the past that is most like the last one, again and again."""
    lags = min(lags, len(known) // 5)
    past = np.lib.stride_tricks.sliding_window_view(known, lags)[:-1]
    best = int(np.argmin(((past - known[-lags:]) ** 2).sum(axis=1))) + lags
    return np.resize(known[best:], steps), lags


def persistence(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
    return np.full(steps, known[-1]), 0


def window_of_lags(setting: Setting) -> int:
    return int(setting[0])


def window_of_delays(setting: Setting) -> int:
    return int((setting[0] - 1) * setting[1] + 1)


def no_window(setting: Setting) -> int:
    return 0


GRIDS: dict[str, tuple[Fit, list[Setting], tuple[float, ...], Callable[[Setting], int]]] = {
    "Gaussian process": (
        gaussian_process,
        list(product((8, 15, 30, 60), (0.5, 2.0))),
        (1e-11, 1e-9, 1e-7, 1e-5, 1e-3),
        window_of_lags,
    ),
    "NG-RC": (
        next_generation_reservoir,
        list(product((4, 8), (2, 8), (2, 3))),
        (1e-9, 1e-5, 1e-3, 1e-1, 10.0),
        window_of_delays,
    ),
    "echo state network": (
        echo_state_network,
        list(product((0.6, 1.2), (0.3, 1.0), (0.3, 1.0))),
        (1e-11, 1e-9, 1e-6, 1e-3, 1e-1),
        no_window,
    ),
}
RIVALS: dict[str, Forecast] = {
    **{name: by_backtest(*grid) for name, grid in GRIDS.items()},
    "parrot": parrot,
    "persistence": persistence,
}
