"""Top layers, which turn a Gram matrix of positions into one of images."""

from __future__ import annotations

from torch import nn

from kfx.kernels.conv_dkm.convolution import Convolution
from kfx.kernels.conv_dkm.gram import InducingGram, factor, inverse_factor


class AveragePooling(nn.Module):
    """Average pooling: K_ii unchanged, K_ti averaged over positions, k the tt block averaged over pairs of positions.

    The inducing points explain K_ti K_ii⁻¹ K_it of the tt block. Only the diagonal of the remainder is known, so the
    remainder is taken to be uncorrelated between positions (Milsom et al. 2023, appendix E.3.2, eq. 117 to 123).
    """

    def forward(self, k: InducingGram) -> InducingGram:
        explaining = inverse_factor(factor(k.ii)).to(k.ti)
        features = k.ti @ explaining
        rest = (k.t - features.square().sum(dim=-1)).clamp(min=0)
        positions = k.t[0].numel()
        t = features.mean(dim=(1, 2)).square().sum(dim=-1) + rest.sum(dim=(1, 2)) / positions**2
        return k.having(k.ii, k.ti.mean(dim=(1, 2)), t)


class Linear(Convolution):
    """A convolution over the whole map, with weights for each position and one position left (Milsom et al. 2023,
    appendix E.1)."""

    def forward(self, g: InducingGram) -> InducingGram:
        k = super().forward(g)
        return k.having(k.ii, k.ti[:, 0, 0], k.t[:, 0, 0])
