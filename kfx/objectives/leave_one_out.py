"""Criteria of points that are left out: the regression on all other points predicts each of them, in closed form."""

from __future__ import annotations

import math

import torch

from kfx.numerics.arrays import Array
from kfx.numerics.linear_algebra import cholesky
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import objective
from kfx.objectives.likelihood import require_scale
from kfx.objectives.problem import Gram, Problem, pose
from kfx.outcomes import Event, NumericalError


@objective("", "Rasmussen & Williams 2006, eq. 5.12")
def loo(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
    form: str = "batch",
    folds: int | None = None,
) -> tuple[float, Array | None]:
    """Leave-one-out error, or that of cross-validation in folds: the mean of e² over points and outputs.

    With C = A⁻¹, A = Θ + λI, e_i = (CY)_i / C_ii is the error at x_i of the regression on all other points (Rasmussen &
    Williams 2006, eq. 5.12), and e_B = C_BB⁻¹ (CY)_B are those at a fold B (Ginsbourger & Schärer 2021).
    form: `batch`, all points count, and the sample is ignored; `held_out`, those outside of it alone, each left out of
    the whole batch (the loss of KernelFlows.jl, ρ_RMSE).
    folds: k ≥ 2, point i of the batch in fold i mod k, so that k ≥ N leaves out one point at a time; as None does.
    gram: (N, N). y: (N,) or (N, outputs). G: (N, N). ValueError for k < 2, and for folds with `held_out`.
    Other arguments and errors: see `Objective`.
    """
    problem = pose(gram, y, sample_size, regularization)
    if folds is not None:
        return _in_folds(problem, folds, form, cotangent)
    left = _LeftOut(problem)
    error, share = left.error, 1.0
    if form == "held_out":
        counted = torch.arange(len(error), device=error.device) >= sample_size
        error, share = error * counted[:, None], len(error) / (len(error) - sample_size)
    value = share * float(error.square().mean())
    return value, left.pull(error * (2 * share / error.numel())) if cotangent else None


@objective("−log p(Y) by leave-one-out", "Rasmussen & Williams 2006, eq. 5.11")
def loo_likelihood(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
    scale: str = "one",
) -> tuple[float, Array | None]:
    """Negative log predictive density −Σ_i log N(y_i; y_i − e_i, s / C_ii) of points left out one at a time.

    e_i and C as for `loo` (Rasmussen & Williams 2006, eq. 5.10 to 5.12), outputs independent. The sample is ignored.
    scale: `one`, s = 1; `profiled`, the s that minimises the value, the mean of e_i² C_ii, so that the kernel's scale
    does not matter.
    gram: (N, N). y: (N,) or (N, outputs). G: (N, N). Other arguments and errors: see `Objective`.
    """
    left = _LeftOut(pose(gram, y, sample_size, regularization), scale)
    n, outputs = left.error.shape
    value = 0.5 * (left.energy / left.s).sum() + 0.5 * outputs * (
        n * math.log(2 * math.pi * left.s) - left.own.log().sum()
    )
    value -= outputs * left.problem.log_roots()
    if not cotangent:
        return float(value), None
    to_own = 0.5 * (left.error.square().sum(dim=1, keepdim=True) / left.s - outputs / left.own)
    return float(value), left.pull(left.error * left.own / left.s, to_own)


@objective("CRPS", "Gneiting & Raftery 2007, eq. 21")
def crps(
    gram: Gram,
    y: Array,
    sample_size: int,
    regularization: float | Regularization = 1e-4,
    cotangent: bool = True,
    scale: str = "one",
) -> tuple[float, Array | None]:
    """Mean continuous ranked probability score of the leave-one-out predictions N(y_i − e_i, s / C_ii).

    σ (z (2Φ(z) − 1) + 2φ(z) − 1/√π), σ² = s / C_ii, z = e_i / σ (Gneiting & Raftery 2007, eq. 21): the unit of y, and
    linear in large errors, which it forgives more than a likelihood does. e_i, C and `scale` as for `loo_likelihood`.
    gram: (N, N). y: (N,) or (N, outputs). G: (N, N). Other arguments and errors: see `Objective`.
    """
    left = _LeftOut(pose(gram, y, sample_size, regularization), scale)
    deviation = (left.s / left.own).sqrt()
    z = left.error / deviation
    to_error = 2 * torch.special.ndtr(z) - 1
    to_deviation = math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()) - 1 / math.sqrt(math.pi)
    count, each = z.numel(), left.error * to_error + deviation * to_deviation
    if (roots := left.problem.roots) is not None:  # the score of √w y is √w times that of y, which counts w times
        to_error, to_deviation, each = roots * to_error, roots * to_deviation, roots * each
    value = float(each.mean())
    if not cotangent:
        return value, None
    to_error, to_log_variance = to_error / count, 0.5 * deviation * to_deviation.sum(dim=1, keepdim=True) / count
    to_own = -to_log_variance / left.own
    if scale == "profiled":  # s, the mean of e² C_ii, depends on both
        to_s = to_log_variance.sum() / left.s / count
        to_error = to_error + 2 * to_s * left.error * left.own
        to_own = to_own + to_s * left.error.square().sum(dim=1, keepdim=True)
    return value, left.pull(to_error, to_own)


def errors(gram: Gram, y: Array, regularization: float | Regularization = 1e-4) -> torch.Tensor:
    """Return e, (N, outputs): each target minus its prediction by the regression on all other points.

    gram: (N, N). y: (N,) or (N, outputs). regularization: λ. Errors as for `rho`.
    """
    return _LeftOut(pose(gram, y, 1, regularization)).error


class _LeftOut:
    """e, (N, outputs), C_ii, (N, 1), e_i² C_ii, and the scale s of the variances s / C_ii."""

    def __init__(self, problem: Problem, scale: str = "one") -> None:
        require_scale(scale)
        self.problem, self.own = problem, problem.inverse.diagonal()[:, None]
        self.error = problem.y_hat / self.own
        self.energy = self.error.square() * self.own
        self.s = 1.0 if scale == "one" else float(self.energy.mean())
        if not self.s > 0:
            raise NumericalError(Event.DIVERGED, "every target of the batch is zero, so the profiled scale is zero")

    def pull(self, to_error: torch.Tensor, to_own: torch.Tensor | float = 0.0) -> Array:
        """Return G, (N, N), from the derivatives with respect to e, (N, outputs), and C_ii, (N, 1), for fixed e."""
        to_y_hat = to_error / self.own
        to_own = to_own - (to_y_hat * self.error).sum(dim=1, keepdim=True)
        return _pulled(self.problem, to_y_hat, self.problem.inverse * to_own.mT)


def _in_folds(problem: Problem, folds: int, form: str, cotangent: bool) -> tuple[float, Array | None]:
    if form != "batch" or folds < 2:
        raise ValueError(f"folds={folds}, form={form}: expected folds >= 2, and form=batch")
    inverse, error = problem.inverse, torch.empty_like(problem.y)
    to_y_hat, to_inverse = torch.empty_like(error), torch.zeros_like(inverse)
    for i in range(min(folds, len(error))):
        factor = cholesky(inverse[i::folds, i::folds], 0.0)
        error[i::folds] = torch.cholesky_solve(problem.y_hat[i::folds], factor)
        if cotangent:
            to_y_hat[i::folds] = torch.cholesky_solve(error[i::folds] * (2 / error.numel()), factor)
            to_inverse[i::folds, i::folds] = -to_y_hat[i::folds] @ error[i::folds].mT
    value = float(error.square().mean())
    return value, _pulled(problem, to_y_hat, inverse @ to_inverse) if cotangent else None


def _pulled(problem: Problem, to_y_hat: torch.Tensor, half: torch.Tensor) -> Array:
    """G, (N, N). to_y_hat: cotangent of Ŷ, (N, outputs). half: C H for the cotangent H of C, (N, N).

    dŶ = −C dA Ŷ and dC = −C dA C.
    """
    return problem.cotangent(-(problem.inverse @ to_y_hat) @ problem.y_hat.mT - half @ problem.inverse)
