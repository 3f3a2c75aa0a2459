"""The Gram matrix of a configured kernel on a configured data set, as files or in a store."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from kfx.experiment.config import Config
from kfx.files import whole_path
from kfx.kernels.base import Kernel
from kfx.kernels.starts import candidates
from kfx.lock import Lock
from kfx.numerics import threads
from kfx.numerics.arrays import some_of
from kfx.numerics.process import exclusively, set_switches
from kfx.numerics.streams import Streams
from kfx.outcomes import StoreError
from kfx.running.context import Machine
from kfx.running.disk import require_room, storing, workers
from kfx.running.journals import Unrecorded
from kfx.running.stages import check_precision, prepared
from kfx.screen.progress import Steps, WaitMessage, say
from kfx.store.gram_store import GRAM, TEST, GramStore
from kfx.store.gram_work import GramWork
from kfx.store.identity import finite


@exclusively()
def save(config: Config, folder: Path, test: bool, block: int) -> list[Path]:
    """Write `gram.npy`, K(x_train, x_train), and with `test` also `gram_test.npy`, K(x_test, x_train), `block` rows at
    a time.

    The files are memory-mapped, so they may be larger than memory.
    """
    kernel, x_train, x_test = _configured(config)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"gram.npy": x_train} | ({"gram_test.npy": x_test} if test else {})
    entries = sum(len(rows) for rows in wanted.values()) * len(x_train)
    require_room(folder, entries * x_train.element_size(), "the files")
    paths = []
    with Steps("gram", sum(-(-len(rows) // block) for rows in wanted.values())) as steps:
        for name, rows in wanted.items():
            path = folder / name
            with storing(path, "cannot be written ({why}); give the command again"), whole_path(path) as partial:
                _fill(kernel, rows, x_train, partial, block, steps)
            paths.append(path)
    return paths


@exclusively()
def fill(config: Config, folder: Path, test: bool, tile: int | None = None) -> GramStore:
    """Compute the store of K(x_train, x_train), and with `test` of K(x_test, x_train), in `folder`, and return it.

    An unfinished store continues from its tiles; a store of the first points is extended.
    """
    kernel, x_train, x_test = _configured(config)
    threads.use(config.device.threads or threads.available())
    mapped, compare = kernel.feature_map_and_kernel()
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder)
    try:
        points = mapped(x_train)
        with WaitMessage("compiling the kernel, once on this machine"):
            compare.prepare(points.dtype, points.device)
        store = GramStore.prepare(folder, compare, points, mapped(x_test) if test else None, tile=tile)
        if tile not in (None, store.gram.tile):
            raise StoreError(f"--tile {tile}: {folder} has tiles of {store.gram.tile} rows; leave it out")
        with workers(config) as do:
            do(GramWork.of(store, compare, points.device), "Gram")
    finally:
        lock.release()
    return store


def verify(folder: Path, drop: bool) -> tuple[list[str], bool]:
    """Read every tile of a store: lines that describe it, and whether it is undamaged. drop: remove damaged tiles."""
    store = GramStore(folder)
    parts = {name: tiles for name, tiles in ((GRAM, store.gram), (TEST, store.test)) if tiles is not None}
    places = [(name, *place) for name, tiles in parts.items() for place in tiles.places() if tiles.is_begun(*place)]
    broken: dict[str, list[str]] = {name: [] for name in parts}
    lock = Lock(folder) if drop else None
    try:
        with Steps("verify, tiles", len(places)) as steps:
            for name, i, j in places:
                wrong = parts[name].damaged(i, j, is_edge=store.is_at_earlier_edge(name, i, j))
                if wrong is not None:
                    broken[name].append(wrong)
                    if drop:
                        parts[name].drop(i, j)
                steps.advance()
    finally:
        if lock is not None:
            lock.release()
    lines = [
        f"{store.identity.kernel} in {store.identity.dtype} on {len(store)} points, tiles of {store.gram.tile} rows"
    ]
    for name, tiles in parts.items():
        there, total = sum(store.finished(name, *place) for place in tiles.places()), len(list(tiles.places()))
        down, across = tiles.shape
        lines.append(f"{name:<5} {down} x {across}  {there} of {total} tiles, {len(broken[name])} damaged")
    removed = ", removed" if drop else ""
    lines += [f"{line}{removed}" for listed in broken.values() for line in listed]
    others = [*store.damaged_points(), *store.damaged_probe()]
    return [*lines, *others], not any(broken.values()) and not others


def _configured(config: Config) -> tuple[Kernel, torch.Tensor, torch.Tensor]:
    """The initial kernel of a run, and the training and the test points."""
    device, dtype = config.device.pick(), getattr(torch, config.device.dtype)
    machine = Machine(device, dtype, threads.available(), set_switches(config.device.allow_tf32))
    if config.device.precision_check != "off":
        check_precision(config, machine)
    streams, notes = Streams(config.seed), Unrecorded(Path())
    (data,) = prepared(config, [config.dataset.load(streams["data"])], machine, notes)
    for remark in notes.remarks:
        say(f"kfx: {remark}")
    built = config.kernel.build(config.dataset.image).to(dtype, device)
    kernel = candidates(config.kernel, built, [data], streams["initial_parameters"])[0][0]
    x_train, x_test = (torch.as_tensor(x, dtype=dtype, device=device) for x in (data.x_train, data.x_test))
    kernel = config.objective.with_own_parameters(
        kernel, x_train, torch.as_tensor(data.y_train, device=device), streams["head"]
    )
    return kernel.fixed_on(some_of(x_train)), x_train, x_test


def _fill(kernel: Kernel, rows: torch.Tensor, x_train: torch.Tensor, path: Path, block: int, steps: Steps) -> None:
    """Write K(rows, x_train) to a file in NumPy's format, `block` rows at a time."""
    n, symmetric = len(x_train), rows is x_train
    out = np.lib.format.open_memmap(path, "w+", str(rows.dtype).removeprefix("torch."), (len(rows), n))
    if hasattr(os, "posix_fallocate"):  # or a full disk would end the process by a signal
        with path.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    for start in range(0, len(rows), block):
        stop = min(start + block, len(rows))
        if symmetric:  # the upper triangle and its mirror image
            out[start:stop, start:stop] = finite(kernel, kernel.gram(rows[start:stop]))
            if stop < n:
                right = finite(kernel, kernel.gram(rows[start:stop], x_train[stop:]))
                out[start:stop, stop:] = right
                out[stop:, start:stop] = right.T
        else:
            out[start:stop] = finite(kernel, kernel.gram(rows[start:stop], x_train))
        steps.advance()
    out.flush()
