"""Options of devices, and settings of the run as a process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kfx.config.choices import FORMATS
from kfx.config.fields import Several, flag, nested, number, ranged, word
from kfx.config.option import Option, option, section
from kfx.config.parts import ConfigView, DevicePart
from kfx.config.published import published
from kfx.outcomes import ConfigError
from kfx.version import to_install

if TYPE_CHECKING:
    import torch


@dataclass
class DeviceOption(Option, DevicePart):
    """Where kernels are computed, and in which precision."""

    dtype: str = word(
        "float32 | float64",
        "precision of kernel evaluations; factorisations and solves are always in float64",
        default="float64",
    )
    threads: int | None = number(
        None,
        "whole >= 1 and <= 1024",
        "number of CPU threads; the same number gives results equal bit by bit",
        null="all cores",
    )
    allow_tf32: bool = flag(False, "let a GPU round the factors of float32 products to 10 bits of mantissa (TF32)")
    precision_check: Several = word(
        "off | warn | strict",
        "measure the arithmetic's precision; where it is below the dtype's, warn, or refuse to run (strict)",
        default="warn",
    )

    def __post_init__(self) -> None:
        if self.precision_check is False:  # YAML reads a bare `off` as false
            self.precision_check = "off"
        super().__post_init__()

    def pick(self) -> torch.device:
        """The device; ConfigError if the machine has none."""
        from kfx.numerics.precision import pick_device

        return pick_device(self.name)


@option("device", "cpu", "The CPU, in double precision")
class CPUOption(DeviceOption):
    pass


@option("device", "cuda", "An NVIDIA GPU, kernels in single precision, factorisations in double")
class CUDAOption(DeviceOption):
    dtype: str = word(
        "float32 | float64", "precision of kernel evaluations; factorisations and solves are always in float64"
    )

    def pick(self) -> torch.device:
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("device=cuda: torch sees no CUDA device here; use device=cpu or device=auto")
        return super().pick()


@option("device", "auto", "A GPU where there is one, else the CPU")
class AutoOption(DeviceOption):
    pass


@section("checkpoint", "when to save the state from which kfx resume continues")
class CheckpointSection(Option):
    seconds: float = number(30.0, ">= 0", "seconds between checkpoints; a killed run loses at most this much work")
    iterations: int = number(0, "whole >= 0", "number of iterations after which to save as well; 0: by time alone")


_PORT = r"([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"


@section("cluster", "Dask processes that compute Gram matrices on disk and their Cholesky factors")
class ClusterSection(Option):
    workers: int = number(
        1,
        "whole >= 1 and <= 4096",
        "number of processes on this machine, or of jobs with scheduler=slurm; 1: this process, without Dask",
    )
    scheduler: str | None = ranged(
        None,
        "an address as tcp://host:8786, or slurm",
        lambda v: v == "slurm" or re.fullmatch(rf"(tcp|tls)://[^\s/]+:{_PORT}", v) is not None,
        "Dask scheduler that shares this file system; slurm: jobs as dask-jobqueue's configuration file says",
        null="processes of this machine",
    )
    dashboard: str = ranged(
        "127.0.0.1:8787",
        "an address as 127.0.0.1:8787",
        lambda v: re.fullmatch(rf"[^\s/:]+:{_PORT}", v) is not None,
        "address of Dask's dashboard; whoever can reach it can see it",
    )

    @property
    def is_used(self) -> bool:
        """Whether Dask computes the tiles."""
        return self.workers > 1 or self.scheduler is not None

    def check(self, config: ConfigView) -> None:
        needed = {"distributed": self.is_used, "dask_jobqueue": self.scheduler == "slurm"}
        if any(wanted and find_spec(name) is None for name, wanted in needed.items()):
            raise ConfigError(
                f"cluster.workers={self.workers}, cluster.scheduler={self.scheduler}: needs Dask; "
                f"{to_install('cluster')}, or leave both out: one process does the same work"
            )


def _figures(path: str, value: object) -> list[str]:
    """The formats of the pictures: true for PNG, false for none."""
    if isinstance(value, bool):
        return ["png"] if value else []
    if isinstance(value, list) and value and all(name in FORMATS for name in value):
        return [str(name) for name in value]
    raise ConfigError(f"{path}={value}: expected true, false, or a list out of {', '.join(FORMATS)}")


def _words(path: str, value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"{path}={value}: expected a list of overrides, as [optimizer.iterations=5]")
    return value


@section("", "keys of the run itself")
class RunSection(Option):
    seed: int = number(0, "whole >= 0", "seed of all random numbers of the run")
    figures: Several = nested(
        True,
        "true, false, or a list out of png, pdf, svg",
        _figures,
        "formats of the pictures; true: png; false: no pictures, for large sweeps",
    )
    report: bool = flag(False, "write report.html at the end: numbers, pictures and tables in one file")
    resume: bool = flag(False, "skip completed runs and continue unfinished ones")
    retries: int = number(0, "whole >= 0", "number of further attempts after a run has failed")
    kernel_check: bool = flag(
        False, "also compare predictions on each device and in each dtype (Khalid 2022, Fig. 3.3)"
    )
    published: Several = nested(
        None, "a list of metric, value, source …, or null", published, "numbers that a paper prints for this experiment"
    )
    smoke: Several = nested(
        None,
        "a list of overrides, or null",
        _words,
        "overrides with which kfx run --smoke ends in seconds, on embedded data",
    )
