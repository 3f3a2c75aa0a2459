"""Options of samplers: which points make a batch, and how many of them its sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfx.config.choices import POINTS, VIEWS
from kfx.config.fields import MOST_POINTS, MOST_REPEATS, Several, number, ranged, word, words
from kfx.config.option import Option, Settings, option
from kfx.config.parts import ConfigView, SamplerPart
from kfx.config.rules import CLASSES, IMAGES, STILL_POINTS, needs, refuses, rows
from kfx.outcomes import ConfigError, DataError

if TYPE_CHECKING:
    from kfx.sampling.samplers import Sampler


_BATCH, _OWN_BATCH, _ONLY_BATCH = 100, 300, 1000


def _usual_batch_size(_: object, config: ConfigView) -> int:
    """The size of a batch if the config does not say."""
    if not config.dataset.is_own:
        return _BATCH
    try:
        size = config.training_size()
    except DataError:  # its check says more
        size = _BATCH
    most = _BATCH if config.optimizer.moves_points else _ONLY_BATCH if config.optimizer.keeps_batch else _OWN_BATCH
    return max(min(most, size), 2)


@dataclass
class SamplerOption(Option, SamplerPart):
    """A sampler. A subclass has a field for each setting, and `builds` or `build`."""

    rules = rows(
        needs(IMAGES, "leave it out", "augment"),
        refuses(
            lambda _, c: c.optimizer.moves_points or not c.optimizer.views_batches,
            "optimizer={config.optimizer.name} takes images as they are; leave it out",
            "augment",
        ),
        needs(CLASSES, "use uniform", "choice=stratified"),
    )

    batch_size: Several = ranged(
        "auto",
        "a whole number >= 2, auto, or null for all training points",
        lambda v: v is None or v == "auto" or (type(v) is int and 2 <= v <= MOST_POINTS),
        f"N_f, the number of points in a batch; auto: {_BATCH}; to fit a kernel to own data {_OWN_BATCH}, or "
        f"{_ONLY_BATCH} with optimizer=lbfgs, or all points if there are fewer",
        settle=_usual_batch_size,
    )
    choice: str = word(
        POINTS,
        "points of a batch; stratified: classes in the proportions of the data; "
        "neighbourhood: a random point and its nearest, by the kernel's present lengths if each feature has one",
    )
    rounding: str = word("nearest | up", "rounding of the sample size N_c = p N_f; nearest: halves to the even number")
    samples: int = number(
        1, f"whole >= 1 and <= {MOST_REPEATS}", "number of samples of each batch, over which the objective is averaged"
    )
    augment: list[str] = words(
        [], VIEWS, "random changes to a batch's images; crop: shifted at random; flip: half of them mirrored"
    )
    padding: int = number(4, "whole >= 1", "with crop: largest shift in pixels, filled with zeros")

    def build(self, iterations: int) -> Sampler:
        """The sampler for a fit of so many iterations."""
        names = ("choice", "samples", "rounding", "augment", "padding")
        common = {name: getattr(self, name) for name in names}
        return self.constructor()(self.batch_size, **self._own(iterations), **common)

    def _own(self, iterations: int) -> Settings:
        """What its sampler takes beside that."""
        return self.beyond(SamplerOption)

    def held_out(self) -> Sampler:
        """A sampler of held-out batches: drawn as in training, with one sample of a fixed size."""
        from kfx.sampling.samplers import Sampler

        return Sampler(self.batch_size, self.usual_proportion(), self.choice, rounding=self.rounding)

    def usual_proportion(self) -> float:
        """p = N_c / N_f for batches that no optimizer sees."""
        return 0.5

    def check(self, config: ConfigView) -> None:
        if (image := config.dataset.image) and "crop" in self.augment and self.padding >= (side := min(image[:2])):
            raise ConfigError(f"sampler.padding={self.padding}: images have {side} pixels a side; take fewer than that")


@option("sampler", "fixed", "A uniform batch and a uniform sample of it, the same sizes at each iteration")
class FixedOption(SamplerOption):
    builds = "kfx.sampling.samplers:Sampler"

    sample_proportion: float = number(0.5, "> 0 and < 1", "p = N_c / N_f, the share of a batch that is its sample")

    def usual_proportion(self) -> float:
        return self.sample_proportion


@option(
    "sampler",
    "centres",
    "Random centres, which are predicted, with their neighbours and random points (KernelFlows.jl)",
)
class CentresOption(SamplerOption):
    rules = rows(
        refuses(
            lambda own, _: own.choice != "uniform" or own.samples > 1 or own.augment,
            "draws neighbours of centres; leave choice, samples and augment out",
        ),
        refuses(
            lambda own, _: own.batch_size is not None and own.centres >= own.batch_size,
            "a batch has {own.batch_size} points; take fewer centres than that",
            "centres",
        ),
    )
    builds = "kfx.sampling.samplers:CentresSampler"

    centres: int = number(5, "whole >= 1 and <= 1000", "number of centres, the points outside the sample")
    neighbours: int | None = number(
        None,
        "whole >= 1",
        "number of neighbours of each centre in the batch, by the kernel's present lengths",
        null="3 N_f / 4 centres, and at most twice the number of features",
    )

    def build(self, iterations: int) -> Sampler:
        return self.constructor()(self.batch_size, self.centres, self.neighbours)

    def held_out(self) -> Sampler:
        return self.build(1)


@option("sampler", "epochs", "Minibatches: every training point once per epoch, in random order")
class EpochsOption(FixedOption):
    rules = rows(
        needs(STILL_POINTS, "use sampler=fixed"),
        refuses(lambda *_: True, "an epoch has every point; use uniform, or sampler=fixed", "choice=neighbourhood"),
    )
    builds = "kfx.sampling.samplers:EpochSampler"


@option("sampler", "linear", "The sample grows linearly with the iterations (Darcy 2020, section 2.3.3)")
class LinearOption(SamplerOption):
    builds = "kfx.sampling.samplers:LinearSampler"

    start: float = number(0.1, "> 0 and < 1", "p = N_c / N_f at the first iteration")
    end: float = number(0.5, "> 0 and < 1", "p = N_c / N_f at the last iteration")

    def _own(self, iterations: int) -> Settings:
        return {"low": self.start, "high": self.end, "iterations": iterations}


@option(
    "sampler",
    "dynamic",
    "The sample grows as the kernel gets better: p = (1 - mean of latest rho on half the batch) / 2 (Darcy 2020)",
)
class DynamicOption(SamplerOption):
    builds = "kfx.sampling.samplers:DynamicSampler"
    follows_rho = True

    window: int = number(
        10, f"whole >= 1 and <= {MOST_POINTS}", "number of latest values of rho over which the mean is taken"
    )
    floor: float = number(0.05, "> 0 and < 0.5", "smallest p = N_c / N_f")
