"""Devices to choose from, and what a config says of the run as a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kfx.config.choices import FORMATS
from kfx.config.nodes import make
from kfx.config.registry import (
    Option,
    count_or_null,
    flag,
    nested,
    not_negative,
    one_of,
    option,
    ranged,
    section,
    whole,
)
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass
class DeviceOption(Option):
    """Where kernels are computed, and in which precision."""

    dtype: str = one_of(
        "float64",
        "float32",
        "float64",
        meaning="of kernel evaluations; factorisations and solves are float64 always",
    )
    threads: int | None = ranged(
        None,
        "a whole number from 1 to 1024, or null for all cores",
        lambda v: v is None or 1 <= v <= 1024,
        "CPU threads; the same number gives the same bits",
    )
    allow_tf32: bool = flag(False, "let a GPU round float32 products to 10 bits")
    precision_check: Any = one_of(
        "warn", "off", "warn", "strict", meaning="strict: refuse to run where a dtype delivers less than it promises"
    )

    def __post_init__(self) -> None:
        if self.precision_check is False:  # YAML reads a bare `off` as false
            self.precision_check = "off"
        super().__post_init__()

    def pick(self) -> torch.device:
        """The device; ConfigError where it is not there."""
        from kfx.numerics.precision import pick_device

        return pick_device(self.name)


@option("device", "cpu", "The CPU, in double precision")
class CPU(DeviceOption):
    pass


@option("device", "cuda", "An NVIDIA GPU, kernels in single precision, factorisations in double")
class CUDA(DeviceOption):
    dtype: str = one_of(
        "float32",
        "float32",
        "float64",
        meaning="of kernel evaluations; factorisations and solves are float64 always",
    )

    def pick(self) -> torch.device:
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("device=cuda: torch sees no CUDA device here; use device=cpu or device=auto")
        return super().pick()


@option("device", "auto", "A GPU where there is one, else the CPU")
class Auto(DeviceOption):
    pass


@section("checkpoint", "what kfx resume goes on from")
class CheckpointSection(Option):
    seconds: float = not_negative(30.0, "at most this much work is lost with a killed process")
    iterations: int = whole(0, "also every so many iterations; 0: by time alone")


@dataclass
class Published(Option):
    """A number that a paper printed for an experiment."""

    metric: str = ranged("", "text", lambda v: v != "", "accuracy, mse, error, a parameter, …")
    value: float = ranged(0.0, "a number", lambda v: True, "what is printed")
    source: str = ranged("", "text", lambda v: True, "paper, table or figure, row")
    kernel: str = one_of("trained", "initial", "trained", meaning="which kernel's")
    n_interpolation: int | None = count_or_null(None, 1, "the largest", "at which N_I")
    statistic: str = one_of("mean", "mean", "sd", "se", "min", "max", meaning="over folds, repeats, layers or seeds")
    overrides: list[str] = field(default_factory=list, metadata={"meaning": "under which it was printed"})


def _published(path: str, value: Any) -> list[Published]:
    if value is None:
        return []
    listed = isinstance(value, list)
    if not listed and not isinstance(value, Mapping):
        raise ConfigError(f"{path}={value}: expected a list of {{metric: …, value: …, source: …}}, or null")
    entries = value if listed else [value]  # one entry without a list: records of version 0.1
    return [make(f"{path}[{i}]" if listed else path, Published, _modern(entry)) for i, entry in enumerate(entries)]


def _modern(entry: Any) -> Any:
    """An entry in the words of version 0.1, where the kernel was part of the metric."""
    suffix = " of the initial kernel"
    if isinstance(entry, Mapping) and str(entry.get("metric", "")).endswith(suffix):
        return {**entry, "metric": str(entry["metric"]).removesuffix(suffix), "kernel": "initial"}
    return entry


def _figures(path: str, value: Any) -> list[str]:
    """The formats of the pictures: true is PNG, false none."""
    if isinstance(value, bool):
        return ["png"] if value else []
    if isinstance(value, list) and value and all(name in FORMATS for name in value):
        return [str(name) for name in value]
    raise ConfigError(f"{path}={value}: expected true, false, or a list out of {', '.join(FORMATS)}")


def _words(path: str, value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"{path}={value}: expected a list of overrides, as [optimizer.iterations=5]")
    return value


@section("", "keys of the run itself")
class RunSection(Option):
    seed: int = whole(0, "feeds every random stream of the run")
    figures: Any = nested(
        True, "true, false, or a list out of png, pdf, svg", _figures, "pictures; false: none, for large sweeps"
    )
    resume: bool = flag(False, "skip what is completed, go on with what is not")
    retries: int = whole(0, "of a failed run, before it counts as failed")
    kernel_check: bool = flag(False, "also predict in each device and dtype (Khalid 2022, Fig. 3.3)")
    published: Any = nested(
        None, "a list of metric, value, source …, or null", _published, "what a paper printed for it"
    )
    smoke: Any = nested(
        None, "a list of overrides, or null", _words, "under which it ends in seconds on embedded data: kfx run --smoke"
    )
