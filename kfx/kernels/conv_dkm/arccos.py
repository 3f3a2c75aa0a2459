"""The nonlinearity: the arc-cosine kernel of first order, that of a ReLU network (Cho & Saul 2009)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from kfx.kernels.conv_dkm import fused_arccos
from kfx.kernels.conv_dkm.gram import InducingGram


class Arccos(nn.Module):
    """K = w Φ(G) + b, Φ(G)_ij = (√(G_ii G_jj − G_ij²) + (π − θ) G_ij) / π, cos θ = G_ij / √(G_ii G_jj).

    Φ keeps the diagonal. Before, `jitter` is added to the diagonal, as a relative and as an absolute amount. w and b
    are learned variances; they start at `weight_variance` and `bias_variance`.
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
        w, b = self.log_weight_variance.exp(), self.log_bias_variance.exp()
        ii = _Phi.apply(ii, variance, variance, w.double(), b.double())
        ii = ii + torch.diag(variance * w + b - ii.diagonal())  # exact, whereas its sine is round-off
        return g.having(ii, _Phi.apply(g.ti, variance.to(g.ti), t, w, b), t * w + b)

    def _jittered(self, variance: torch.Tensor) -> torch.Tensor:
        return variance * (1 + self.jitter) + self.jitter


class _Phi(torch.autograd.Function):
    """w Φ + b of covariances (…, P), given the variances of the P inducing points and of the others (…). The gradient
    computes sine and angle again, since keeping them would take most of a network's memory. Compiled loops compute on a
    CPU, torch on other devices."""

    @staticmethod
    def forward(
        ctx: Any,
        covariance: torch.Tensor,
        inducing: torch.Tensor,
        others: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(covariance, inducing, others, weight)
        if _is_fused(covariance):
            return fused_arccos.value(covariance, inducing, others, weight, bias)
        sine, angle = _sine_and_angle(covariance, inducing, others)
        return sine.addcmul_(angle, covariance).mul_(weight / math.pi).add_(bias)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, ...]:
        covariance, inducing, others, weight = ctx.saved_tensors
        if _is_fused(covariance):
            return fused_arccos.back(slope, covariance, inducing, others, weight)
        sine, angle = _sine_and_angle(covariance, inducing, others)
        phi = torch.addcmul(sine, angle, covariance).flatten()
        to_weight = torch.dot(phi, slope.flatten()) / math.pi
        along = sine.mul_(slope)  # ∂Φ/∂(G_ii G_jj) = sine / (2π G_ii G_jj)
        factor = weight / (2 * math.pi)
        to_inducing = along.flatten(0, -2).sum(dim=0) * factor / inducing
        to_others = along.sum(dim=-1) * factor / others
        return angle.mul_(slope).mul_(weight / math.pi), to_inducing, to_others, to_weight, slope.sum()


def _is_fused(covariance: torch.Tensor) -> bool:
    return covariance.device.type == "cpu" and covariance.dtype in fused_arccos.DTYPES


def _sine_and_angle(
    covariance: torch.Tensor, inducing: torch.Tensor, others: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sine √(a − c²), a the product of the variances, and angle π − θ, both (…, P)."""
    sine = (others[..., None] * inducing).addcmul_(covariance, covariance, value=-1).clamp_(min=0).sqrt_()
    return sine, torch.atan2(sine, -covariance)
