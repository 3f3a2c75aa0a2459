"""Trajectories of dynamical systems, by their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kfx.config.choices import SYSTEMS
from kfx.data.windows import Trajectory
from kfx.outcomes import DataError
from kfx.version import to_install

TOLERANCE = 1e-10
"""Relative and absolute tolerance of SciPy's DOP853 for flows."""
Field = Callable[[float, np.ndarray], Sequence[float]]


@dataclass(frozen=True)
class Flow:
    """dx/dt = field(t, x). dt: the usual time between two points. exponent: the largest Lyapunov exponent, per unit of
    time, or None where no value is agreed. near: a point near the attractor. transient: time until it is reached."""

    coordinates: tuple[str, ...]
    field: Field
    dt: float
    near: tuple[float, ...]
    exponent: float | None = None
    transient: float = 50.0


@dataclass(frozen=True)
class Map:
    """x ← step(x), with fields as in `Flow`; a step is a unit of time."""

    coordinates: tuple[str, ...]
    step: Callable[[np.ndarray], Sequence[float]]
    near: tuple[float, ...]
    exponent: float | None = None
    transient: int = 100


def _lorenz(t: float, x: np.ndarray) -> Sequence[float]:
    return 10 * (x[1] - x[0]), x[0] * (28 - x[2]) - x[1], x[0] * x[1] - 8 / 3 * x[2]


def _roessler(t: float, x: np.ndarray) -> Sequence[float]:
    return -x[1] - x[2], x[0] + 0.2 * x[1], 0.2 + x[2] * (x[0] - 5.7)


def _chua(t: float, x: np.ndarray) -> Sequence[float]:
    bend = -5 / 7 * x[0] - 3 / 14 * (abs(x[0] + 1) - abs(x[0] - 1))
    return 15.6 * (x[1] - x[0] - bend), x[0] - x[1] + x[2], -28 * x[1]


def _double_pendulum(t: float, x: np.ndarray) -> Sequence[float]:
    """Two equal masses and lengths, g = 9.81: angles a, b from the vertical and their velocities."""
    a, b, u, v = x
    d, g = a - b, 9.81
    of = 3 - math.cos(2 * d)
    first = -3 * g * math.sin(a) - g * math.sin(a - 2 * b) - 2 * math.sin(d) * (v**2 + u**2 * math.cos(d))
    second = 2 * math.sin(d) * (2 * u**2 + 2 * g * math.cos(a) + v**2 * math.cos(d))
    return u, v, first / of, second / of


def _ikeda(x: np.ndarray) -> Sequence[float]:
    """z ← 1 + 0.9 z exp(i (0.4 − 6 / (1 + |z|²))), z = x + iy."""
    z = x[0] + 1j * x[1]
    z = 1 + 0.9 * z * np.exp(1j * (0.4 - 6 / (1 + abs(z) ** 2)))
    return z.real, z.imag


def _bernoulli(x: np.ndarray) -> Sequence[float]:
    return (2 * x[0] % 1,)


FLOWS = {
    "lorenz": Flow(("x", "y", "z"), _lorenz, 0.025, (1.0, 1.0, 20.0), 0.9056),  # Lorenz 1963; Sprott 2003
    "roessler": Flow(("x", "y", "z"), _roessler, 0.1, (1.0, 1.0, 0.0), 0.0714, 200.0),  # Rössler 1976; Sprott 2003
    "chua": Flow(("x", "y", "z"), _chua, 0.05, (0.1, 0.0, 0.0)),  # Matsumoto 1984
    "double_pendulum": Flow(("a", "b", "u", "v"), _double_pendulum, 0.02, (1.05, 1.05, 0.0, 0.0), None, 10.0),
}
MAPS = {
    "logistic": Map(("x",), lambda x: (4 * x[0] * (1 - x[0]),), (0.3,), math.log(2)),
    "henon": Map(("x", "y"), lambda x: (1 - 1.4 * x[0] ** 2 + x[1], 0.3 * x[0]), (0.1, 0.1), 0.419),  # Hénon 1976
    "ikeda": Map(("x", "y"), _ikeda, (0.1, 0.1), 0.508),  # Ikeda 1979; Hammel, Jones & Moloney 1985; Sprott 2003
    "bernoulli": Map(("x",), _bernoulli, (0.3,), math.log(2)),
}
_DELAY, _STEPS_A_DELAY = 17.0, 170


def trajectory(
    system: str, count: int, dt: float | None, rng: np.random.Generator, points_per_period: int = 100
) -> Trajectory:
    """A trajectory of `count` points on the attractor, from a random point near it.

    system: one of `SYSTEMS`, or a class of the package dysts (Gilpin 2021), with `points_per_period` points a period.
    dt: time between two points of another flow; None for the usual one.
    """
    if system not in SYSTEMS:
        return _of_dysts(_in_dysts(system), count, points_per_period, rng)
    if system == "mackey_glass":
        return _mackey_glass(count, 1.0 if dt is None else dt, rng)
    if system in FLOWS:
        return _of_flow(FLOWS[system], count, dt, rng)
    if system == "bernoulli":
        return Trajectory(np.arange(count, dtype=float), _bits(count, rng))
    return _of_map(MAPS[system], count, rng)


def coordinates(system: str) -> tuple[str, ...]:
    if system not in SYSTEMS:
        names = "x", "y", "z", "w", *(f"x{i}" for i in range(4, 1000))
        return names[: _in_dysts(system).dimension]
    return ("x",) if system == "mackey_glass" else (FLOWS | MAPS)[system].coordinates


def exponent(system: str) -> float | None:
    """The largest Lyapunov exponent, per unit of time."""
    if system not in SYSTEMS:
        known = getattr(_in_dysts(system), "maximum_lyapunov_estimated", None)
        return None if known is None else float(known)
    return None if system == "mackey_glass" else (FLOWS | MAPS)[system].exponent


def _in_dysts(system: str) -> Any:
    """The system of this name in the package dysts; DataError names what can be asked for."""
    try:
        from dysts import flows, maps
    except ImportError as error:
        raise DataError(
            f"dataset.system={system}: expected one of {', '.join(SYSTEMS)}; with {to_install('dysts')} also a "
            "system of the package dysts, such as Aizawa"
        ) from error
    made = getattr(flows, system, None) or getattr(maps, system, None)
    if not (isinstance(made, type) and hasattr(made, "make_trajectory")) or system.startswith("Dyn"):
        raise DataError(
            f"dataset.system={system}: expected one of {', '.join(SYSTEMS)}, or a system of the package dysts"
        )
    return made()


def _of_dysts(model: Any, count: int, points_per_period: int, rng: np.random.Generator) -> Trajectory:
    start = np.array(model.ic, dtype=float)
    model.ic = start * (1 + 0.01 * rng.uniform(-1, 1, start.shape))
    before = 5 * points_per_period
    if model.__class__.__module__ == "dysts.maps":
        return Trajectory(np.arange(count, dtype=float), model.make_trajectory(before + count)[before:])
    values = model.make_trajectory(before + count, pts_per_period=points_per_period, resample=True)[before:]
    return Trajectory(np.arange(count) * float(model.period) / points_per_period, np.asarray(values))


def _of_flow(flow: Flow, count: int, dt: float | None, rng: np.random.Generator) -> Trajectory:
    from scipy.integrate import solve_ivp

    step = flow.dt if dt is None else dt
    start = np.array(flow.near) * (1 + 0.1 * rng.uniform(-1, 1, len(flow.near)))
    settings = {"method": "DOP853", "rtol": TOLERANCE, "atol": TOLERANCE}
    there = solve_ivp(flow.field, (0, flow.transient), start, **settings).y[:, -1]
    time = np.arange(count) * step
    found = solve_ivp(flow.field, (0, time[-1]), there, t_eval=time, **settings)
    return Trajectory(time, found.y.T)


def _of_map(of: Map, count: int, rng: np.random.Generator) -> Trajectory:
    x, values = np.array(of.near) * (1 + 0.1 * rng.uniform(-1, 1, len(of.near))), []
    for _ in range(of.transient + count):
        x = np.array(of.step(x))
        values.append(x)
    return Trajectory(np.arange(count, dtype=float), np.array(values[of.transient :]))


def _bits(count: int, rng: np.random.Generator) -> np.ndarray:
    """A trajectory of x ← 2x mod 1, (count, 1), from random binary digits: in floating point it would end at 0."""
    digits = rng.integers(0, 2, count + 53)
    weights = 0.5 ** np.arange(1, 54)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(digits, 53)[:count] @ weights)[:, None]


def _mackey_glass(count: int, dt: float, rng: np.random.Generator) -> Trajectory:
    """dx/dt = 0.2 x(t − 17) / (1 + x(t − 17)^10) − 0.1 x (Mackey & Glass 1977), by the classical Runge-Kutta method in
    steps of 0.1, with x(t − 17) between steps as their mean."""

    def slope(x: float, late: float) -> float:
        return 0.2 * late / (1 + late**10) - 0.1 * x

    h = _DELAY / _STEPS_A_DELAY
    total = math.ceil((count - 1) * dt / h) + 20 * _STEPS_A_DELAY + 2
    x = np.empty(total + _STEPS_A_DELAY)
    x[:_STEPS_A_DELAY] = 1.2 + 0.1 * rng.uniform(-1, 1)
    for i in range(_STEPS_A_DELAY - 1, len(x) - 1):
        before, after = x[max(i - _STEPS_A_DELAY, 0)], x[i - _STEPS_A_DELAY + 1]
        middle = (before + after) / 2
        k1 = slope(x[i], before)
        k2 = slope(x[i] + h / 2 * k1, middle)
        k3 = slope(x[i] + h / 2 * k2, middle)
        k4 = slope(x[i] + h * k3, after)
        x[i + 1] = x[i] + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    settled = x[20 * _STEPS_A_DELAY :]
    time = np.arange(count) * dt
    return Trajectory(time, np.interp(time, np.arange(len(settled)) * h, settled)[:, None])
