"""Simulators by formula, and a leaf-canopy spectrum: the usual tests of emulators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kfx.data.dataset import Dataset
from kfx.outcomes import DataError
from kfx.version import to_install

Ranges = Mapping[str, tuple[float, float]]
Columns = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Simulator:
    """A function of inputs within ranges. compute: maps the inputs' columns, (n,) each, to outputs, (n, outputs)."""

    ranges: Ranges
    compute: Callable[[Columns], np.ndarray]

    def __call__(self, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs, (n, inputs), and outputs, (n, outputs), at points of the unit cube, (n, inputs)."""
        low, high = np.array(list(self.ranges.values())).T
        x = low + (high - low) * unit
        y = np.asarray(self.compute(tuple(x.T)), dtype=np.float64)
        return x, y.reshape(len(x), -1)


def _borehole(x: Columns) -> np.ndarray:
    rw, r, tu, hu, tl, hl, length, kw = x
    spread = np.log(r / rw)
    return 2 * np.pi * tu * (hu - hl) / (spread * (1 + 2 * length * tu / (spread * rw**2 * kw) + tu / tl))


def _wing_weight(x: Columns) -> np.ndarray:
    sw, wfw, a, sweep, q, taper, tc, nz, wdg, wp = x
    cosine = np.cos(np.deg2rad(sweep))
    frame = 0.036 * sw**0.758 * wfw**0.0035 * (a / cosine**2) ** 0.6 * q**0.006 * taper**0.04
    return frame * (100 * tc / cosine) ** -0.3 * (nz * wdg) ** 0.49 + sw * wp


def _piston(x: Columns) -> np.ndarray:
    m, s, v0, k, p0, ta, t0 = x
    a = p0 * s + 19.62 * m - k * v0 / s
    v = s / (2 * k) * (np.sqrt(a**2 + 4 * k * p0 * v0 / t0 * ta) - a)
    return 2 * np.pi * np.sqrt(m / (k + s**2 * p0 * v0 / t0 * ta / v**2))


def _otl_circuit(x: Columns) -> np.ndarray:
    rb1, rb2, rf, rc1, rc2, beta = x
    vb1, gain = 12 * rb2 / (rb1 + rb2), beta * (rc2 + 9)
    return ((vb1 + 0.74) * gain + 11.35 * rf + 0.74 * rf * gain / rc1) / (gain + rf)


def _ishigami(x: Columns) -> np.ndarray:
    return np.sin(x[0]) + 7 * np.sin(x[1]) ** 2 + 0.1 * x[2] ** 4 * np.sin(x[0])


def _friedman(x: Columns) -> np.ndarray:
    return 10 * np.sin(np.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4]


def _prosail(x: Columns) -> np.ndarray:
    try:
        from prosail import run_prosail
    except ImportError as error:
        raise DataError(f"dataset.function=prosail: needs the package prosail; {to_install('prosail')}") from error
    *leaf_and_canopy, psoil = x
    with np.errstate(all="ignore"):
        return np.stack(
            [run_prosail(*row[:-1], rsoil=1.0, psoil=row[-1]) for row in zip(*leaf_and_canopy, psoil, strict=True)]
        )


PI = (-np.pi, np.pi)
SIMULATORS = {
    # Harper & Gupta 1983: flow of water through a borehole, m³ a year
    "borehole": Simulator(
        {"rw": (0.05, 0.15), "r": (100, 50000), "Tu": (63070, 115600), "Hu": (990, 1110), "Tl": (63.1, 116),
         "Hl": (700, 820), "L": (1120, 1680), "Kw": (9855, 12045)}, _borehole),
    # Forrester, Sóbester & Keane 2008: weight of a light aircraft's wing, pounds
    "wing_weight": Simulator(
        {"Sw": (150, 200), "Wfw": (220, 300), "A": (6, 10), "sweep": (-10, 10), "q": (16, 45), "taper": (0.5, 1),
         "tc": (0.08, 0.18), "Nz": (2.5, 6), "Wdg": (1700, 2500), "Wp": (0.025, 0.08)}, _wing_weight),
    # Kenett & Zacks 1998: cycle time of a piston, seconds
    "piston": Simulator(
        {"M": (30, 60), "S": (0.005, 0.02), "V0": (0.002, 0.01), "k": (1000, 5000), "P0": (90000, 110000),
         "Ta": (290, 296), "T0": (340, 360)}, _piston),
    # Ben-Ari & Steinberg 2007: midpoint voltage of an output transformerless circuit
    "otl_circuit": Simulator(
        {"Rb1": (50, 150), "Rb2": (25, 70), "Rf": (0.5, 3), "Rc1": (1.2, 2.5), "Rc2": (0.25, 1.2), "beta": (50, 300)},
        _otl_circuit),
    # Ishigami & Homma 1990
    "ishigami": Simulator({"x1": PI, "x2": PI, "x3": PI}, _ishigami),
    # Friedman 1991, eq. 61, with 15 inputs more that do not matter
    "friedman": Simulator({f"x{i}": (0, 1) for i in range(1, 21)}, _friedman),
    # Jacquemoud et al. 2009: reflectance of a canopy, 400 to 2500 nm, with an ellipsoidal distribution of leaf angles
    "prosail": Simulator(
        {"N": (1.3, 2.5), "Cab": (10, 80), "Car": (2, 20), "Cbrown": (0, 0.5), "Cw": (0.005, 0.04), "Cm": (0.002, 0.02),
         "LAI": (0.5, 7), "angle": (30, 70), "hotspot": (0.01, 0.5), "sun": (15, 60), "view": (0, 30),
         "azimuth": (0, 180), "soil": (0, 1)}, _prosail),
}  # fmt: skip
"""Their inputs with ranges."""


def simulate(n_train: int, n_test: int, function: str, rng: np.random.Generator, noise: float = 0.0) -> Dataset:
    """Runs of a simulator: training inputs are a Latin hypercube, test inputs uniform in their ranges.

    noise: the standard deviation of what is added to training targets alone.
    """
    from scipy.stats import qmc

    simulator = SIMULATORS[function]
    count = len(simulator.ranges)
    seeds = rng.integers(2**31, size=2)
    x_train, y_train = simulator(qmc.LatinHypercube(count, seed=int(seeds[0])).random(n_train))
    if noise:
        y_train = y_train + noise * rng.standard_normal(y_train.shape)
    if n_test:
        x_test, y_test = simulator(np.random.default_rng(seeds[1]).random((n_test, count)))
    else:
        x_test, y_test = x_train[:0], y_train[:0]
    return Dataset("simulator", x_train, y_train, x_test, y_test, features=tuple(simulator.ranges))
