"""Architectures by name, for images of any size."""

from __future__ import annotations

from collections.abc import Callable

from kfx.kernels.cnngp.layers import (
    AvgPool2d,
    Conv2d,
    Dense,
    GlobalAvgPool,
    Layer,
    ReLU,
    Residual,
    Sequential,
    Size,
)


def simple(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return the three-layer network of Khalid 2022, Fig. 3.7: Conv 7 same, ReLU, Conv over the whole map."""
    return _stack(1, 7, image, hidden_weight_multiplier)


def convnet(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return ConvNet-GP (Garriga-Alonso et al. 2019; Khalid 2022, Fig. 3.9).

    7 × (Conv 7 same, ReLU), whole-map Conv.
    """
    return _stack(7, 7, image, hidden_weight_multiplier)


def convnet_cifar(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return ConvNet-GP with the change of Khalid 2022, §3.6.1, for CIFAR-10: kernel size 8 instead of 7."""
    return _stack(7, 8, image, hidden_weight_multiplier)


def resnet(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return the residual network of Garriga-Alonso et al. 2019, as published in cnn-gp.

    8 × (u + ReLU(Conv 4 same)), Conv 4 same, ReLU, whole-map Conv.
    """
    convolution = Conv2d(4, padding="same", weight_multiplier=hidden_weight_multiplier)
    # The sum comes after the ReLU, where units are neither Gaussian nor of mean zero. The result is a kernel, but not
    # the limit of a network. The published numbers are those of this kernel.
    blocks = [Residual(convolution, ReLU()) for _ in range(8)]
    return Sequential(*blocks, convolution, ReLU(), Conv2d(image, padding=0))


def resnet32(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return the 32-layer residual network of Garriga-Alonso et al. 2019, as published in cnn-gp.

    Conv 3, three stages of five blocks of two Conv 3 with strides 1, 2 and 2, Conv over the whole map, ReLU, Conv 1.
    The first block of a stage has its ReLU before the fork, and a Conv 1 as its shortcut. cnn-gp has σ_b² = 0.
    """

    def convolution(kernel_size: int | Size, stride: int = 1, padding: str = "same") -> Conv2d:
        return Conv2d(kernel_size, stride, padding, weight_multiplier=hidden_weight_multiplier)

    layers: list[Layer] = [convolution(3)]
    for stride in (1, 2, 2):
        body = convolution(3, stride), ReLU(), convolution(3)
        layers += [ReLU(), Residual(*body, shortcut=convolution(1, stride))]
        layers += [Residual(ReLU(), convolution(3), ReLU(), convolution(3)) for _ in range(4)]
    last = tuple(-(-length // 4) for length in image)
    return Sequential(*layers, convolution((last[0], last[1]), padding="valid"), ReLU(), Conv2d(1, padding=0))


def convnet_gap(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return ConvNet-GP with global average pooling before its last layer: 7 × (Conv 7 same, ReLU), mean, dense."""
    block = (Conv2d(7, padding="same", weight_multiplier=hidden_weight_multiplier), ReLU())
    return Sequential(*block * 7, GlobalAvgPool(), Dense())


def cntk_gap(image: Size, hidden_weight_multiplier: float = 1.0, depth: int = 14) -> Sequential:
    """Return the network of CNTK-GAP (Arora et al. 2019): (depth − 1) × (Conv 3 same, ReLU), mean over the map, dense.

    As in all networks below, layers after a ReLU have the factor 2 on σ_w², as if the ReLU were √2 max(u, 0).
    """
    return Sequential(*_conv3(depth - 1, hidden_weight_multiplier, first=True), GlobalAvgPool(), Dense(2.0))


def myrtle5(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return Myrtle-5 (Shankar et al. 2020): 2, 1 and 1 × (Conv 3 same, ReLU), 2 × 2 means between, mean, dense."""
    return _myrtle((2, 1, 1), hidden_weight_multiplier)


def myrtle7(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return Myrtle-7 (Shankar et al. 2020): as Myrtle-5, with 2, 2 and 2 convolutions."""
    return _myrtle((2, 2, 2), hidden_weight_multiplier)


def myrtle10(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return Myrtle-10 (Shankar et al. 2020): as Myrtle-5, with 3, 3 and 3 convolutions."""
    return _myrtle((3, 3, 3), hidden_weight_multiplier)


def _conv3(count: int, multiplier: float, first: bool) -> list[Layer]:
    factors = [1.0 if first and k == 0 else 2.0 for k in range(count)]
    pairs = [(Conv2d(3, padding="same", weight_multiplier=multiplier * factor), ReLU()) for factor in factors]
    return [layer for pair in pairs for layer in pair]


def _myrtle(convolutions: tuple[int, ...], multiplier: float) -> Sequential:
    layers = _conv3(convolutions[0], multiplier, first=True)
    for count in convolutions[1:]:
        layers += [AvgPool2d(2), *_conv3(count, multiplier, first=False)]
    return Sequential(*layers, GlobalAvgPool(), Dense(2.0))


def _stack(hidden: int, kernel_size: int, image: Size, multiplier: float) -> Sequential:
    block = (Conv2d(kernel_size, padding="same", weight_multiplier=multiplier), ReLU())
    return Sequential(*block * hidden, Conv2d(image, padding=0))


_POOLED = (convnet_gap, cntk_gap, myrtle5, myrtle7, myrtle10)
ARCHITECTURES: dict[str, Callable[..., Sequential]] = {
    build.__name__: build for build in (simple, convnet, convnet_cifar, resnet, resnet32, *_POOLED)
}


def architecture(name: str, image: Size, hidden_weight_multiplier: float = 1.0, depth: int | None = None) -> Sequential:
    """Return the architecture with this name for images of this size.

    depth: number of layers with weights, for cntk_gap; None for its 14. ValueError for another architecture.
    """
    if depth is not None and name != "cntk_gap":
        raise ValueError(f"depth={depth}: sets the layers of architecture=cntk_gap; architecture={name} has its own")
    return ARCHITECTURES[name](image, hidden_weight_multiplier, **({} if depth is None else {"depth": depth}))
