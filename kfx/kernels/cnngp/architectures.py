"""Architectures by name. Sizes follow the image, so that each fits any data set of images."""

from __future__ import annotations

from collections.abc import Callable

from kfx.config import choices
from kfx.kernels.cnngp.layers import Conv2d, ReLU, Residual, Sequential, Size


def simple(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """The three-layer network of Khalid 2022, Fig. 3.7: Conv 7 same, ReLU, Conv over the whole map."""
    return _stack(1, 7, image, hidden_weight_multiplier)


def convnet(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """ConvNet-GP (Garriga-Alonso et al. 2019; Khalid 2022, Fig. 3.9): 7 × (Conv 7 same, ReLU), whole-map Conv."""
    return _stack(7, 7, image, hidden_weight_multiplier)


def convnet_cifar(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """ConvNet-GP as Khalid 2022, §3.6.1 changes it for CIFAR-10: kernels of 8 instead of 7."""
    return _stack(7, 8, image, hidden_weight_multiplier)


def resnet(image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """The residual network of Garriga-Alonso et al. 2019, as cnn-gp publishes it: 8 × (u + ReLU(Conv 4 same)), Conv 4
    same, ReLU, whole-map Conv."""
    convolution = Conv2d(4, padding="same", weight_multiplier=hidden_weight_multiplier)
    # The sum comes after the ReLU, where units are not Gaussian and not of mean zero: a kernel, but no network's limit.
    # The published numbers are of this kernel.
    blocks = [Residual(convolution, ReLU()) for _ in range(8)]
    return Sequential(*blocks, convolution, ReLU(), Conv2d(image, padding=0))


def _stack(hidden: int, kernel_size: int, image: Size, multiplier: float) -> Sequential:
    block = (Conv2d(kernel_size, padding="same", weight_multiplier=multiplier), ReLU())
    return Sequential(*block * hidden, Conv2d(image, padding=0))


ARCHITECTURES: dict[str, Callable[[Size, float], Sequential]] = dict(
    zip(choices.ARCHITECTURES, (simple, convnet, convnet_cifar, resnet), strict=True)
)


def architecture(name: str, image: Size, hidden_weight_multiplier: float = 1.0) -> Sequential:
    """The architecture of this name for images of this size."""
    return ARCHITECTURES[name](image, hidden_weight_multiplier)
