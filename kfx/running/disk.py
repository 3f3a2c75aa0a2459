"""Run the work of Gram stores: on which processes, with enough disk space, and with progress shown."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfx.config.plugins import plugged_in
from kfx.evaluation.disk_stores import DiskStores
from kfx.experiment.config import Config
from kfx.files import CsvFile
from kfx.numerics import threads
from kfx.numerics.formatting import in_bytes
from kfx.outcomes import NO_ROOM, StoreError
from kfx.screen.progress import Steps, say

if TYPE_CHECKING:
    from kfx.store.work import TileTask, Work

HISTORY = ("ended", "work", "tiles", "cost", "seconds", "processes", "threads_each")
"""Columns of a store's `history.csv`. cost: number of pairs of points, or of multiplications and additions."""
_SECONDS = 15.0
_UNITS = {"sums": "pairs/s", "gram": "pairs/s", "test": "pairs/s", "factor": "flop/s"}


@contextmanager
def disk_stores(config: Config, folder: Path) -> Iterator[DiskStores]:
    """Yield the stores for Gram matrices that do not fit in memory. folder: the run's.

    Their work is done by the processes of `cluster`, started when first needed, or else by this process.
    """
    kept = config.evaluation.store
    root = Path(kept) if kept else folder / "grams"
    with workers(config) as do:
        yield DiskStores(
            root,
            config.evaluation.memory_bytes(),
            do,
            config.cluster.workers,
            kept is not None,
            _States(),
        )
    if kept is None:  # all results are recorded
        shutil.rmtree(root, ignore_errors=True)


class _States:
    """Shows the state of long work from time to time."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, state: str) -> None:
        if time.monotonic() - self._told > _SECONDS:
            say(state)
            self._told = time.monotonic()


@contextmanager
def workers(config: Config) -> Iterator[Callable[[Work, str], None]]:
    """Yield `do(work, label)`, which computes the missing tiles and shows progress under that label."""
    node, open_ = config.cluster, ExitStack()
    plugins = tuple(plugin.path for plugin in plugged_in())
    cores = config.device.threads or threads.available()
    client: Any = None

    def do(work: Work, name: str) -> None:
        nonlocal client
        left = work.tasks()
        if not left:
            return
        if not node.is_used:
            from kfx.store.work import in_this_process

            with _told(work, name, left, 1, cores) as watch, storing(work.store, _TILE):
                in_this_process(work, watch)
            return
        from kfx.store.cluster import Setting, client_of, local_client, on_dask

        if client is None and node.scheduler is None:
            client = open_.enter_context(local_client(node.workers, node.dashboard))
            say(f"kfx: {node.workers} workers; {client.dashboard_link} shows them")
        elif client is None and node.scheduler is not None:
            client = open_.enter_context(client_of(node.scheduler, node.workers))
        processes = max(node.workers, len(client.scheduler_info(n_workers=-1)["workers"]))
        each = max(cores // processes, 1) if node.scheduler is None else 1
        setting = Setting(plugins, each, config.device.allow_tf32)
        with _told(work, name, left, processes, each) as watch, storing(work.store, _TILE):
            on_dask(client, work.within(processes), setting, watch)

    with open_:
        yield do


@contextmanager
def storing(path: object, what: str) -> Iterator[None]:
    """StoreError if a file at the path cannot be written. what: the file, and what the same command then does, in
    words."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        when = "when there is room" if error.errno in NO_ROOM else "when this is mended"
        raise StoreError(f"{path}: {what.format(why=error.strerror)} {when}") from error


_TILE = "a tile cannot be written ({why}); what is finished stays, and the same command goes on"


@contextmanager
def _told(
    work: Work, name: str, left: list[TileTask], processes: int, threads_each: int
) -> Iterator[Callable[[TileTask], None]]:
    """Show how many tiles are done, how fast, and how long the rest takes; at the end add a row to the store's
    `history.csv`."""
    require_room(Path(work.folder), work.bytes_to_come(), "the tiles to come", "; what is finished stays")
    total = work.total()
    done, did, to_do = total - len(left), 0.0, sum(map(work.cost, left))
    started = time.monotonic()
    with Steps(f"{name}, tiles", total) as steps:
        if done:
            steps.reach(done, "were there", telling=True)

        def watch(task: TileTask) -> None:
            nonlocal done, did
            done, did = done + 1, did + work.cost(task)
            rate = did / (time.monotonic() - started)
            steps.reach(done, f"{rate:.3g} {_UNITS[task.matrix]}", (to_do - did) / rate)

        try:
            yield watch
        finally:
            seconds, when = time.monotonic() - started, datetime.now(UTC).isoformat(timespec="seconds")
            with contextlib.suppress(OSError):  # the work that a full disk stopped reports it
                history = CsvFile(Path(work.store) / "history.csv", HISTORY, keep=None)
                history.write([when, name, done - total + len(left), did, seconds, processes, threads_each])
                history.close()


def require_room(folder: Path, wanted: int, what: str, also: str = "") -> None:
    """StoreError unless the folder's disk has room for so many bytes. also: the end of the message."""
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise StoreError(
            f"{folder}: {what} need {in_bytes(wanted)}, and {in_bytes(free)} are free there; "
            f"take another disk, fewer points, or device.dtype=float32{also}"
        )
