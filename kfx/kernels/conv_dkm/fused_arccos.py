"""w Φ + b and its gradient on a CPU: one compiled pass over the covariances each, all cores on different rows."""

from __future__ import annotations

import numpy as np
import torch

from kfx.kernels.cnngp import maps
from kfx.numerics.threads import in_order

DTYPES = (torch.float32, torch.float64)
_ENTRIES = 1 << 16  # of a task, whatever the number of threads: sums are made task by task


def value(
    covariance: torch.Tensor, inducing: torch.Tensor, others: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """w Φ + b of covariances (…, P), variances of the P and of the others (…)."""
    c, rows, columns, scalars = _arguments(covariance, inducing, others, weight, bias)
    out = torch.empty_like(covariance, memory_format=torch.contiguous_format)
    made = out.numpy().reshape(c.shape)

    def compute(at: slice) -> None:
        maps.relu_of_matrix(c[at], *(a[at] for a in rows), *columns, scalars, made[at])

    for _ in in_order(compute, _at(c)):
        pass
    return out


def back(
    slope: torch.Tensor,
    covariance: torch.Tensor,
    inducing: torch.Tensor,
    others: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """From the cotangent of `value` those of its arguments."""
    c, rows, columns, scalars = _arguments(covariance, inducing, others, weight, weight)
    g = slope.contiguous().numpy().reshape(c.shape)
    to_covariance = torch.empty_like(covariance, memory_format=torch.contiguous_format)
    to_others = torch.empty_like(others, memory_format=torch.contiguous_format)
    to_c, to_rows = to_covariance.numpy().reshape(c.shape), to_others.numpy().reshape(-1)

    def compute(at: slice) -> np.ndarray:
        sums = np.zeros((3, c.shape[1]), c.dtype)
        row = (a[at] for a in rows)
        maps.relu_of_matrix_back(g[at], c[at], *row, *columns, scalars, to_c[at], to_rows[at], *sums)
        return sums

    total = np.zeros((3, c.shape[1]))
    for _, sums in in_order(compute, _at(c)):
        total += sums
    to_inducing, to_weight, to_bias = torch.from_numpy(total).to(covariance.dtype)
    return to_covariance, to_inducing, to_others, to_weight.sum(), to_bias.sum()


def _arguments(
    covariance: torch.Tensor, inducing: torch.Tensor, others: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """Covariances as a matrix, scales and inverse scales of its rows and of its columns, and the two numbers."""
    c = covariance.detach().contiguous().numpy().reshape(-1, len(inducing))
    rows, columns = (_scales(v.detach().contiguous().numpy().reshape(-1)) for v in (others, inducing))
    return c, rows, columns, np.array([float(weight.detach()), float(bias.detach())], c.dtype)


def _scales(variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Roots and their inverses, 0 where a variance vanishes."""
    with np.errstate(invalid="ignore"):  # of a run that diverges, which is found out by its value
        roots = np.sqrt(variances)
    return roots, np.divide(1, roots, out=np.zeros_like(roots), where=roots != 0)


def _at(c: np.ndarray) -> list[slice]:
    rows = max(_ENTRIES // max(c.shape[1], 1), 1)
    return [slice(start, start + rows) for start in range(0, len(c), rows)]
