"""What a checked config still needs of this machine, looked at before any directory is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kfx import build
from kfx.data.files import locate
from kfx.outcomes import ConfigError
from kfx.schema import Config


def check(jobs: Sequence[Config]) -> None:
    """Devices exist, kernels accept their parameters, and data files are here, fetched if they can be."""
    for job in jobs:
        if job.device.name == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise ConfigError("device=cuda: torch sees no CUDA device here; use device=cpu or device=auto")
        build.check_start(job)
    for dataset, name in dict.fromkeys(pair for job in jobs for pair in build.data_files(job.dataset)):
        locate(dataset, name)


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
