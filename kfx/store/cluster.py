"""Run the tasks of a store on Dask workers, on this machine or on a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kfx.config.plugins import load_plugins
from kfx.lock import Lock, has_note, is_held
from kfx.numerics import process, threads
from kfx.outcomes import ConfigError, KfxError
from kfx.store.work import TileTask, Watch, Work

if TYPE_CHECKING:
    from distributed import Client, Future

_MOST_DEATHS = 10
"""Number of workers that may die while computing one tile before the work fails."""


_SCRATCH = "kfx-workers-"
PATIENCE = "30s"
"""How long to wait for a scheduler that does not answer."""


@dataclass(frozen=True)
class Setting:
    """Settings of a worker. plugins: files that it loads. threads: number of its threads. allow_tf32: as
    `device.allow_tf32`."""

    plugins: tuple[str, ...] = ()
    threads: int = 1
    allow_tf32: bool = False


@contextmanager
def local_client(workers: int, dashboard: str) -> Iterator[Client]:
    """Yield a client of `workers` processes on this machine, which end with this process.

    They communicate over loopback, encrypted and with a secret of this process, because whoever reaches a scheduler can
    run code in its workers.
    """
    import dask
    from distributed import Client, LocalCluster

    settings = {"distributed.scheduler.allowed-failures": _MOST_DEATHS, "distributed.admin.tick.limit": "30s"}
    with scratch_folder() as scratch, dask.config.set(settings):
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                security=True,
                memory_limit=0,  # the work limits its own memory
                dashboard_address=dashboard,
                local_directory=scratch,
                silence_logs=logging.CRITICAL,  # errors are raised here
            )
        except (RuntimeError, OSError) as error:
            raise KfxError(f"cluster.workers={workers}, cluster.dashboard={dashboard}: {error}") from error
        with cluster, Client(cluster) as client:
            yield client


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Yield a folder for the files of workers, locked by this process; remove those that killed commands left
    behind."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):
            # Another user could have put a link there. A note is written under the lock, so its folder was held once.
            is_own = left.stat(follow_symlinks=False).st_uid == os.getuid()
            if is_own and has_note(left) and not is_held(left):
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True) as folder:
        lock = Lock(Path(folder))
        try:
            yield folder
        finally:
            lock.release()


@contextmanager
def client_of(scheduler: str, workers: int) -> Iterator[Client]:
    """Yield a client of a running scheduler, or, for `slurm`, of `workers` jobs that Dask's file (`jobqueue.slurm`)
    describes."""
    from distributed import Client

    if scheduler == "slurm":
        from dask_jobqueue import SLURMCluster

        try:
            cluster = SLURMCluster()
        except (ValueError, TypeError, OSError) as error:
            why = " ".join(str(error).split())
            raise KfxError(
                f"cluster.scheduler=slurm: jobqueue.slurm in Dask's configuration does not do: {why}"
            ) from error
        with cluster:
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


def on_dask(client: Client, work: Work, setting: Setting, watch: Watch) -> None:
    """Compute the missing tiles on the client's workers, each as soon as the tiles that it needs are there.

    Each worker, also one that replaces another, gets the work once; then only tile numbers are sent. If a worker dies,
    another one computes its tile anew.
    """
    from distributed import CancelledError, KilledWorker, WorkerPlugin, as_completed

    class Carrier(WorkerPlugin):
        """Gives the work to each worker when it starts."""

        def __init__(self, name: str, payload: bytes, setting: Setting) -> None:
            self.name, self._payload, self._setting = name, payload, setting

        def setup(self, worker: object) -> None:
            take(self.name, self._payload, self._setting)

    try:
        payload = pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"cluster.workers: this kernel cannot be sent to other processes ({error}); set 1") from error
    name = uuid.uuid4().hex[:8]
    client.register_plugin(Carrier(name, payload, setting), name=name)
    futures: dict[TileTask, Future] = {}
    for place, task in enumerate(work.tasks()):
        needed = [futures[before] for before in work.needs(task) if before in futures]
        futures[task] = client.submit(
            _do, name, tuple(task), needed,
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
        if isinstance(error, OSError) and error.errno is not None:  # a disk error
            raise
        raise KfxError(
            f"{work.folder}: the scheduler is gone ({type(error).__name__}); what is finished stays, the same command "
            "goes on"
        ) from error
    finally:
        with contextlib.suppress(Exception):  # the scheduler may be gone
            client.cancel(list(futures.values()))
            client.unregister_worker_plugin(name)


# ---- in a worker

_taken: dict[str, Work] = {}
"""The work of this worker by its name, at most one, with its open stores and the tiles that it keeps."""


def take(name: str, payload: bytes, setting: Setting) -> None:
    """Take a new work, in place of the one before."""
    load_plugins(setting.plugins)
    process.keep()
    threads.use(setting.threads)
    process.set_switches(setting.allow_tf32)
    _taken.clear()
    _taken[name] = pickle.loads(payload)


def _do(name: str, task: Sequence, needed: Sequence[None]) -> None:
    """Make one tile."""
    _taken[name].do(TileTask(*task))
