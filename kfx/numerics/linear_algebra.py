"""Cholesky factorisations and triangular solves of Gram matrices, in float64."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import torch

from kfx.numerics.arrays import by_one_thread, numpy_if_small
from kfx.numerics.incidents import report_jitter
from kfx.numerics.regularization import Regularization
from kfx.outcomes import Event, NumericalError

_MAX_EIGENVALUE_SIZE = 2000


def jitters(dtype: torch.dtype, diagonal: torch.Tensor) -> tuple[float, float, float]:
    """Return the three jitters to try in turn on the diagonal of a matrix whose Cholesky factorisation failed.

    They are 1, 10 and 100 times the machine epsilon of `dtype` times Σ_i |d_i|. diagonal: d, (n,).
    """
    step = torch.finfo(dtype).eps * float(diagonal.abs().sum(dtype=torch.float64))
    return step, 10 * step, 100 * step


def cholesky(gram: torch.Tensor, regularization: float) -> torch.Tensor:
    """Return the lower factor L of A = Θ + λI = LLᵀ, (n, n), in float64, on gram's device.

    gram: Θ, (n, n). regularization: λ. Where the factorisation fails, each of `jitters` is tried on the diagonal.
    Raises NumericalError: `diverged` where Θ has entries that are not finite, `not_positive_definite` where no jitter
    helps.
    """
    small = numpy_if_small(gram)
    if isinstance(small, np.ndarray):
        copy = np.array(small, dtype=np.float64, order="C")
        with np.errstate(all="ignore"):
            copy.reshape(-1)[:: len(copy) + 1] += regularization
        _, info = scipy.linalg.lapack.dpotrf(copy.T, lower=1, clean=1, overwrite_a=1)
        if info == 0 and math.isfinite(copy[-1, -1]):
            return torch.from_numpy(copy.T)
    matrix = torch.empty(gram.shape, dtype=torch.float64, device=gram.device)
    matrix = matrix if by_one_thread(matrix) else matrix.mT  # LAPACK's order, in which torch needs no further matrix
    matrix.copy_(gram).diagonal().add_(regularization)
    factor, found = _factored(matrix)
    if found and math.isfinite(float(factor[-1, -1])):
        return factor
    if factor.data_ptr() == matrix.data_ptr():  # the failed factorisation overwrote it
        matrix = torch.empty(gram.shape, dtype=torch.float64, device=gram.device).copy_(gram)
        matrix.diagonal().add_(regularization)
    diagonal = matrix.diagonal()
    if not bool(torch.isfinite(matrix).all()):
        raise NumericalError(Event.DIVERGED, "the Gram matrix has entries that are not finite")
    added = 0.0
    for jitter in jitters(gram.dtype, diagonal):
        diagonal += jitter - added
        added = jitter
        factor, info = torch.linalg.cholesky_ex(matrix)
        if int(info) == 0:
            report_jitter(jitter)
            return factor
    diagonal -= added
    raise NumericalError(Event.NOT_POSITIVE_DEFINITE, _describe(matrix, gram.dtype, regularization, added))


class Factored:
    """A Gram matrix Θ, (n, n), with its Cholesky factors, and inverses if asked for: one for each λ, computed once."""

    def __init__(self, gram: torch.Tensor) -> None:
        self.gram = gram
        self._factors: dict[float, torch.Tensor] = {}
        self._inverses: dict[float, torch.Tensor] = {}
        self._effective: dict[Regularization, float] = {}

    def effective(self, regularization: Regularization) -> float:
        """Return the effective λ for Θ."""
        if regularization not in self._effective:
            self._effective[regularization] = regularization.of(self.gram)
        return self._effective[regularization]

    def factor(self, regularization: float) -> torch.Tensor:
        """Return the lower factor L of Θ + λI, (n, n), with the jitter and the errors of `cholesky`."""
        if regularization not in self._factors:
            self._factors[regularization] = cholesky(self.gram, regularization)
        return self._factors[regularization]

    def inverse(self, regularization: float) -> torch.Tensor:
        """Return (Θ + λI)⁻¹ from its factor, (n, n), for criteria that need it whole or its diagonal."""
        if regularization not in self._inverses:
            self._inverses[regularization] = torch.cholesky_inverse(self.factor(regularization))
        return self._inverses[regularization]

    def sample_factor(self, regularization: float, size: int) -> torch.Tensor:
        """Return the lower factor of the leading block of Θ + λI, (size, size): the block of L where L is known."""
        if regularization in self._factors:
            return self._factors[regularization][:size, :size]
        return cholesky(self.gram[:size, :size], regularization)


def solved_in_place(gram: torch.Tensor, y: torch.Tensor, regularization: float) -> torch.Tensor:
    """Return (Θ + λI)⁻¹ y, (n, outputs), float64, on a CPU, with the memory of one float64 matrix in addition to Θ.

    gram: Θ, (n, n). y: (n, outputs). Jitter and errors as for `cholesky`.
    """
    matrix = torch.empty(gram.shape, dtype=torch.float64)
    columns = matrix.numpy().T  # symmetric, and in the order that LAPACK works on without a copy
    total = float(gram.diagonal().abs().sum(dtype=torch.float64)) + len(gram) * regularization
    step = torch.finfo(gram.dtype).eps * total
    for jitter in (0.0, step, 10 * step, 100 * step):
        matrix.copy_(gram).diagonal().add_(regularization + jitter)
        factor, info = scipy.linalg.lapack.dpotrf(columns, lower=1, clean=0, overwrite_a=1)
        if info == 0 and math.isfinite(float(matrix[-1, -1])):
            if jitter:
                report_jitter(jitter)
            solution, _ = scipy.linalg.lapack.dpotrs(factor, y.to(torch.float64).numpy(), lower=1)
            return torch.from_numpy(solution)
    matrix.copy_(gram).diagonal().add_(regularization)
    if not bool(torch.isfinite(matrix).all()):
        raise NumericalError(Event.DIVERGED, "the Gram matrix has entries that are not finite")
    raise NumericalError(Event.NOT_POSITIVE_DEFINITE, _describe(matrix, gram.dtype, regularization, 100 * step))


def _factored(matrix: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return L, which may overwrite `matrix`, and whether the factorisation succeeded."""
    if by_one_thread(matrix):
        _, info = scipy.linalg.lapack.dpotrf(matrix.numpy().T, lower=1, clean=1, overwrite_a=1)
        return matrix.mT, info == 0
    in_place = (matrix, torch.empty((), dtype=torch.int32)) if matrix.is_cpu else None
    factor, info = torch.linalg.cholesky_ex(matrix, out=in_place)
    return factor, int(info) == 0


def _describe(matrix: torch.Tensor, dtype: torch.dtype, regularization: float, jitter: float) -> str:
    # The smallest eigenvalue of a leading block bounds that of the whole from above (Cauchy interlacing).
    block = matrix[:_MAX_EIGENVALUE_SIZE, :_MAX_EIGENVALUE_SIZE].cpu().numpy()
    smallest = scipy.linalg.eigh(block, eigvals_only=True, subset_by_index=[0, 0])[0]
    name = str(dtype).removeprefix("torch.")
    return (
        f"Gram matrix of {len(matrix)} points in {name}, λ = {regularization:.3g}, smallest eigenvalue "
        f"{'' if len(block) == len(matrix) else '<= '}{smallest:.3g}, jitter up to {jitter:.3g} did not help; "
        f"raise regularization.value{'' if dtype == torch.float64 else ' or set device.dtype=float64'}"
    )


def solve_lower(factor: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return L⁻¹ y, (n, outputs). factor: L, lower, (n, n). y: (n, outputs)."""
    return torch.linalg.solve_triangular(factor, y, upper=False)


def solve_upper(factor: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return L⁻ᵀ w, (n, outputs). factor: L, lower, (n, n). w: (n, outputs)."""
    return torch.linalg.solve_triangular(factor.mT, w, upper=True)
