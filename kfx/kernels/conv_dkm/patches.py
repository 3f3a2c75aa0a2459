"""The first layer: Gram matrices of image patches by their dot products."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, conv2d

from kfx.kernels.conv_dkm.gram import InducingGram


class Patches(nn.Module):
    """G_ii = X_i X_iᵀ / (C D), G_ti = conv(X, X_i) / (C D), G_tt = mean over a patch of |x|² / C, without the padding.

    patches: inducing patches X_i, (P, channels, size, size), size odd; C is the number of channels, D = size².
    learned: whether the patches are trained.
    """

    def __init__(self, patches: torch.Tensor, learned: bool) -> None:
        super().__init__()
        self.patches = nn.Parameter(patches, requires_grad=learned)

    def forward(self, x: torch.Tensor) -> InducingGram:
        """Return the Gram matrices of the patches and of every position of images x, (n, channels, height, width)."""
        size = self.patches.shape[-1]
        each = self.patches[0].numel()
        flat = self.patches.flatten(1).double()
        ti = conv2d(x, self.patches, padding=size // 2) / each
        t = avg_pool2d(x.square().mean(dim=1), size, stride=1, padding=size // 2, count_include_pad=False)
        return InducingGram(flat @ flat.mT / each, ti.permute(0, 2, 3, 1).contiguous(), t)
