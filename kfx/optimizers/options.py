"""Options of the group `optimizer`: their settings, the combinations that they refuse, and how each is built."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from kfx.config.fields import FieldError, flag, number, ranged, rising, word
from kfx.config.option import Option, Settings, option
from kfx.config.parts import ConfigView, OptimizerPart
from kfx.config.rules import STILL_POINTS, needs, refuses, rows
from kfx.kernels.kernel_option import RANDOM, KernelOption
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from kfx.kernels.base import Kernel
    from kfx.optimizers.gradient import Rule
    from kfx.optimizers.loop import Optimizer
    from kfx.optimizers.loss import Loss
    from kfx.optimizers.schedules import Constant
    from kfx.sampling.samplers import Sampler


@dataclass
class OptimizerOption(Option, OptimizerPart):
    """Base of the optimizer options. A subclass has a field for each setting, and `builds` or `build`."""

    iterations: int = number(100, "whole >= 1", "number of iterations, each a row of the trace")
    fall_back: bool | None = flag(
        None,
        "end with the initial kernel if its leave-one-out errors are smaller than the trained kernel's, each with its "
        "best lambda; with few training points for a length for each feature, also with one length, or without its "
        "rough part, if that has smaller errors",
        null="true with own data and no given lambda",
        settle=lambda _, config: config.regularization.leaves_choice_to_evaluation(config),
    )

    implied = {"fall_back": False}  # noqa: RUF012
    rules = rows(
        needs(STILL_POINTS, "its kernels have no leave-one-out errors to compare, so set false", "fall_back"),
        refuses(
            lambda _, c: c.objective.has_head,
            "compares kernels, and the objective trains a head; set false",
            "fall_back",
        ),
        refuses(
            lambda own, c: c.objective.has_head and not own.can_train_heads,
            "takes no objective={config.objective.name}, which gradients minimise; use adam, sgd or nesterov",
        ),
    )

    moves_regularization: ClassVar[str] = "always"
    """Whether the optimizer can train λ: always, in log space (with `space=log`), or never."""
    keeps_within_bounds: ClassVar[bool] = True
    """Whether the optimizer starts at the kernel's parameters and moves them within their bounds."""

    def build(self, config: ConfigView) -> Optimizer:
        """Return the optimizer with its objective, sampler and λ."""
        make_loss, sampler, iterations = self.arguments(config)
        return self.constructor()(make_loss, sampler, iterations=iterations, **self.own(config))

    def own(self, config: ConfigView) -> Settings:
        """Return the further keyword arguments of the optimizer's class."""
        return self.beyond(OptimizerOption)

    def searched(self, kernel: Kernel) -> np.ndarray:
        """Return the range in which the optimizer searches for each entry of `kernel.flat`, (n, 2)."""
        return kernel.bounds

    def make_loss(self, config: ConfigView) -> Callable[..., Loss]:
        """Return the class of loss, called with a kernel, x and y, that the optimizer minimises."""
        from kfx.optimizers.loss import Loss

        if (own := config.objective.own_loss(config)) is not None:
            return own
        return partial(Loss, config.objective.build(), config.regularization.build())

    def arguments(self, config: ConfigView) -> tuple[Callable[..., Loss], Sampler, int]:
        """Return the arguments of every optimizer: make_loss, sampler, iterations."""
        return self.make_loss(config), config.sampler.build(self.iterations), self.iterations

    def refuses_trained_regularization(self) -> str | None:
        if self.moves_regularization == "never":
            return f"regularization.selection=trained: optimizer={self.name} moves no λ; use adam, sgd or nesterov"
        if self.moves_regularization == "in log space" and getattr(self, "space", "log") != "log":
            return "regularization.selection=trained: moves log λ; set optimizer.space=log"
        return None

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        """Raise ConfigError where the optimizer cannot start from the kernel as built."""
        import numpy as np

        from kfx.numerics.arrays import in_numpy

        if not self.keeps_within_bounds or config.kernel.initial in RANDOM:
            return
        flat, (lows, highs) = in_numpy(kernel.flat), kernel.bounds.T
        given = ~np.isin(kernel.keys, [name for name in config.kernel.set_by_points(kernel) if name])
        for i in np.flatnonzero(given & ((flat < lows) | (flat > highs)))[:1]:
            raise ConfigError(
                f"kernel.{kernel.names[i]}={flat[i]:g}: optimizer {self.name} moves it within [{lows[i]:g}, "
                f"{highs[i]:g}]; start inside, or set kernel.bounds.{kernel.keys[i]}=[low,high]"
            )


def space(default: str) -> str:
    return word(
        "raw | log",
        "coordinates of the optimizer; raw: the parameters; log: logarithms of those that cannot be negative",
        default=default,
    )


def rate(default: float = 0.1) -> float:
    return number(default, "> 0", "learning rate, the factor on each step")


def momentum() -> float:
    return number(0.9, ">= 0 and < 1", "share of the previous step that is added to the next")


def ends(default: list[float] | None, meaning: str, lowest: float = 0) -> list[float] | None:
    return rising(default, meaning, null="kernel.bounds", lowest=lowest)


_MOST_DIFFERENCES = 1000


@option("optimizer", "none", "No training: only measures rho, on the same batches as every other optimizer")
class UnmovedOption(OptimizerOption):
    builds = "kfx.optimizers.unmoved:Unmoved"
    keeps_within_bounds = False
    can_train_heads = True
    moves_regularization = "never"


# ---- gradient methods


@dataclass
class GradientOption(OptimizerOption):
    """Base of gradient-descent options; a subclass gives the update rule."""

    update: ClassVar[tuple[str, ...]] = ("SGD", "learning_rate")
    """The update rule, which turns a gradient into a step: its name in `kfx.optimizers.gradient`, and its settings."""
    builds = "kfx.optimizers.gradient:GradientDescent"
    follows_gradients = True
    can_train_heads = True
    moves_regularization = "in log space"
    rules = rows(
        refuses(
            lambda _, c: not c.kernel.has_weights,
            "makes weights zero, and kernel={config.kernel.name} has none; use kernel=dictionary, or set it to 0",
            "sparsity",
        ),
        refuses(
            lambda _, c: "weight" not in (c.kernel.trainable or ["weight"]),
            "makes weights zero, and kernel.trainable={config.kernel.trainable} has no weight; add it, or set it to 0",
            "sparsity",
        ),
    )

    learning_rate: float = rate()
    step_rule: str = word(
        "gradient | normalized",
        "normalized: the gradient divided by its norm, so that sgd's steps have length learning_rate",
    )
    sparsity: float = number(
        0.0,
        ">= 0",
        "with kernel=dictionary: a step subtracts learning_rate times this from each weight, down to 0 (L1 penalty)",
    )
    space: str = space("raw")
    final: str = word(
        "last | best",
        "trained parameters; best: at the end of the final_window iterations with the least mean objective",
    )
    final_window: int = number(10, "whole >= 1", "with final=best: number of iterations in the mean")
    schedule: str = word(
        "constant | milestones | plateau | exponential",
        "schedule of the learning rate; milestones: it falls at given times; "
        "plateau: where the mean objective stops falling; exponential: as decay + (1 - decay) e^(-t / period)",
    )
    decay: float = number(
        0.1, "> 0 and < 1", "factor by which a schedule multiplies the learning rate; exponential: in the limit"
    )
    milestones: list[float] = ranged(
        [0.4, 0.8],
        "a list of rising numbers > 0 and < 1",
        lambda v: len(v) > 0 and all(a < b for a, b in itertools.pairwise([0.0, *v, 1.0])),
        "with schedule=milestones: shares of the iterations after which the learning rate falls",
    )
    period: int | None = number(
        None,
        "whole >= 1",
        "iterations; schedule=plateau: in a mean of the objective; exponential: until the factor e^-1",
        null="an epoch",
    )
    patience: int = number(
        10, "whole >= 0", "with schedule=plateau: number of periods without improvement that are tolerated"
    )
    max_reinitializations: int = number(
        3, "whole >= 0", "how often parameters are drawn anew after a failed factorisation, before the run fails"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.final == "best" and self.final_window > self.iterations:
            raise FieldError("final_window", self.final_window, f"at most iterations={self.iterations} with final=best")

    def rule(self) -> Rule:
        """Return the update rule."""
        from kfx.optimizers import gradient

        name, *settings = self.update
        made: Rule = getattr(gradient, name)(*(getattr(self, setting) for setting in settings))
        return made

    def own(self, config: ConfigView) -> Settings:
        from kfx.kernels.starts import random_kernel

        names = ("space", "step_rule", "sparsity", "final", "final_window", "max_reinitializations")
        settings = {name: getattr(self, name) for name in names}
        assert isinstance(config.kernel, KernelOption)
        redraw = partial(random_kernel, option=config.kernel)
        return {"rule": self.rule(), "redraw": redraw, "schedule": self._schedule(), **settings}

    def _schedule(self) -> Constant:
        from kfx.optimizers.schedules import Constant, Exponential, Milestones, Plateau

        match self.schedule:
            case "milestones":
                return Milestones(self.milestones, self.decay)
            case "plateau":
                return Plateau(self.period, self.patience, self.decay)
            case "exponential":
                return Exponential(self.period, self.decay)
        return Constant()


@option("optimizer", "sgd", "Gradient descent on a fresh batch at each iteration")
class SGDOption(GradientOption):
    pass


@option("optimizer", "nesterov", "Gradient descent with Nesterov momentum (Darcy 2020, eq. 2.4)")
class NesterovOption(GradientOption):
    update = ("Nesterov", "learning_rate", "momentum")

    momentum: float = momentum()


@option("optimizer", "adam", "Adam, by default on the logarithms of the parameters: the robust choice")
class AdamOption(GradientOption):
    update = ("Adam", "learning_rate", "beta1", "beta2", "epsilon")

    space: str = space("log")
    beta1: float = number(0.9, ">= 0 and < 1", "decay of the running mean of the gradient")
    beta2: float = number(0.999, ">= 0 and < 1", "decay of the running mean of the squared gradient")
    epsilon: float = number(1e-8, "> 0", "added to the root of the mean squared gradient")


@option("optimizer", "amsgrad", "AMSGrad with one second moment, that of the gradient's norm, as in KernelFlows.jl")
class AMSGradOption(AdamOption):
    update = ("AMSGrad", *AdamOption.update[1:])

    learning_rate: float = rate(1e-3)


@option("optimizer", "lbfgs", "L-BFGS on one batch: few iterations for smooth objectives of all points, such as nll")
class LBFGSOption(OptimizerOption):
    builds = "kfx.optimizers.lbfgs:LBFGS"
    follows_gradients = True
    keeps_batch = True
    views_batches = False
    moves_regularization = "in log space"
    rules = rows(
        refuses(
            lambda _, c: c.sampler.name != "fixed",
            "stays with one batch, and sampler={config.sampler.name} changes them; use fixed, or optimizer=adam",
        )
    )

    space: str = space("log")
    memory: int = number(10, "whole >= 1 and <= 100", "number of earlier steps that give the curvature")
    tolerance: float = number(1e-9, "> 0", "relative decrease of the objective at which the fit ends")


@option(
    "optimizer", "finite_difference", "Gradient descent by finite differences on the same batch (Khalid 2022, eq. 3.7)"
)
class FiniteDifferenceOption(GradientOption):
    follows_gradients = False
    can_train_heads = False
    moves_regularization = "never"

    builds_objective = True

    step: float = number(1e-4, "> 0", "step h of the finite differences, in the parameters' own units")
    scheme: str = word("forward | central", "forward: one further evaluation for each parameter; central: two")

    def make_loss(self, config: ConfigView) -> Callable[..., Loss]:
        from kfx.optimizers.finite_difference import DifferencedLoss

        objective, regularization = config.objective.build(), config.regularization.build()
        return partial(DifferencedLoss, self.step, self.scheme, objective, regularization)

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        if len(kernel.keys) > _MOST_DIFFERENCES:
            raise ConfigError(
                f"optimizer=finite_difference: takes at most {_MOST_DIFFERENCES} parameters, an evaluation each, and "
                f"kernel={config.kernel.name} has {len(kernel.keys)}; use adam, sgd or nesterov"
            )
        super().check_start(config, kernel)
