"""Gram matrices on disk: codecs of a tile, and factors and solutions beside those of SciPy and of dask.array.

python scripts/bench_store.py [--points 8000] [--tile ROWS] [--threads 2]

One run, everything on the same matrix: a simple CNNGP in float32 on scikit-learn's digits with noise. The plain
baseline is scipy.linalg.cholesky of the matrix in memory, in float64, with as many threads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
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


def of_digits() -> CNNGP:
    return CNNGP(architecture("simple", (8, 8)), 1.0, 0.1)


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


def in_memory(store: GramStore) -> np.ndarray:
    """Θ as one array."""
    n = len(store)
    return block_of(store.gram, slice(0, n), slice(0, n))


def by_scipy(store: GramStore, y: torch.Tensor, folder: Path, count: int) -> float:
    matrix = in_memory(store)

    def work() -> None:
        with threadpool_limits(count, user_api="blas"):
            a = matrix.astype(np.float64)
            a.flat[:: len(a) + 1] += SHIFT
            scipy.linalg.cho_solve((scipy.linalg.cholesky(a, lower=True, overwrite_a=True), True), y.numpy())

    return seconds(work)


def on_tiles(memory: int, store: GramStore, y: torch.Tensor, folder: Path, count: int) -> float:
    def work() -> None:
        factor = FactorStore.prepare(folder / "factor", store, Selection.head(store, len(store)), SHIFT)
        in_this_process(FactorWork.of(factor, store, memory), lambda task: None)
        factor.solve_upper(factor.solve_lower(y))

    return seconds(work)


def by_workers(store: GramStore, y: torch.Tensor, folder: Path, count: int) -> float:
    """Without the seconds in which the workers begin."""
    from kfx.store.cluster import Setting, local_client, on_dask

    factor = FactorStore.prepare(folder / "factor", store, Selection.head(store, len(store)), SHIFT)
    with local_client(2, "127.0.0.1:0") as client:
        setting = Setting(threads=max(count // 2, 1))

        def work() -> None:
            on_dask(client, FactorWork.of(factor, store, 5 * 10**8), setting, lambda task: None)
            factor.solve_upper(factor.solve_lower(y))

        return seconds(work)


def by_dask_array(store: GramStore, y: torch.Tensor, folder: Path, count: int) -> float:
    """Of Θ as a zarr array of both triangles, to one of L; without the solution."""
    import dask
    import dask.array as da

    n = len(store)
    tile = next(rows for rows in range(store.gram.tile, 0, -1) if n % rows == 0)  # it takes no others
    zarr.create_array(folder / "both", data=in_memory(store), chunks=(tile, tile), compressors=None)

    def work() -> None:
        a = da.from_zarr(folder / "both").astype(np.float64) + SHIFT * da.eye(n, chunks=tile)
        with dask.config.set(scheduler="threads", num_workers=count), threadpool_limits(1, user_api="blas"):
            da.linalg.cholesky(a, lower=True).to_zarr(folder / "dask", compute=True)

    return seconds(work)


def by_conjugate_gradients(store: GramStore, y: torch.Tensor, folder: Path, count: int) -> float:
    points = torch.from_numpy(store.points(slice(0, len(store))))
    kernel = of_digits()

    def block(rows: np.ndarray, columns: np.ndarray) -> torch.Tensor:
        return kernel.gram(points[torch.from_numpy(rows)], points[torch.from_numpy(columns)])

    def work() -> None:
        found = conjugate_gradients.solve(
            partial(products.product, store),
            block,
            partial(products.columns, store, len(store)),
            products.diagonal(store),
            y,
            SHIFT,
            1e-6,
            2 * 10**9,
        )
        print(f"conjugate gradients: {found.iterations} steps, residual {found.residual:.1e}", file=sys.stderr)

    return seconds(work)


WAYS = {
    "scipy.linalg.cholesky, in memory": by_scipy,
    "kfx, tiles, 1 GB": partial(on_tiles, 10**9),
    "kfx, tiles, no row kept": partial(on_tiles, 0),
    "kfx, tiles, 2 Dask workers of 0.5 GB": by_workers,
    "dask.array.linalg.cholesky, no solution": by_dask_array,
    "conjugate gradients, 1e-6": by_conjugate_gradients,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=8000)
    parser.add_argument("--tile", type=int, help="default: kfx's own choice")
    parser.add_argument("--threads", type=int, default=threads.available())
    parser.add_argument("--way", choices=WAYS, help="one alone, in --folder: seconds and peak bytes")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    n, count = arguments.points, arguments.threads
    threads.use(count)
    y = torch.from_numpy(np.random.default_rng(1).normal(size=(n, 10)))
    if arguments.way:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as own:
            took = WAYS[arguments.way](GramStore(arguments.folder / "gram"), y, Path(own), count)
        print(json.dumps([took, peak_bytes(torch.device("cpu"))]))
        return
    kernel, x = of_digits(), many_digits(n)
    kernel.prepare(x.dtype, x.device)
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).absolute()
        store = GramStore.prepare(folder / "gram", kernel, x, tile=arguments.tile)
        took = seconds(lambda: in_this_process(GramWork.of(store, kernel, x.device), lambda task: None))
        pairs = n * (n + 1) / 2
        print(f"{n} points, {count} threads; Gram {took:.1f} s, {pairs / took / 1e6:.2f} million pairs a second")
        codecs(folder, store.gram.read(1, 0))
        print("\nsolve for 10 targets                          s   Gflop/s   rate to scipy's   peak GB")
        plain = None
        for way in WAYS:
            words = ["--points", str(n), "--threads", str(count), "--way", way, "--folder", str(folder)]
            done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True)
            took, peak = json.loads(done.stdout)
            plain = plain or took
            print(
                f"{way:<40}{took:>7.1f}{n**3 / 3e9 / took:>10.1f}{plain / took:>18.2f}{peak / 1e9:>10.2f}", flush=True
            )


if __name__ == "__main__":
    main()
