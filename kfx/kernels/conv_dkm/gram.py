"""The blocks of a Gram matrix that pass through the layers: inducing points, their pairs with data, data variances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from kfx.numerics.incidents import report_jitter
from kfx.numerics.linear_algebra import jitters
from kfx.outcomes import Event, NumericalError


@dataclass(frozen=True)
class InducingGram:
    """Blocks of a Gram matrix of P inducing points and of every position of n images.

    ii: (P, P), always float64. ti: (n, height, width, P). t: (n, height, width), the diagonal of the tt block, which is
    never formed. After the top layer, ti is (n, P) and t is (n,).
    penalties: the penalty of each Gram layer so far in the objective, by the layer's name. means: the mean variance of
    the present points in each normalization so far, by its name.
    """

    ii: torch.Tensor
    ti: torch.Tensor
    t: torch.Tensor
    penalties: Mapping[str, torch.Tensor] = field(default_factory=dict)
    means: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def having(self, ii: torch.Tensor, ti: torch.Tensor, t: torch.Tensor) -> InducingGram:
        """Return a Gram matrix with other blocks and the same penalties and means.

        ii: (P, P). ti: (n, height, width, P) or (n, P). t: (n, height, width) or (n,).
        """
        return InducingGram(ii, ti, t, self.penalties, self.means)


def factor(matrix: torch.Tensor) -> torch.Tensor:
    """Return the lower factor L of A = LLᵀ, (P, P), float64, differentiable by autograd.

    matrix: A, (P, P). Where the factorisation fails, each of `jitters` is tried on the diagonal. Raises NumericalError:
    `diverged` where A has entries that are not finite, `not_positive_definite` where no jitter helps.
    """
    found, info = torch.linalg.cholesky_ex(matrix)
    if int(info) == 0:
        return found
    for jitter in jitters(matrix.dtype, matrix.detach().diagonal()):
        eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        found, info = torch.linalg.cholesky_ex(matrix + jitter * eye)
        if int(info) == 0:
            report_jitter(jitter)
            return found
    if not bool(torch.isfinite(matrix).all()):
        raise NumericalError(Event.DIVERGED, "a Gram matrix of inducing points has entries that are not finite")
    raise NumericalError(
        Event.NOT_POSITIVE_DEFINITE,
        f"Gram matrix of {len(matrix)} inducing points, smallest eigenvalue "
        f"{float(torch.linalg.eigvalsh(matrix.detach())[0]):.3g}; raise kernel.jitter",
    )


def inverse_factor(lower: torch.Tensor) -> torch.Tensor:
    """Return L⁻ᵀ, (P, P). The rows of K_ti L⁻ᵀ are features of each position, as far as inducing points explain it.

    lower: L, (P, P), with K_ii = L Lᵀ.
    """
    eye = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower, eye, upper=False).mT
