"""The Gaussian process of an infinitely wide convolutional network, in torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from kfx.kernels.base import Bounds, Kernel, Pull
from kfx.kernels.layers import Conv2d, Scalar, Sequential, Size, Step, bind
from kfx.notices import note
from kfx.outcomes import Event

_MAPS_OF_A_VALUE = 6  # alive at once for each pair, while a Gram tile is computed
_MAPS_OF_A_LAYER = 3  # kept for each pair and layer, while a tile is pulled back


class CNNGP(Kernel):
    """The covariance of a convolutional network of infinitely many channels (Garriga-Alonso et al. 2019).

    K¹ = σ_b² + σ_w² · mean over patch and channels of x x',  K^{l+1} = σ_b² + σ_w² · mean over patch of V(K^l).

    architecture: `Sequential(Conv2d(…), ReLU(), …, Conv2d(…))`, ending in 1 × 1 maps.
    weight_variance, bias_variance: σ_w², σ_b² ≥ 0, one number for the network or one for each convolution.
    variance_scaling: `fan_in`, the mean over the patch, padding included (as cnn-gp and neural-tangents); `weight`,
        the sum over the patch (Khalid 2022, eq. 2.27 as printed).
    tile_megabytes: memory of the maps that are alive at once. Gram matrices and gradients are computed tile by tile
        in this memory, at any batch size and depth; on a GPU the tile is halved where memory runs out.

    Points are (n, channels, height, width), square or not. Computed in x's dtype, on x's device.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {"weight_variance": (1e-3, 1e3), "bias_variance": (1e-3, 1e3)}

    def __init__(
        self,
        architecture: Sequential,
        weight_variance: float | Iterable[float] = 1.0,
        bias_variance: float | Iterable[float] = 0.1,
        *,
        variance_scaling: str = "fan_in",
        tile_megabytes: float = 32.0,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if variance_scaling not in ("fan_in", "weight"):
            raise ValueError(f"variance_scaling must be fan_in or weight, got {variance_scaling!r}")
        super().__init__({"weight_variance": weight_variance, "bias_variance": bias_variance}, trainable, bounds)
        for name, value in self._values.items():
            if np.size(value) not in (1, architecture.convolutions):
                raise ValueError(
                    f"{name} takes one number or {architecture.convolutions}, one a convolution; got {np.size(value)}"
                )
        self.architecture, self.variance_scaling, self.tile_megabytes = architecture, variance_scaling, tile_megabytes

    # ---- the recursion on one tile

    def _program(self, x: torch.Tensor) -> tuple[Step, ...]:
        return _bound(self.architecture, _image(x), self.variance_scaling == "fan_in", x.dtype, x.device)

    def _layer_parameters(self) -> list[tuple[float, float]]:
        """(σ_w², σ_b²) of each layer; layers without parameters get (0, 0)."""
        weights, biases = (np.broadcast_to(v, self.architecture.convolutions).tolist() for v in self._values.values())
        pairs = iter(zip(weights, biases, strict=True))
        return [next(pairs) if isinstance(layer, Conv2d) else (0.0, 0.0) for layer in self.architecture.layers]

    def _variances(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The variance maps that reach each layer, and the one that leaves the last."""
        maps = [x.square().mean(dim=1)]
        for step, (weight, bias) in zip(self._program(x), self._layer_parameters(), strict=True):
            maps.append(step.variance(maps[-1], weight, bias))
        return maps

    def _tile(
        self, x: torch.Tensor, y: torch.Tensor, v: list[torch.Tensor], w: list[torch.Tensor], keep: bool
    ) -> tuple[torch.Tensor, list[Any]]:
        """K(x, y), (n, m), of a tile with the variance maps v of x and w of y; and what the adjoint needs."""
        c = torch.einsum("ichw,jchw->ijhw", x, y) if x.shape[1] > 1 else x[:, None, 0] * y[None, :, 0]
        c /= x.shape[1]
        kept = []
        for i, (step, (weight, bias)) in enumerate(zip(self._program(x), self._layer_parameters(), strict=True)):
            c, needed = step.forward(c, v[i], w[i], weight, bias)
            if keep:
                kept.append(needed)
        return c[..., 0, 0], kept

    def _tile_adjoint(
        self,
        g: torch.Tensor,
        kept: list[Any],
        v: list[torch.Tensor],
        w: list[torch.Tensor],
        x: torch.Tensor,
        gradient: _Gradient,
    ) -> tuple[torch.Tensor, list[torch.Tensor | None], list[torch.Tensor | None]]:
        """From a tile's cotangent g to that of the product maps, and to the variance maps at each layer."""
        to_v: list[torch.Tensor | None] = []
        to_w: list[torch.Tensor | None] = []
        g = g[..., None, None]
        layers = list(enumerate(zip(self._program(x), self._layer_parameters(), strict=True)))
        for i, (step, (weight, _)) in reversed(layers):
            g, here_v, here_w, to_weight, to_bias = step.adjoint(g, kept.pop(), v[i], w[i], weight)
            gradient.add(i, to_weight, to_bias)
            to_v.append(here_v)
            to_w.append(here_w)
        return g, to_v[::-1], to_w[::-1]

    def _variance_adjoint(
        self,
        last: torch.Tensor | None,
        at_layers: list[torch.Tensor | None],
        maps: list[torch.Tensor],
        x: torch.Tensor,
        gradient: _Gradient,
    ) -> torch.Tensor:
        """From cotangents of the variance maps, at each layer and after the last, to that of the mean square."""
        g = torch.zeros_like(maps[-1]) if last is None else last[:, None, None]
        layers = list(enumerate(zip(self._program(x), self._layer_parameters(), strict=True)))
        for i, (step, (weight, _)) in reversed(layers):
            g, to_weight, to_bias = step.variance_adjoint(g, maps[i], weight)
            gradient.add(i, to_weight, to_bias)
            here = at_layers[i]
            if here is not None:
                g = g + here
        return g

    # ---- tile by tile

    def _tile_side(self, x: torch.Tensor, maps: int) -> int:
        largest = max(h * w for h, w in self.architecture.sizes(_image(x)))
        pairs = self.tile_megabytes * 2**20 / (maps * largest * x.element_size())
        return max(int(math.sqrt(pairs)), 1)

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        def compute(side: int) -> torch.Tensor:
            others = x if y is None else y
            gram = x.new_empty(len(x), len(others))
            for rows, columns in tiles(len(x), None if y is None else len(others), side):
                v = self._variances(x[rows])
                w = v if y is None and rows == columns else self._variances(others[columns])
                gram[rows, columns], _ = self._tile(x[rows], others[columns], v, w, keep=False)
                if y is None and rows != columns:
                    gram[columns, rows] = gram[rows, columns].mT
            return gram

        return _halving(compute, self._tile_side(x, _MAPS_OF_A_VALUE))

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        blocks = [self._variances(block)[-1][:, 0, 0] for block in x.split(self._tile_side(x, 1) ** 2)]
        return torch.cat(blocks) if blocks else x.new_empty(0)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        return self._gram(x, None), _CNNGPPull(self, x)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.architecture.convolutions} convolutions)"


class _CNNGPPull(Pull):
    """Keeps nothing between the Gram matrix and its cotangent but the points: each tile is computed again, pulled
    back and dropped, so that an exact gradient needs the memory of one tile."""

    def __init__(self, kernel: CNNGP, x: torch.Tensor) -> None:
        self.kernel, self.x = kernel, x

    def __call__(self, cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, Any], torch.Tensor | None]:
        kernel, x = self.kernel, self.x
        cotangent = cotangent.to(x.dtype)

        def compute(side: int) -> tuple[_Gradient, torch.Tensor | None]:
            gradient = _Gradient(len(kernel.architecture.layers))
            to_x = torch.zeros_like(x) if inputs else None
            for rows, columns in tiles(len(x), None, side):
                self._pull_tile(cotangent, rows, columns, gradient, to_x)
            return gradient, to_x

        layers = kernel.architecture.layers
        maps = _MAPS_OF_A_VALUE + _MAPS_OF_A_LAYER * len(layers)
        gradient, to_x = _halving(compute, kernel._tile_side(x, maps))
        convolutions = [i for i, layer in enumerate(layers) if isinstance(layer, Conv2d)]
        return gradient.by_name(kernel, convolutions), to_x

    def _pull_tile(
        self, cotangent: torch.Tensor, rows: slice, columns: slice, gradient: _Gradient, to_x: torch.Tensor | None
    ) -> None:
        kernel, x, y = self.kernel, self.x[rows], self.x[columns]
        on_diagonal = rows == columns
        v = kernel._variances(x)
        w = v if on_diagonal else kernel._variances(y)
        _, kept = kernel._tile(x, y, v, w, keep=True)
        g = cotangent[rows, columns]
        if on_diagonal:  # an image with itself goes by its variance alone, which is exact
            own = g.diagonal().clone()
            g = g - torch.diag(own)
        else:  # both triangles
            own = None
            g = g + cotangent[columns, rows].mT
        to_products, to_v, to_w = kernel._tile_adjoint(g, kept, v, w, x, gradient)
        to_squares = kernel._variance_adjoint(own, to_v, v, x, gradient)
        to_other_squares = kernel._variance_adjoint(None, to_w, w, y, gradient)
        if to_x is not None:
            channels = x.shape[1]
            to_x[rows] += torch.einsum("ijhw,jchw->ichw", to_products, y) / channels
            to_x[columns] += torch.einsum("ijhw,ichw->jchw", to_products, x) / channels
            to_x[rows] += to_squares[:, None] * x * (2 / channels)
            to_x[columns] += to_other_squares[:, None] * y * (2 / channels)


class _Gradient:
    """The gradient to (σ_w², σ_b²) of each layer, gathered over tiles in float64."""

    def __init__(self, layers: int) -> None:
        self.sums: list[list[Scalar]] = [[0.0] * layers, [0.0] * layers]

    def add(self, layer: int, to_weight: Scalar, to_bias: Scalar) -> None:
        self.sums[0][layer] += to_weight
        self.sums[1][layer] += to_bias

    def by_name(self, kernel: CNNGP, convolutions: list[int]) -> dict[str, Any]:
        values = np.array([[float(total) for total in sums] for sums in self.sums])
        per_layer = dict(zip(kernel.parameters, values[:, convolutions], strict=True))
        return {
            name: per_layer[name] if isinstance(value, np.ndarray) and value.size > 1 else float(per_layer[name].sum())
            for name, value in kernel.parameters.items()
        }


def tiles(n: int, m: int | None, side: int) -> Iterator[tuple[slice, slice]]:
    """Tiles of an (n, m) matrix; with m None, those on and above the diagonal of (n, n). The last may be ragged."""
    for top in range(0, n, side):
        for left in range(top if m is None else 0, n if m is None else m, side):
            yield slice(top, min(top + side, n)), slice(left, min(left + side, n if m is None else m))


def _halving(compute: Any, side: int) -> Any:
    """compute(side), with half the side as often as a GPU's memory runs out."""
    while True:
        try:
            return compute(side)
        except torch.OutOfMemoryError:
            if side == 1:
                raise
            torch.cuda.empty_cache()
        side = max(side // 2, 1)  # outside the handler, which keeps the failed tile's memory alive
        note(Event.TILE_HALVED)


def _image(x: torch.Tensor) -> Size:
    if x.ndim != 4:
        raise ValueError(f"CNNGP takes images (n, channels, height, width), got points of {tuple(x.shape)}")
    return x.shape[2], x.shape[3]


@lru_cache(maxsize=32)
def _bound(
    architecture: Sequential, size: Size, mean: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Step, ...]:
    sizes = architecture.sizes(size)
    return tuple(
        bind(layer, reaching, mean, dtype, device) for layer, reaching in zip(architecture.layers, sizes, strict=True)
    )
