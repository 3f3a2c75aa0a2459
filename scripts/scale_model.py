"""What larger Gram matrices would cost: a model fitted to measured stores, and what it says of sizes and machines.

python scripts/scale_model.py STORE [STORE ...] [--cores 4] [--images]
python scripts/scale_model.py --passes [--cores 4]

STORE: folders made by kfx gram --store or evaluation.store, whose history.csv says what was computed in what time.
--images: also measure ConvNet-GP's time per pair against the size of images, on this machine.

    Gram     pairs · c / cores                       c: seconds of a core for a pair
    factor   N³/3 / (cores · r)                      r: multiplications and additions of a core a second
             but at least N² T / r                   row i's tiles are made one after another, T the rows of a tile
    traffic  8 N³ / (6 T) read, 4 N² written         bytes of tiles; it hides behind products while storage keeps up
    disk     4 N²/2 + 4 N M + 8 N²/2                 Gram and M test points in float32, factor in float64

--passes: Nyström regression with N points and M centres instead, from a tile that is timed on this machine.

    pass     (N M c + 2 N M² / r) / cores            the pairs; features and their products, M² operations a point each
    sums     5 · 8 M² · max(5, cores) / STREAM       one process reads the sums of all processes five times
    solve    17 M³ / r                               the eigenvalues of the sums and of one fold
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pandas as pd
import torch

from kfx.kernels import ARD, CNNGP, Matern
from kfx.kernels.cnngp.architectures import architecture
from kfx.numerics import threads
from kfx.numerics.formatting import in_bytes
from kfx.numerics.nystrom import Centres, Sums
from kfx.store.gram_store import GramStore

CASES = [(50_000, 10_000), (60_000, 10_000), (200_000, 10_000), (1_000_000, 10_000)]
TILE = 2048
PASSES = [(n, m, nodes) for n in (10**6, 10**7, 10**8) for m in (2000, 10_000) for nodes in (1, 16, 1000)]
STREAM = 1e9
"""Bytes a second at which one process reads from the shared disk."""


def measured(folder: Path) -> pd.DataFrame:
    """Rows of a store's history, with the core-seconds of each unit of cost."""
    table = pd.read_csv(folder / "history.csv")
    table = table[table["cost"] > 0]
    cores = table["processes"] * table["threads_each"]
    return table.assign(store=folder.name, points=len(GramStore(folder)), unit=table["seconds"] * cores / table["cost"])


def pair_seconds(side: int, pairs: int = 16_384) -> float:
    """Core-seconds of ConvNet-GP for a pair of images of so many pixels a side."""
    kernel, n = CNNGP(architecture("convnet", (side, side), 49.0), 2.79, 7.86), int(pairs**0.5)
    x = torch.rand(2 * n, 1, side, side)
    kernel.prepare(x.dtype, x.device)
    kernel.gram(x[:64], x[64:128])
    started = time.perf_counter()
    kernel.gram(x[:n], x[n:])
    return (time.perf_counter() - started) * threads.of_engine() / n**2


def pass_rates(m: int = 2000, rows: int = 4096, width: int = 20) -> tuple[float, float]:
    """Core-seconds of a pair of a Matérn kernel with lengths, and operations of a core a second, in one tile."""
    kernel = ARD(Matern(nu=2.5), [1.0] * width)
    x = torch.rand(rows + m, width, dtype=torch.float64)
    mapped, compare = kernel.feature_map_and_kernel()
    points, y = mapped(x), torch.zeros(rows, 1, dtype=torch.float64)
    centres, sums = Centres.of(compare, points[:m]), Sums.zero(m, 1)
    for _ in range(2):  # the first is a warm-up
        started = time.perf_counter()
        centres.cross(points[m:])
        of_pairs = time.perf_counter() - started
        sums.with_points(centres.features(points[m:]), y, compare.diagonal(points[m:]))
        whole = time.perf_counter() - started - of_pairs
    count = threads.of_torch()
    return of_pairs * count / (rows * m), 2 * rows * m**2 / ((whole - of_pairs) * count)


def print_passes(cores: int) -> None:
    threads.use(threads.available())
    c_table, r = pass_rates()
    c_images = pair_seconds(28)
    print(f"c = {c_table * 1e9:.0f} ns (Matérn), {c_images * 1e6:.1f} us (ConvNet-GP); r = {r / 1e9:.1f} Gflop/s\n")
    print(f"{'N':>10} {'M':>6} {'nodes':>6} {'Matérn: h':>10} {'ConvNet-GP: h':>14} {'sums: h':>8} {'solve: h':>9}")
    for n, m, nodes in PASSES:
        total = nodes * cores
        table, images = ((n * m * c + 2 * n * m**2 / r) / total / 3600 for c in (c_table, c_images))
        sums = 5 * 8 * m**2 * max(5, total) / STREAM / 3600
        solve = 17 * m**3 / r / 3600
        print(f"{n:>10} {m:>6} {nodes:>6} {table:>10.3f} {images:>14.2f} {sums:>8.3f} {solve:>9.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", type=Path)
    parser.add_argument("--passes", action="store_true")
    parser.add_argument("--cores", type=int, default=4, help="of a node")
    parser.add_argument("--images", action="store_true")
    arguments = parser.parse_args()
    if arguments.passes:
        print_passes(arguments.cores)
        return
    rows = pd.concat([measured(folder) for folder in arguments.stores])
    shown = rows[["store", "points", "work", "tiles", "seconds", "processes", "threads_each", "unit"]]
    print(shown.to_string(index=False, float_format=lambda v: f"{v:.3g}"))
    gram, factor = rows[rows["work"] == "Gram"], rows[rows["work"] == "Cholesky"]
    c = float((gram["unit"] * gram["cost"]).sum() / gram["cost"].sum())
    r = 1 / float((factor["unit"] * factor["cost"]).sum() / factor["cost"].sum())
    print(f"\nc = {c * 1e6:.2f} microseconds of a core a pair; r = {r / 1e9:.1f} Gflop/s a core\n")
    print(f"{'N':>9} {'nodes':>6} {'disk':>9} {'Gram h':>8} {'factor h':>9} {'chain h':>8} {'read GB/s a node':>17}")
    for n, m in CASES:
        for nodes in (1, 16, 256):
            cores = nodes * arguments.cores
            of_gram = (n * (n + 1) / 2 + n * m) * c / cores
            chain = n**2 * TILE / (r * arguments.cores)
            of_factor = max(n**3 / 3 / (cores * r), chain)
            read = 8 * n**3 / (6 * TILE) / of_factor / nodes
            disk = in_bytes(4 * n**2 / 2 + 4 * n * m + 8 * n**2 / 2)
            times = f"{of_gram / 3600:>8.2f} {of_factor / 3600:>9.2f} {chain / 3600:>8.2f}"
            print(f"{n:>9} {nodes:>6} {disk:>9} {times} {read / 1e9:>17.2f}")
    if arguments.images:
        threads.use(arguments.cores)
        print("\npixels a side   core-microseconds a pair   a pixel, in ns")
        for side in (28, 56, 112, 224):
            took = pair_seconds(side)
            print(f"{side:>13} {took * 1e6:>26.1f} {took / side**2 * 1e9:>16.1f}")


if __name__ == "__main__":
    main()
