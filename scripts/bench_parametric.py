"""Time of an iteration of parametric Kernel Flows, recorded, against a plain loop with explicit inverses in NumPy.

python scripts/bench_parametric.py [--sizes 100 600] [--iterations 400] [--threads 1]

Both draw a batch of N_f points of a table of 13 features, form the RBF Gram matrix, ρ and its derivative to σ, and
take a Nesterov step. kfx does it through its optimizer and record, as a run does: a trace row on disk each iteration,
with the state of a checkpoint at hand. The plain loop is Darcy 2020, section 2.1 with eqs. 2.1, 2.2, 2.4, and writes
nothing: `as printed`, with the selection matrix Π as a matrix, and `by index`, where rows are picked instead.
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
from kfx.numerics.process import exclusively
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import rho
from kfx.optimizers.gradient import GradientDescent, Nesterov
from kfx.optimizers.journal import TraceRow
from kfx.optimizers.loss import Evaluation, Loss
from kfx.record.journal import PartFits
from kfx.record.record import Record
from kfx.running.stages import keep_freed_memory
from kfx.sampling.samplers import Sampler

LEARNING_RATE, MOMENTUM, REGULARIZATION, SIGMA = 0.1, 0.9, 1e-3, 4.0
FEATURES, POINTS = 13, 1000


def plain_loop(x, y, batch_size, iterations, rng, as_printed):
    """σ after so many steps, with two explicit inverses."""
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
        if as_printed:
            selection = np.zeros((n_c, batch_size))
            selection[np.arange(n_c), sample] = 1
            inverse_s = np.linalg.inv(selection @ k @ selection.T + REGULARIZATION * np.eye(n_c))
            z_hat = selection.T @ inverse_s @ selection @ y_b
        else:
            inverse_s = np.linalg.inv(k[np.ix_(sample, sample)] + REGULARIZATION * np.eye(n_c))
            z_hat = np.zeros(batch_size)
            z_hat[sample] = inverse_s @ y_s
        y_hat = inverse @ y_b
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
        Sampler(batch_size),
        Nesterov(LEARNING_RATE, MOMENTUM),
        iterations=iterations,
        space="raw",
        final="last",
        final_window=10,
        max_reinitializations=0,
    )
    record = Record(directory)
    record.open_trace(kernel, optimizer.columns)
    data = torch.as_tensor(x), torch.as_tensor(y)[:, None]
    with exclusively():  # a run takes the settings of torch and BLAS once, not each iteration
        return PartFits(record, 1, iterations).fit(kernel, optimizer, data, streams)


def measured(size, iterations, repeats, folder):
    """Milliseconds of an iteration of kfx, of the plain loop as printed and by index; data drawn alike."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(POINTS, FEATURES))
    y = np.sin(x).sum(axis=1) + 0.1 * rng.normal(size=POINTS)
    times: dict[str, list[float]] = {"kfx": [], "printed": [], "index": []}
    for repeat in range(repeats):  # interleaved, so that noise falls on all alike
        marks = [time.perf_counter()]
        fitted = kfx_loop(x, y, size, iterations, Streams(repeat), folder / f"{size}-{repeat}")
        marks.append(time.perf_counter())
        for as_printed in (True, False):
            sigma = plain_loop(x, y, size, iterations, np.random.default_rng(repeat), as_printed)
            assert abs(fitted.parameters["sigma"] - sigma) < 0.2 * SIGMA, "not the same method"
            marks.append(time.perf_counter())
        for name, seconds in zip(times, np.diff(marks), strict=True):
            times[name].append(1e3 * seconds / iterations)
    return {name: float(np.median(each)) for name, each in times.items()}


def microseconds_a_row(directory, rows=5000):
    """Time to write one trace row."""
    record = Record(directory)
    record.open_trace(RBF(SIGMA), [])
    evaluation = Evaluation(np.array([SIGMA / 3]), 1 / 3, 1 / 3, np.array([1 / 7]), 1e-3, 0.0)
    start = time.perf_counter()
    for i in range(rows):
        record.row(TraceRow(i, evaluation, i))
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
    print(f"median of {arguments.repeats}, {arguments.threads} threads; ms an iteration, and ratio to kfx")
    print(f"{'N_f':>6}  {'kfx, recorded':>14}  {'NumPy, as printed':>20}  {'NumPy, by index':>20}")
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            iterations = max(arguments.iterations * 100**2 // size**2, 10)
            ours, printed, index = measured(size, iterations, arguments.repeats, Path(folder)).values()
            cells = [f"{value:>12.3f} ({value / ours:.2f}×)" for value in (printed, index)]
            print(f"{size:>6}  {ours:>14.3f}  {'  '.join(cells)}")
        rows = [microseconds_a_row(Path(folder) / f"rows-{repeat}") for repeat in range(arguments.repeats)]
        print(f"a recorded row: {np.median(rows):.1f} µs")


if __name__ == "__main__":
    main()
