"""Time of pooled convolution kernels: a pair of images, its gradient, and neural-tangents beside them.

python scripts/bench_pooled.py [--threads 1]

The limit counts the vector operations of a pair at the rate at which this machine was measured to issue fused
multiply-adds in the same run: of a ReLU's loop as in `bench_cnngp`, two additions along each axis and one multiply-add
of a 3 × 3 convolution, one addition for each entry that is pooled, and a multiply-add for each channel of the products.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import bench_cnngp as bench
import numpy as np
import torch

from kfx.kernels import CNNGP, CNTK
from kfx.kernels.cnngp.architectures import architecture
from kfx.kernels.cnngp.layers import Activation, AvgPool2d, Conv2d

N = 24


def operations(network: Any, image: tuple[int, int], channels: int) -> float:
    """Vector operations on the entries of a pair's spatial covariances, summed over the layers."""
    total = float(channels * math.prod(image) ** 2)
    for step in network.program(image):
        entries = math.prod(step.output_size) ** 2
        if isinstance(step.layer, Activation):
            total += bench.instructions(np.float32)["in all"] * entries
        elif isinstance(step.layer, Conv2d):
            total += entries * (2 * sum(taps - 1 for taps in (step.layer.along(axis)[0] for axis in (0, 1))) / 2 + 1)
        elif isinstance(step.layer, AvgPool2d):
            total += math.prod(step.size) ** 2
    return total


def measured(threads: int, repeats: int = 5) -> Iterator[tuple[str, float, str, float, float | None]]:
    """Yield (work, its seconds, the peer, its seconds, share of the limit) for Myrtle-5 and for CNTK-GAP of depth 5."""
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(N, 3, 32, 32)), dtype=torch.float32)
    myrtle = architecture("myrtle5", (32, 32))
    kernel = CNNGP(myrtle, 1.0, 0.1)
    kernel.prepare(x.dtype, x.device)
    pairs, g = N * (N + 1) / 2, torch.ones(N, N)

    def value() -> float:
        return bench.median(lambda: kernel.gram(x), 1)

    # in turns, since another process may slow one of them; the images' own covariances are work of N / 2 pairs more
    turns = [(value() / (pairs + N / 2), bench.issue_rate(np.float32, threads)) for _ in range(repeats)]
    pair, limit = (
        statistics.median(each)
        for each in zip(*((time, operations(myrtle, (32, 32), 3) / rate) for time, rate in turns), strict=True)
    )
    yield "Myrtle-5, 32 x 32, float32: a pair", pair, "the limit", limit, limit / pair
    seconds = statistics.median(value() for _ in range(repeats))
    both = bench.median(lambda: kernel.pullback(x)[1](g), repeats)
    to_x = bench.median(lambda: kernel.pullback(x)[1](g, inputs=True), repeats)
    yield "Myrtle-5: value and gradient to two", both / pairs, "its value", seconds / pairs, None
    yield "Myrtle-5: value and gradient to two and pixels", to_x / pairs, "its value", seconds / pairs, None
    small = torch.as_tensor(rng.normal(size=(N, 3, 16, 16)), dtype=torch.float32)
    network = architecture("cntk_gap", (16, 16), depth=5)
    tangent = CNTK(network, 1.0, 0.1)
    tangent.gram(small)
    seconds = bench.median(lambda: tangent.gram(small), repeats)
    if find_spec("neural_tangents"):
        theirs = bench.neural_tangents(network, 1.0, 0.1, "ntk")
        few = small[:8].numpy().transpose(0, 2, 3, 1)
        theirs(few)
        # its matrix has all ordered pairs; half of them are counted
        other = bench.median(lambda: theirs(few), 3) / 36
        yield "CNTK-GAP of depth 5, 16 x 16, float32: a pair", seconds / pairs, "neural-tangents", other, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    for work, seconds, peer, other, share in measured(parser.parse_args().threads):
        ratio = f"{seconds / other:.2f} x" if peer == "its value" else f"1 / {other / seconds:.1f}"
        limit = "" if share is None else f", {share:.0%} of the limit"
        print(f"{work:<48} {1e3 * seconds:8.2f} ms   {peer} {1e3 * other:8.2f} ms   {ratio}{limit}")


if __name__ == "__main__":
    main()
