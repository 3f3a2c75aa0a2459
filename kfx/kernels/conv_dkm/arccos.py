"""The nonlinearity: the arc-cosine kernel of first order, which is a ReLU network's (Cho & Saul 2009)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from kfx.kernels.conv_dkm.gram import InducingGram


class Arccos(nn.Module):
    """K = w Φ(G) + b, Φ(G)_ij = (√(G_ii G_jj − G_ij²) + (π − θ) G_ij) / π, cos θ = G_ij / √(G_ii G_jj).

    Φ keeps the diagonal, to which `jitter`, relative and absolute, is added beforehand. w, b: learned variances, from
    1 and 0.1.
    """

    def __init__(self, jitter: float, weight_variance: float = 1.0, bias_variance: float = 0.1) -> None:
        super().__init__()
        self.jitter = jitter
        self.log_weight_variance = nn.Parameter(torch.tensor(math.log(weight_variance)))
        self.log_bias_variance = nn.Parameter(torch.tensor(math.log(bias_variance)))

    def forward(self, g: InducingGram) -> InducingGram:
        variance = self._jittered(g.ii.diagonal())
        ii = g.ii + torch.diag(variance - g.ii.diagonal())
        t = self._jittered(g.t)
        of_points = variance.to(g.ti)
        w, b = self.log_weight_variance.exp(), self.log_bias_variance.exp()
        phi = _Phi.apply(ii, variance, variance)
        phi = phi + torch.diag(variance - phi.diagonal())  # exactly, where the sine is a rounding error
        return g.having(
            phi * w.double() + b.double(), torch.addcmul(b.expand(1), _Phi.apply(g.ti, of_points, t), w), t * w + b
        )

    def _jittered(self, variance: torch.Tensor) -> torch.Tensor:
        return variance * (1 + self.jitter) + self.jitter


class _Phi(torch.autograd.Function):
    """Φ of covariances (…, P), the variances of the P and of the others (…): sine and angle are not kept."""

    @staticmethod
    def forward(ctx: Any, covariance: torch.Tensor, inducing: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(covariance, inducing, others)
        sine, cosine = _sine_and_cosine(covariance, inducing, others)
        return sine.addcmul_(cosine.acos_().neg_().add_(math.pi), covariance).div_(math.pi)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        covariance, inducing, others = ctx.saved_tensors
        sine, cosine = _sine_and_cosine(covariance, inducing, others)
        sine.mul_(slope)  # ∂Φ/∂(G_ii G_jj) = sine / (2π G_ii G_jj)
        rows = sine.flatten(0, -2)
        to_inducing = rows.sum(dim=0).div_(2 * math.pi * inducing)
        to_others = sine.sum(dim=-1).div_(2 * math.pi * others)
        return cosine.acos_().neg_().add_(math.pi).mul_(slope).div_(math.pi), to_inducing, to_others


def _sine_and_cosine(
    covariance: torch.Tensor, inducing: torch.Tensor, others: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """√(a − c²), a the product of the variances, and c/√a within ±1."""
    root = others.sqrt()[..., None] * inducing.sqrt()
    sine = (root - covariance).mul_(root + covariance).clamp_(min=0).sqrt_()
    return sine, (covariance / root).clamp_(-1, 1)
