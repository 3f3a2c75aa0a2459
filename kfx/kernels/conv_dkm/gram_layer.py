"""The layer with a learned Gram matrix, which a regularizer keeps near the kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kfx.kernels.conv_dkm.gram import InducingGram, factor, inverse_factor


class GramLayer(nn.Module):
    """A learned Gram matrix G_ii = V Vᵀ/P · e^s of the inducing points, with the blocks that follow for the data:

        G_ti = K_ti K_ii⁻¹ G_ii,    g = k − diag(K_ti K_ii⁻¹ K_it) + diag(K_ti K_ii⁻¹ G_ii K_ii⁻¹ K_it).

    The layer's penalty is (ν/2)(tr(K_ii⁻¹ G_ii) − log det(K_ii⁻¹ G_ii) − P) = ν KL(N(0, G_ii) ‖ N(0, K_ii)) (Milsom et
    al. 2023, eq. 68).
    inducing: P. strength: ν ≥ 0, finite; for ν = ∞ the network has no such layer. label: the name of the penalty.
    """

    label = ""
    starting = False
    """While True, `forward` sets V and s so that G_ii equals its input K_ii."""

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
        whitened = torch.linalg.solve_triangular(lower, root, upper=False)  # L⁻¹ V, with K_ii = L Lᵀ
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
    """(K_ti R) Vᵀ, (…, P), and k − |K_ti E|² + |K_ti R|², (…), with norms along the inducing points. The gradient
    computes the products with K_ti again instead of keeping them."""

    @staticmethod
    def forward(
        ctx: Any, ti: torch.Tensor, t: torch.Tensor, e: torch.Tensor, r: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.cat((r, e), dim=1)  # one product instead of two, so that K_ti is read once
        learned, explained = (ti @ both).split(len(r), dim=-1)
        rest = t - explained.square().sum(dim=-1)
        ctx.save_for_backward(ti, e, r, v, rest > 0)  # a negative rest is round-off
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
