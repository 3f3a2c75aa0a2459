"""Choose λ by k-fold cross-validation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.numerics.linear_algebra import cholesky, solve_lower, solve_upper
from kfx.numerics.regularization import Regularization
from kfx.outcomes import Event, NumericalError


def choose_regularization(
    kernel: Kernel,
    x: torch.Tensor,
    y: torch.Tensor,
    candidates: Sequence[Regularization],
    folds: int,
    points: int | None,
    rng: np.random.Generator,
) -> Regularization:
    """The candidate with the smallest mean squared error over `folds` random folds of at most `points` points.

    One Gram matrix serves all folds and candidates. A candidate whose matrix has no Cholesky factor is out;
    NumericalError if none is left.
    """
    order = torch.as_tensor(rng.permutation(len(x))[:points], device=x.device)
    gram, targets = kernel.gram(x[order]), y[order].to(torch.float64)
    errors = [0.0] * len(candidates)
    for held in np.array_split(np.arange(len(order)), folds):
        rest = np.setdiff1d(np.arange(len(order)), held)
        inner, cross = gram[rest][:, rest], gram[held][:, rest].to(torch.float64)
        for i, candidate in enumerate(candidates):
            try:
                factor = cholesky(inner, candidate.of(inner))
            except NumericalError:
                errors[i] = math.inf
                continue
            prediction = cross @ solve_upper(factor, solve_lower(factor, targets[rest]))
            errors[i] += float((prediction - targets[held]).square().sum())
    if not math.isfinite(min(errors)):
        raise NumericalError(Event.NOT_POSITIVE_DEFINITE, "no candidate of regularization.candidates can be factored")
    return candidates[int(np.argmin(errors))]
