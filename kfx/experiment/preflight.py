"""Checks of machine, kernel and data files before a run directory is made."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

import torch

from kfx.config.choices import SOLVERS
from kfx.evaluation.options import BYTES_OF_CENTRES
from kfx.experiment.config import Config, in_one_line
from kfx.numerics.formatting import in_bytes
from kfx.numerics.precision import jax_devices
from kfx.numerics.streams import Streams
from kfx.outcomes import ConfigError

_BYTES_OF_WORKER = 32
"""Bytes that M centres take in each worker on this machine, divided by M²."""


def check(jobs: Sequence[Config]) -> None:
    """Check that devices exist, kernels accept their parameters, and data files are there; download missing ones."""
    for job in jobs:
        device = job.device.pick()
        job.kernel.check_device(job.device.name, device)
        check_start(job)
        with in_one_line(job):
            check_memory(job)
        if job.evaluation.store is not None:
            make_folder("evaluation.store", Path(job.evaluation.store), resume=True)
        check_cluster(job)
        if job.kernel.uses_jax:
            jax_devices()
            if device.type == "cuda":
                _require_jax_gpu(job.device.name)
    from_files = [
        job for job in jobs if job.dataset.files() or job.dataset.from_path or getattr(job.dataset, "classes", None)
    ]
    if originals := dict.fromkeys(pair for job in from_files for pair in job.dataset.files()):
        from kfx.data.files import locate

        for dataset, name in originals:
            locate(dataset, name)
    for job in {repr(job.dataset): job for job in from_files}.values():
        with in_one_line(job):
            n = len(job.dataset.load(Streams(job.seed)["data"]).x_train)  # broken or hostile files are found here
        for each in from_files:
            if each.dataset == job.dataset:
                each.check_sizes(n)


def check_memory(job: Config) -> None:
    """ConfigError if a Gram matrix, or the sums of centres, that must be in memory are too large for it."""
    check_centres(job)
    memory = job.evaluation.memory_bytes()
    sizes = job.evaluation.n_interpolation or [job.training_size()]
    weights, left_out = job.dataset.weights, min(job.regularization.points or job.training_size(), job.training_size())
    is_calibrated = job.evaluation.calibration and job.evaluation.solver != "nystrom"
    follows, of_follow = job.follow.every + job.follow.last, job.follow.n_interpolation or sizes
    wanted = {
        f"evaluation.solver={job.evaluation.solver}": sizes if job.evaluation.solver in SOLVERS[1:] else [],
        "kernel_check=true": sizes if job.kernel_check else [],
        f"dataset.weights={weights}": [] if weights is None else [*sizes, left_out],
        "evaluation.calibration=true": sizes if is_calibrated else [],
        "follow.n_interpolation": of_follow if follows else [],
        "evaluation.draws": [min(sizes)] if getattr(job.evaluation, "draws", 0) else [],
    }
    for key, needed in wanted.items():
        n = max(needed, default=0)
        if (taken := job.evaluation.bytes_of(job, n)) > memory:
            raise ConfigError(
                f"{key}: needs the Gram matrix of {n} points in memory, {in_bytes(taken)}, and "
                f"evaluation.memory is {in_bytes(memory)}; give fewer in n_interpolation"
            )


def check_centres(job: Config) -> None:
    """ConfigError if the sums of centres are too large for the memory."""
    memory, approximation = job.evaluation.memory_bytes(), job.evaluation.approximation(job)
    workers = job.cluster.workers if job.cluster.is_used and job.cluster.scheduler is None else 0
    each = BYTES_OF_CENTRES + workers * _BYTES_OF_WORKER
    if approximation is not None and (taken := each * approximation.centres**2) > memory:
        most = int((memory / each) ** 0.5)
        raise ConfigError(
            f"evaluation.centres={approximation.centres}: so many take {in_bytes(taken)}, and evaluation.memory is "
            f"{in_bytes(memory)}; take at most {most}, or allow more memory"
        )


def check_cluster(job: Config) -> None:
    """ConfigError if no scheduler answers, or the dashboard's address cannot be used."""
    node = job.cluster
    if not node.is_used or node.scheduler == "slurm":
        return
    key, address = ("scheduler", node.scheduler) if node.scheduler else ("dashboard", node.dashboard)
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if node.scheduler:
            socket.create_connection((host, int(port)), timeout=10).close()
        else:
            with socket.socket() as probe:
                probe.bind((host, 0))
    except (OSError, OverflowError) as error:
        what = "no Dask scheduler answers there" if node.scheduler else "is no address of this machine"
        raise ConfigError(f"cluster.{key}={address}: {what} ({error})") from error


def check_start(job: Config) -> None:
    """ConfigError if the configured initial kernel does not suit its kernel option or the optimizer."""
    with in_one_line(job):
        kernel = job.kernel.build(job.dataset.image)
        job.kernel.check_start(job, kernel)
        if own := getattr(job.dataset, "kernel", None):
            own.build(None)
        job.optimizer.check_start(job, kernel)
        job.objective.check_start(job, kernel)
        job.optimizer.build(job)


def check_layers(job: Config, folder: Path) -> str:
    """The disk space that a flow's layers will take, in words; ConfigError if `folder` has less."""
    from kfx.flows.flow import Flow

    flow, rng = job.optimizer.build(job), Streams(job.seed)["data"]
    assert isinstance(flow, Flow)
    parts = job.evaluation.parts(job.dataset.load(rng), rng)
    dtype = getattr(torch, job.device.dtype)
    each = [flow.layer_bytes(torch.as_tensor(p.x_train, dtype=dtype), torch.as_tensor(p.y_train)) for p in parts]
    there = sum(path.stat().st_size for path in folder.glob("layers-*.bin"))
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    total, free = flow.iterations * sum(each), shutil.disk_usage(place).free + there
    size = f"about {in_bytes(total)} ({in_bytes(max(each))} a layer)"
    if total > free:
        raise ConfigError(
            f"flow.record_layers=true: needs {size}, and {in_bytes(free)} are free there; set it to false (test points "
            "flow along all the same), or take smaller batches or fewer layers"
        )
    return f"{size}, {in_bytes(free)} free"


def _check_tiles(job: Config, n: int, folder: Path) -> None:
    itemsize, factor = getattr(torch, job.device.dtype).itemsize, job.evaluation.solver == "cholesky"
    gram = n**2 * itemsize // 2 + n * (job.dataset.test_size() or 0) * itemsize
    moves = job.optimizer.name != "none" and job.evaluation.store is not None  # then the store of each kernel is kept
    kernels = job.evaluation.random_kernels + (2 if moves else 1) if job.evaluation.store else 1
    total = kernels * gram + 4 * n**2 * factor
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    there = sum(path.stat().st_size for path in folder.glob("**/c/*/*")) if folder.exists() else 0
    if total > (free := shutil.disk_usage(place).free + min(there, kernels * gram)):
        raise ConfigError(
            f"evaluation.n_interpolation: the tiles of {n} points need {in_bytes(total)} of disk, and {in_bytes(free)} "
            "are free there; set evaluation.store to a folder on another disk, or take fewer points"
        )


def _require_jax_gpu(name: str) -> None:
    import jax

    try:
        jax.devices("gpu")
    except RuntimeError as error:
        raise ConfigError(f"device={name}: JAX, which computes this kernel, sees no GPU; use device=cpu") from error


def check_disk(jobs: Sequence[Config], folder: Path) -> None:
    """ConfigError if a flow's layers or an evaluation's tiles need more disk space than there is."""
    for job in jobs:
        n = max(job.evaluation.n_interpolation or [job.training_size()])
        if job.evaluation.goes_on_disk(job, n):
            _check_tiles(job, n, Path(job.evaluation.store or folder))
        if job.optimizer.moves_points and job.flow.record_layers:
            check_layers(job, folder)


def make_folder(key: str, folder: Path, *, resume: bool) -> None:
    """Make `folder`; ConfigError if it cannot be made or written to, or if it holds a run that is not to be resumed."""
    if not resume and (folder / "metrics.json").exists():
        raise ConfigError(f"{key}={folder}: holds a run already; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("it is read-only")
    except OSError as error:
        raise ConfigError(
            f"{key}={folder}: cannot be written to ({error.strerror or error}); choose another"
        ) from error
