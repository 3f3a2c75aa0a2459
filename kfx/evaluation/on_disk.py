"""Linear systems of kernel ridge regression whose Gram matrices do not fit in memory; they lie in a store."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.interpolants import Covariances, Interpolant
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import in_numpy
from kfx.numerics.conjugate_gradients import solve
from kfx.numerics.incidents import report_jitter
from kfx.numerics.linear_algebra import jitters
from kfx.numerics.regularization import Regularization
from kfx.outcomes import Event, NumericalError
from kfx.store import products, sealed
from kfx.store.factor_store import FactorStore, FactorWork
from kfx.store.gram_store import GramStore
from kfx.store.identity import digest, hashed
from kfx.store.selection import Selection
from kfx.store.tiles import block_of

_SECONDS_BETWEEN_SAVES = 60.0
_AT_ONCE = 32


class OnDisk:
    """The `System` of a store whose Gram matrix is complete.

    x_test: the points, (m, …), whose covariances are in the store. largest: the largest number of leading points that
    will be asked for. solver: `cholesky`, or `conjugate_gradients` up to a relative residual of `tolerance`.
    """

    def __init__(
        self,
        store: GramStore,
        disk: DiskStores,
        kernel: Kernel,
        x_test: torch.Tensor,
        largest: int,
        solver: str,
        tolerance: float,
    ) -> None:
        self._store, self._disk, self._kernel, self._largest = store, disk, kernel, largest
        self._solver, self._tolerance, self._device = solver, tolerance, x_test.device
        self.test = _OfTestPoints(kernel, x_test, store, disk.memory)
        self._sums: dict[int, tuple[float, float]] = {}
        self._factor: FactorStore | None = None
        self._own_factors: set[float] = set()

    def effective(self, regularization: Regularization, size: int) -> float:
        if regularization.scale == "absolute":
            return regularization.value
        if size not in self._sums:
            self._sums[size] = float(products.diagonal(self._store)[:size].sum()), products.total(self._store, size)
        return regularization.of_sums(size, *self._sums[size])

    def interpolant(self, regularization: Regularization, targets: torch.Tensor) -> Stored:
        """α is kept in the store with its jitter, so that a resumed run finds it."""
        y, effective = targets.to("cpu", torch.float64), self.effective(regularization, len(targets))
        key = hashed([len(y), effective, self._solver, self._tolerance, digest(y)])
        path = self._store.folder / "solutions" / f"{key}.npz"
        owner = hashed([self._store.belongs_to, key])
        found = sealed.read(path, owner)
        factor = partial(self._factored, regularization, len(y))
        if found is None:
            found = self._solved(factor, y, effective, path.with_suffix(".part.npz"), f"{owner} half done")
            sealed.write(path, owner, found)
        if jitter := float(found["jitter"]):
            report_jitter(jitter)
        report = {name: float(value) for name, value in found.items() if name in ("residual", "iterations")}
        return Stored(torch.from_numpy(found["alpha"]), effective, y, factor, report)

    def energies(self, regularization: Regularization, targets: torch.Tensor) -> torch.Tensor:
        factor = self._factored(regularization, len(targets))
        return factor.solve_lower(targets.to("cpu", torch.float64)).square().sum(dim=1)

    def _solved(
        self, factor: Callable[[], FactorStore], y: torch.Tensor, effective: float, half_done: Path, owner: str
    ) -> dict[str, np.ndarray]:
        if self._solver == "conjugate_gradients":
            return self._by_conjugate_gradients(y, effective, half_done, owner)
        own = factor()
        return {"alpha": in_numpy(own.solve_upper(own.solve_lower(y))), "jitter": np.array(own.jitter)}

    def _by_conjugate_gradients(
        self, y: torch.Tensor, effective: float, half_done: Path, owner: str
    ) -> dict[str, np.ndarray]:
        """Solve, starting from the last iterate that an earlier process saved."""
        saved = time.monotonic()

        def watch(iteration: int, residual: float, alpha: torch.Tensor) -> None:
            nonlocal saved
            self._disk.follow(f"conjugate gradients, step {iteration}: residual {residual:.1e}")
            if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
                sealed.write(half_done, owner, {"alpha": in_numpy(alpha), "iterations": np.array(iteration)})
                saved = time.monotonic()

        before = sealed.read(half_done, owner) or {}
        solved = solve(
            lambda v: products.product(self._store, v),
            self._entries,
            lambda points: products.columns(self._store, len(y), points),
            products.diagonal(self._store)[: len(y)],
            y,
            effective,
            self._tolerance,
            self._disk.memory,
            start=torch.from_numpy(before["alpha"]) if "alpha" in before else None,
            watch=watch,
        )
        half_done.unlink(missing_ok=True)
        iterations = solved.iterations + int(before.get("iterations", 0))
        return {
            "alpha": in_numpy(solved.alpha),
            "jitter": np.array(0.0),
            "residual": np.array(solved.residual),
            "iterations": np.array(iterations),
        }

    def _entries(self, rows: np.ndarray, columns: np.ndarray) -> torch.Tensor:
        """Θ at pairs of points, (rows, columns), computed anew, which is faster than reading their tiles."""
        points = self._points(slice(0, self._largest), self._device)
        compare = self._kernel.feature_map_and_kernel()[1]
        return compare.gram(points[torch.from_numpy(rows)], points[torch.from_numpy(columns)]).cpu()

    def _factored(self, regularization: Regularization, size: int) -> FactorStore:
        """A Cholesky factor of the first `size` points; with a jitter where needed, as in memory.

        It may be a factor of more points with the same λ and no jitter: its leading block is the factor of the leading
            points.
        """
        effective, held = self.effective(regularization, size), self._factor
        shared = regularization.scale == "absolute" and size < self._largest and effective not in self._own_factors
        same = held is not None and held.regularization == effective
        if held is not None and same and (len(held) == size or (shared and len(held) > size and not held.jitter)):
            return held
        if shared:
            with contextlib.suppress(NumericalError):
                self._factor = self._made(self._largest, effective)
                if not self._factor.jitter:
                    return self._factor
            self._own_factors.add(effective)
        self._factor = self._made(size, effective)
        return self._factor

    def _made(self, size: int, effective: float) -> FactorStore:
        return factored(self._disk, self._store, Selection.head(self._store, size), effective)

    def fitted(self, interpolant: Interpolant, x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        alpha = interpolant.alpha
        out = torch.empty(len(x), alpha.shape[1], dtype=torch.float64)
        mapped, compare = self._kernel.feature_map_and_kernel()
        diagonal, n = products.diagonal(self._store)[: len(alpha)], len(alpha)
        of_head = products.product(self._store, alpha, len(head))
        for start in range(0, n, _AT_ONCE):  # K(x, copy of x) lacks a kernel's own noise
            at = slice(start, min(start + _AT_ONCE, n))
            points = self._points(at, x.device)
            as_others = compare.gram(points, points).diagonal().to("cpu", torch.float64)
            of_head[at] += (as_others - diagonal[at])[:, None] * alpha[at]
        out[head.cpu()] = of_head
        others = np.setdiff1d(np.arange(len(x)), in_numpy(head))
        used = self._points(slice(0, n), x.device) if len(others) else None
        for block in np.array_split(others, -(-len(others) // 500)) if len(others) else ():
            out[block] = compare.gram(mapped(x[block]), used).to("cpu", torch.float64) @ alpha
        return out

    def _points(self, rows: slice, device: torch.device) -> torch.Tensor:
        return torch.from_numpy(self._store.points(rows)).to(device)


class Stored(Interpolant):
    """From all interpolation points of a store: (K + λI) α = Y. No point is left out: that would take columns of A⁻¹.

    targets: Y, (k, outputs). factor: computes L, K + λI = LLᵀ, when it is first needed.
    """

    def __init__(
        self,
        alpha: torch.Tensor,
        effective: float,
        targets: torch.Tensor,
        factor: Callable[[], FactorStore],
        report: Mapping[str, float],
    ) -> None:
        self.alpha, self.effective, self.report = alpha, effective, report
        self._targets, self._factor = targets, factor

    def half(self, cross: torch.Tensor) -> torch.Tensor:
        return self._factor().solve_lower(cross.to(torch.float64).mT)


@dataclass
class _OfTestPoints(Covariances):
    """The covariances of a store's test points. memory: bytes for the arrays of a block."""

    store: GramStore
    memory: int

    def prior(self) -> Iterator[torch.Tensor]:
        return (each.cpu() for each in super().prior())

    def blocks(self, size: int) -> Iterator[torch.Tensor]:
        tiles, n = self.store.test, len(self.x)
        assert tiles is not None
        at_once = max(self.memory // (16 * 8 * size), 1)  # four such arrays take a quarter of the memory
        for start in range(0, n, at_once):
            rows = slice(start, min(start + at_once, n))
            yield torch.from_numpy(block_of(tiles, rows, slice(0, size)).astype(np.float64))

    def times(self, alpha: torch.Tensor) -> torch.Tensor:
        return products.predictions(self.store, alpha)


def factored(disk: DiskStores, store: GramStore, selection: Selection, regularization: float) -> FactorStore:
    """Compute the factor of Θ + λI for the selected points in the store's folder, replacing the one before.

    A matrix that is not positive definite gets a jitter by the same rule as in memory (`jitters`); NumericalError if
    the largest does not suffice.
    """
    diagonal = products.diagonal(store)
    chosen = torch.cat([diagonal[start:stop] for start, stop in selection.ranges]) + regularization
    complaint = ""
    for number, jitter in enumerate([0.0, *jitters(getattr(torch, store.identity.dtype), chosen)]):
        folder = store.folder / "factor" / str(number)
        factor = FactorStore.prepare(folder, store, selection, regularization, jitter)
        try:
            disk.do(FactorWork.of(factor, store, disk.memory), "Cholesky")
            return factor
        except NumericalError as error:
            complaint = error.detail
            shutil.rmtree(folder, ignore_errors=True)
    raise NumericalError(Event.NOT_POSITIVE_DEFINITE, f"{complaint}; raise regularization.value")
