"""Choose λ by k-fold cross-validation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from kfx.evaluation.on_disk import Beyond, factored
from kfx.kernels.base import Kernel
from kfx.numerics.linear_algebra import cholesky, solve_lower, solve_upper
from kfx.numerics.regularization import Regularization
from kfx.outcomes import Event, NumericalError
from kfx.store import products
from kfx.store.gram_store import GramStore
from kfx.store.selection import Selection
from kfx.store.tiles import block_of


def choose_regularization(
    kernel: Kernel,
    x: torch.Tensor,
    y: torch.Tensor,
    candidates: Sequence[Regularization],
    folds: int,
    points: int | None,
    rng: np.random.Generator,
    beyond: Beyond | None = None,
) -> Regularization:
    """The candidate with the smallest mean squared error over `folds` random folds of at most `points` points.

    One Gram matrix serves all folds and candidates; it goes `beyond` memory where it does not fit. A candidate whose
    matrix has no Cholesky factor is out; NumericalError if none is left.
    """
    order = torch.as_tensor(rng.permutation(len(x))[:points], device=x.device)
    chosen, targets = x[order], y[order].to(torch.float64)
    if beyond is not None and beyond.takes(len(order), 0, chosen.element_size()):
        with beyond.store(kernel, chosen, None) as store:
            errors = _errors_on_disk(beyond, store, targets.cpu(), candidates, folds)
        beyond.discard()
    else:
        errors = _errors(kernel.gram(chosen), targets, candidates, folds)
    if not math.isfinite(min(errors)):
        raise NumericalError(Event.NOT_POSITIVE_DEFINITE, "no candidate of regularization.candidates can be factored")
    return candidates[int(np.argmin(errors))]


def _errors(gram: torch.Tensor, targets: torch.Tensor, candidates: Sequence[Regularization], folds: int) -> list[float]:
    """The sum of squared errors over all folds of each candidate; infinite where one has no factor."""
    errors, numbers = [0.0] * len(candidates), np.arange(len(targets))
    for held in np.array_split(numbers, folds):
        rest = np.setdiff1d(numbers, held)
        inner, cross = gram[rest][:, rest], gram[held][:, rest].to(torch.float64)
        for i, candidate in enumerate(candidates):
            try:
                factor = cholesky(inner, candidate.of(inner))
            except NumericalError:
                errors[i] = math.inf
                continue
            prediction = cross @ solve_upper(factor, solve_lower(factor, targets[rest]))
            errors[i] += float((prediction - targets[held]).square().sum())
    return errors


def _errors_on_disk(
    beyond: Beyond, store: GramStore, targets: torch.Tensor, candidates: Sequence[Regularization], folds: int
) -> list[float]:
    """The same from a store: a fold is a range of its points, and the rest are two, whose factor reads its tiles."""
    errors, n = [0.0] * len(candidates), len(store)
    diagonal, row_sums = products.diagonal(store), products.product(store, torch.ones(n, 1, dtype=torch.float64))
    for held in np.array_split(np.arange(n), folds):
        fold = slice(int(held[0]), int(held[-1]) + 1)
        rest = Selection.without(store, fold.start, fold.stop)
        inside = torch.cat([torch.arange(start, stop) for start, stop in rest.ranges])
        trace = float(diagonal[inside].sum())
        within = float(block_of(store.gram, fold, fold).sum(dtype=np.float64))
        total = float(row_sums.sum() - 2 * row_sums[fold].sum()) + within
        for i, candidate in enumerate(candidates):
            try:
                factor = factored(beyond, store, rest, candidate.of_sums(len(rest), trace, total))
            except NumericalError:
                errors[i] = math.inf
                continue
            alpha = torch.zeros_like(targets)
            alpha[inside] = factor.solve_upper(factor.solve_lower(targets[inside]))
            errors[i] += float((products.product(store, alpha)[fold] - targets[fold]).square().sum())
    return errors
