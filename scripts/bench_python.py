"""What plain Python takes: kernels, a fit of each estimator and predictions, alone and beside a busy core.

    python scripts/bench_python.py [--repeats 15]

Times are medians in milliseconds, with kfx's own choice of threads: nobody sets anything. `one` and `two` are the same
work with so many threads, alone; `busy` is beside a process that computes all the time, `niced` beside one of the
lowest priority. ratio: the worse of the two, over the better of `one` and `two`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from functools import partial

import numpy as np

from kfx.kernels.base import Kernel
from kfx.numerics.process import exclusively

N, FEATURES = 600, 20


Work = Callable[[int | None], object]
"""A work with so many threads; None: as kfx chooses."""


def kernels() -> Iterator[tuple[str, Work]]:
    """The Gram matrix of 600 points with 20 features, and its pullback, of eight kernels; of CNNGP 200 images."""
    from kfx import kernels as k
    from kfx.kernels.cnngp.architectures import ARCHITECTURES

    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, FEATURES))
    images = rng.random((200, 1, 28, 28))
    simple = ARCHITECTURES["simple"]((28, 28), 49.0)
    made = [k.RBF(4.0), k.RationalQuadratic(), k.Matern(4.0), k.Laplace(4.0), k.Polynomial(), k.NNGP(3), k.NTK(3)]
    for kernel, points in [*((kernel, x) for kernel in made), (k.CNNGP(simple), images)]:
        g = np.eye(len(points)) + 1 / len(points)
        name = type(kernel).__name__
        yield f"{name}: Gram matrix", with_threads(partial(kernel.gram, points))
        yield f"{name}: pullback", with_threads(partial(pull, kernel, points, g))


def pull(kernel: Kernel, points: np.ndarray, cotangent: np.ndarray) -> object:
    return kernel.pullback(points)[1](cotangent)


def with_threads(call: Callable[[], object]) -> Work:
    def work(count: int | None) -> object:
        if count is None:
            return call()
        with exclusively(count):
            return call()

    return work


def fits() -> Iterator[tuple[str, Work]]:
    """A fit of each estimator to the same table."""
    from kfx import KernelFlowClassifier, KernelFlowRegressor, KernelFlowTransformer

    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, FEATURES))
    y = x[:, 0] + x[:, 1] ** 2
    steps = {"name": "adam", "iterations": 100}
    flow = {"name": "flow_euler", "iterations": 100}
    for estimator, optimizer, targets in (
        (KernelFlowRegressor, steps, y), (KernelFlowClassifier, steps, y > 1), (KernelFlowTransformer, flow, y),
    ):  # fmt: skip

        def work(count: int | None, estimator=estimator, optimizer=optimizer, targets=targets) -> object:
            return estimator(optimizer=optimizer, device={"name": "cpu", "threads": count}).fit(x, targets)

        yield f"{estimator.__name__}: fit", work


def predictions(rounds: int = 400) -> dict[str, float]:
    """Milliseconds of one row's prediction by scikit-learn's KernelRidge and by kfx, N = 940, in turns."""
    from sklearn.kernel_ridge import KernelRidge

    from kfx import KernelFlowRegressor

    rng = np.random.default_rng(0)
    x = rng.standard_normal((940, FEATURES))
    y = x[:, 0] + x[:, 1] ** 2
    ridge = KernelRidge(kernel="rbf").fit(x, y)
    flow = KernelFlowRegressor(optimizer={"name": "adam", "iterations": 20}).fit(x, y)
    row = x[:1]
    ways: dict[str, Callable[[], object]] = {
        "KernelRidge": lambda: ridge.predict(row),
        "prediction": lambda: flow.predict(row),
        "prediction with its deviation": lambda: flow.predict(row, return_std=True),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(seconds(way))
    return {name: 1e3 * statistics.median(each) for name, each in found.items()}


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def median(call: Callable[[], object], repeats: int) -> float:
    call()
    return 1e3 * statistics.median(seconds(call) for _ in range(repeats))


@contextlib.contextmanager
def neighbour(niceness: int) -> Iterator[None]:
    """One core computes for somebody else."""
    words = ["nice", "-n", str(niceness), sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(words) as other:
        time.sleep(0.3)
        try:
            yield
        finally:
            other.kill()


@dataclass(frozen=True)
class Times:
    """Milliseconds of a work: with one thread and with two, alone; and as kfx chooses, alone, beside a busy process of
    the same priority and beside one of the lowest."""

    one: float
    two: float
    quiet: float
    busy: float
    niced: float

    @property
    def ratio(self) -> float:
        return max(self.busy, self.niced) / min(self.one, self.two)


def measured(works: Iterable[tuple[str, Work]], repeats: int) -> Iterator[tuple[str, Times]]:
    for name, work in works:
        alone = [median(partial(work, count), repeats) for count in (1, 2, None)]
        beside = []
        for niceness in (0, 19):
            with neighbour(niceness):
                beside.append(median(partial(work, None), repeats))
        yield name, Times(*alone, *beside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, N = {N}, {FEATURES} features; CNNGP: 200 images of 28 x 28")
    print(f"{'work':<34}" + "".join(f"{field.name:>8}" for field in fields(Times)) + f"{'ratio':>8}")
    for name, times in measured([*kernels(), *fits()], arguments.repeats):
        print(f"{name:<34}" + "".join(f"{each:>8.2f}" for each in astuple(times)) + f"{times.ratio:>8.2f}", flush=True)
    found = predictions()
    print(f"\n{'one row, N = 940':<34}{'ms':>8}{'ratio':>8}")
    for name, each in found.items():
        print(f"{name:<34}{each:>8.3f}{each / found['KernelRidge']:>8.2f}")


if __name__ == "__main__":
    main()
