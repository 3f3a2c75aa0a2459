"""Choose λ by cross-validation in folds with a Gram matrix that does not fit in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np
import torch

from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.on_disk import factored
from kfx.kernels.base import Kernel
from kfx.numerics.regularization import Regularization
from kfx.outcomes import NumericalError
from kfx.store import products
from kfx.store.gram_store import GramStore
from kfx.store.identity import Identity, digest
from kfx.store.selection import Selection
from kfx.store.tiles import block_of


def errors_on_disk(
    disk: DiskStores,
    kernel: Kernel,
    points: torch.Tensor,
    targets: torch.Tensor,
    candidates: Sequence[Regularization],
    folds: int,
) -> list[float]:
    """Return the sum of squared errors of each λ over folds of successive points, as `errors_of_candidates` does.

    points: (n, …). targets: (n, outputs), float64. The store is opened only for errors that are not known yet.
    """
    n, errors = len(targets), [0.0] * len(candidates)
    identity = Identity.of(kernel, points)
    common = [digest(points), digest(targets)]
    with ExitStack() as held:
        stored: _Stored | None = None

        def error_of(fold: slice, candidate: Regularization) -> float:
            nonlocal stored
            if stored is None:
                stored = _Stored(disk, held.enter_context(disk.store(kernel, points, None)), targets)
            return stored.error_without(fold, candidate)

        for part in np.array_split(np.arange(n), folds):
            fold = slice(int(part[0]), int(part[-1]) + 1)
            for i, candidate in enumerate(candidates):
                key = [*common, fold.start, fold.stop, candidate.value, candidate.scale]
                errors[i] += disk.known(key, identity, partial(error_of, fold, candidate))
    disk.discard()
    return errors


class _Stored:
    """A Gram matrix on disk, from which one fold after another is left out."""

    def __init__(self, disk: DiskStores, store: GramStore, targets: torch.Tensor) -> None:
        self._disk, self._store, self._targets, n = disk, store, targets, len(targets)
        self._diagonal = products.diagonal(store)[:n]
        self._row_sums = products.product(store, torch.ones(n, 1, dtype=torch.float64))[:, 0]

    def error_without(self, fold: slice, candidate: Regularization) -> float:
        """Sum of squared errors on a fold, predicted from the other points; infinite without a Cholesky factor."""
        rest = Selection.without(self._store, fold, len(self._targets))
        inside = torch.cat([torch.arange(start, stop) for start, stop in rest.ranges])
        within = float(block_of(self._store.gram, fold, fold).sum(dtype=np.float64))
        total = float(self._row_sums.sum() - 2 * self._row_sums[fold].sum()) + within
        effective = candidate.of_sums(len(rest), float(self._diagonal[inside].sum()), total)
        try:
            factor = factored(self._disk, self._store, rest, effective)
        except NumericalError:
            return math.inf
        alpha = torch.zeros_like(self._targets)
        alpha[inside] = factor.solve_upper(factor.solve_lower(self._targets[inside]))
        return float((products.product(self._store, alpha)[fold] - self._targets[fold]).square().sum())
