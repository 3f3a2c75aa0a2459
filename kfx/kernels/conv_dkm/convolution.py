"""The convolution of a Gram matrix, with learned weights that map inducing points to inducing points."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, conv2d

from kfx.kernels.conv_dkm.gram import InducingGram


class Convolution(nn.Module):
    """K_ii = mean_d C_d Φ_ii C_dᵀ, K_ti = conv(Φ_ti, C) / D, K_tt = average pooling of Φ_tt without the padding.

    This is eq. 59 of Milsom et al. 2023. The weights C, (P_out, P_in, D), start as standard normal numbers over √P_in.
    inducing: P_in and P_out. size: height and width of the window, D positions. padding: zeros on each side.
    """

    def __init__(self, inducing: tuple[int, int], size: tuple[int, int], stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        arriving, leaving = inducing
        self.stride, self.padding, self.size = stride, padding, size
        self.weight = nn.Parameter(torch.randn(leaving, arriving, *size))

    def forward(self, g: InducingGram) -> InducingGram:
        scaled = self.weight / math.sqrt(self.weight.shape[1])
        c = scaled.double().permute(2, 3, 0, 1).flatten(0, 1)
        ii = (c @ g.ii @ c.mT).mean(dim=0)
        t = avg_pool2d(g.t[:, None], self.size, self.stride, self.padding, count_include_pad=False)[:, 0]
        return g.having(ii, self._across(g.ti, scaled / len(c)), t)

    def _across(self, ti: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if tuple(self.size) == (1, 1) and not self.padding:
            # A product: oneDNN's strided 1 × 1 convolutions write past their memory in float32 (torch 2.13, AVX2).
            return ti[:, :: self.stride, :: self.stride] @ weight[:, :, 0, 0].mT
        return conv2d(ti.permute(0, 3, 1, 2), weight, stride=self.stride, padding=self.padding).permute(0, 2, 3, 1)
