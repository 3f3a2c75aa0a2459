"""Time of dense NNGPs, value and gradients: the compiled loops against neural-tangents under jit.

python scripts/bench_nngp.py [--sizes 100 600] [--features 64 784] [--threads 2]

Two ReLU layers. The limit is the product of the points alone, of one triangle, at the rate of torch's product of the
same points in the same run. `conversion` is `kernel.backend=neural_tangents` against the bare jitted call.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kfx.kernels import NNGP
from kfx.numerics import threads
from kfx.running.stages import keep_freed_memory

WEIGHT, BIAS, DEPTH = 1.6, 0.2, 2


def peers(x: np.ndarray, cotangent: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Value, and value with gradient to a pair a layer, and to the points besides, by neural-tangents under jit."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    from kfx.kernels.nngp.by_neural_tangents import stax

    def kernel(parameters: Any, points: Any) -> Any:
        layers = []
        for i, (weight, bias) in enumerate(zip(*parameters, strict=True)):
            layers += [stax.Relu()] if i else []
            layers.append(stax.Dense(1, W_std=jnp.sqrt(weight), b_std=jnp.sqrt(bias)))
        return stax.serial(*layers)[2](points, None, "nngp").astype(points.dtype)

    parameters = tuple(jnp.full(DEPTH + 1, value, x.dtype) for value in (WEIGHT, BIAS))
    points, g = jnp.asarray(x), jnp.asarray(cotangent)

    def with_gradient(to: tuple[int, ...]) -> Callable[[], Any]:
        total = jax.grad(lambda p, z: (g * kernel(p, z)).sum(), to)
        both = jax.jit(lambda p, z: (kernel(p, z), total(p, z)))
        return lambda: jax.block_until_ready(both(parameters, points))

    value = jax.jit(kernel)
    return {
        "value": lambda: jax.block_until_ready(value(parameters, points)),
        "value, gradient to layers": with_gradient((0,)),
        "value, gradient to layers and points": with_gradient((0, 1)),
    }


def ours(x: torch.Tensor, cotangent: torch.Tensor) -> dict[str, Callable[[], Any]]:
    each = [[value] * (DEPTH + 1) for value in (WEIGHT, BIAS)]
    kernel = NNGP(DEPTH, "relu", *each, backend="fused")
    return {
        "value": lambda: kernel.gram(x),
        "value, gradient to layers": lambda: kernel.pullback(x)[1](cotangent),
        "value, gradient to layers and points": lambda: kernel.pullback(x)[1](cotangent, inputs=True),
    }


def medians(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of each, in turns of ten, so that noise falls on all alike, and the threads of one that still wait for
    more do not take the cores of the next."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(repeats):
        for name, way in ways.items():
            for _ in range(10):
                start = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def measured(n: int, features: int, dtype: Any, repeats: int) -> list[tuple[str, float, float, float]]:
    """(work, seconds of kfx, of neural-tangents, of the product alone)."""
    rng = np.random.default_rng(0)
    x, g = rng.random((n, features)).astype(dtype), rng.random((n, n)).astype(dtype)
    points = torch.from_numpy(x)
    g += g.T
    fused, theirs = ours(points, torch.from_numpy(g)), peers(x, g)
    compiled = NNGP(DEPTH, "relu", WEIGHT, BIAS, backend="neural_tangents")
    ways = {("kfx", name): way for name, way in fused.items()}
    ways |= {("peer", name): way for name, way in theirs.items()}
    ways["product", ""] = lambda: points @ points.mT
    ways["conversion", ""] = lambda: compiled._gram(points, None)
    found = medians(ways, repeats)  # type: ignore[arg-type]
    least = found["product", ""] * (n + 1) / (2 * n)
    rows = [(name, found["kfx", name], found["peer", name], least) for name in fused]
    return [*rows, ("conversion", found["conversion", ""], found["peer", "value"], 0.0)]


def settle(count: int) -> None:
    """As a run computes."""
    keep_freed_memory()
    threads.use(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 600])
    parser.add_argument("--features", type=int, nargs="+", default=[64, 784])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])  # JAX takes all that it sees
    settle(arguments.threads)
    head = f"{'N':>5} {'features':>8} {'dtype':<8} {'work':<37} {'kfx ms':>8} {'neural-tangents ms':>19}"
    print(f"{head}  ratio  product ms")
    for n in arguments.sizes:
        for features in arguments.features:
            for dtype in (np.float32, np.float64):
                for work, kfx, peer, least in measured(n, features, dtype, arguments.repeats):
                    print(
                        f"{n:>5} {features:>8} {dtype.__name__:<8} {work:<37} {1e3 * kfx:>8.2f} {1e3 * peer:>19.2f} "
                        f"{peer / kfx:>6.1f} {1e3 * least:>8.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
