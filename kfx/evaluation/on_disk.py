"""The linear systems of kernel ridge regression whose Gram matrices do not fit in memory: in a store."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kfx.files import whole_file
from kfx.kernels.base import Kernel
from kfx.lock import Lock
from kfx.numerics.arrays import in_numpy
from kfx.numerics.conjugate_gradients import solve
from kfx.numerics.incidents import report_jitter
from kfx.numerics.linear_algebra import jitters
from kfx.numerics.regularization import Regularization
from kfx.outcomes import Event, NumericalError, StoreError
from kfx.store import products
from kfx.store.factor_store import FactorStore, FactorWork
from kfx.store.gram_store import MANIFEST, GramStore, Identity, digest
from kfx.store.gram_work import GramWork
from kfx.store.selection import Selection
from kfx.store.tiles import block_of
from kfx.store.work import Work

Do = Callable[[Work, str], None]
"""Does what is left of a work, whose name is told to a person."""


@dataclass(frozen=True)
class Beyond:
    """Where Gram matrices go that do not fit.

    root: a folder of stores, one for each kernel and points; or a store that is there already. memory: bytes that a
    matrix may take, and that the tiles of a factorisation take. keep: for the next run; else a store goes when what it
    was made for is recorded. processes: that share the memory.
    """

    root: Path
    memory: int
    do: Do
    processes: int = 1
    keep: bool = False

    def takes(self, n: int, n_test: int, itemsize: int) -> bool:
        """Whether so many points and test points are to go on disk."""
        return bytes_in_memory(n, n_test, itemsize) > self.memory

    @contextmanager
    def store(self, kernel: Kernel, points: torch.Tensor, test_points: torch.Tensor | None) -> Iterator[GramStore]:
        """The whole Gram matrix of these points, computed as far as it is not there, held as long as the block runs."""
        mapped, compare = kernel.unfolded()
        points, test_points = mapped(points), None if test_points is None else mapped(test_points)
        folder = self._folder(compare, points, test_points)
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
        try:
            store = GramStore.prepare(folder, compare, points, test_points)
            self.do(GramWork.of(store, compare, points.device), "Gram")
            yield store
            shutil.rmtree(folder / "factor", ignore_errors=True)  # of who was stopped it stays, to go on from
        finally:
            lock.release()

    def _folder(self, kernel: Kernel, points: torch.Tensor, test_points: torch.Tensor | None) -> Path:
        """Of the store that has this kernel and these points, or will have."""
        if (self.root / MANIFEST).exists():
            return self.root
        identity = Identity.of(kernel, points)
        parts: list[Any] = [identity.kernel, identity.parameters, identity.dtype, digest(points)]
        parts.append(None if test_points is None else digest(test_points))
        name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
        for number in range(100):  # a setting that is no parameter shows in the kernel's values alone
            folder = self.root / (f"{name}-{number}" if number else name)
            if not (folder / MANIFEST).exists() or identity.differs_from(GramStore(folder).identity) is None:
                return folder
        raise StoreError(f"{self.root}: holds a hundred stores of kernels that differ in settings alone; clear it")

    def discard(self) -> None:
        """What was made for an evaluation that is recorded now is no longer needed, unless it is to be kept."""
        if not self.keep:
            shutil.rmtree(self.root, ignore_errors=True)


class OnDisk:
    """The system of a store whose Gram matrix is whole.

    solver: `cholesky`, or `conjugate_gradients` up to a relative residual of `tolerance`.
    """

    def __init__(self, store: GramStore, beyond: Beyond, kernel: Kernel, solver: str, tolerance: float) -> None:
        self._store, self._beyond, self._kernel = store, beyond, kernel
        self._solver, self._tolerance = solver, tolerance
        self._sums: dict[int, tuple[float, float]] = {}
        self._factor: FactorStore | None = None
        self._report: dict[str, float] = {}

    def effective(self, regularization: Regularization, size: int) -> float:
        if regularization.scale == "absolute":
            return regularization.value
        if size not in self._sums:
            self._sums[size] = float(products.diagonal(self._store)[:size].sum()), products.total(self._store, size)
        return regularization.of_sums(size, *self._sums[size])

    def coefficients(self, regularization: Regularization, targets: torch.Tensor) -> torch.Tensor:
        """Kept in the store, so that they are found again, jitter and all, by who goes on."""
        size, effective = len(targets), self.effective(regularization, len(targets))
        y = targets.to("cpu", torch.float64)
        key = [size, effective, self._solver, self._tolerance, digest(y)]
        path = self._store.folder / "solutions" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.npz"
        if not path.exists():
            found = self._solved(regularization, y, effective)
            path.parent.mkdir(exist_ok=True)
            with whole_file(path) as stream:
                np.savez(stream, **found)
        with np.load(path) as held:
            if jitter := float(held["jitter"]):
                report_jitter(jitter)
            self._report = {name: float(held[name]) for name in ("residual", "iterations") if name in held}
            return torch.from_numpy(held["alpha"])

    def _solved(self, regularization: Regularization, y: torch.Tensor, effective: float) -> dict[str, Any]:
        if self._solver == "conjugate_gradients":
            return self._by_conjugate_gradients(y, effective)
        factor = self._factored(regularization, len(y))
        return {"alpha": in_numpy(factor.solve_upper(factor.solve_lower(y))), "jitter": factor.jitter}

    def _by_conjugate_gradients(self, y: torch.Tensor, effective: float) -> dict[str, Any]:
        solved = solve(
            lambda v: products.product(self._store, v),
            lambda points: products.columns(self._store, len(y), points),
            products.diagonal(self._store)[: len(y)],
            y,
            effective,
            self._tolerance,
            self._beyond.memory,
        )
        return {
            "alpha": in_numpy(solved.alpha),
            "jitter": 0.0,
            "residual": solved.residual,
            "iterations": solved.iterations,
        }

    def _factored(self, regularization: Regularization, size: int) -> FactorStore:
        """A factor of the first `size` points, or of more where that has the same λ: its leading block is the factor of
        the leading points. With a jitter where it needs one, as in memory."""
        effective = self.effective(regularization, size)
        held = self._factor
        if held is None or held.regularization != effective or len(held) < size:
            if regularization.scale == "absolute":
                size = len(self._store)
            held = self._factor = factored(self._beyond, self._store, Selection.head(self._store, size), effective)
        return held

    def predictions(self, alpha: torch.Tensor) -> torch.Tensor:
        return products.predictions(self._store, alpha)

    def fitted(self, x: torch.Tensor, head: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(x), alpha.shape[1], dtype=torch.float64)
        out[head] = products.product(self._store, alpha, len(head))
        others = np.setdiff1d(np.arange(len(x)), in_numpy(head))
        mapped, compare = self._kernel.unfolded()
        used = torch.from_numpy(self._store.points(slice(0, len(alpha))))
        for block in np.array_split(others, -(-len(others) // 500)) if len(others) else ():
            out[block] = compare.gram(mapped(x[block]), used).to(torch.float64) @ alpha
        return out

    def energies(self, regularization: Regularization, targets: torch.Tensor) -> torch.Tensor:
        factor = self._factored(regularization, len(targets))
        return factor.solve_lower(targets.to(torch.float64)).square().sum(dim=1)

    def variance(self, regularization: Regularization, size: int, prior: torch.Tensor) -> torch.Tensor:
        factor, tiles = self._factored(regularization, size), self._store.test
        assert tiles is not None
        out = prior.to(torch.float64, copy=True)
        at_once = max(self._beyond.memory // (16 * 8 * size), 1)  # four arrays of them in a quarter of the memory
        for start in range(0, len(out), at_once):
            rows = slice(start, min(start + at_once, len(out)))
            cross = block_of(tiles, rows, slice(0, size)).astype(np.float64)
            out[rows] -= factor.solve_lower(torch.from_numpy(cross.T)).square().sum(dim=0)
        return out.clamp_(min=0.0)

    def report(self) -> dict[str, float]:
        return self._report


def factored(beyond: Beyond, store: GramStore, selection: Selection, regularization: float) -> FactorStore:
    """The factor of Θ + λI of these points, in the store's folder, in place of the one before; with a jitter where it
    needs one, as in memory, see `jitters`."""
    diagonal = products.diagonal(store)
    chosen = torch.cat([diagonal[start:stop] for start, stop in selection.ranges]) + regularization
    complaint = ""
    for number, jitter in enumerate([0.0, *jitters(getattr(torch, store.identity.dtype), chosen)]):
        folder = store.folder / "factor" / str(number)  # a worker that was late must not write into another's
        factor = FactorStore.prepare(folder, store, selection, regularization, jitter)
        try:
            beyond.do(FactorWork.of(factor, store, beyond.memory // beyond.processes), "Cholesky")
            return factor
        except NumericalError as error:
            complaint = error.detail
            shutil.rmtree(folder)
    raise NumericalError(Event.NOT_POSITIVE_DEFINITE, f"{complaint}; raise regularization.value")


def bytes_in_memory(n: int, n_test: int, itemsize: int) -> int:
    """What evaluation with so many points takes in memory at its peak: Θ, its factor in float64, and covariances."""
    return n**2 * (itemsize + 8) + n * n_test * itemsize
