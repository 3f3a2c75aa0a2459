"""Options of the groups `objective` and `regularization`."""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from kfx.config.choices import SCALES
from kfx.config.fields import FieldError, number, one_of, ranged
from kfx.config.option import ConfigView, Option, option, section
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from kfx.kernels.base import Kernel
    from kfx.numerics.regularization import Regularization
    from kfx.objectives.base import Function, Objective


@dataclass
class ObjectiveOption(Option, abc.ABC):
    """Base of the objective options. A subclass has a field for each setting, and `build`."""

    trains_regularization: ClassVar[bool] = False
    """Whether λ may be trained on this objective; most objectives reward a larger λ as such."""

    has_head: ClassVar[bool] = False
    """Whether the objective trains a head, for example on a network's features, that predicts as well as the kernel."""

    compares_norms: ClassVar[bool] = False
    """Whether it compares norms of interpolants; it then depends strongly on a constant in the targets, and rewards a
    large λ."""

    is_of_deep_kernels: ClassVar[bool] = False
    """Whether the objective is for deep kernel machines, which take no other objective."""

    def columns(self, kernel: Kernel) -> tuple[str, ...]:
        """Return the objective's own columns of the trace; none by default."""
        return ()

    def recorded(self, kernel: Kernel, values: Mapping[str, object]) -> Kernel:
        """Return the kernel as `start` returned it, with parameters read from a record; the kernel itself by default.

        values: the recorded parameters by name. They fix the shapes of the objective's own parameters.
        """
        return kernel

    def start(self, kernel: Kernel, x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator) -> Kernel:
        """Return the kernel to fit, with the objective's own parameters added; the kernel itself by default.

        x: training points, (n, …). y: targets, (n, outputs). rng: draws initial values.
        """
        return kernel

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        """Raise ConfigError where the objective cannot be computed for the kernel as built."""

    def own_loss(self, config: ConfigView) -> Callable[..., Any] | None:
        """Return the class of loss, called with a kernel, x and y, of an objective that is not a function of a Gram
        matrix; None by default."""
        return None

    @abc.abstractmethod
    def build(self) -> Objective | Function:
        """Return the objective, or a function `(gram, y, sample_size, regularization, cotangent=True) → value, G`."""


@dataclass
class HeadOption(ObjectiveOption):
    """Base of objectives that train a kernel's head on classes and are not functions of a Gram matrix.

    A subclass writes `own_loss`, `start` and `recorded`.
    """

    has_head = True

    def build(self) -> Objective:
        raise TypeError(f"objective={self.name} is not a function of a Gram matrix: see own_loss")

    def check(self, config: ConfigView) -> None:
        if not config.dataset.has_classes:
            raise ConfigError(f"objective={self.name}: dataset {config.dataset.name} has no classes; use rho")
        if config.sampler.follows_rho or config.sampler.samples > 1:
            raise ConfigError(
                f"objective={self.name}: has one sample a batch, of the same size; use sampler=fixed or epochs, and "
                "sampler.samples=1"
            )
        if config.kernel.starts > 1 or config.kernel.trainable is not None:
            raise ConfigError(
                f"objective={self.name}: trains all parameters; leave kernel.starts and kernel.trainable out"
            )

    def require_classes(self, y: torch.Tensor) -> None:
        """Raise ConfigError where targets, (n, outputs), have one output."""
        if y.shape[1] == 1:
            raise ConfigError(f"objective={self.name}: takes one output for each class; these targets are ±1, use rho")


@dataclass
class _Named(ObjectiveOption):
    """An option for the function of the same name in `kfx.objectives`; the fields are its keywords."""

    def build(self) -> Objective:
        objective: Objective = getattr(importlib.import_module("kfx.objectives"), self.name)
        settings = {item.name: getattr(self, item.name) for item in fields(self)}
        return objective.with_settings(**settings) if settings else objective


@option("objective", "rho", "Relative error of the sample's interpolant in the RKHS norm (Owhadi & Yoo 2019, eq. 3.4)")
class RhoOption(ObjectiveOption):
    symbol = "ρ"
    compares_norms = True

    solver: str = one_of(
        "cholesky",
        "cholesky",
        "inverse",
        meaning="inverse: by explicit inverses in the kernel's dtype, to repeat published runs; rho may leave [0, 1]",
    )

    def build(self) -> Objective:
        from kfx.objectives import rho
        from kfx.objectives.by_inverse import rho_by_inverse

        return rho if self.solver == "cholesky" else rho_by_inverse


@option(
    "objective",
    "rho_polarized",
    "rho of regularized interpolants, without assuming that they interpolate exactly (later public code)",
)
class RhoPolarizedOption(_Named):
    symbol = "polarized ρ"
    compares_norms = True


@option(
    "objective", "rho_prediction", "rho from the sample's predictions at the batch's points (Khalid 2022, Algorithm 4)"
)
class RhoPredictionOption(_Named):
    symbol = "prediction ρ"

    form: str = one_of(
        "relative_error",
        "relative_error",
        "consistent",
        "printed",
        meaning="predictions S; relative_error: |Y - S|^2 / |Y|^2; consistent: 1 - |S|^2 / |Y|^2; "
        "printed: 1 - |S|^2 / Y'A^-1Y",
    )


@option(
    "objective",
    "interpolation_error",
    "Sum of squared errors of the sample's predictions at the batch's points (Owhadi & Yoo 2019, section 8.5)",
)
class InterpolationErrorOption(_Named):
    symbol = "e₂"


@option("objective", "nll", "Negative log marginal likelihood of the batch; the sample is ignored")
class NLLOption(_Named):
    symbol = "−log p(Y)"
    trains_regularization = True

    scale: str = one_of(
        "one",
        "one",
        "profiled",
        meaning="scale factor of the covariance: 1, or profiled: its maximum-likelihood value, in closed form",
    )


@option("objective", "loo", "Leave-one-out error of the batch, in closed form; the sample is ignored")
class LOOOption(_Named):
    trains_regularization = True


@option(
    "objective",
    "gcv",
    "Generalized cross-validation of the batch, N |A^-1 Y|^2 / (tr A^-1)^2; the sample is ignored",
)
class GCVOption(_Named):
    symbol = "GCV"
    trains_regularization = True


# ---- λ


@section("regularization", "lambda, added to the diagonal of Gram matrices")
class RegularizationSection(Option):
    value: float = number(1e-4, ">= 0", "lambda, in units of scale")
    scale: str = one_of(
        "centered",
        *SCALES,
        meaning="unit of lambda; absolute: 1, as in papers; mean_diagonal: mean of the Gram matrix's diagonal; "
        "centered: the same for the centred Gram matrix",
    )
    selection: str = one_of(
        "fixed",
        "fixed",
        "validation",
        "trained",
        meaning="validation: best of candidates by cross-validation, for the initial kernel in training and for each "
        "kernel in evaluation; trained: with the kernel, by objective nll, loo or gcv",
    )
    candidates: list[float] = ranged(
        [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0],
        "a list of numbers > 0",
        lambda v: len(v) > 0 and all(isinstance(x, float) and x > 0 for x in v),
        "values of lambda from which validation chooses, in units of scale",
    )
    folds: int = number(5, "whole >= 2", "number of folds into which validation splits the training points")
    points: int | None = number(
        1000,
        "whole >= 4",
        "number of training points used in validation, drawn at random; null uses all",
        null="all training points",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selection == "trained" and self.value == 0:
            raise FieldError("value", self.value, "a number > 0 to start from with selection=trained")
        if self.points is not None and self.points < 2 * self.folds:
            raise FieldError("points", self.points, f"at least twice folds={self.folds}")

    def build(self) -> Regularization:
        from kfx.numerics.regularization import Regularization

        return Regularization(self.value, self.scale)

    def choices(self, scale: str | None = None) -> list[Regularization]:
        """Return the candidates of `selection=validation`, in the given scale or the section's own."""
        from kfx.numerics.regularization import Regularization

        return [Regularization(float(value), scale or self.scale) for value in self.candidates]

    def check(self, config: ConfigView) -> None:
        if self.selection != "trained":
            return
        if not config.objective.trains_regularization:
            raise ConfigError(
                f"regularization.selection=trained: objective {config.objective.name} rewards a larger λ as such (rho "
                "→ 1 − p as λ → ∞, whatever the kernel); use objective=nll, loo or gcv, or selection=validation"
            )
        if reason := config.optimizer.refuses_trained_regularization():
            raise ConfigError(f"{reason}")
