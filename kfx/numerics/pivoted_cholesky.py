"""Randomly pivoted Cholesky: points whose columns approximate a whole Gram matrix."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from kfx.numerics.linear_algebra import solve_lower

_LEAST = 1e-13
"""The residual trace, relative to tr Θ, at which the approximation is exact up to round-off."""
_MOST_IDLE_ROUNDS = 20


def randomly_pivoted(
    columns: Callable[[np.ndarray], torch.Tensor],
    among: Callable[[np.ndarray], torch.Tensor],
    diagonal: torch.Tensor,
    count: int,
    rng: np.random.Generator,
    block: int = 256,
) -> tuple[np.ndarray, torch.Tensor]:
    """Return indices of at most `count` pivots, (k,), and F, (n, k), float64, with F Fᵀ = Θ_·S Θ_SS⁻¹ Θ_S·.

    Each pivot is drawn with a probability in proportion to the diagonal of the residual Θ − F Fᵀ (Chen, Epperly, Tropp
    & Webber 2022). A block of candidates is drawn at once, and each is rejected with the share of its residual that the
    pivots before it took, so pivots are distributed as if drawn one by one (Epperly, Tropp & Webber 2024). Fewer than
    `count` are returned where the residual vanishes.

    columns: returns the columns of Θ, (n, m), at indices in ascending order, (m,). among: returns Θ at pairs of
    indices, (m, m). diagonal: of Θ, (n,). block: number of candidates at once.
    """
    n, count = len(diagonal), min(count, len(diagonal))
    root = torch.empty(n, count, dtype=torch.float64, device=diagonal.device)
    residual = diagonal.to(torch.float64, copy=True).clamp_(min=0.0)
    whole, done, idle = float(residual.sum()), 0, 0
    pivots = np.empty(0, dtype=np.int64)
    while done < count and float(residual.sum()) > _LEAST * whole and idle < _MOST_IDLE_ROUNDS:
        share = residual.cpu().numpy()
        drawn = rng.choice(n, min(block, count), p=share / share.sum())
        of_drawn = root[torch.from_numpy(drawn), :done]
        inner = among(drawn).to(torch.float64) - of_drawn @ of_drawn.mT
        chosen = np.unique(drawn[_accepted(inner.cpu().numpy(), share[drawn], rng)[: count - done]])
        idle += 1
        if not len(chosen):
            continue
        at, stop = torch.from_numpy(chosen), done + len(chosen)
        left = columns(chosen).to(torch.float64) - root[:, :done] @ root[at, :done].mT
        corner = (left[at] + left[at].mT) / 2
        corner.diagonal().add_(_LEAST * whole / n)
        factor, info = torch.linalg.cholesky_ex(corner)
        if int(info):
            continue
        root[:, done:stop] = solve_lower(factor, left.mT).mT
        residual = (residual - root[:, done:stop].square().sum(dim=1)).clamp_(min=0.0)
        residual[at] = 0.0
        pivots, done, idle = np.concatenate([pivots, chosen]), stop, 0
    return pivots, root[:, :done]


def _accepted(inner: np.ndarray, proposed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the places of the accepted candidates, (k,).

    inner: the residual at pairs of candidates, (m, m). proposed: the residual with which they were drawn, (m,).
    """
    left, kept = inner.copy(), []
    for i, threshold in enumerate(rng.random(len(left)) * proposed):
        if left[i, i] > threshold:
            kept.append(i)
            column = left[i + 1 :, i] / math.sqrt(left[i, i])
            left[i + 1 :, i + 1 :] -= np.outer(column, column)
    return np.array(kept, dtype=np.int64)
