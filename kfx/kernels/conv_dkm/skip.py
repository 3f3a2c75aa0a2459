"""A skip connection: the mean of a block's input and output."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kfx.kernels.conv_dkm.gram import InducingGram

_LARGE = 32 << 20  # bytes; below it a whole ResNet keeps less than 3 GB and is a third faster without recomputation


class Skip(nn.Module):
    """½ shortcut(G) + ½ block(G), a convex combination of Gram matrices.

    shortcut: None for G itself. recomputed: whether the gradient computes the block's inner matrices again instead of
    keeping them, so that memory does not grow with the depth; None: yes where `ti` takes more than 32 MiB.
    """

    def __init__(self, block: nn.Module, shortcut: nn.Module | None, recomputed: bool | None) -> None:
        super().__init__()
        self.block, self.shortcut, self.recomputed = block, shortcut, recomputed

    def forward(self, g: InducingGram) -> InducingGram:
        recomputed = g.ti.nbytes > _LARGE if self.recomputed is None else self.recomputed
        if recomputed and torch.is_grad_enabled():
            made: InducingGram = checkpoint(self._combined, g, use_reentrant=False, preserve_rng_state=False)
            return made
        return self._combined(g)

    def _combined(self, g: InducingGram) -> InducingGram:
        one = g if self.shortcut is None else self.shortcut(g)
        other = self.block(g)
        blocks = ((one.ii, other.ii), (one.ti, other.ti), (one.t, other.t))
        ii, ti, t = (torch.lerp(a, b, 0.5) for a, b in blocks)
        return InducingGram(ii, ti, t, {**one.penalties, **other.penalties}, {**one.means, **other.means})
