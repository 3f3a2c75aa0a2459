"""Other forecasters of a series, with settings by kfx's own backtest.

A Gaussian process, NG-RC and an echo state network take the best of eight settings with some penalties each, by the
forecasts of the blocks of `kfx.data.backtest`: a fit sees what kfx's sees of a series, and has the same error. *ridge*
and *kernel ridge* take the best of one hold-out, the last fifth. *parrot* and *persistence* choose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement, product

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.spatial.distance import cdist, pdist

from kfx.data.backtest import MOST_ERROR, mean_error
from kfx.data.choice import FAR, backtest_of, steps_that_tell
from kfx.data.differences import Differences
from kfx.data.windows import Trajectory, Windows, smape

Forecast = Callable[[np.ndarray, int], tuple[np.ndarray, int]]
"""Maps the known values, (T,), and a number of steps to a forecast, (steps,), and the number of values in a window, 0
for none."""
Setting = tuple[float, ...]
Rollout = Callable[[np.ndarray, int], np.ndarray]
"""Maps the values before an origin, (T, coordinates), and a number of steps to a forecast for each penalty, (penalties,
steps, coordinates)."""
Fit = Callable[[Setting, Sequence[float], Sequence[np.ndarray]], Rollout]
"""Fits stretches of a series, (T, coordinates) each, with a setting and each of some penalties."""
Features = Callable[[np.ndarray], np.ndarray]
"""Maps points, (n, lags · coordinates), to their features, (n, features)."""
Solve = Callable[[np.ndarray, np.ndarray], tuple[Features, np.ndarray]]
"""Maps points and targets, (n, coordinates), to features and their weights with each penalty, (penalties, features,
coordinates)."""
Grid = tuple[Fit, Sequence[Setting], Sequence[float], Callable[[Setting], int]]
"""A fit with the settings and penalties to choose from, and the number of values in the window of a setting."""
Tested = Callable[[Grid, np.ndarray, int], np.ndarray]
"""Maps a grid, the known values and a number of steps to the errors, (settings, penalties)."""
UNITS = 300


def fitted(grid: Grid, known: np.ndarray, steps: int, tested: Tested) -> tuple[Rollout, Setting]:
    """The fit to the known values, (T, coordinates), with the setting and the penalty of the least error, and the
    setting."""
    fit, settings, penalties, _ = grid
    best, penalty = divmod(int(tested(grid, known, steps).argmin()), len(penalties))
    return fit(settings[best], penalties[penalty : penalty + 1], [known]), settings[best]


def by(tested: Tested, grid: Grid) -> Forecast:
    """Forecasts of a series with one coordinate, with the best setting whose window is short enough."""
    fit, settings, penalties, reach = grid

    def run(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
        offered = short_enough(settings, reach, len(known))
        rollout, setting = fitted((fit, offered, penalties, reach), known[:, None], steps, tested)
        return rollout(known[:, None], steps)[0, :, 0], reach(setting)

    return run


def short_enough(settings: Sequence[Setting], reach: Callable[[Setting], int], known: int) -> list[Setting]:
    """The settings whose windows are shorter than a quarter of the known values, as kfx's."""
    return [setting for setting in settings if reach(setting) < known / 4]


def backtested(grid: Grid, known: np.ndarray, steps: int) -> np.ndarray:
    """The errors of kfx's backtest: over the steps of its blocks that tell, from what it sees for each. What it refuses
    comes last."""
    fit, settings, penalties, reach = grid
    longest = max(max(map(reach, settings)), 1)
    test = backtest_of(Windows(longest), [series(known)], steps)
    starts, size = test.time[:, longest].astype(int), test.truth.shape[1]
    seen = [[known[:at]] if test.is_rolling else [known[:at], known[at + size :]] for at in starts]
    found = np.concatenate(  # (settings · penalties, blocks, steps, coordinates)
        [
            np.stack([fit(setting, penalties, own)(known[:at], size) for at, own in zip(starts, seen, strict=True)], 1)
            for setting in settings
        ]
    )
    first = found[:, :, : steps_that_tell(list(found), test)].swapaxes(0, 1)
    errors = mean_error(test.of_blocks(first), test.least)
    if test.is_rolling:
        middle, far = (test.high + test.low) / 2, FAR * (test.high - test.low) / 2
        errors += np.where((np.abs(found - middle) <= far).all(axis=(1, 2, 3)), 0, MOST_ERROR)
    return errors.reshape(len(settings), len(penalties))


def held_out(grid: Grid, known: np.ndarray, steps: int) -> np.ndarray:
    """The sMAPE of one forecast of the end of the known values, a fifth of them at most."""
    fit, settings, penalties, _ = grid
    at = len(known) - min(steps, len(known) // 5)
    found = [fit(setting, penalties, [known[:at]])(known[:at], len(known) - at) for setting in settings]
    return smape(np.stack(found), known[at:])


def series(values: np.ndarray) -> Trajectory:
    return Trajectory(np.arange(len(values), dtype=float), values)


def solutions(gram: np.ndarray, right: np.ndarray, penalties: Sequence[float]) -> np.ndarray:
    """(gram + penalty I)⁻¹ right for each penalty, (penalties, n, coordinates); NaN where that is not positive
    definite."""
    found = np.full((len(penalties), *right.shape), np.nan)
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
    features, weights = solve(x, y)

    def rollout(history: np.ndarray, steps: int) -> np.ndarray:
        past = np.repeat(history[None, -windows.reach :], len(weights), axis=0)
        time = np.zeros((1, windows.reach + steps))
        with np.errstate(all="ignore"):  # a forecast that leaves every range counts 200
            return windows.forecast(lambda x: (features(x)[..., None] * weights).sum(axis=1), past, time, steps)

    return rollout


def next_generation_reservoir(setting: Setting, penalties: Sequence[float], stretches: Sequence[np.ndarray]) -> Rollout:
    """Ridge regression on a constant, delays of each coordinate, and their products (Gauthier et al. 2021).

    setting: the number of delays, their stride, and the largest number of factors.
    """
    delays, stride, degree = map(int, setting)
    places = range(delays * stretches[0].shape[1])
    factors = [np.array(list(combinations_with_replacement(places, k))) for k in range(1, degree + 1)]

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
    """An echo state network of one coordinate, whose readout sees a constant, the input and the state.

    As many states as a tenth of the stretches together are left out at the start of each, where they depend on the
    initial state.
    """
    stretches = [each[:, 0] for each in stretches]
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
        z = (history[-2 * wash :, 0] - mean) / deviation
        state = np.repeat(states(setting, z[:, None], rest)[-1], len(weights), axis=1)
        now, found = np.full(len(weights), z[-1]), []
        for _ in range(steps):
            now = now + constant + of_input * now + (of_state * state).sum(axis=0)
            state = states(setting, now[None], state)[0]
            found.append(now)
        return np.stack(found, axis=1)[..., None] * deviation + mean

    return rollout


def transformed(fit: Fit) -> Fit:
    """The same fit to differences, undone in its forecasts.

    setting: 1 to take the logarithm first, and 0 not to; the steps of a difference, 0 for none; and what the fit takes.
    """

    def of(setting: Setting, penalties: Sequence[float], stretches: Sequence[np.ndarray]) -> Rollout:
        lag = int(setting[1])
        differences = Differences(bool(setting[0]), (lag,) if lag else ())
        inner = fit(setting[2:], penalties, [differences.of(each) for each in stretches if len(each) > lag])

        def rollout(history: np.ndarray, steps: int) -> np.ndarray:
            found = inner(differences.of(history), steps)
            with np.errstate(all="ignore"):  # a forecast that leaves every range
                return differences.undone(found, np.repeat(history[None], len(found), axis=0))

        return rollout

    return of


def after(reach: Callable[[Setting], int]) -> Callable[[Setting], int]:
    """The number of values in the window of a transformed setting, given that of what its fit takes."""
    return lambda setting: int(setting[1]) + max(reach(setting[2:]), 1)


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


GRIDS: dict[str, Grid] = {
    "Gaussian process": (
        gaussian_process,
        list(product((8, 15, 30, 60), (0.5, 2.0))),
        (1e-11, 1e-9, 1e-7, 1e-5, 1e-3, 1e-1),
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
HELD_OUT: dict[str, Grid] = {
    "ridge": (
        next_generation_reservoir,
        [(lags, 1, 1) for lags in (2, 4, 8, 15, 30, 60, 100, 150, 200)],
        (1e-4, 1e-2, 1.0, 10.0, 100.0, 1e3, 1e4),
        window_of_delays,
    ),
    "kernel ridge": (
        gaussian_process,
        list(product((8, 15, 30, 60, 100), (0.5, 1.0, 2.0))),
        (1e-7, 1e-5, 1e-3, 1e-2, 1e-1),
        window_of_lags,
    ),
}
RIVALS: dict[str, Forecast] = {
    **{name: by(backtested, grid) for name, grid in GRIDS.items()},
    **{name: by(held_out, grid) for name, grid in HELD_OUT.items()},
    "parrot": parrot,
    "persistence": persistence,
}
