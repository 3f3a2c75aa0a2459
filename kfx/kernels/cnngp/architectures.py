"""Architectures by name, for images of any size."""

from __future__ import annotations

from collections.abc import Callable

from kfx.config import choices
from kfx.kernels.cnngp.layers import Conv2d, Layer, ReLU, Residual, Sequential, Size


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


def _stack(hidden: int, kernel_size: int, image: Size, multiplier: float) -> Sequential:
    block = (Conv2d(kernel_size, padding="same", weight_multiplier=multiplier), ReLU())
    return Sequential(*block * hidden, Conv2d(image, padding=0))


ARCHITECTURES: dict[str, Callable[[Size, float], Sequential]] = dict(
    zip(choices.ARCHITECTURES, (simple, convnet, convnet_cifar, resnet, resnet32), strict=True)
)


def architecture(name: str, image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """Return the architecture with this name for images of this size."""
    return ARCHITECTURES[name](image, hidden_weight_multiplier)
