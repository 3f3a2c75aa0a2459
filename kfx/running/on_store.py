"""Work over a Gram store, with room for it on the disk and a person told of its progress."""

from __future__ import annotations

import shutil
import time

from kfx.numerics.formatting import in_bytes
from kfx.outcomes import StoreError
from kfx.running.progress import Steps
from kfx.store.gram_store import GramStore
from kfx.store.gram_work import GramWork
from kfx.store.work import Task, in_this_process


def compute(store: GramStore, work: GramWork) -> None:
    """Compute the tiles that are missing; StoreError where the disk has no room for them."""
    wanted, free = store.bytes_to_come(), shutil.disk_usage(store.folder).free
    if wanted > free:
        raise StoreError(
            f"{store.folder}: the tiles to come need {in_bytes(wanted)}, and {in_bytes(free)} are free there; "
            "choose another disk, fewer points or device.dtype=float32"
        )
    left = work.tasks()
    total, done = work.total(), work.total() - len(left)
    to_do, did, started = sum(map(work.cost, left)), 0.0, time.monotonic()
    with Steps(f"gram {len(store)} points, tiles", total) as steps:
        if done:
            steps.reach(done, "there already", telling=True)

        def watch(task: Task) -> None:
            nonlocal done, did
            done, did = done + 1, did + work.cost(task)
            rate = did / (time.monotonic() - started)
            steps.reach(done, f"{rate:.3g} pairs/s", (to_do - did) / rate)

        in_this_process(work, watch)
