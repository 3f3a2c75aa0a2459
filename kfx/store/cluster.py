"""Tasks over a store on the processes of one machine, or of a cluster: what Dask does for kfx."""

from __future__ import annotations

import logging
import pickle
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from kfx.outcomes import KfxError
from kfx.store.work import Task, Watch, Work

if TYPE_CHECKING:
    from distributed import Client, Future

_MOST_DEATHS = 10
"""Workers that may die over one tile before it is taken to be the tile's fault."""


PATIENCE = "30s"
"""With a scheduler that does not answer."""


@contextmanager
def local_client(workers: int, dashboard: str) -> Iterator[Client]:
    """So many processes of this machine, which end with this one. They speak over loopback, encrypted and with a secret
    of this process: whoever can reach a scheduler can run code in its workers."""
    import dask
    from distributed import Client, LocalCluster

    settings = {"distributed.scheduler.allowed-failures": _MOST_DEATHS, "distributed.admin.tick.limit": "30s"}
    scratch_folder = tempfile.TemporaryDirectory(prefix="kfx-workers-", ignore_cleanup_errors=True)
    with scratch_folder as scratch, dask.config.set(settings):
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            security=True,
            memory_limit=0,  # what a task takes is set by the work
            dashboard_address=dashboard,
            local_directory=scratch,
            silence_logs=logging.CRITICAL,  # what went wrong is raised here
        )
        with cluster, Client(cluster) as client:
            yield client


@contextmanager
def client_of(scheduler: str, workers: int) -> Iterator[Client]:
    """The workers of a scheduler that runs at an address, or with `slurm` so many jobs, as Dask's own configuration
    (`jobqueue.slurm`) describes them."""
    from distributed import Client

    if scheduler == "slurm":
        from dask_jobqueue import SLURMCluster

        with SLURMCluster() as cluster:
            cluster.scale(jobs=workers)
            with Client(cluster) as client:
                yield client
        return
    try:
        client = Client(scheduler, timeout=PATIENCE)
    except OSError as error:
        raise KfxError(f"cluster.scheduler={scheduler}: no Dask scheduler answers there ({error})") from error
    with client:
        yield client


def on_dask(client: Client, work: Work, plugins: Sequence[str], threads: int, watch: Watch) -> None:
    """Do what is left on the client's workers, each tile as soon as those that it needs are there.

    What travels is the work, some kilobytes, and tile numbers. plugins: files that a worker loads first. threads: of
    one worker. A tile under way in a worker that dies is begun anew in another.
    """
    from distributed import CancelledError, KilledWorker, as_completed

    payload, name = pickle.dumps(work), uuid.uuid4().hex[:8]
    futures: dict[Task, Future] = {}
    for place, task in enumerate(work.tasks()):
        needed = [futures[before] for before in work.needs(task) if before in futures]
        futures[task] = client.submit(
            _do, payload, tuple(plugins), threads, tuple(task), needed,
            key=f"{task.matrix}-{task.row}-{task.column}-{name}", priority=-place, pure=False,
        )  # fmt: skip
    by_key = {future.key: task for task, future in futures.items()}
    try:
        for future in as_completed(futures.values()):
            future.result()
            watch(by_key[future.key])
    except KilledWorker as error:
        raise KfxError(
            f"{work.folder}: {_MOST_DEATHS} workers died over one tile, out of memory perhaps: take fewer workers or "
            "less memory for each; what is finished stays"
        ) from error
    except (CancelledError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of a disk
            raise
        raise KfxError(
            f"{work.folder}: the scheduler is gone ({type(error).__name__}); what is finished stays, the same command "
            "goes on"
        ) from error
    finally:
        client.cancel(list(futures.values()))


def _do(payload: bytes, plugins: Sequence[str], threads: int, task: Sequence, needed: Sequence[None]) -> None:
    """In a worker: make one tile."""
    _work(payload, tuple(plugins), threads).do(Task(*task))


@lru_cache(maxsize=2)
def _work(payload: bytes, plugins: tuple[str, ...], threads: int) -> Work:
    """The work, with the stores that it has open and the tiles that it keeps."""
    from kfx.config import registry
    from kfx.numerics.threads import use

    registry.plug_in(plugins)
    use(threads)
    work: Work = pickle.loads(payload)
    return work
