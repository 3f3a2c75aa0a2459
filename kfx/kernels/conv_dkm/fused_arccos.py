"""w Φ + b and its gradient on a CPU, each by one compiled pass over the covariances, with rows split between cores."""

from __future__ import annotations

import numpy as np
import torch

from kfx.kernels.compiled import matrices
from kfx.numerics.threads import in_order

DTYPES = (torch.float32, torch.float64)
# Entries of a task, below which a second thread is not worth its start, and entries of a sum in the points' own dtype.
# Neither depends on the number of threads, so that sums are bitwise equal for any number.
_OF_A_TASK, _OF_A_SUM = 1 << 22, 1 << 18


def value(
    covariance: torch.Tensor, inducing: torch.Tensor, others: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Return w Φ + b, (…, P), see `Arccos`.

    covariance: (…, P). inducing: variances of the inducing points, (P,). others: variances of the other points, (…).
    weight, bias: w and b, scalars.
    """
    c, rows, columns, scalars = _arguments(covariance, inducing, others, weight, bias)
    out = torch.empty_like(covariance, memory_format=torch.contiguous_format)
    made = out.numpy().reshape(c.shape)

    def compute(at: slice) -> None:
        matrices.relu_of_matrix(c[at], *(a[at] for a in rows), *columns, scalars, made[at])

    for _ in in_order(compute, _slices(slice(0, len(c)), c.shape[1], _OF_A_TASK)):
        pass
    return out


def back(
    slope: torch.Tensor,
    covariance: torch.Tensor,
    inducing: torch.Tensor,
    others: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the cotangents of the arguments of `value`, in their shapes. slope: the cotangent of `value`, (…, P)."""
    c, rows, columns, scalars = _arguments(covariance, inducing, others, weight, weight)
    g = slope.contiguous().numpy().reshape(c.shape)
    to_covariance = torch.empty_like(covariance, memory_format=torch.contiguous_format)
    to_others = torch.empty_like(others, memory_format=torch.contiguous_format)
    to_c, to_rows = to_covariance.numpy().reshape(c.shape), to_others.numpy().reshape(-1)

    def compute(at: slice) -> np.ndarray:
        total = np.zeros((3, c.shape[1]))
        for part in _slices(at, c.shape[1], _OF_A_SUM):
            sums, row = np.zeros((3, c.shape[1]), c.dtype), (a[part] for a in rows)
            matrices.relu_of_matrix_back(g[part], c[part], *row, *columns, scalars, to_c[part], to_rows[part], *sums)
            total += sums
        return total

    total = np.zeros((3, c.shape[1]))
    for _, sums in in_order(compute, _slices(slice(0, len(c)), c.shape[1], _OF_A_TASK)):
        total += sums
    to_inducing, to_weight, to_bias = torch.from_numpy(total).to(covariance.dtype)
    return to_covariance, to_inducing, to_others, to_weight.sum(), to_bias.sum()


def _arguments(
    covariance: torch.Tensor, inducing: torch.Tensor, others: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """Return the covariances as a matrix, the scales and inverse scales of its rows and columns, and w and b."""
    c = covariance.detach().contiguous().numpy().reshape(-1, len(inducing))
    rows, columns = (_scales(v.detach().contiguous().numpy().reshape(-1)) for v in (others, inducing))
    return c, rows, columns, np.array([float(weight.detach()), float(bias.detach())], c.dtype)


def _scales(variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return square roots of variances and their inverses, 0 where a variance is 0."""
    with np.errstate(invalid="ignore"):  # a diverging run is detected by its value
        roots = np.sqrt(variances)
    return roots, np.divide(1, roots, out=np.zeros_like(roots), where=roots != 0)


def _slices(rows: slice, columns: int, entries: int) -> list[slice]:
    """Return slices of rows with about `entries` entries each."""
    step = max(entries // max(columns, 1), 1)
    return [slice(start, min(start + step, rows.stop)) for start in range(rows.start, rows.stop, step)]
