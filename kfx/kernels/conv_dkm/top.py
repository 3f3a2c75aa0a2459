"""Top layers: a Gram matrix of images, without positions."""

from __future__ import annotations

from torch import nn

from kfx.kernels.conv_dkm.convolution import Convolution
from kfx.kernels.conv_dkm.gram import InducingGram, factor, inverse_factor


class AveragePooling(nn.Module):
    """K_ii as it is, K_ti the mean over positions, and k of the mean over both positions of the tt block.

    Of that the inducing points explain K_ti K_ii⁻¹ K_it; what they do not explain is known of its diagonal alone, and
    taken to be uncorrelated (appendix E.3.2, eq. 117 to 123).
    """

    def forward(self, k: InducingGram) -> InducingGram:
        explaining = inverse_factor(factor(k.ii)).to(k.ti)
        features = k.ti @ explaining
        rest = (k.t - features.square().sum(dim=-1)).clamp(min=0)
        positions = k.t[0].numel()
        t = features.mean(dim=(1, 2)).square().sum(dim=-1) + rest.sum(dim=(1, 2)) / positions**2
        return k.having(k.ii, k.ti.mean(dim=(1, 2)), t)


class Linear(Convolution):
    """A convolution over the whole map, of which one position is left: weights of each position's own (appendix
    E.1)."""

    def forward(self, g: InducingGram) -> InducingGram:
        k = super().forward(g)
        return k.having(k.ii, k.ti[:, 0, 0], k.t[:, 0, 0])
