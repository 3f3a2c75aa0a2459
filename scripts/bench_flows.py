"""Time of a layer of a flow, recorded: MNIST against its two matrix products, the Swiss roll against a NumPy loop.

python scripts/bench_flows.py [--points 60000] [--layers 5] [--device cpu]

A layer moves N points along the field of a batch of 600: it needs the Gram matrix of all points with the batch, and
that times the coefficients, two float32 products of N × 600 × 784 each. The plain loop is Darcy 2020, section 3.1: the
sample by a selection matrix, three explicit inverses, the coefficients of the field and every position kept. As
printed it takes eq. 3.5 point by point; vectorised, the derivatives to all pairs of points at once.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from kfx.data.synthetic import swiss_roll
from kfx.flows.euler import EulerFlow
from kfx.flows.flow import FlowSettings
from kfx.flows.layers import StepRule
from kfx.flows.vector_field import Interpolation
from kfx.kernels import RBF
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import rho
from kfx.optimizers.loss import Loss
from kfx.record.journal import PartFits, PartJournal
from kfx.record.record import Record
from kfx.running.stages import keep_freed_memory
from kfx.sampling.samplers import Sampler

SIGMA, NUGGET, STEP = 2.0, 1e-3, 0.1


def flow(layers, batch_size, size):
    regularization = Regularization(NUGGET, "absolute")
    settings = FlowSettings(Interpolation(None, regularization))
    loss = partial(Loss, rho, regularization)
    return EulerFlow(loss, Sampler(batch_size), layers, settings, rule=StepRule("relative", size))


def fitted(folder, kernel, data, layers, batch_size, size):
    """Seconds a layer through optimizer and record, as a run writes it: the median of all but the first."""
    record = Record(folder, checkpoint_seconds=1e9)
    optimizer = flow(layers, batch_size, size)
    fits = PartFits(record, 1, layers)
    record.open_trace(kernel, [*optimizer.columns, *fits.diagnostics])
    optimizer.fit(kernel, data, Streams(0), _Unsaved(fits))
    seconds = pd.read_csv(folder / "trace.csv")["seconds"]
    return float(np.median(np.diff(seconds) if layers > 1 else seconds))


class _Unsaved:
    """A part of the record; what it says of each point at the end is left out of the time."""

    def __init__(self, parts):
        self._part = PartJournal(parts, 0)

    def __getattr__(self, name):
        return getattr(self._part, name)


def plain_loop(x, y, others, iterations, rng, vectorised):
    """Darcy's loop with a full batch; other points follow the interpolated field. Returns every position."""
    n = len(x)

    def kernel(a, b):
        return np.exp(-np.sum((a[:, None] - b[None]) ** 2, axis=2) / (2 * SIGMA**2))

    kept = [(x, others)]
    for _ in range(iterations):
        batch = rng.permutation(n)
        sample = np.sort(batch[: n // 2])
        k = kernel(x, x)
        selection = np.zeros((n // 2, n))
        selection[np.arange(n // 2), sample] = 1
        inverse = np.linalg.inv(k + NUGGET * np.eye(n))
        inverse_s = np.linalg.inv(selection @ k @ selection.T + NUGGET * np.eye(n // 2))
        y_hat = inverse @ y
        z_hat = selection.T @ (inverse_s @ (selection @ y))
        total = y @ y_hat
        value = 1 - y @ z_hat / total
        if vectorised:
            slope = -(x[:, None] - x[None]) / SIGMA**2 * k[:, :, None]  # dK(x_i, x_j) / dx_i
            along_y, along_z = (np.einsum("ijd,j->id", slope, v) for v in (y_hat, z_hat))
            g = 2 * ((1 - value) * y_hat[:, None] * along_y - z_hat[:, None] * along_z) / total
        else:
            g = np.empty_like(x)
            for i in range(n):
                slope = -(x[i] - x).T / SIGMA**2 * k[i]
                g[i] = 2 * ((1 - value) * y_hat[i] * (slope @ y_hat) - z_hat[i] * (slope @ z_hat)) / total
        step = STEP * np.min(np.linalg.norm(x, axis=1) / np.linalg.norm(g, axis=1))
        coefficients = np.linalg.inv(kernel(x, x) + NUGGET * np.eye(n)) @ g
        if len(others):
            others = others + step * kernel(others, x) @ coefficients
        x = x + step * g
        kept.append((x, others))
    return kept


def of_images(points, layers, repeats, device, folder):
    """Seconds of a layer and of its two products; resident bytes at the peak and before."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(points, 784, generator=rng) * (torch.rand(points, 784, generator=rng) < 0.2)
    x = (x / x.norm(dim=1, keepdim=True)).to(device)
    labels = torch.randint(10, (points,), generator=rng)
    y = torch.eye(10, dtype=torch.float64)[labels].to(device)
    batch, coefficients = x[:600].clone(), torch.randn(600, 784, generator=rng).to(device)

    def products():
        for block in x.split(4096):
            (block @ batch.mT) @ coefficients
        if device.type == "cuda":
            torch.cuda.synchronize()

    products()
    fitted(folder / "warm", RBF(1.0), (x, y, x[:0]), 1, 600, 0.01)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    layer, least = [], []
    for repeat in range(repeats):  # interleaved, so that noise falls on both alike
        layer.append(fitted(folder / f"images-{repeat}", RBF(1.0), (x, y, x[:0]), layers, 600, 0.01))
        start = time.perf_counter()
        for _ in range(layers):
            products()
        least.append((time.perf_counter() - start) / layers)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(np.median(layer)), float(np.median(least)), peak, before


def images(arguments, folder):
    device = torch.device(arguments.device)
    ours, bound, peak, before = of_images(arguments.points, arguments.layers, arguments.repeats, device, folder)
    print(f"images, N = {arguments.points}, N_f = 600, float32, {arguments.device}, {arguments.threads} threads:")
    print(f"  a layer {ours:.3f} s, its two products {bound:.3f} s: {ours / bound:.2f}×")
    data = arguments.points * 784 * 4 / 1e9
    print(f"  resident memory at its peak {peak / 1e6:.2f} GB, before {before / 1e6:.2f} GB, the images {data:.2f} GB")


def of_spirals(count, layers, repeats, folder):
    """Milliseconds of a layer of 120 points, with so many test points beside them: kfx, as printed, vectorised."""
    data = swiss_roll(120, 200, "symmetric", (np.pi / 2, 5 * np.pi / 2))
    x, y, others = torch.as_tensor(data.x_train), torch.as_tensor(data.y_train), data.x_test[:count]
    times = {"kfx": [], "printed": [], "vectorised": []}
    for repeat in range(repeats):  # interleaved
        place = folder / f"spirals-{count}-{repeat}"
        times["kfx"].append(fitted(place, RBF(SIGMA), (x, y, torch.as_tensor(others)), layers, None, STEP))
        for name in ("printed", "vectorised"):
            rng = np.random.default_rng(repeat)
            start = time.perf_counter()
            plain_loop(data.x_train, data.y_train[:, 0], others, layers, rng, name == "vectorised")
            times[name].append((time.perf_counter() - start) / layers)
    return {name: 1e3 * float(np.median(t)) for name, t in times.items()}


def spirals(arguments, folder):
    print("Swiss roll, N = 120, full batch, ms a layer:")
    print("  test points   kfx, recorded   NumPy, as printed   NumPy, vectorised")
    for count in (0, 200):
        ours, printed, vectorised = of_spirals(count, 200, arguments.repeats, folder).values()
        cells = [f"{t:.2f} ({t / ours:.1f}×)" for t in (printed, vectorised)]
        print(f"  {count:<11d}   {ours:<13.2f}   {cells[0]:<17}   {cells[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=60_000)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as name:
        threadpool_limits(1)
        torch.set_num_threads(1)
        spirals(arguments, Path(name))
        threadpool_limits(arguments.threads)
        torch.set_num_threads(arguments.threads)
        images(arguments, Path(name))


if __name__ == "__main__":
    main()
