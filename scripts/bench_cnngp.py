"""Time and memory of CNNGP Gram matrices and exact gradients: the fused engine, the torch one, neural-tangents.

python scripts/bench_cnngp.py [--full] [--threads 2] [--cnn-gp PATH]

The limit counts vector operations, see `operations`, at the rate at which this machine was measured to issue fused
multiply-adds of the dtype in the same run, over the pairs of one triangle. Medians; all ways in one run.
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numba import njit

from kfx.kernels import CNNGP
from kfx.kernels.cnngp import maps
from kfx.kernels.cnngp.architectures import ARCHITECTURES
from kfx.kernels.cnngp.layers import Activation, AvgPool2d, Conv2d, Dense, GlobalAvgPool

IMAGES = {"simple": (1, 28, 28), "convnet": (1, 28, 28), "convnet_cifar": (3, 32, 32), "resnet": (1, 28, 28)}
MEMORY = """
import sys, torch
from kfx.kernels import CNNGP
from kfx.kernels.cnngp.architectures import ARCHITECTURES
torch.set_num_threads(int(sys.argv[2]))

def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024

n, size = int(sys.argv[1]), 0
for variances in (0.3, [0.3] * 8):
    kernel = CNNGP(ARCHITECTURES["convnet"]((28, 28), 49.0), variances, variances)
    kernel.pullback(torch.rand(64, 1, 28, 28))[1](torch.eye(64), inputs=True)
    x, g = torch.rand(n, 1, 28, 28), torch.eye(n)
    with open("/proc/self/clear_refs", "w") as reset:  # the peak so far is that of loading the compiled loops
        reset.write("5")
    before = status("VmRSS")
    gram, pull = kernel.pullback(x)
    pull(g)
    matrices = (5 if variances == 0.3 else 3) * 4 * n * n  # the Gram, its tangents or the cotangent's symmetric sum
    size = max(size, status("VmHWM") - before - matrices)
print(size / 2**20)
"""


@njit(fastmath=True, nogil=True)
def multiply_add(state, factor, shift, rounds):
    """Twelve independent chains of sixteen lanes."""
    for _ in range(rounds):
        for k in range(12 * 16):
            state[k] = state[k] * factor + shift


def issue_rate(dtype: Any, threads: int) -> float:
    """Fused multiply-adds of single elements a second, on so many cores at once."""
    from concurrent.futures import ThreadPoolExecutor

    rounds = 1_000_000
    states = [np.ones(12 * 16, dtype) for _ in range(threads)]

    def work(state: np.ndarray) -> None:
        multiply_add(state, dtype(0.999), dtype(1e-3), rounds)

    for state in states:
        multiply_add(state, dtype(0.999), dtype(1e-3), 1)
    with ThreadPoolExecutor(threads) as pool:
        seconds = median(lambda: list(pool.map(work, states)), 5)
    return threads * 12 * 16 * rounds / seconds


def median(work: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


@lru_cache
def instructions(dtype: Any) -> dict[str, float]:
    """Vector instructions for an element in the loop of a ReLU, loads of constants left out, and how many of them are
    fused multiply-adds: of the loop's block that has the square root, as this machine's compiler made it."""
    loop = njit(fastmath={"contract"}, error_model="numpy")(maps._relu.py_func)
    long, short = np.ones(16 * maps.LANES, dtype), np.ones(16, dtype)
    loop(long.copy(), long, short, short, long, long)
    assembly = loop.inspect_asm(loop.signatures[0])
    blocks = [
        [line.split()[0] for line in block.splitlines()[1:] if line.startswith("\tv")]
        for block in re.split(r"\n(?=\S+:)", assembly)
    ]
    (block,) = [each for each in blocks if any(name.startswith("vsqrtp") for name in each)]
    roots = sum(name.startswith("vsqrtp") for name in block)
    moves = sum(name.startswith(("vbroadcast", "vmov")) for name in block)
    fused = sum(name.startswith(("vfm", "vfnm")) for name in block)
    return {"in all": (len(block) - moves) / roots, "fused": fused / roots}


def operations(architecture: Any, image: tuple[int, int], dtype: Any, channels: int = 1) -> tuple[float, float]:
    """Vector operations on an element of a pair's maps, summed: in all, and in activations alone.

    A window of ones is a running sum along each axis: for an output one addition and one subtraction, or its taps where
    they are fewer, and one multiply-add in the end. What a ReLU takes is counted in the compiled loop.
    """
    relu = instructions(dtype)["in all"]
    activations, rest = 0.0, float(channels * np.prod(image))
    for step in architecture.program(image):
        height, width = step.output_size
        if isinstance(step.layer, Activation):
            activations += relu * height * width
        elif isinstance(step.layer, Conv2d):
            taps = [int(step.layer.band(axis, step.size[axis]).sum()) for axis in (0, 1)]
            down, across = (min(t, 2 * n + t // n) for t, n in zip(taps, (height, width), strict=True))
            rest += down * step.size[1] + across * height + height * width
        else:
            rest += height * width
    return activations + rest, activations


def neural_tangents(architecture: Any, weight: float, bias: float, kind: str = "nngp") -> Callable[[np.ndarray], Any]:
    import jax

    from kfx.kernels.nngp.by_neural_tangents import stax

    layers = []
    for layer in architecture.layers:
        if isinstance(layer, Activation):
            layers.append(stax.Relu())
        elif isinstance(layer, AvgPool2d):
            layers.append(
                stax.AvgPool(layer.along(0)[:1] + layer.along(1)[:1], layer.along(0)[1:] + layer.along(1)[1:])
            )
        elif isinstance(layer, GlobalAvgPool):
            layers.append(stax.GlobalAvgPool())
        elif isinstance(layer, Dense):
            w = np.sqrt(weight * layer.weight_multiplier)
            layers.append(stax.serial(stax.Flatten(), stax.Dense(1, W_std=w, b_std=np.sqrt(bias))))
        else:
            size = layer.kernel_size if isinstance(layer.kernel_size, tuple) else (layer.kernel_size,) * 2
            w = np.sqrt(weight * layer.weight_multiplier)
            layers.append(
                stax.Conv(1, size, (1, 1), "SAME" if layer.padding == "same" else "VALID", W_std=w, b_std=np.sqrt(bias))
            )
    kernel = jax.jit(lambda x: stax.serial(*layers, stax.Flatten())[2](x, None, kind))
    return lambda x: kernel(x).block_until_ready()


def cnn_gp(path: str, weight: float, bias: float) -> Callable[[torch.Tensor], Any]:
    """ConvNet-GP of a clone of cambridge-mlg/cnn-gp: its kernels alone, for its package wants torchvision and h5py."""
    package = ModuleType("cnn_gp")
    package.__path__ = [f"{path}/cnn_gp"]
    sys.modules["cnn_gp"] = package
    theirs = import_module("cnn_gp.kernels")
    hidden = [
        layer
        for _ in range(7)
        for layer in (
            theirs.Conv2d(kernel_size=7, padding="same", var_weight=weight * 49, var_bias=bias),
            theirs.ReLU(),
        )
    ]
    model = theirs.Sequential(*hidden, theirs.Conv2d(kernel_size=28, padding=0, var_weight=weight, var_bias=bias))

    def gram(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return gram


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every architecture and N up to 1200; minutes, not seconds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cnn-gp", metavar="PATH", help="a clone of cambridge-mlg/cnn-gp to time as well")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    weight, bias = 2.79, 7.86
    sizes = [100, 300, 600, 1200] if arguments.full else [100, 300]
    names = list(IMAGES) if arguments.full else ["simple", "convnet"]
    rates = {dtype: issue_rate(dtype, arguments.threads) for dtype in (np.float32, np.float64)}
    print(
        f"{arguments.threads} threads; fused multiply-adds: float32 {rates[np.float32] / 1e9:.0f}, "
        f"float64 {rates[np.float64] / 1e9:.0f} thousand million a second. µs: per entry of K(X, X)"
    )
    mix = {dtype.__name__: instructions(dtype) for dtype in rates}
    shown = ", ".join(f"{name} {each['in all']:g}, {each['fused']:g} of them fused" for name, each in mix.items())
    print(f"vector instructions for an element of a ReLU: {shown}\n")
    head = f"{'architecture':<14} {'dtype':<8} {'N':>5} {'µs':>8} {'of limit':>9} {'value+gradient of 2':>20}"
    print(f"{head} {'of all layers':>14} {'and inputs':>11} {'torch µs':>9} {'ratio':>6} {'error':>8}")
    convnet_us = 0.0
    rng = np.random.default_rng(0)
    for name in names:
        channels, *image = IMAGES[name]
        architecture = ARCHITECTURES[name](tuple(image), 49.0)
        shared = CNNGP(architecture, weight, bias)
        layers = [[value] * architecture.convolutions for value in (weight, bias)]
        layered, reference = CNNGP(architecture, *layers), CNNGP(architecture, weight, bias, engine="torch")
        points = rng.random((max(sizes), channels, *image))
        for dtype in (np.float32, np.float64):
            shared.prepare(getattr(torch, dtype.__name__), torch.device("cpu"))
            x100 = points[:100].astype(dtype)
            torch_us = median(lambda: reference.gram(x100), 1) / 1e4 * 1e6  # noqa: B023
            exact = reference.gram(points[:100])
            scale = np.sqrt(np.outer(np.diagonal(exact), np.diagonal(exact)))
            error = np.max(np.abs(shared.gram(x100) - exact) / scale)
            for n in sizes:
                x = torch.as_tensor(points[:n].astype(dtype))
                g = torch.eye(n, dtype=x.dtype) + 1 / n
                value = median(lambda: shared.gram(x), arguments.repeats)  # noqa: B023
                ways = (
                    median(lambda: shared.pullback(x)[1](g), arguments.repeats),  # noqa: B023
                    median(lambda: layered.pullback(x)[1](g), arguments.repeats),  # noqa: B023
                    median(lambda: layered.pullback(x)[1](g, inputs=True), arguments.repeats),  # noqa: B023
                )
                every, _ = operations(architecture, tuple(image), dtype, channels)
                limit = every * n * (n + 1) / 2 / rates[dtype]
                us = value / n**2 * 1e6
                if (name, dtype) == ("convnet", np.float32) and n <= 600:
                    convnet_us = us
                print(
                    f"{name:<14} {dtype.__name__:<8} {n:>5} {us:>8.2f} {limit / value:>9.0%} {ways[0] / value:>19.2f}x "
                    f"{ways[1] / value:>13.2f}x {ways[2] / value:>10.2f}x {torch_us:>9.1f} {torch_us / us:>6.0f} "
                    f"{error:>8.1e}",
                    flush=True,
                )
    print()
    architecture = ARCHITECTURES["convnet"]((28, 28), 49.0)
    images = rng.random((100, 28, 28, 1)).astype(np.float32)
    others = {}
    if find_spec("neural_tangents"):
        others["neural-tangents, jitted"] = neural_tangents(architecture, weight, bias), images
    if arguments.cnn_gp:
        others["cnn-gp"] = (cnn_gp(arguments.cnn_gp, weight, bias), torch.as_tensor(images.transpose(0, 3, 1, 2)))
    for name, (gram, x) in others.items():
        gram(x)
        us = median(lambda: gram(x), arguments.repeats) / len(x) ** 2 * 1e6  # noqa: B023
        print(
            f"convnet float32, {name} at N = 100: {us:.0f} µs an entry, {us / convnet_us:.0f} times the fused engine's"
        )
    for n in (600, 1200) if arguments.full else (600,):
        command = [sys.executable, "-c", MEMORY, str(n), str(arguments.threads)]
        grown = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"convnet float32, N = {n}: value and gradient took {grown:.0f} MB beside the N × N matrices")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MB")


if __name__ == "__main__":
    main()
