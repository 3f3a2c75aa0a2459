"""The dense network of infinite width in compiled loops, the default backend of `NNGP` and `NTK` on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kfx.kernels.engine import Engine, Gradient
from kfx.kernels.nngp import loops
from kfx.numerics.threads import in_order

_KINDS = {"relu": loops.RELU, "erf": loops.ERF}
_ALONE = 2e7  # multiplications below which a second thread is not worth waiting for
_LEAST, _ENTRIES = 48, 1 << 22  # rows of a task, since products of fewer are slow; and entries


class FusedNetwork(Engine):
    """K and its gradients in x's dtype. Results are bitwise equal for any number of threads.

    weights, biases: σ_w² and σ_b² of each layer. fixed: K is the NTK of a network whose first `fixed` layers are not
    trained; the NNGP if these are all but the last. keep: whether `gram` keeps the points' inner products, which `pull`
    needs.
    """

    def __init__(
        self, activation: str, fixed: int, weights: Sequence[float], biases: Sequence[float], keep: bool
    ) -> None:
        self.kind, self.fixed, self.keep = _KINDS[activation], fixed, keep
        self.weights, self.biases = np.asarray(weights), np.asarray(biases)
        self._products: list[tuple[int, np.ndarray]] = []

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        left = _rows(x)
        right = left if y is None else _rows(y)
        out = torch.empty(len(left), len(right), dtype=x.dtype)
        made, arguments = out.numpy(), self._arguments(left)
        of_rows = self._scales(loops.mean_squares(left))
        of_columns = of_rows if y is None else self._scales(loops.mean_squares(right))

        def compute(strip: slice) -> np.ndarray:
            at = strip.start, strip.stop, y is None
            return loops.gram(left, right, *at, *of_rows, *of_columns, *arguments, made)

        strips = _strips(len(left), len(right), left.shape[1], y is None)
        done = ((strip.start, product) for strip, product in in_order(compute, strips))
        self._products = [each for each in done if self.keep]
        return out

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        points = _rows(x)
        out = torch.empty(len(points), dtype=x.dtype)
        loops.diagonal(loops.mean_squares(points), *self._arguments(points), out.numpy())
        return out

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        points, arguments = _rows(x), self._arguments(_rows(x))
        given = cotangent.contiguous().numpy()
        own = cotangent.diagonal().contiguous().numpy()
        squares = loops.mean_squares(points)
        r, q = self._scales(squares)
        to_products = np.empty_like(given) if inputs else given[:0]

        def compute(at: tuple[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            top, product = at
            gradient, to_v = np.zeros((2, len(self.weights))), np.zeros_like(r)
            loops.pull(product, given, top, r, q, *arguments, *gradient, to_v, to_products)
            return gradient, to_v

        total, to_v = np.zeros((2, len(self.weights))), np.zeros_like(r)
        for _, (of_strip, to_v_of_strip) in in_order(compute, self._products):
            total += of_strip
            to_v += to_v_of_strip
        to_squares = np.empty_like(squares)
        loops.diagonal_back(squares, own, to_v, *arguments, *total, to_squares)
        to_variances = list(total[0]), list(total[1])
        if not inputs:
            return to_variances, None
        np.fill_diagonal(to_products, 2 * to_squares)
        to_x = torch.from_numpy(to_products) @ torch.from_numpy(points)
        return to_variances, to_x.div_(points.shape[1]).reshape(x.shape)

    def _arguments(self, points: np.ndarray) -> tuple[int, int, np.ndarray, np.ndarray]:
        return self.kind, self.fixed, self.weights.astype(points.dtype), self.biases.astype(points.dtype)

    def _scales(self, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r, q = np.empty((2, len(self.weights) - 1, len(squares)), squares.dtype)
        kind, _, weights, biases = self._arguments(squares)
        loops.scales(squares, kind, weights, biases, r, q)
        return r, q


def compile_for(dtype: torch.dtype) -> None:
    """Load the compiled loops for float32 or float64; the first call on a machine compiles and caches them."""
    x = torch.ones(2, 1, dtype=dtype)
    network = FusedNetwork("relu", 1, [1.0, 1.0], [1.0, 1.0], keep=True)
    network.diagonal(x)
    network.pull(x, network.gram(x, None), inputs=True)


def _rows(x: torch.Tensor) -> np.ndarray:
    return x.detach().flatten(1).contiguous().numpy()


def _strips(n: int, m: int, features: int, same: bool) -> list[slice]:
    """Return the rows of each task, independent of the number of threads; those of a triangle from the longest on."""
    height = n if n * m * (features + 100) < _ALONE else max(min(n // 8, _ENTRIES // max(m, 1)), _LEAST)
    return [slice(top, min(top + height, n)) for top in range(0, n, max(height, 1))]
