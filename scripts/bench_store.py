"""Gram matrices on disk: codecs of a tile, and factors and solutions beside those of SciPy and of dask.array.

python scripts/bench_store.py [--points 8000] [--tile ROWS] [--threads 2]

One run, everything on the same matrix: a simple CNNGP in float32 on scikit-learn's digits with noise. The plain
baseline is scipy.linalg.cholesky of the matrix in memory, in float64, with as many threads.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import scipy.linalg
import torch
import zarr
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ZstdCodec

from kfx.kernels import CNNGP
from kfx.kernels.cnngp.architectures import architecture
from kfx.numerics import conjugate_gradients, threads
from kfx.numerics.memory import peak_bytes
from kfx.store import products
from kfx.store.factor_store import FactorStore, FactorWork
from kfx.store.gram_store import GramStore
from kfx.store.gram_work import GramWork
from kfx.store.selection import Selection
from kfx.store.tiles import block_of
from kfx.store.work import in_this_process

SHIFT = 1e-3


def many_digits(n: int) -> torch.Tensor:
    """Digits, each several times, with noise."""
    images, rng = load_digits().images / 16.0, np.random.default_rng(0)
    chosen = images[rng.integers(len(images), size=n)] + 0.1 * rng.normal(size=(n, 8, 8))
    return torch.from_numpy(chosen[:, None].astype(np.float32))


def seconds(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def codecs(folder: Path, tile: np.ndarray) -> None:
    """Size, and speed of writing and reading, of one tile by each codec."""
    print(
        f"\ncodec of a tile of {tile.shape[0]} x {tile.shape[1]} {tile.dtype}   share of bytes   write MB/s   read MB/s"
    )
    for name, codec in {
        "crc32c alone (kfx)": [Crc32cCodec()],
        "zstd 3 + crc32c": [ZstdCodec(level=3), Crc32cCodec()],
        "blosc lz4, bitshuffle": [BloscCodec(cname="lz4", shuffle="bitshuffle"), Crc32cCodec()],
        "blosc zstd 3, bitshuffle": [BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"), Crc32cCodec()],
    }.items():
        array = zarr.create_array(
            folder / name.replace(" ", "_"), shape=tile.shape, chunks=tile.shape, dtype=tile.dtype,
            serializer=BytesCodec(), compressors=codec,
        )  # fmt: skip
        write = min(seconds(lambda array=array: array.set_block_selection((0, 0), tile)) for _ in range(3))
        read = min(seconds(lambda array=array: array[:]) for _ in range(3))
        share = (folder / name.replace(" ", "_") / "c" / "0" / "0").stat().st_size / tile.nbytes
        print(f"{name:<46}{share:>12.2f}{tile.nbytes / write / 1e6:>15.0f}{tile.nbytes / read / 1e6:>12.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=8000)
    parser.add_argument("--tile", type=int, help="default: kfx's own choice")
    parser.add_argument("--threads", type=int, default=threads.available())
    arguments = parser.parse_args()
    n, count = arguments.points, arguments.threads
    threads.use(count)
    x, kernel = many_digits(n), CNNGP(architecture("simple", (8, 8)), 1.0, 0.1)
    kernel.prepare(x.dtype, x.device)
    y = torch.from_numpy(np.random.default_rng(1).normal(size=(n, 10)))
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        store = GramStore.prepare(folder / "gram", kernel, x, tile=arguments.tile)
        tile = store.gram.tile
        took = seconds(lambda: in_this_process(GramWork.of(store, kernel, x.device), lambda task: None))
        print(
            f"{n} points, {count} threads; Gram {took:.1f} s, {n * (n + 1) / 2 / took / 1e6:.2f} million pairs a second"
        )
        codecs(folder, store.gram.read(1, 0))
        matrix = block_of(store.gram, slice(0, n), slice(0, n))

        def by_scipy() -> None:
            with threadpool_limits(count, user_api="blas"):
                a = matrix.astype(np.float64)
                a.flat[:: n + 1] += SHIFT
                scipy.linalg.cho_solve((scipy.linalg.cholesky(a, lower=True, overwrite_a=True), True), y.numpy())

        def on_tiles(memory: int) -> None:
            factor = FactorStore.prepare(folder / str(memory), store, Selection.head(store, n), SHIFT)
            in_this_process(FactorWork.of(factor, store, memory), lambda task: None)
            factor.solve_upper(factor.solve_lower(y))

        def by_dask_array() -> None:
            import dask
            import dask.array as da

            zarr.create_array(folder / "full", data=matrix, chunks=(tile,) * 2, compressors=None)
            a = da.from_zarr(folder / "full").astype(np.float64) + SHIFT * da.eye(n, chunks=tile)
            factor = da.linalg.cholesky(a, lower=True)
            with dask.config.set(scheduler="threads", num_workers=count):
                factor.to_zarr(folder / "dask", compute=True)

        def by_workers() -> None:
            from kfx.store.cluster import local_client, on_dask

            factor = FactorStore.prepare(folder / "workers", store, Selection.head(store, n), SHIFT)
            with local_client(2, "127.0.0.1:0") as client:
                work = FactorWork.of(factor, store, 10**9)
                inner.append(seconds(lambda: on_dask(client, work, (), max(count // 2, 1), lambda task: None)))

        solved = []

        def by_conjugate_gradients() -> None:
            diagonal = products.diagonal(store)
            by_columns, times = partial(products.columns, store, n), partial(products.product, store)
            solved.append(conjugate_gradients.solve(times, by_columns, diagonal, y, SHIFT, 1e-6, 2 * 10**9))

        inner: list[float] = []
        ways = {
            "scipy.linalg.cholesky, in memory": by_scipy,
            "kfx, tiles, 1 GB": lambda: on_tiles(10**9),
            "kfx, tiles, no row kept": lambda: on_tiles(0),
            "kfx, tiles, 2 Dask workers": by_workers,
            "dask.array.linalg.cholesky, no solve": by_dask_array,
            "conjugate gradients, 1e-6": by_conjugate_gradients,
        }
        flops, plain = n**3 / 3, None
        print("\nsolve for 10 targets                       s    Gflop/s   rate to scipy's   peak GB so far")
        for way, work in ways.items():
            took = seconds(work)
            if inner and way.endswith("workers"):
                took = inner[0]
            plain = plain or took
            rate = f"{flops / took / 1e9:>10.1f}{plain / took:>18.2f}"
            print(f"{way:<38}{took:>7.1f}{rate}{peak_bytes(torch.device('cpu')) / 1e9:>17.2f}", flush=True)
        print(f"conjugate gradients: {solved[0].iterations} products, residual {solved[0].residual:.1e}")


if __name__ == "__main__":
    main()
