"""Deep kernel machines by name, for images of any size."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from kfx.kernels.conv_dkm.arccos import Arccos
from kfx.kernels.conv_dkm.convolution import Convolution
from kfx.kernels.conv_dkm.gram_layer import GramLayer
from kfx.kernels.conv_dkm.normalization import Normalization, Normalizing
from kfx.kernels.conv_dkm.patches import Patches
from kfx.kernels.conv_dkm.skip import Skip
from kfx.kernels.conv_dkm.top import AveragePooling, Linear

BLOCKS = {"resnet20": 3, "small": 1}
"""Residual blocks of a stage, by the architecture's name."""
_PATCH = 3


@dataclass(frozen=True)
class Architecture:
    """A ResNet of Gram matrices: patches, a convolution, stages of residual blocks of two convolutions, and a top layer
    with a normalization, as in the public scripts.

    image: channels, height and width. inducing: number of inducing points P of each stage; the first is also the number
    of patches. strides: stride of the first convolution of each stage. blocks: residual blocks of a stage.
    strength: ν of every Gram layer; with ∞ there are none, which gives an NNGP with inducing points. jitter: see
    `Arccos`. top: `average` or `linear`. learned_patches: whether the inducing patches are trained. recomputed: see
    `Skip`.
    """

    image: tuple[int, int, int]
    inducing: Sequence[int]
    strides: Sequence[int]
    blocks: int
    strength: float
    jitter: float
    top: str = "average"
    normalizing: Normalizing = field(default_factory=Normalizing)
    learned_patches: bool = True
    recomputed: bool | None = None

    def build(self) -> nn.Sequential:
        """Return the network in float64, with weights and patches drawn by torch.

        Raises ValueError where `inducing` and `strides` differ in length.
        """
        channels, height, width = self.image
        if len(self.inducing) != len(self.strides):
            raise ValueError(f"inducing and strides differ in length, got {len(self.inducing)} and {len(self.strides)}")
        size, arriving = (height, width), self.inducing[0]
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["patches"] = Patches(torch.randn(arriving, channels, _PATCH, _PATCH), self.learned_patches)
        parts["stem"] = self._convolved("", (arriving, arriving), size, 1)
        for stage, (leaving, stride) in enumerate(zip(self.inducing, self.strides, strict=True), start=1):
            for block in range(1, self.blocks + 1):
                parts[f"stage{stage}_block{block}"], size = self._residual((arriving, leaving), size, stride)
                arriving, stride = leaving, 1
        if self.top == "linear":
            parts["top"] = Linear((arriving, arriving), size)
        else:
            parts["top"] = AveragePooling()
        parts["top_normalization"] = Normalization(self.normalizing, arriving, None)
        network = nn.Sequential(parts).double()
        for name, part in network.named_modules():
            if isinstance(part, (GramLayer, Normalization)):
                part.label = name
        return network

    def _residual(
        self, inducing: tuple[int, int], size: tuple[int, int], stride: int
    ) -> tuple[nn.Module, tuple[int, int]]:
        after = (math.ceil(size[0] / stride), math.ceil(size[1] / stride))
        layers = OrderedDict(
            [*self._layers("1", inducing, size, stride), *self._layers("2", (inducing[1],) * 2, after, 1)]
        )
        shortcut: nn.Module | None = None
        if stride != 1 or inducing[0] != inducing[1]:
            shortcut = nn.Sequential(
                OrderedDict(
                    convolution=Convolution(inducing, (1, 1), stride),
                    normalization=Normalization(self.normalizing, inducing[1], after),
                )
            )
        return Skip(nn.Sequential(layers), shortcut, self.recomputed), after

    def _convolved(self, name: str, inducing: tuple[int, int], size: tuple[int, int], stride: int) -> nn.Sequential:
        return nn.Sequential(OrderedDict(self._layers(name, inducing, size, stride)))

    def _layers(
        self, name: str, inducing: tuple[int, int], size: tuple[int, int], stride: int
    ) -> list[tuple[str, nn.Module]]:
        """Return nonlinearity, convolution, Gram layer and normalization, by name."""
        after = (math.ceil(size[0] / stride), math.ceil(size[1] / stride))
        learned = [] if math.isinf(self.strength) else [(f"gram{name}", GramLayer(inducing[1], self.strength))]
        return [
            (f"arccos{name}", Arccos(self.jitter)),
            (f"convolution{name}", Convolution(inducing, (_PATCH, _PATCH), stride, _PATCH // 2)),
            *learned,
            (f"normalization{name}", Normalization(self.normalizing, inducing[1], after)),
        ]
