"""The dense network of infinite width in torch, as a convolutional one on images of one pixel; default on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kfx.kernels.cnngp.layers import Conv2d, Erf, Layer, ReLU, Sequential
from kfx.kernels.cnngp.torch_engine import TorchEngine
from kfx.kernels.engine import Engine, Gradient

_TILE_MEGABYTES = 32.0


class TorchNetwork(Engine):
    """K and its gradients, tile by tile, in x's dtype and on its device.

    weights, biases: σ_w² and σ_b² of each layer.
    """

    def __init__(self, activation: str, weights: Sequence[float], biases: Sequence[float]) -> None:
        between: tuple[Layer, ...] = (ReLU() if activation == "relu" else Erf(), Conv2d(1))
        program = Sequential(Conv2d(1), *between * (len(weights) - 1)).program((1, 1))
        of_weights, of_biases = ([0.0] * len(program) for _ in range(2))
        of_weights[::2], of_biases[::2] = weights, biases  # an activation follows each layer but the last
        self.engine = TorchEngine(program, of_weights, of_biases, _TILE_MEGABYTES)

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self.engine.gram(_pixels(x), None if y is None else _pixels(y))

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self.engine.diagonal(_pixels(x))

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        (to_weights, to_biases), to_x = self.engine.pull(_pixels(x), cotangent.to(x.dtype), inputs)
        return (to_weights[::2], to_biases[::2]), None if to_x is None else to_x.reshape(x.shape)


def _pixels(x: torch.Tensor) -> torch.Tensor:
    """Return points (n, …) as images of one pixel, (n, features, 1, 1)."""
    return x.flatten(1)[..., None, None]
