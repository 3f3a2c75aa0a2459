"""Time of ρ and its cotangent: one Cholesky factor, against two factors and against explicit inverses in NumPy.

python scripts/bench_rho.py [--sizes 100 600] [--repeats 15]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy.linalg
import torch
from threadpoolctl import threadpool_limits

from kfx.kernels import RBF
from kfx.objectives import rho


def with_inverses(gram, y, n_c, regularization):
    """The formulas of Owhadi & Yoo as printed: a selection matrix and two inverses."""
    a = gram + regularization * np.eye(len(gram))
    pi = np.eye(len(gram))[:n_c]
    inverse, inverse_c = np.linalg.inv(a), np.linalg.inv(pi @ a @ pi.T)
    y_hat, z_hat = inverse @ y, pi.T @ (inverse_c @ (pi @ y))
    total = np.sum(y * y_hat)
    value = 1 - np.sum(y * z_hat) / total
    return value, -((1 - value) * y_hat @ y_hat.T - z_hat @ z_hat.T) / total


def with_two_factors(gram, y, n_c, regularization):
    """A Cholesky factor for the batch and another for the sample."""
    a = gram + regularization * np.eye(len(gram))
    y_hat = scipy.linalg.cho_solve(scipy.linalg.cho_factor(a), y)
    z_hat = np.zeros_like(y)
    z_hat[:n_c] = scipy.linalg.cho_solve(scipy.linalg.cho_factor(a[:n_c, :n_c]), y[:n_c])
    total = np.sum(y * y_hat)
    value = 1 - np.sum(y * z_hat) / total
    return value, -((1 - value) * y_hat @ y_hat.T - z_hat @ z_hat.T) / total


def one_factor(gram, y, n_c, regularization):
    return rho(gram, y, n_c, regularization)


WAYS = {"one factor (kfx)": one_factor, "two factors": with_two_factors, "inverses": with_inverses}


def measured(n, repeats):
    """Milliseconds of each way."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, 20)), rng.normal(size=(n, 10))
    gram = RBF(4.0).gram(x)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    values = {}
    for _ in range(repeats):  # interleaved, so that noise falls on all alike
        for name, way in WAYS.items():
            start = time.perf_counter()
            values[name] = way(gram, y, n // 2, 1e-4)
            times[name].append(1e3 * (time.perf_counter() - start))
    reference, cotangent = values["one factor (kfx)"]
    for value, other in values.values():
        assert np.isclose(value, reference, rtol=1e-8)
        assert np.allclose(other, cotangent, rtol=1e-6, atol=1e-8 * np.abs(cotangent).max())
    return {name: float(np.median(t)) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 600])
    parser.add_argument("--repeats", type=int, default=15)
    # NumPy's and torch's thread pools would otherwise spin against each other when the ways are interleaved.
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    threadpool_limits(arguments.threads)
    torch.set_num_threads(arguments.threads)
    print(f"median of {arguments.repeats}, {torch.get_num_threads()} threads; ms a call and ratio to kfx")
    print(f"{'N_f':>6}  " + "  ".join(f"{name:>22}" for name in WAYS))
    for n in arguments.sizes:
        medians = measured(n, arguments.repeats)
        base = medians["one factor (kfx)"]
        print(f"{n:>6}  " + "  ".join(f"{m:>13.2f} ({m / base:>5.1f}×)" for m in medians.values()))


if __name__ == "__main__":
    main()
