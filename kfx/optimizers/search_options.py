"""Options of optimizers that search by values alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kfx.config.fields import FieldError, Several, flag, number, ranged, word
from kfx.config.option import option
from kfx.config.parts import ConfigView
from kfx.optimizers.options import OptimizerOption, ends, space
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from kfx.kernels.base import Kernel

_MOST_SEARCHED, _MOST_NAMED = 300, 40


@option(
    "optimizer",
    "bayesian",
    "Bayesian optimisation: expected improvement on a Gaussian-process surrogate (scikit-optimize)",
)
class BayesianOption(OptimizerOption):
    builds = "kfx.optimizers.bayesian:BayesianOptimization"
    keeps_within_bounds = False
    moves_regularization = "in log space"
    quick = ("optimizer.initial_points=3",)

    iterations: int = number(50, "whole >= 1", "number of parameter vectors evaluated, initial points included")
    initial_points: int = number(
        15, "whole >= 1", "number of first evaluations at random parameters, before the surrogate is used"
    )
    bounds: list[float] | None = ends([0.25, 200.0], "range searched for every parameter, within kernel.bounds")
    space: str = space("raw")
    noise: Several = ranged(
        1e-10,
        "a number > 0, or gaussian to have it estimated",
        lambda v: v == "gaussian" or (isinstance(v, (int, float)) and math.isfinite(v) and v > 0),
        "noise variance that the surrogate assumes; gaussian suits small batches",
    )
    recheck: str = word(
        "two_sided | one_sided",
        "test of a new minimum on another batch; two_sided: it may change by recheck_threshold; "
        "one_sided: it may rise by it",
    )
    recheck_threshold: float = number(
        0.1, ">= 0", "a minimum that changes by more is rejected: the surrogate gets 1 instead"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space == "log" and self.bounds is not None and self.bounds[0] == 0:
            raise FieldError("bounds", self.bounds, "a lower bound > 0 with space=log")

    def searched(self, kernel: Kernel) -> np.ndarray:
        from kfx.optimizers.bayesian import search_box

        return search_box(kernel.bounds, self.bounds)

    def refuses_trained_regularization(self) -> str | None:
        at = f"optimizer.bounds={self.bounds}: would bound λ as well with regularization.selection=trained"
        of_bounds = None if self.bounds is None else f"{at}; set optimizer.bounds=null and kernel.bounds"
        return super().refuses_trained_regularization() or of_bounds

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        box = self.searched(kernel)
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
                    f"optimizer.bounds={self.bounds}: does not overlap kernel.bounds.{key}; widen one of them"
                )


@option("optimizer", "grid", "Grid search over one parameter: the objective as a function of it")
class GridOption(OptimizerOption):
    builds = "kfx.optimizers.grid:GridSearch"
    keeps_within_bounds = False
    moves_regularization = "never"
    quick = ("optimizer.points=3", "optimizer.space=log")

    iterations: int = number(500, "whole >= 1", "number of evaluations: the whole grid on one batch, then on the next")
    parameter: str | None = ranged(
        None,
        "the name of a trainable parameter, or null for the first",
        lambda v: v != "",
        "parameter that varies over the grid",
    )
    bounds: list[float] | None = ends(None, "ends of the grid", -math.inf)
    points: int = number(100, "whole >= 2", "number of grid points, at most as many as iterations")
    space: str = word("raw | log", "spacing of the grid; raw: equal steps; log: equal ratios")
    gradient: bool = flag(True, "also record the objective's derivative, as diagnostic.gradient")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space == "log" and self.bounds is not None and self.bounds[0] <= 0:
            raise FieldError("bounds", self.bounds, "a lower bound > 0 with space=log")

    def searched(self, kernel: Kernel) -> np.ndarray:
        bounds = kernel.bounds.copy()
        if self.bounds is not None:
            bounds[kernel.names.index(self.parameter) if self.parameter else 0] = self.bounds
        return bounds

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        name = self.parameter or kernel.names[0]
        if name not in kernel.names:
            known = ", ".join(kernel.names[:_MOST_NAMED]) + (" …" if len(kernel.names) > _MOST_NAMED else "")
            raise ConfigError(f"optimizer.parameter={name}: not a trainable parameter; takes {known}")
        if self.parameter and name not in kernel.for_features(2).names:
            raise ConfigError(
                f"optimizer.parameter={name}: has a value for each feature; name a parameter that is one number, "
                "or take a kernel with one length, as kernel=matern kernel.ard=false"
            )
        low, high = kernel.bounds[kernel.names.index(name)]
        if self.bounds is None and not (math.isfinite(low) and math.isfinite(high)):
            raise ConfigError(f"optimizer.bounds=null: {name} has no bounds; set [low,high]")
        if self.bounds is not None and not low <= self.bounds[0] < self.bounds[1] <= high:
            raise ConfigError(
                f"optimizer.bounds={self.bounds}: expected within kernel.bounds of {name}, [{low:g}, {high:g}]"
            )
