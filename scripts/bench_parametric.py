"""Time of an iteration of parametric Kernel Flows, recorded, against a plain loop with explicit inverses in NumPy.

python scripts/bench_parametric.py [--sizes 100 600] [--iterations 400] [--threads 1]

Both draw a batch of N_f points of a table of 13 features, form the RBF Gram matrix, ρ and its derivative to σ, and
take a Nesterov step. kfx does it through its optimizer and record, as a run does: a trace row on disk each iteration,
with the state of a checkpoint at hand. The plain loop (Darcy 2020, section 2.1 with eqs. 2.1, 2.2, 2.4) writes nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from kfx.kernels import RBF
from kfx.objectives import rho
from kfx.optimizers.gradient import GradientDescent, Nesterov
from kfx.optimizers.loss import Evaluation, Loss
from kfx.record import Record
from kfx.regularization import Regularization
from kfx.run import keep_freed_memory
from kfx.sampling import FixedSampler
from kfx.streams import Streams

LEARNING_RATE, MOMENTUM, REGULARIZATION, SIGMA = 0.1, 0.9, 1e-3, 4.0
FEATURES, POINTS = 13, 1000


def plain_loop(x, y, batch_size, iterations, rng):
    """σ after so many steps, by the formulas as printed."""
    sigma, z = SIGMA, 0.0
    n_c = batch_size // 2
    for _ in range(iterations):
        batch = rng.choice(len(x), batch_size, replace=False)
        sample = np.sort(rng.choice(batch_size, n_c, replace=False))
        x_b, y_b, y_s = x[batch], y[batch], y[batch][sample]
        at = sigma - LEARNING_RATE * MOMENTUM * z
        norms = np.sum(x_b**2, axis=1)
        r2 = np.maximum(norms[:, None] + norms[None, :] - 2 * x_b @ x_b.T, 0)
        k = np.exp(-r2 / (2 * at**2))
        inverse = np.linalg.inv(k + REGULARIZATION * np.eye(batch_size))
        inverse_s = np.linalg.inv(k[np.ix_(sample, sample)] + REGULARIZATION * np.eye(n_c))
        selection = np.zeros((n_c, batch_size))
        selection[np.arange(n_c), sample] = 1
        y_hat, z_hat = inverse @ y_b, selection.T @ (inverse_s @ y_s)
        total = y_b @ y_hat
        value = 1 - y_s @ (inverse_s @ y_s) / total
        slope = k * r2 / at**3
        gradient = -((1 - value) * (y_hat @ slope @ y_hat) - z_hat @ slope @ z_hat) / total
        z = MOMENTUM * z + gradient
        sigma = sigma - LEARNING_RATE * z
    return sigma


def kfx_loop(x, y, batch_size, iterations, streams, directory):
    """The same with kfx's optimizer and record."""
    kernel = RBF(SIGMA)
    optimizer = GradientDescent(
        partial(Loss, rho, Regularization(REGULARIZATION, "absolute")),
        FixedSampler(batch_size),
        Nesterov(LEARNING_RATE, MOMENTUM),
        iterations=iterations,
        space="raw",
        final="last",
        final_window=10,
        max_reinitializations=0,
    )
    record = Record(directory)
    record.open_trace(kernel, optimizer.diagnostics)
    return optimizer.fit(kernel, (torch.as_tensor(x), torch.as_tensor(y)[:, None]), streams, record)


def microseconds_a_row(directory, rows=5000):
    """Time to write one trace row."""
    record = Record(directory)
    record.open_trace(RBF(SIGMA), [])
    evaluation = Evaluation(np.array([SIGMA / 3]), 1 / 3, 1 / 3, np.array([1 / 7]), 1e-3, 0.0)
    start = time.perf_counter()
    for i in range(rows):
        record.row(i, evaluation, i)
    return 1e6 * (time.perf_counter() - start) / rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 600])
    parser.add_argument("--iterations", type=int, default=400, help="at N_f = 100; fewer above")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    threadpool_limits(arguments.threads)
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as a run does; it serves both loops
    rng = np.random.default_rng(0)
    x = rng.normal(size=(POINTS, FEATURES))
    y = np.sin(x).sum(axis=1) + 0.1 * rng.normal(size=POINTS)
    print(f"median of {arguments.repeats}, {arguments.threads} threads; ms an iteration")
    print(f"{'N_f':>6}  {'kfx, recorded':>14}  {'plain NumPy':>12}  {'plain / kfx':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            iterations = max(arguments.iterations * 100**2 // size**2, 10)
            times: dict[str, list[float]] = {"kfx": [], "plain": []}
            for repeat in range(arguments.repeats):  # interleaved, so that noise falls on both alike
                start = time.perf_counter()
                fitted = kfx_loop(x, y, size, iterations, Streams(repeat), Path(folder) / f"{size}-{repeat}")
                between = time.perf_counter()
                sigma = plain_loop(x, y, size, iterations, np.random.default_rng(repeat))
                end = time.perf_counter()
                assert abs(fitted.parameters["sigma"] - sigma) < 0.2 * SIGMA, "not the same method"
                times["kfx"].append(1e3 * (between - start) / iterations)
                times["plain"].append(1e3 * (end - between) / iterations)
            ours, plain = (float(np.median(times[name])) for name in ("kfx", "plain"))
            print(f"{size:>6}  {ours:>14.3f}  {plain:>12.3f}  {plain / ours:>10.2f}×")
        rows = [microseconds_a_row(Path(folder) / f"rows-{repeat}") for repeat in range(arguments.repeats)]
        print(f"a recorded row: {np.median(rows):.1f} µs")


if __name__ == "__main__":
    main()
