"""The Gram matrix that layers hand on: inducing points whole, data by their pairs with these and their variances."""

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

    ii: (P, P), float64 whatever the run computes in. ti: (n, height, width, P). t: (n, height, width), the diagonal of
    the tt block, which is never formed. Behind the top layer ti is (n, P) and t (n,).
    penalties: of each Gram layer so far what the objective loses by it, by the layer's name. means: of each
    normalization of the points at hand their mean variance.
    """

    ii: torch.Tensor
    ti: torch.Tensor
    t: torch.Tensor
    penalties: Mapping[str, torch.Tensor] = field(default_factory=dict)
    means: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def having(self, ii: torch.Tensor, ti: torch.Tensor, t: torch.Tensor) -> InducingGram:
        """Other blocks, with the penalties and means so far."""
        return InducingGram(ii, ti, t, self.penalties, self.means)


def factor(matrix: torch.Tensor) -> torch.Tensor:
    """Return L, lower, of A = LLᵀ, (P, P), in float64, differentiable; jitter as for every Gram matrix of kfx.

    NumericalError (not_positive_definite) where that does not help.
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
    """Return L⁻ᵀ, (P, P): with it K_ti L⁻ᵀ is what the inducing points explain of each position, as features."""
    eye = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower, eye, upper=False).mT
