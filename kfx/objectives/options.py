"""Options of the groups `objective` and `regularization`."""

from __future__ import annotations

import abc
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from kfx.config.choices import BACKTESTED, CHOSEN, SCALES
from kfx.config.fields import FieldError, number, ranged, word
from kfx.config.option import Option, Settings, option, section
from kfx.config.parts import ConfigView, ObjectivePart
from kfx.config.registry import OPTIONS
from kfx.config.rules import SERIES, needs, rows
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from kfx.kernels.base import Kernel
    from kfx.numerics.regularization import Regularization
    from kfx.objectives import base
    from kfx.objectives.base import Objective
    from kfx.objectives.selection import Selection


@dataclass
class ObjectiveOption(Option, ObjectivePart, abc.ABC):
    """Base of the objective options. A subclass has a field for each setting, and `build`."""

    compares_norms: ClassVar[bool] = False
    """Whether it compares norms of interpolants; it then depends strongly on a constant in the targets, and rewards a
    large λ."""
    is_sum: ClassVar[bool] = False
    """Whether its value is a sum over the batch's points, which grows with their number, and not a mean or a ratio."""

    def columns(self, kernel: Kernel) -> tuple[str, ...]:
        """Return the objective's own columns of the trace; none by default."""
        return ()

    def recorded(self, kernel: Kernel, values: Mapping[str, object]) -> Kernel:
        """Return the kernel as `start` returned it, with parameters read from a record; the kernel itself by default.

        values: the recorded parameters by name. They fix the shapes of the objective's own parameters.
        """
        return kernel

    def with_own_parameters(self, kernel: Kernel, x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator) -> Kernel:
        """Return the kernel to fit, with the objective's own parameters added; the kernel itself by default.

        x: training points, (n, …). y: targets, (n, outputs). rng: draws initial values.
        """
        return kernel

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        """Raise ConfigError where the objective cannot be computed for the kernel as built."""

    @abc.abstractmethod
    def build(self) -> base.Objective | base.Function:
        """Return the objective, or a function `(gram, y, sample_size, regularization, cotangent=True) → value, G`."""


@dataclass
class Named(ObjectiveOption):
    """An option for the function of the same name in `kfx.objectives`; the fields are its keywords."""

    takes_weights = True

    def build(self) -> Objective:
        objective: Objective = getattr(importlib.import_module("kfx.objectives"), self.name)
        settings = {item.name: getattr(self, item.name) for item in fields(self)}
        return objective.with_settings(**settings) if settings else objective


@option(
    "objective",
    "auto",
    "rho; with own data and without a flow form=held_out of nll, for classes of rho_prediction, whose kernels predict "
    "better (docs/tables.md)",
)
class AutoOption(ObjectiveOption):
    def standing_for(self, config: ConfigView) -> Option:
        if not config.dataset.is_own or config.optimizer.moves_points:
            return RhoOption()
        held_out: Option = OPTIONS["objective"]["rho_prediction" if config.dataset.has_classes else "nll"](
            form="held_out"
        )
        return held_out

    def build(self) -> Objective:
        raise TypeError("objective=auto stands for another objective")


@option("objective", "rho", "Relative error of the sample's interpolant in the RKHS norm (Owhadi & Yoo 2019, eq. 3.4)")
class RhoOption(ObjectiveOption):
    symbol = "ρ"
    compares_norms = takes_weights = True

    solver: str = word(
        "cholesky | inverse",
        "inverse: by explicit inverses in the kernel's dtype, to repeat published runs; rho may leave [0, 1]",
    )

    @property
    def rho_has_law(self) -> bool:  # type: ignore[override]
        return self.solver == "cholesky"

    def build(self) -> Objective:
        if self.solver == "inverse":
            from kfx.objectives.by_inverse import rho_by_inverse

            return rho_by_inverse
        from kfx.objectives import rho

        return rho


# ---- λ

_USUAL, _IN_TRAINING = 1e-4, 3e-2
"""λ where nothing chooses it, and where own data are trained on. The best λ of the initial kernel would be too large if
that kernel explains little."""
_CANDIDATES = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
_CLOSER = (*BACKTESTED[:9], 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)


def left_out_by(config: ConfigView) -> str:
    """How predictions that the training points judge are made: of points left out, or forecasts of series."""
    return "backtest" if config.dataset.is_series else "leave_one_out"


@section("regularization", "lambda, added to the diagonal of Gram matrices")
class RegularizationSection(Option):
    rules = rows(needs(SERIES, "use leave_one_out or validation", "selection=backtest"))

    value: float | None = number(
        None, ">= 0", "lambda, in units of scale", null="1e-4, and 0.03 to train a kernel on own data"
    )
    scale: str = word(
        SCALES,
        "unit of lambda; absolute: 1, as in papers; mean_diagonal: mean of the Gram matrix's diagonal; "
        "centered: the same for the centred Gram matrix",
        default="centered",
    )
    selection: str = word(
        ("auto", "fixed", *CHOSEN, "trained"),
        "fixed: lambda is value; validation: best of candidates by cross-validation, for the initial kernel in "
        "training and for each kernel in evaluation; leave_one_out: likewise by leave-one-out errors, in folds where "
        "the points do not fit in memory; "
        "backtest: by forecasts within the training series; trained: with "
        "the kernel, by objective nll, loo, loo_likelihood, crps, gcv or rho_prediction with form=held_out; "
        "auto: fixed, and for own data "
        "without a value trained where the objective allows it, and leave_one_out in evaluation",
    )
    candidates: list[float] | None = ranged(
        None,
        "a list of numbers > 0",
        lambda v: len(v) > 0 and all(isinstance(x, float) and x > 0 for x in v),
        "values of lambda from which validation and leave_one_out choose, in units of scale",
        null="1e-8 to 1 by factors of 10, for own data a finer list from 1e-11 to 100",
    )
    folds: int = number(
        5, "whole >= 2", "number of folds into which validation splits the training points; of series, blocks in time"
    )
    points: int | None = number(
        1000,
        "whole >= 4",
        "number of training points used in validation and leave_one_out, drawn at random; null uses all",
        null="all training points",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selection == "trained" and self.value == 0:
            raise FieldError("value", self.value, "a number > 0 to start from with selection=trained")
        if self.points is not None and self.points < 2 * self.folds:
            raise FieldError("points", self.points, f"at least twice folds={self.folds}")

    def settled(self, config: ConfigView) -> Settings:
        changes: Settings = {}
        if self.selection == "auto":
            changes["selection"] = self._selection(config)
        if self.value is None:
            is_trained = self.selection == "trained" and config.dataset.is_own
            starts_large = is_trained or self.leaves_choice_to_evaluation(config)
            changes["value"] = _IN_TRAINING if starts_large else _USUAL
        if self.candidates is None:
            changes["candidates"] = list(self._usual(config))
        return changes

    def _usual(self, config: ConfigView) -> Sequence[float]:
        if config.dataset.is_series:
            return (*BACKTESTED, 10.0, 100.0)
        return BACKTESTED if self.is_free_of_noise(config) else _CLOSER if config.dataset.is_own else _CANDIDATES

    @staticmethod
    def is_free_of_noise(config: ConfigView) -> bool:
        """Whether the targets hold no noise, so that λ may be as small as rounding allows."""
        return bool(config.dataset.is_series or config.dataset.is_simulated or config.outputs.of_components)

    def _selection(self, config: ConfigView) -> str:
        """How λ is chosen if the config does not say."""
        if not self._is_free(config):
            return "fixed"
        if not self.leaves_choice_to_evaluation(config):
            return left_out_by(config)
        trains = config.objective.trains_regularization and not config.optimizer.refuses_trained_regularization()
        return "trained" if trains else "fixed"

    def _is_free(self, config: ConfigView) -> bool:
        """Whether λ is for kfx to choose."""
        fits_own = config.objective.has_head or config.optimizer.fits_regularization
        return self.value is None and config.dataset.is_own and not fits_own

    def leaves_choice_to_evaluation(self, config: ConfigView) -> bool:
        """Whether training starts with a usual λ or keeps it, and the evaluation chooses one for each kernel.

        A flow keeps the λ of its initial kernel, since it moves points by their own targets; so does what is followed.
        """
        kept = config.optimizer.moves_points or config.follow.every + config.follow.last > 0
        return self.selection == "auto" and self._is_free(config) and not kept

    def build(self) -> Regularization:
        from kfx.numerics.regularization import Regularization

        return Regularization(_USUAL if self.value is None else self.value, self.scale)

    def selected(self, how: str | None = None, scale: str | None = None) -> Selection:
        """Return how λ is decided for initial kernels.

        how, scale: a way and a unit in place of the section's own, with the same candidates.
        """
        from kfx.numerics.regularization import Regularization
        from kfx.objectives.selection import Selection

        by, start = how or self.selection, self.build().value
        values = self.candidates or _CANDIDATES if by in CHOSEN else [start]
        unit = scale or self.scale
        return Selection(by, [Regularization(float(value), unit) for value in values], self.folds, self.points)

    def left_out(self, config: ConfigView) -> Selection:
        """Return the choice of λ by points that are left out, or by forecasts, with which kernels are compared."""
        return self.selected(left_out_by(config))

    def check(self, config: ConfigView) -> None:
        if self.selection != "trained":
            return
        if not config.objective.trains_regularization:
            raise ConfigError(
                f"regularization.selection=trained: objective {config.objective.name} rewards a larger λ as such (rho "
                "→ 1 − p as λ → ∞, whatever the kernel); use objective=nll, loo, loo_likelihood, crps "
                "or gcv, or selection=validation"
            )
        if reason := config.optimizer.refuses_trained_regularization():
            raise ConfigError(f"{reason}")
