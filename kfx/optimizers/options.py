"""Optimizers to choose from: their settings, what they cannot go with, and how each is built."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from kfx.config.registry import (
    Config,
    FieldError,
    Option,
    count,
    flag,
    from_to,
    not_negative,
    one_of,
    option,
    positive,
    ranged,
    rising,
    whole,
)
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    from kfx.kernels.base import Kernel
    from kfx.optimizers.gradient import Rule
    from kfx.optimizers.loop import Optimizer
    from kfx.optimizers.loss import Loss


@dataclass
class OptimizerOption(Option, abc.ABC):
    """An optimizer. A subclass has a field for each setting, and `build`."""

    iterations: int = count(100, 1, "rows of the trace")

    moves_points: ClassVar[bool] = False
    """Whether it is a flow: it moves points, and parameters perhaps."""
    can_train_heads: ClassVar[bool] = False
    """Whether it takes an objective with a head of its own, a `Loss` that no Gram matrix leads to."""
    keeps_within_bounds: ClassVar[bool] = True
    """Whether it starts at the kernel's parameters and moves them within their bounds."""

    @abc.abstractmethod
    def build(self, config: Config) -> Optimizer:
        """The optimizer, bound to its objective, sampler and λ."""

    def loss(self, config: Config) -> Callable[..., Loss]:
        """From a kernel, x and y to the objective that it sees."""
        from kfx.optimizers.loss import Loss

        if (own := config.objective.own_loss(config)) is not None:
            return own
        return partial(Loss, config.objective.build(), config.regularization.build())

    def arguments(self, config: Config) -> tuple[Any, Any, int]:
        """What every optimizer is built from: loss, sampler, iterations."""
        return self.loss(config), config.sampler.build(self.iterations), self.iterations

    def check(self, config: Config) -> None:
        if config.objective.has_head and not self.can_train_heads:
            raise ConfigError(
                f"objective={config.objective.name}: is minimised by gradients; use optimizer=adam, sgd or nesterov"
            )

    def refuses_trained_regularization(self) -> str | None:
        """Why λ cannot be trained with it, as an error names it; None if it can."""
        return None

    def check_start(self, config: Config, kernel: Kernel) -> None:
        """ConfigError if it cannot start from the kernel as built."""
        import numpy as np

        from kfx.numerics.arrays import in_numpy

        if not self.keeps_within_bounds or config.kernel.initial != "explicit":
            return
        flat, (lows, highs) = in_numpy(kernel.flat), kernel.bounds.T
        for i in np.flatnonzero((flat < lows) | (flat > highs))[:1]:
            raise ConfigError(
                f"kernel.{kernel.names[i]}={flat[i]:g}: optimizer {self.name} moves it within [{lows[i]:g}, "
                f"{highs[i]:g}]; start inside, or set kernel.bounds.{kernel.keys[i]}=[low,high]"
            )

    def moves_no_regularization(self) -> str:
        """The refusal of what moves no parameter but some of its own."""
        return f"regularization.selection=trained: optimizer={self.name} moves no λ; use adam, sgd or nesterov"


def space(default: str) -> Any:
    return one_of(default, "raw", "log", meaning="log: moves the logarithms of parameters that cannot be negative")


def rate(default: float = 0.1) -> Any:
    return positive(default, "length of a step along the gradient")


def momentum() -> Any:
    return from_to(0.9, 0, 1, "how much of the step before is kept")


def ends(default: list[float] | None, meaning: str, lowest: float = 0) -> Any:
    return rising(default, meaning, null="kernel.bounds", lowest=lowest)


_MOST_DIFFERENCES, _MOST_SEARCHED, _MOST_NAMED = 1000, 300, 40
_LOG_ALONE = "regularization.selection=trained: moves log λ; set optimizer.space=log"


@option("optimizer", "none", "Measures rho on the same batches as every other optimizer, and moves nothing")
class Unmoved(OptimizerOption):
    keeps_within_bounds = False
    can_train_heads = True

    def build(self, config: Config) -> Optimizer:
        from kfx.optimizers.unmoved import Unmoved

        return Unmoved(*self.arguments(config))

    def refuses_trained_regularization(self) -> str:
        return self.moves_no_regularization()


# ---- by gradients


@dataclass
class GradientOption(OptimizerOption):
    """Gradient descent; a subclass says by which rule."""

    can_train_heads = True

    learning_rate: float = rate()
    step_rule: str = one_of(
        "gradient",
        "gradient",
        "normalized",
        meaning="normalized: its direction alone, so that sgd's steps are learning_rate long",
    )
    space: str = space("raw")
    final: str = one_of(
        "last", "last", "best", meaning="best: the end of the final_window rows with the smallest mean objective"
    )
    final_window: int = count(10, 1, "rows of the mean of final=best")
    max_reinitializations: int = whole(3, "draws of new parameters after a failed factorisation, before the run fails")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.final == "best" and self.final_window > self.iterations:
            raise FieldError("final_window", self.final_window, f"at most iterations={self.iterations} with final=best")

    @abc.abstractmethod
    def rule(self) -> Rule:
        """How a gradient becomes a step."""

    def build(self, config: Config) -> Optimizer:
        from kfx.kernels.starts import random_kernel
        from kfx.optimizers.gradient import GradientDescent

        loss, sampler, iterations = self.arguments(config)
        return GradientDescent(
            loss,
            sampler,
            self.rule(),
            iterations=iterations,
            space=self.space,
            step_rule=self.step_rule,
            final=self.final,
            final_window=self.final_window,
            max_reinitializations=self.max_reinitializations,
            redraw=partial(random_kernel, start=config.kernel),
        )

    def refuses_trained_regularization(self) -> str | None:
        return None if self.space == "log" else _LOG_ALONE


@option("optimizer", "sgd", "Gradient descent on a fresh batch at each iteration")
class SGD(GradientOption):
    def rule(self) -> Rule:
        from kfx.optimizers.gradient import SGD

        return SGD(self.learning_rate)


@option("optimizer", "nesterov", "Gradient descent with Nesterov momentum (Darcy 2020, eq. 2.4)")
class Nesterov(GradientOption):
    momentum: float = momentum()

    def rule(self) -> Rule:
        from kfx.optimizers.gradient import Nesterov

        return Nesterov(self.learning_rate, self.momentum)


@option("optimizer", "adam", "Adam, by default on the logarithms of the parameters: the robust choice")
class Adam(GradientOption):
    space: str = space("log")
    beta1: float = from_to(0.9, 0, 1, "decay of the mean gradient")
    beta2: float = from_to(0.999, 0, 1, "decay of the mean square")
    epsilon: float = positive(1e-8, "added to the root of the mean square")

    def rule(self) -> Rule:
        from kfx.optimizers.gradient import Adam

        return Adam(self.learning_rate, self.beta1, self.beta2, self.epsilon)


@option(
    "optimizer", "finite_difference", "Gradient descent by finite differences on the same batch (Khalid 2022, eq. 3.7)"
)
class FiniteDifference(GradientOption):
    can_train_heads = False

    step: float = positive(1e-4, "h, in the parameters' own units")
    scheme: str = one_of("forward", "forward", "central", meaning="forward: one evaluation a parameter; central: two")

    def rule(self) -> Rule:
        from kfx.optimizers.gradient import SGD

        return SGD(self.learning_rate)

    def loss(self, config: Config) -> Callable[..., Loss]:
        from kfx.optimizers.finite_difference import DifferencedLoss

        objective, regularization = config.objective.build(), config.regularization.build()
        return partial(DifferencedLoss, self.step, self.scheme, objective, regularization)

    def check_start(self, config: Config, kernel: Kernel) -> None:
        if len(kernel.keys) > _MOST_DIFFERENCES:
            raise ConfigError(
                f"optimizer=finite_difference: takes at most {_MOST_DIFFERENCES} parameters, an evaluation each, and "
                f"kernel={config.kernel.name} has {len(kernel.keys)}; use adam, sgd or nesterov"
            )
        super().check_start(config, kernel)

    def refuses_trained_regularization(self) -> str:
        return (
            "regularization.selection=trained: finite differences have one step for λ and lengths; use optimizer=adam"
        )


# ---- by values


@option(
    "optimizer",
    "bayesian",
    "Bayesian optimisation: expected improvement on a Gaussian-process surrogate (scikit-optimize)",
)
class Bayesian(OptimizerOption):
    keeps_within_bounds = False
    quick = ("optimizer.initial_points=3",)

    iterations: int = count(50, 1, "points evaluated in all")
    initial_points: int = count(15, 1, "the first of them, at random")
    bounds: list[float] | None = ends([0.25, 200.0], "of every parameter")
    space: str = space("raw")
    noise: Any = ranged(
        1e-10,
        "a number > 0, or gaussian to have it estimated",
        lambda v: v == "gaussian" or (isinstance(v, (int, float)) and math.isfinite(v) and v > 0),
        "variance that the surrogate assumes; gaussian suits small batches",
    )
    recheck: str = one_of(
        "two_sided",
        "two_sided",
        "one_sided",
        meaning="two_sided: a new minimum may change by the threshold on another batch; one_sided: may rise by it",
    )
    recheck_threshold: float = not_negative(0.1, "a minimum that changes by more is told as 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space == "log" and self.bounds is not None and self.bounds[0] == 0:
            raise FieldError("bounds", self.bounds, "a lower bound > 0 with space=log")

    def build(self, config: Config) -> Optimizer:
        from kfx.optimizers.bayesian import BayesianOptimization

        loss, sampler, iterations = self.arguments(config)
        return BayesianOptimization(
            loss,
            sampler,
            iterations=iterations,
            initial_points=self.initial_points,
            bounds=_pair(self.bounds),
            space=self.space,
            noise=self.noise,
            recheck_threshold=self.recheck_threshold,
            recheck=self.recheck,
        )

    def refuses_trained_regularization(self) -> str | None:
        if self.space != "log":
            return _LOG_ALONE
        if self.bounds is not None:
            return (
                f"optimizer.bounds={self.bounds}: would bound λ as well with regularization.selection=trained; set "
                "optimizer.bounds=null and kernel.bounds"
            )
        return None

    def check_start(self, config: Config, kernel: Kernel) -> None:
        from kfx.optimizers.bayesian import search_box

        box = search_box(kernel.bounds, _pair(self.bounds))
        if len(box) > _MOST_SEARCHED:
            raise ConfigError(
                f"optimizer=bayesian: takes at most {_MOST_SEARCHED} parameters, and kernel={config.kernel.name} has "
                f"{len(box)}; name some in kernel.trainable, or use adam, sgd or nesterov"
            )
        if self.bounds is not None and kernel.signed.intersection(kernel.trainable):
            raise ConfigError(
                f"optimizer.bounds={self.bounds}: parameters of kernel={config.kernel.name} may be negative; set null, "
                "and kernel.bounds"
            )
        for key, (low, high) in zip(kernel.keys, box, strict=True):
            if not (math.isfinite(low) and math.isfinite(high)):
                raise ConfigError(f"kernel.bounds.{key}: optimizer=bayesian searches within bounds; set [low,high]")
            if low >= high:
                raise ConfigError(
                    f"optimizer.bounds={self.bounds}: none of it lies within kernel.bounds.{key}; widen one"
                )


def _pair(bounds: list[float] | None) -> tuple[float, float] | None:
    return None if bounds is None else (bounds[0], bounds[1])


@option("optimizer", "grid", "Grid search over one parameter: the objective as a function of it")
class Grid(OptimizerOption):
    keeps_within_bounds = False
    quick = ("optimizer.points=3", "optimizer.space=log")

    iterations: int = count(100, 1, "evaluations: the whole grid on one batch, then on the next")
    parameter: str | None = ranged(
        None, "the name of a trainable parameter, or null for the first", lambda v: v != "", "what the grid is over"
    )
    bounds: list[float] | None = ends(None, "of the grid", -math.inf)
    points: int = count(100, 2, "of the grid")
    space: str = one_of("raw", "raw", "log", meaning="raw: equal steps; log: equal ratios")
    gradient: bool = flag(True, "also the derivative, diagnostic.gradient")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space == "log" and self.bounds is not None and self.bounds[0] <= 0:
            raise FieldError("bounds", self.bounds, "a lower bound > 0 with space=log")

    def build(self, config: Config) -> Optimizer:
        from kfx.optimizers.grid import GridSearch

        loss, sampler, iterations = self.arguments(config)
        return GridSearch(
            loss,
            sampler,
            iterations=iterations,
            parameter=self.parameter,
            bounds=_pair(self.bounds),
            points=self.points,
            space=self.space,
            gradient=self.gradient,
        )

    def refuses_trained_regularization(self) -> str:
        return self.moves_no_regularization()

    def check_start(self, config: Config, kernel: Kernel) -> None:
        name = self.parameter or kernel.names[0]
        if name not in kernel.names:
            known = ", ".join(kernel.names[:_MOST_NAMED]) + (" …" if len(kernel.names) > _MOST_NAMED else "")
            raise ConfigError(f"optimizer.parameter={name}: no trainable parameter; it takes {known}")
        low, high = kernel.bounds[kernel.names.index(name)]
        if self.bounds is None and not (math.isfinite(low) and math.isfinite(high)):
            raise ConfigError(f"optimizer.bounds=null: {name} has no bounds; set [low,high]")
        if self.bounds is not None and not low <= self.bounds[0] < self.bounds[1] <= high:
            raise ConfigError(
                f"optimizer.bounds={self.bounds}: expected within kernel.bounds of {name}, [{low:g}, {high:g}]"
            )


@option(
    "optimizer",
    "sklearn_gpr",
    "For comparison: scikit-learn's GaussianProcessRegressor fits lengths, amplitudes and noise to one batch",
)
class SklearnGPR(OptimizerOption):
    iterations: int = count(100, 1, "evaluations of the marginal likelihood, at most")

    def build(self, config: Config) -> Optimizer:
        from kfx.optimizers.sklearn_gpr import SklearnGPR

        return SklearnGPR(*self.arguments(config))

    def check_start(self, config: Config, kernel: Kernel) -> None:
        from kfx.optimizers.sklearn_gpr import has_counterpart

        if not has_counterpart(kernel):
            raise ConfigError(
                f"kernel={config.kernel.name}: scikit-learn has no such kernel; optimizer=sklearn_gpr takes rbf, "
                "rational_quadratic, matern and rbf_network"
            )
        if config.kernel.trainable is not None:
            raise ConfigError("kernel.trainable: optimizer=sklearn_gpr fits every parameter; set null")
        if config.regularization.selection != "fixed":
            raise ConfigError(
                f"regularization.selection={config.regularization.selection}: optimizer=sklearn_gpr fits the noise "
                "itself; set fixed"
            )
        super().check_start(config, kernel)
