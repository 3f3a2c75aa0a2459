"""The layer whose Gram matrix is learned: near to its kernel, as far as the regularizer holds it there."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kfx.kernels.conv_dkm.gram import InducingGram, factor, inverse_factor


class GramLayer(nn.Module):
    """G_ii = V Vᵀ/P · e^s, learned; G_ti = K_ti K_ii⁻¹ G_ii; g = k − diag(K_ti K_ii⁻¹ K_it) + diag(K_ti K_ii⁻¹ G_ii
    K_ii⁻¹ K_it).

    Its penalty is (ν/2)(tr(K_ii⁻¹ G_ii) − log det(K_ii⁻¹ G_ii) − P), ν KL(N(0, G_ii) ‖ N(0, K_ii)) (eq. 68).
    strength: ν ≥ 0, finite; where ν = ∞ there is no such layer. label: its name among the penalties.
    """

    label = ""
    starting = False
    """While True, V is set so that G_ii is the K_ii that arrives."""

    def __init__(self, inducing: int, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.root = nn.Parameter(torch.eye(inducing) * math.sqrt(inducing))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, k: InducingGram) -> InducingGram:
        lower = factor(k.ii)
        if self.starting:
            self.root.data.copy_(lower * math.sqrt(len(lower)))
            self.log_scale.data.zero_()
        root = self.root.double() * (0.5 * self.log_scale.double()).exp() / math.sqrt(len(lower))
        whitened = torch.linalg.solve_triangular(lower, root, upper=False)  # L⁻¹ V: G_ii in K_ii's own coordinates
        explaining = inverse_factor(lower)
        ti, t = _Conditioned.apply(k.ti, k.t, explaining.to(k.ti), (explaining @ whitened).to(k.ti), root.to(k.ti))
        made = k.having(root @ root.mT, ti, t)
        return replace(made, penalties={**k.penalties, self.label: self._penalty(whitened)})

    def _penalty(self, whitened: torch.Tensor) -> torch.Tensor:
        if self.strength == 0:
            return whitened.new_zeros(())
        log_determinant = 2 * torch.linalg.slogdet(whitened).logabsdet
        return 0.5 * self.strength * (whitened.square().sum() - log_determinant - len(whitened))


class _Conditioned(torch.autograd.Function):
    """(K_ti R) Vᵀ, and k − |K_ti E|² + |K_ti R|² along the inducing points. The products with K_ti are computed again
    for the gradient, not kept."""

    @staticmethod
    def forward(
        ctx: Any, ti: torch.Tensor, t: torch.Tensor, e: torch.Tensor, r: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.cat((r, e), dim=1)  # one product for two: K_ti is read once
        learned, explained = (ti @ both).split(len(r), dim=-1)
        rest = t - explained.square().sum(dim=-1)
        ctx.save_for_backward(ti, e, r, v, rest > 0)  # below it is rounding
        return learned @ v.mT, rest.clamp_(min=0) + learned.square().sum(dim=-1)

    @staticmethod
    def backward(ctx: Any, to_ti: torch.Tensor, to_t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ti, e, r, v, is_rest = ctx.saved_tensors
        ti = ti.flatten(0, -2)
        g, w = to_ti.flatten(0, -2), 2 * to_t.reshape(-1, 1)
        of_rest = torch.where(is_rest, to_t, 0.0)
        both = torch.cat((r, e), dim=1)
        to_both = ti @ both
        learned, explained = to_both.split(len(r), dim=-1)
        to_v = g.mT @ learned
        learned.mul_(w).addmm_(g, v)
        explained.mul_(of_rest.reshape(-1, 1) * -2)
        back = to_both @ both.mT
        to_r, to_e = (ti.mT @ to_both).split(len(r), dim=-1)
        return back.view((*to_ti.shape[:-1], len(r))), of_rest, to_e, to_r, to_v
