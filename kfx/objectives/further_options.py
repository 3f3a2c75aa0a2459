"""Options of all objectives of a Gram matrix but ρ."""

from __future__ import annotations

from kfx.config.fields import FieldError, number, word
from kfx.config.option import option
from kfx.objectives.options import Named


@option(
    "objective",
    "rho_polarized",
    "rho of regularized interpolants, without assuming that they interpolate exactly (later public code)",
)
class RhoPolarizedOption(Named):
    symbol = "polarized ρ"
    compares_norms = True


@option(
    "objective", "rho_prediction", "rho from the sample's predictions at the batch's points (Khalid 2022, Algorithm 4)"
)
class RhoPredictionOption(Named):
    symbol = "prediction ρ"

    form: str = word(
        "relative_error | held_out | consistent | printed",
        "predictions S; relative_error: |Y - S|^2 / |Y|^2; held_out: the same over points outside the sample "
        "alone; consistent: 1 - |S|^2 / |Y|^2; printed: 1 - |S|^2 / Y'A^-1Y",
    )

    @property
    def trains_regularization(self) -> bool:  # type: ignore[override]
        return self.form == "held_out"


@option(
    "objective",
    "interpolation_error",
    "Sum of squared errors of the sample's predictions at the batch's points (Owhadi & Yoo 2019, section 8.5)",
)
class InterpolationErrorOption(Named):
    symbol = "e₂"
    is_sum = True


@option(
    "objective",
    "nll",
    "Negative log marginal likelihood of the batch, or of its points outside the sample, given the sample",
)
class NLLOption(Named):
    symbol = "−log p(Y)"
    trains_regularization = is_sum = True
    implied = {"form": "batch"}  # noqa: RUF012

    scale: str = word(
        "one | profiled",
        "scale factor of the covariance: 1, or profiled: its maximum-likelihood value, in closed form",
        default="profiled",
    )
    form: str = word(
        "batch | held_out", "likelihood of the batch, or held_out: of its points outside the sample, given the sample"
    )


@option("objective", "loo", "Leave-one-out error of the batch, or that of cross-validation in folds, in closed form")
class LOOOption(Named):
    trains_regularization = True
    implied = {"form": "batch", "folds": None}  # noqa: RUF012

    form: str = word(
        "batch | held_out",
        "points whose errors count; batch: all; held_out: those outside the sample, as KernelFlows.jl",
    )
    folds: int | None = number(
        None,
        "whole >= 2",
        "number of folds, each left out whole; point i of a batch is in fold i mod folds",
        null="one point at a time",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folds is not None and self.form == "held_out":
            raise FieldError("folds", self.folds, "null with form=held_out, which leaves out one point at a time")


@option(
    "objective",
    "loo_likelihood",
    "Negative log density of points left out one at a time, in closed form (Rasmussen & Williams 2006, eq. 5.11)",
)
class LOOLikelihoodOption(Named):
    symbol = "−log p(Y) by leave-one-out"
    trains_regularization = is_sum = True

    scale: str = word(
        "one | profiled",
        "scale factor of the covariance: 1, or profiled: the one of the highest density, in closed form",
        default="profiled",
    )


@option(
    "objective",
    "crps",
    "Mean continuous ranked probability score of points left out one at a time (Gneiting & Raftery 2007, eq. 21)",
)
class CRPSOption(LOOLikelihoodOption):
    symbol = "CRPS"
    is_sum = False


@option(
    "objective",
    "alignment",
    "One minus the centred alignment of kernel and targets (Cortes et al. 2012); lambda and the sample are ignored",
)
class AlignmentOption(Named):
    symbol = "1 − alignment"
    takes_weights = False


@option(
    "objective", "gcv", "Generalized cross-validation of the batch, N |A^-1 Y|^2 / (tr A^-1)^2; the sample is ignored"
)
class GCVOption(Named):
    symbol = "GCV"
    trains_regularization = True
