"""Time of an iteration that trains a network by ρ, recorded, against a plain loop in torch.

python scripts/bench_network.py [--sizes 500] [--iterations 20] [--threads 2] [--device cpu]

Both take batches of N_f images, the network of Owhadi & Yoo 2019, §10.1, in float32, a Gaussian kernel whose γ is of
the batch's features and differentiated, ρ with λ = 1e-4 in float64, and a step of Adam. kfx does it through its
optimizer and record, as a run does: a trace row with a norm for each block on disk, with the state of a checkpoint at
hand. The plain loop is a module, autograd through Cholesky and `torch.optim.Adam`, fused, and writes nothing. Both
start from the same weights and see the same batches: their ρ must agree.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from kfx.kernels import NetworkFeatures
from kfx.kernels.networks import NETWORKS
from kfx.numerics.process import set_switches
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import rho
from kfx.optimizers.gradient import Adam, GradientDescent
from kfx.optimizers.loss import Loss
from kfx.record.journal import PartFits
from kfx.record.reading import load_run
from kfx.record.record import Record
from kfx.running.stages import keep_freed_memory
from kfx.sampling.samplers import Sampler

RATE, REGULARIZATION, POINTS = 1e-3, 1e-4, 4000


def plain_loop(module, x, y, batch_size, iterations, rng, sampler):
    """Seconds, and ρ of every step."""
    started = time.perf_counter()
    optimizer = torch.optim.Adam(module.parameters(), lr=RATE, fused=True)
    n_c, found = batch_size // 2, []
    eye = REGULARIZATION * torch.eye(batch_size, dtype=torch.float64, device=x.device)
    for iteration in range(iterations):
        index = torch.as_tensor(sampler.draw(rng, iteration).indices, device=x.device)
        y_b = y[index]
        features = module(x[index])
        norms = features.square().sum(dim=1)
        r2 = (norms[:, None] + norms[None, :] - 2 * features @ features.mT).clamp(min=0)
        a = torch.exp(-4 * r2 / r2.mean()).double() + eye
        factor = torch.linalg.cholesky(a)
        energy = torch.linalg.solve_triangular(factor, y_b, upper=False).square()
        value = energy[n_c:].sum() / energy.sum()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        found.append(float(value.detach()))
    return time.perf_counter() - started, found


def kfx_loop(module, x, y, batch_size, iterations, streams, directory):
    """The same with kfx's optimizer and record."""
    optimizer = GradientDescent(
        partial(Loss, rho, Regularization(REGULARIZATION, "absolute")),
        Sampler(batch_size),
        Adam(RATE, 0.9, 0.999, 1e-8),
        iterations=iterations,
        space="raw",
        final="last",
        final_window=10,
        max_reinitializations=0,
    )
    kernel, record = NetworkFeatures(module), Record(directory)
    record.open_trace(kernel, optimizer.columns)
    started = time.perf_counter()
    PartFits(record, 1, iterations).fit(kernel, optimizer, (x, y), streams)
    seconds = time.perf_counter() - started
    record.finish("completed")
    return seconds, load_run(directory).trace["rho"].tolist()


def network(device):
    torch.manual_seed(0)
    return NETWORKS["mnist"]((1, 28, 28)).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[500])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    set_switches(False)
    keep_freed_memory()  # as a run does; it serves both loops
    rng, device = np.random.default_rng(0), torch.device(arguments.device)
    x = torch.as_tensor(rng.random((POINTS, 1, 28, 28)), dtype=torch.float32, device=device)
    y = torch.eye(10, dtype=torch.float64, device=device)[torch.as_tensor(rng.integers(10, size=POINTS), device=device)]
    print(f"median of {arguments.repeats}, {arguments.threads} threads, {device}; ms an iteration")
    print(f"{'N_f':>6}  {'kfx, recorded':>14}  {'plain torch':>12}  {'kfx / plain':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            times: dict[str, list[float]] = {"kfx": [], "plain": []}
            for repeat in range(
                -1, arguments.repeats
            ):  # interleaved, so that noise falls on all alike; the first warms
                where = Path(folder) / f"{size}-{repeat}"
                mine, ours = kfx_loop(network(device), x, y, size, arguments.iterations, Streams(0), where)
                sampler = Sampler(size)
                sampler.start(x, y)
                drawn = Streams(0)["batches"]
                its, theirs = plain_loop(network(device), x, y, size, arguments.iterations, drawn, sampler)
                assert np.allclose(ours[:3], theirs[:3], rtol=1e-3), "not the same method"
                if repeat >= 0:
                    for name, seconds in zip(times, (mine, its), strict=True):
                        times[name].append(1e3 * seconds / arguments.iterations)
            ours, theirs = (float(np.median(each)) for each in times.values())
            ratio = float(np.median(np.divide(times["kfx"], times["plain"])))
            print(f"{size:>6}  {ours:>14.2f}  {theirs:>12.2f}  {ratio:>12.2f}")


if __name__ == "__main__":
    main()
