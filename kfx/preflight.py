"""What a checked config still needs of this machine, looked at before any directory is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kfx import build
from kfx.data.files import locate
from kfx.outcomes import ConfigError, DataError
from kfx.precision import jax_devices, pick_device
from kfx.schema import CNNGPNode, Config
from kfx.streams import Streams

_MOST_AT_ONCE = 20_000  # points whose Gram matrix is formed without having been asked for by number


def check(jobs: Sequence[Config]) -> None:
    """Devices exist, kernels accept their parameters, and data files are here, fetched if they can be."""
    for job in jobs:
        if job.device.name == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise ConfigError("device=cuda: torch sees no CUDA device here; use device=cpu or device=auto")
        if isinstance(job.kernel, CNNGPNode) and job.kernel.engine == "fused":
            device = pick_device(job.device.name)
            if device.type != "cpu":
                raise ConfigError(f"kernel.engine=fused: needs a CPU, and device={job.device.name}; use auto")
        build.check_start(job)
        n = build.training_size(job.dataset)
        if job.evaluation.n_interpolation is None and n > _MOST_AT_ONCE:
            raise ConfigError(
                f"evaluation.n_interpolation=null: all {n} points need a Gram matrix of {8 * n**2 / 1e9:.0f} GB; "
                "give a list, say [100,1000]"
            )
        if build.uses_jax(job.kernel):
            jax_devices()
            if pick_device(job.device.name).type == "cuda":
                _require_jax_gpu(job.device.name)
    from_files = [job for job in jobs if build.data_files(job.dataset) or getattr(job.dataset, "classes", None)]
    for dataset, name in dict.fromkeys(pair for job in from_files for pair in build.data_files(job.dataset)):
        locate(dataset, name)
    for job in {repr(job.dataset): job for job in from_files}.values():
        n = len(build.dataset(job.dataset, Streams(job.seed)).x_train)  # broken or hostile files show here
        for each in from_files:
            if each.dataset == job.dataset:
                check_sizes(each, n)


def check_sizes(job: Config, n_train: int) -> None:
    """DataError if a batch or an interpolation needs more training points than the files hold."""
    wanted = {"sampler.batch_size": job.sampler.batch_size or 2}
    for key, sizes in (("evaluation", job.evaluation.n_interpolation), ("flow", job.flow.n_interpolation)):
        wanted[f"{key}.n_interpolation"] = max(sizes or [2])
    n_train = build.fold_size(job.evaluation, n_train)
    for key, n in wanted.items():
        if n > n_train:
            raise DataError(f"{key}: asks for {n}, and dataset {job.dataset.name} holds {n_train} training points")


def _require_jax_gpu(name: str) -> None:
    import jax

    try:
        jax.devices("gpu")
    except RuntimeError as error:
        raise ConfigError(f"device={name}: JAX, which computes this kernel, sees no GPU; use device=cpu") from error


def make_folder(key: str, folder: Path, *, resume: bool) -> None:
    """Make `folder`; ConfigError if it cannot be made or written to, or, unless that is to be resumed, holds a run."""
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
