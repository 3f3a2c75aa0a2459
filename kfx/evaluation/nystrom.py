"""Kernel ridge regression through centres, from one pass over the training points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add

import numpy as np
import torch

from kfx.evaluation.centres import chosen_centres
from kfx.evaluation.disk_stores import DiskStores, held
from kfx.evaluation.interpolants import Computed, Interpolant, ThroughCentres
from kfx.kernels.base import Kernel
from kfx.kernels.regularized import bare
from kfx.numerics.arrays import digests
from kfx.numerics.nystrom import Centres, Nystrom
from kfx.numerics.regularization import Regularization
from kfx.store.identity import Identity, digest, hashed
from kfx.store.sums_store import SumsStore, SumsWork, tile_for

_FOLDS = 5
_TEST_BLOCK = 512
_CALIBRATED = 2000
"""Training points that are predicted without themselves, for the deviations' scale and for probabilities."""
_FEWEST = 10
"""Points that are no centres, to tell the scale; if they would be fewer, all points are centres."""


@dataclass(frozen=True)
class Approximation:
    """Settings of Nyström regression.

    centres: their number. choose: how they are chosen, and regularization: λ by which they flow
    (`kfx.evaluation.centres`).
    """

    centres: int
    choose: str = "rpcholesky"
    regularization: Regularization = field(default_factory=Regularization)
    seed: int = 0

    @property
    def left_out(self) -> range:
        """The folds that choose λ and the scale. Centres that flow move by the targets of all points but those."""
        return range(1) if self.choose == "flow" else range(_FOLDS)


@dataclass(frozen=True)
class Pass:
    """What one pass over the training points gives. store: the points, their targets and their sums, on disk."""

    centres: Centres
    nystrom: Nystrom
    store: SumsStore


@contextmanager
def passed(kernel: Kernel, x: torch.Tensor, y: torch.Tensor, how: Approximation, disk: DiskStores) -> Iterator[Pass]:
    """Yield the sums over all training points; a pass that an earlier process began is continued.

    x: points, (n, …). y: (n, outputs).
    """
    mapped, compare = bare(kernel).feature_map_and_kernel()
    count = how.centres if len(x) - how.centres >= _FEWEST else len(x)
    order = np.random.default_rng(how.seed).permutation(len(x))  # so that folds are alike
    points = mapped(x)[torch.from_numpy(order)]
    targets = y[torch.from_numpy(order)].to("cpu", torch.float64)
    identity = Identity.of(compare, points)
    key: list[object] = [identity.kernel, identity.parameters, identity.settings, identity.dtype]
    key += [digest(points), digest(targets), count, how.choose, how.seed]
    if how.choose == "flow":
        key += [how.regularization.value, how.regularization.scale]
    name = hashed(key)
    folder = disk.root / f"sums-{name}"

    lanes = _FOLDS * -(-disk.processes // _FOLDS)
    tile = tile_for(len(points), lanes, count)

    def choose() -> torch.Tensor:
        rng, x, y = np.random.default_rng([how.seed, 1]), points, targets.to(points.device)
        if how.choose == "flow":
            moving = torch.from_numpy(~np.isin(_fold_of(np.arange(len(x)) // tile, lanes), how.left_out))
            x, y = x[moving], y[moving]
        return chosen_centres(compare, x, y, count, how.choose, how.regularization, rng, disk.follow)

    with held(folder):
        store = SumsStore.prepare(folder, points, targets, lanes, tile, choose, name)
        centres = Centres.of(compare, store.centres().to(points.device))
        disk.do(SumsWork(str(folder), centres, str(points.device)), "Nyström")
        folds = [partial(store.fold, fold, _FOLDS, len(centres.points)) for fold in range(_FOLDS)]
        sums = reduce(add, (fold() for fold in folds))
        spectrum = store.spectrum(sums)
        yield Pass(centres, Nystrom(folds, sums, spectrum, how.left_out), store)


def _fold_of(tiles: np.ndarray, lanes: int) -> np.ndarray:
    return tiles % lanes % _FOLDS


def solved(found: Pass, regularization: Regularization) -> ThroughCentres:
    """Solve for one λ."""
    effective, centres, nystrom = found.nystrom.sums.effective(regularization), found.centres, found.nystrom
    store, device = found.store, centres.points.device
    many = _CALIBRATED * _FOLDS // len(nystrom.left_out)
    places = np.unique(np.linspace(0, store.n - 1, min(store.n, many)).astype(np.int64))
    places = places[np.isin(_fold_of(places // store.tile, store.lanes), nystrom.left_out)]
    features, targets, prior, points = [], [], [], []
    for tile in np.unique(places // store.tile).tolist():
        rows, y = store.rows(tile)
        some = torch.from_numpy(places[places // store.tile == tile] - tile * store.tile)
        own = rows[some].to(device)
        features.append(centres.features(own).cpu())
        targets.append(y[some])
        prior.append(centres.kernel.diagonal(own).to("cpu", torch.float64))
        points.append(own)
    known = torch.cat(targets)
    errors, variance = nystrom.one_left_out(torch.cat(features, dim=1), known, torch.cat(prior), effective)
    like_new = _like_new(torch.cat(points), centres.points)
    return ThroughCentres(
        centres.points,
        centres.coefficients(nystrom.weights(effective).to(device)),
        effective,
        centres.root,
        nystrom.reduction(effective).to(device),
        (errors.square() / variance[:, None])[like_new].mean(dim=0).to(device),
        known,
        known - errors,
        {
            "centres": float(len(centres.points)),
            "unexplained": nystrom.sums.unexplained(),
            "lost": float(nystrom.spectrum.lost(effective)),
        },
    )


def _like_new(points: torch.Tensor, centres: torch.Tensor) -> np.ndarray:
    """Return which points, (k,), tell how far off new points are: those that are no centre, or all if all are.

    At a centre the variance is that of the kernel itself, and smaller than at other points.
    """
    found, known = (digests(each).view("V16")[:, 0] for each in (points, centres))
    others = ~np.isin(found, known)
    return others if others.any() else ~others


class NystromSystem:
    """The `System` of Nyström regression with all training points, whose coefficients are those of the centres.

    x_test: points, (m, …).
    """

    def __init__(self, kernel: Kernel, found: Pass, x_test: torch.Tensor) -> None:
        self._kernel, self._pass = kernel, found
        self.test = self._at(x_test)
        self._solved: dict[Regularization, ThroughCentres] = {}

    def _at(self, x: torch.Tensor) -> Computed:
        return Computed(self._kernel, x, self._pass.centres.points, _TEST_BLOCK)

    def effective(self, regularization: Regularization, size: int) -> float:
        return self._pass.nystrom.sums.effective(regularization)

    def interpolant(self, regularization: Regularization, targets: torch.Tensor) -> ThroughCentres:
        if regularization not in self._solved:
            self._solved = {regularization: solved(self._pass, regularization)}
        return self._solved[regularization]

    def fitted(self, interpolant: Interpolant, x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        return interpolant.mean(self._at(x))
