"""Objectives that compare the sample's predictions at the batch's points with the targets, without RKHS norms."""

from __future__ import annotations

from kfx.numerics.arrays import Array
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import objective
from kfx.objectives.problem import Gram, SamplePrediction, pose
from kfx.outcomes import Event, NumericalError

FORMS = ("relative_error", "held_out", "consistent", "printed")


@objective("prediction ρ", "Khalid 2022, Algorithm 4", is_ratio=True)
def rho_prediction(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
    form: str = "relative_error",
) -> tuple[float, Array | None]:
    """Relative error of the sample's predictions S at the batch's points, (N_f, outputs) (Khalid 2022, Algorithm 4).

    form: `relative_error`  ‖Y − S‖² / ‖Y‖² ≥ 0.
          `held_out`        mean square of Y − S over the points outside the sample, over that of Y: cross-validation
                            in two parts. It is a function of A = Θ + λI, so λ can be trained on it.
          `consistent`      1 − ‖S‖² / ‖Y‖². Unbounded below: predictions that overshoot are rewarded.
          `printed`         1 − ‖S‖² / (YᵀA⁻¹Y), the algorithm as printed. It divides a Euclidean norm by a kernel
                            norm, so it changes with the kernel's scale; unbounded below.
    gram: (N_f, N_f). y: (N_f,) or (N_f, outputs). G: (N_f, N_f). Other arguments and errors: see `Objective`.
    """
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    problem = pose(gram, y, sample_size, regularization)
    first = sample_size if form == "held_out" else 0
    size = float(((problem.y_hat if form == "printed" else problem.y) * problem.y).sum()) * (1 - first / len(problem.y))
    prediction = SamplePrediction(problem)
    if not size > 0:
        raise NumericalError(Event.DIVERGED, "every target of the batch is zero, so rho_prediction is 0/0")
    is_error = form in ("relative_error", "held_out")
    error = prediction.value - problem.y if is_error else prediction.value
    error[:first] = 0.0
    sign, ratio = (1.0 if is_error else -1.0), float(error.square().sum()) / size
    value = ratio if is_error else 1 - ratio
    if not cotangent:
        return value, None
    to_a, to_theta = prediction.pull(error * (2 * sign / size))
    if form == "printed":
        to_a -= ratio / size * (problem.y_hat @ problem.y_hat.mT)
    return value, problem.cotangent(to_a, to_theta)


@objective("e₂", "Owhadi & Yoo 2019, section 8.5")
def interpolation_error(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
) -> tuple[float, Array | None]:
    """e₂ = Σ_i ‖Y_i − S_i‖² over the batch's points, S the sample's predictions there, (N_f, outputs).

    It is a sum, as in Owhadi & Yoo 2019, §8.5, and Darcy 2020, eq. 2.3. Owhadi & Yoo's eq. 10.2 is 2/N_f times this
    sum: on a batch it has the same minimum and other gradient lengths.
    gram: (N_f, N_f). y: (N_f,) or (N_f, outputs). G: (N_f, N_f). Other arguments and errors: see `Objective`.
    """
    problem = pose(gram, y, sample_size, regularization)
    prediction = SamplePrediction(problem)
    error = prediction.value - problem.y
    value = float(error.square().sum())
    return value, problem.cotangent(*prediction.pull(2 * error)) if cotangent else None
