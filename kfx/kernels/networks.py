"""Convolutional networks as feature maps, by name, for images of any size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


class SameConv2d(nn.Conv2d):
    """A convolution whose output has ⌈size / stride⌉ pixels along each axis.

    Zeros are added evenly on both sides; an odd one comes at the end.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the convolution of images (n, channels, h, w), (n, outputs, ⌈h / stride⌉, ⌈w / stride⌉)."""
        sides: list[int] = []
        for size, kernel, stride in zip(input.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            zeros = max((_ceil(size, stride) - 1) * stride + kernel - size, 0)
            sides += [zeros // 2, zeros - zeros // 2]
        # With channels last a CPU computes few channels nearly twice as fast.
        weight = self.weight.to(memory_format=torch.channels_last)
        return nn.functional.conv2d(nn.functional.pad(input, sides), weight, self.bias, self.stride)


def _ceil(size: int, step: int) -> int:
    return -(-size // step)


def _network(
    image: Shape, convolutions: list[tuple[int, int, int, int]], dense: int, outputs: int | None = None
) -> nn.Sequential:
    """Return convolutions of (size, channels, stride, pooling) and a dense layer, ReLU after each.

    outputs: size of a linear layer after them; None for none.
    """
    channels, height, width = image
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (size, made, stride, pooling) in enumerate(convolutions, start=1):
        parts: OrderedDict[str, nn.Module] = OrderedDict(conv=SameConv2d(channels, made, size, stride), relu=nn.ReLU())
        if pooling > 1:
            parts["pool"] = nn.MaxPool2d(pooling, ceil_mode=True)
        layers[f"layer{i}"] = nn.Sequential(parts)
        channels = made
        height, width = (_ceil(_ceil(side, stride), pooling) for side in (height, width))
    layers["dense"] = nn.Sequential(
        OrderedDict(flat=nn.Flatten(), linear=nn.Linear(channels * height * width, dense), relu=nn.ReLU())
    )
    if outputs is not None:
        layers["output"] = nn.Linear(dense, outputs)
    return nn.Sequential(layers)


def mnist(image: Shape) -> nn.Sequential:
    """Return M. Görner's network for MNIST with 300 outputs, as in Owhadi & Yoo 2019, §10.1 and Fig. 23.

    Convolutions 6 × 6 × 6 with stride 1, 5 × 5 × 12 and 4 × 4 × 24 with stride 2, then a dense layer of 200. The sizes
    are from the network's public description.
    """
    return _network(image, [(6, 6, 1, 1), (5, 12, 2, 1), (4, 24, 2, 1)], 200, 300)


def mnist_300(image: Shape) -> nn.Sequential:
    """Return `mnist` with one dense layer of 300 units, whose ReLU are the features: another reading of Fig. 23."""
    return _network(image, [(6, 6, 1, 1), (5, 12, 2, 1), (4, 24, 2, 1)], 300)


def fashion(image: Shape) -> nn.Sequential:
    """Return a common network for Fashion-MNIST with 300 outputs.

    Convolutions 3 × 3 × 32 and 3 × 3 × 64, each with pooling by 2, then a dense layer of 128. It is not the network of
    Owhadi & Yoo 2019, §10.2, which is given only as a figure (Fig. 28).
    """
    return _network(image, [(3, 32, 1, 2), (3, 64, 1, 2)], 128, 300)


def fashion_1024(image: Shape) -> nn.Sequential:
    """Return P. Mahajan's network for Fashion-MNIST, which Owhadi & Yoo 2019, §10.2, cite.

    Convolutions 5 × 5 × 32 and 5 × 5 × 64, each with pooling by 2, then a dense layer of 1024, whose ReLU are the
    features.
    """
    return _network(image, [(5, 32, 1, 2), (5, 64, 1, 2)], 1024)


def small(image: Shape) -> nn.Sequential:
    """Return a network for images of 8 × 8 pixels with 16 outputs.

    Convolutions 3 × 3 × 8 with stride 1 and 3 × 3 × 16 with stride 2, then a dense layer of 32.
    """
    return _network(image, [(3, 8, 1, 1), (3, 16, 2, 1)], 32, 16)


def draw_truncated(module: nn.Module) -> None:
    """Draw all weights from a normal distribution of deviation 0.1, cut at twice that, and set all biases to 0.1.

    As in M. Görner's public lesson on MNIST, which Owhadi & Yoo 2019, §10.1, cite.
    """
    for name, values in module.named_parameters():
        if name.endswith("bias"):
            nn.init.constant_(values, 0.1)
        else:
            nn.init.trunc_normal_(values, std=0.1, a=-0.2, b=0.2)


NETWORKS: dict[str, Callable[[Shape], nn.Sequential]] = {
    network.__name__: network for network in (small, mnist, mnist_300, fashion, fashion_1024)
}
