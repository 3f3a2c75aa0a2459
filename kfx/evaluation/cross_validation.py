"""Choose λ by cross-validation: in folds, or with each point left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from kfx.evaluation.disk_stores import DiskStores
from kfx.kernels.base import Kernel
from kfx.numerics.regression import coefficients
from kfx.numerics.regularization import Regularization
from kfx.numerics.weighting import of_scaled, scaled
from kfx.outcomes import Event, NumericalError

if TYPE_CHECKING:
    from kfx.config.parts import ConfigView
    from kfx.data.dataset import Dataset
    from kfx.evaluation.nystrom import Approximation

_FOLDS_ON_DISK = 5
_CONTRADICTED = 1.0
"""Nats by which the density of a point left out may be below that of a larger λ. One pair of equal points with
different targets puts a tiny λ, which may predict the others best, some nats below: their errors are thousands of
deviations."""
_FEW, _AS_GOOD = 50, 0.5
"""Of so few points errors hardly tell λ apart, and with a tiny one deviations beside a point are nearly 0: a larger λ
is as good if its error is larger by at most this share, divided by √n."""
_LEAST = 1e-14
"""The smallest reciprocal condition number with which eigenvalues have meaning."""


def has_noise(config: ConfigView, data: Dataset) -> bool:
    """Whether the targets are numbers that may hold noise."""
    return data.labels_train is None and not config.regularization.is_free_of_noise(config)


def errors_of_candidates(
    kernel: Kernel,
    x: torch.Tensor,
    y: torch.Tensor,
    candidates: Sequence[Regularization],
    folds: int | None,
    points: int | None,
    rng: np.random.Generator,
    disk: DiskStores | None = None,
    approximation: Approximation | None = None,
    *,
    in_blocks: bool = False,
    weights: np.ndarray | None = None,
    noisy: bool = False,
) -> list[float]:
    """Return the sum of squared errors of each λ over random folds of at most `points` points; infinite where its
    matrix has no Cholesky factor, and, of `noisy` targets left out one by one in memory, where the errors contradict
    the predicted variances, or, of few points, a larger λ is as good.

    folds: their number; None leaves out one point at a time, by an eigendecomposition, if the matrix fits in memory.
    x: (n, …). y: (n, outputs). points: None for all n. in_blocks: a fold is a block of successive points, as windows of
        series overlap. weights: of the points, (n,), by which squared errors count; in memory alone.
    One Gram matrix serves all folds and candidates; it goes on disk if it does not fit in memory. With an approximation
    all n points are in the five folds of its pass.
    """
    if approximation is not None:
        from kfx.evaluation.nystrom import passed

        assert disk is not None
        with passed(kernel, x, y, approximation, disk) as found:
            return found.nystrom.errors(candidates)
    some = rng.permutation(len(x))[:points]
    order = torch.as_tensor(np.sort(some) if in_blocks else some, device=x.device)
    chosen, targets = x[order], y[order].to(torch.float64)
    if disk is not None and disk.takes(len(order), 0, chosen.element_size()):
        from kfx.evaluation.cross_validation_on_disk import errors_on_disk

        return errors_on_disk(disk, kernel, chosen, targets.cpu(), candidates, folds or _FOLDS_ON_DISK)
    gram = kernel.gram(chosen)
    if weights is not None:
        roots = torch.as_tensor(weights, device=x.device)[order].sqrt()
        gram, targets = scaled(gram, roots), targets * roots[:, None]
        candidates = [of_scaled(each, roots) for each in candidates]
    if folds is not None:
        return _errors(gram, targets, candidates, folds)
    errors, densities = _left_out(gram, targets, candidates)
    if noisy:
        falling = np.argsort([-candidate.of(gram) for candidate in candidates])
        highest = np.maximum.accumulate(densities[falling])  # of a larger λ: copies of points make tiny ones look best
        errors[falling[densities[falling] < highest - _CONTRADICTED]] = math.inf
        if len(order) <= _FEW:
            values = np.array([candidate.of(gram) for candidate in candidates])
            is_as_good = errors <= errors.min() * (1 + _AS_GOOD / math.sqrt(len(order)))
            errors[values < values[is_as_good].max()] = math.inf
    return list(map(float, errors))


def least(candidates: Sequence[Regularization], errors: Sequence[float]) -> Regularization:
    """Return the candidate with the smallest error; NumericalError if no error is finite."""
    if not math.isfinite(min(errors)):
        raise NumericalError(Event.NOT_POSITIVE_DEFINITE, "no candidate of regularization.candidates can be factored")
    return candidates[int(np.argmin(errors))]


def _errors(gram: torch.Tensor, targets: torch.Tensor, candidates: Sequence[Regularization], folds: int) -> list[float]:
    """Sum of squared errors over all folds for each candidate; infinite if a fold has no Cholesky factor."""
    errors, numbers = [0.0] * len(candidates), np.arange(len(targets))
    for held in np.array_split(numbers, folds):
        rest = np.setdiff1d(numbers, held)
        inner, cross = gram[rest][:, rest], gram[held][:, rest].to(torch.float64)
        for i, candidate in enumerate(candidates):
            try:
                alpha = coefficients(
                    inner, targets[rest], candidate.at(torch.as_tensor(rest)).of(inner), in_place=False
                )
            except NumericalError:
                errors[i] = math.inf
                continue
            errors[i] += float((cross @ alpha - targets[held]).square().sum())
    return errors


def _left_out(
    gram: torch.Tensor, targets: torch.Tensor, candidates: Sequence[Regularization]
) -> tuple[np.ndarray, np.ndarray]:
    """The sum of squared leave-one-out errors of each candidate, infinite if A = Θ + λI is not positive definite, and
    the mean log density of a point left out but for a constant, with the covariance's scale that fits best.

    With Θ = QΛQᵀ, one decomposition serves all λ: e_i = (A⁻¹Y)_i / (A⁻¹)_ii, and the variance of e_i is s / (A⁻¹)_ii
    (Rasmussen & Williams 2006, eqs. 5.10 to 5.12).
    """
    values, vectors = torch.linalg.eigh(gram.to(torch.float64))
    rotated, squares = vectors.mT @ targets, vectors.square()
    errors, densities = np.full(len(candidates), math.inf), np.full(len(candidates), -math.inf)
    for i, candidate in enumerate(candidates):
        shifted = values + candidate.of(gram)
        if float(shifted[0]) <= _LEAST * float(shifted[-1]):
            continue
        diagonal = (squares @ (1 / shifted))[:, None]
        found = ((vectors @ (rotated / shifted[:, None])) / diagonal).square()
        scale = (found * diagonal).mean(dim=0)
        errors[i], densities[i] = float(found.sum()), float(diagonal.log().mean() - scale.log().mean()) / 2
    return errors, densities
