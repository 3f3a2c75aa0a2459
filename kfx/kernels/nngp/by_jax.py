"""The dense network of infinite width by JAX functions, with conversions between torch and JAX."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any

import jax
import numpy as np
import torch

from kfx.kernels.engine import Engine, Gradient

jax.config.update("jax_enable_x64", True)  # else JAX would reduce float64 to float32


class JaxNetwork(Engine):
    """K and its gradients by `module`, `native` or `by_neural_tangents`, in x's dtype and on its device.

    weights, biases: σ_w² and σ_b² of each layer. fixed: the number of first layers that are not trained; all but the
    last for the NNGP.
    """

    def __init__(
        self, module: ModuleType, activation: str, fixed: int, weights: Sequence[float], biases: Sequence[float]
    ) -> None:
        self.parameters = np.array([weights, biases])
        self.static: dict[str, Any] = {"of": module, "activation": activation, "fixed": fixed}

    def gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return _to_torch(_gram(*self._arguments(x, y), **self.static), x)

    def diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return _to_torch(_variance(*self._arguments(x), **self.static), x)

    def pull(self, x: torch.Tensor, cotangent: torch.Tensor, inputs: bool) -> tuple[Gradient, torch.Tensor | None]:
        pulled = _pull(*self._arguments(x, cotangent.to(x.dtype)), **self.static, inputs=inputs)
        to_parameters, to_x = pulled if inputs else (pulled[0], None)
        gradient = np.asarray(to_parameters, np.float64)
        to_variances = gradient[0].tolist(), gradient[1].tolist()
        return to_variances, None if to_x is None else _to_torch(to_x, x).reshape(x.shape)

    def _arguments(self, x: torch.Tensor, *others: torch.Tensor | None) -> list[np.ndarray | jax.Array | None]:
        """Return the variances and the points as rows, as the compiled call takes them: in NumPy on a CPU, which copies
        them at most once."""
        rows = [None if a is None else a.detach().flatten(1).cpu().numpy() for a in (x, *others)]
        arguments: list[np.ndarray | jax.Array | None] = [
            self.parameters.astype(str(x.dtype).removeprefix("torch.")),
            *rows,
        ]
        return arguments if x.device.type == "cpu" else list(jax.device_put(arguments, _jax_device(x.device)))


# ---- the functions of a module, compiled once for each shape; a gradient computes the matrix again within one call


@partial(jax.jit, static_argnames=("of", "activation", "fixed"))
def _gram(
    parameters: jax.Array, x: jax.Array, y: jax.Array | None, of: ModuleType, activation: str, fixed: int
) -> jax.Array:
    return of.gram(parameters, x, y, activation, fixed)


@partial(jax.jit, static_argnames=("of", "activation", "fixed"))
def _variance(parameters: jax.Array, x: jax.Array, of: ModuleType, activation: str, fixed: int) -> jax.Array:
    return of.variance(parameters, x, activation, fixed)


@partial(jax.jit, static_argnames=("of", "activation", "fixed", "inputs"))
def _pull(
    parameters: jax.Array,
    x: jax.Array,
    cotangent: jax.Array,
    of: ModuleType,
    activation: str,
    fixed: int,
    inputs: bool,
) -> tuple[jax.Array, ...]:
    """Return the gradients to the parameters, (2, depth + 1), and with `inputs` to x, (n, features)."""
    if inputs:
        _, vjp = jax.vjp(lambda p, x: of.gram(p, x, None, activation, fixed), parameters, x)
    else:
        _, vjp = jax.vjp(lambda p: of.gram(p, x, None, activation, fixed), parameters)
    return vjp(cotangent)


@cache
def _jax_device(device: torch.device) -> jax.Device:
    """Return JAX's name for a torch device; RuntimeError where JAX does not see it."""
    return jax.devices("gpu")[device.index or 0]


def _to_torch(array: jax.Array, like: torch.Tensor) -> torch.Tensor:
    """Return the array as a tensor once it is computed, in the same memory."""
    return torch.from_dlpack(array.block_until_ready()).to(like)
