"""Runs that end in seconds: every legal pair of kernel and optimizer, and every other option once."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cache

from omegaconf import DictConfig, OmegaConf

from kfx.config import registry
from kfx.config.catalogue import options
from kfx.config.registry import OPTIONS
from kfx.experiment.compose import composed, without_hydra
from kfx.experiment.config import check
from kfx.experiment.preflight import check_start
from kfx.outcomes import ConfigError
from kfx.papers import studies

_FEW = ("sampler.batch_size=40", "optimizer.iterations=5")
_SMALL = (
    "dataset=digits",
    "dataset.n_train=200",
    "dataset.n_test=100",
    "dataset.preprocess=[center]",
    "evaluation.n_interpolation=[50]",
    *_FEW,
)


def words_of(kernel: str, optimizer: str) -> list[str]:
    """The overrides of a run of this pair; the optimizer's own come last."""
    of = OPTIONS["kernel"][kernel].quick, OPTIONS["optimizer"][optimizer].quick
    return [*_SMALL, f"kernel={kernel}", f"optimizer={optimizer}", *of[0], *of[1]]


def pairs(kernels: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Kernels, all or these, and optimizers that may be combined, according to the checks of a config."""
    registry.load()
    optimizers = tuple(OPTIONS["optimizer"])
    return [(kernel, each) for kernel in kernels or OPTIONS["kernel"] for each in _optimizers_for(kernel, optimizers)]


@cache
def _optimizers_for(kernel: str, optimizers: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    quick = OPTIONS["kernel"][kernel].quick
    for optimizer in optimizers:
        raw = copy.copy(_usual((f"kernel={kernel}", *quick) if quick else ()))
        raw["optimizer"] = OPTIONS["optimizer"][optimizer].defaults()
        if not quick:
            raw["kernel"] = OPTIONS["kernel"][kernel].defaults()
        try:
            check_start(check(raw))
        except ConfigError:
            continue
        found.append(optimizer)
    return found


@cache
def _usual(further: tuple[str, ...]) -> DictConfig:
    usual = without_hydra(composed([*_SMALL, *further]))
    OmegaConf.set_struct(usual, False)
    return usual


def jobs() -> Iterator[tuple[str, list[str], bool]]:
    """Yield (name, overrides, whether to apply the config's list `smoke`) for every run of `make smoke`."""
    for name in options("experiment"):
        yield f"+experiment={name}", [f"+experiment={name}"], True
    drawn = set[str]()
    for kernel, optimizer in pairs():
        new = {f"kernel={kernel}", f"optimizer={optimizer}"} - drawn  # pictures are of a kernel or of an optimizer
        drawn |= new
        words = [*words_of(kernel, optimizer), *([] if new else ["figures=false"])]
        yield f"kernel={kernel} optimizer={optimizer}", words, False
    for group in ("objective", "sampler"):
        for name in OPTIONS[group]:
            yield f"{group}={name}", [*_SMALL, f"{group}={name}", *OPTIONS[group][name].quick], False
    for name, option in OPTIONS["dataset"].items():
        if not option().files() and not option.from_path:  # embedded
            yield f"dataset={name}", [f"dataset={name}", *_FEW, *option.quick], False
    for name in OPTIONS["evaluation"]:
        own = OPTIONS["evaluation"][name].quick
        yield f"evaluation={name}", ["dataset=diabetes", f"evaluation={name}", *_FEW, *own], False
    for name in studies.names():  # last, because their plugins add options to all later runs
        for label, words in studies.read(name).runs.items():
            yield f"study={name}: {label}", [*words, "figures=false"], True
