"""The Gaussian process of an infinitely wide dense network, in JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import torch

from kfx.kernels.base import Bounds, Kernel, Pull

jax.config.update("jax_enable_x64", True)  # the Gram follows the dtype of x; JAX alone would cut it to float32

traces: Counter[str] = Counter()
"""How often JAX has traced each function of this module: once a shape, however many iterations."""


# ---- the covariance of an activation of two Gaussian variables: covariance c, variances v and v'


@jax.custom_vjp
def relu(c: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """E[max(u, 0) max(u', 0)] = (s + (π − θ) c) / 2π with s = √(v v' − c²), θ = atan2(s, c)."""
    return _relu_forward(c, v, w)[0]


def _relu_forward(c: jax.Array, v: jax.Array, w: jax.Array) -> tuple[jax.Array, Any]:
    # √v √v' rather than √(v v'): the product of two tiny variances would underflow.
    r = jnp.sqrt(v) * jnp.sqrt(w)
    s = jnp.sqrt(jnp.maximum((r - c) * (r + c), 0.0))
    angle = jnp.pi - jnp.arctan2(s, c)
    return (s + angle * c) / (2 * jnp.pi), (s, angle, v, w)


def _relu_backward(kept: Any, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    s, angle, v, w = kept
    both = (v > 0) & (w > 0)  # at a vanishing variance the value and its derivatives are 0
    to_v = jnp.where(both, s / jnp.where(both, v, 1.0), 0.0) / (4 * jnp.pi)
    to_w = jnp.where(both, s / jnp.where(both, w, 1.0), 0.0) / (4 * jnp.pi)
    to_c = jnp.where(both, angle, 0.0) / (2 * jnp.pi)
    return g * to_c, _summed_to(g * to_v, v.shape), _summed_to(g * to_w, w.shape)


def _summed_to(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    axes = tuple(i for i, (a, b) in enumerate(zip(array.shape, shape, strict=True)) if a != b)
    return array.sum(axis=axes, keepdims=True)


relu.defvjp(_relu_forward, _relu_backward)


def erf(c: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """E[erf(u) erf(u')] = 2/π asin(2c / √((1 + 2v)(1 + 2v'))) (Williams 1997)."""
    return 2 / jnp.pi * jnp.arcsin(2 * c / jnp.sqrt((1 + 2 * v) * (1 + 2 * w)))


ACTIVATIONS: dict[str, tuple[Callable[..., jax.Array], Callable[[jax.Array], jax.Array]]] = {
    "relu": (relu, lambda v: v / 2),
    "erf": (erf, lambda v: 2 / jnp.pi * jnp.arcsin(2 * v / (1 + 2 * v))),
}


# ---- the recursion, traced once for each shape


def _diagonal(parameters: tuple[jax.Array, jax.Array], x: jax.Array, activation: str) -> list[jax.Array]:
    """The variance at each layer, (n,) each: K⁰ first."""
    weights, biases = parameters
    variances = [biases[0] + weights[0] * jnp.square(x).mean(axis=1)]
    for weight, bias in zip(weights[1:], biases[1:], strict=True):
        variances.append(bias + weight * ACTIVATIONS[activation][1](variances[-1]))
    return variances


def _recursion(
    parameters: tuple[jax.Array, jax.Array], x: jax.Array, y: jax.Array | None, activation: str
) -> jax.Array:
    """K⁰ = σ_b² + σ_w² x·x'/d,  K^{l+1} = σ_b² + σ_w² F(K^l)."""
    traces["gram"] += 1
    weights, biases = parameters
    rows = _diagonal(parameters, x, activation)
    columns = rows if y is None else _diagonal(parameters, y, activation)
    product = jnp.matmul(x, (x if y is None else y).T, precision=jax.lax.Precision.HIGHEST)
    gram = biases[0] + weights[0] * product / x.shape[1]
    if y is None:
        gram = jnp.fill_diagonal(gram, rows[0], inplace=False)
    for layer in range(1, len(weights)):
        covariance = ACTIVATIONS[activation][0](gram, rows[layer - 1][:, None], columns[layer - 1][None, :])
        gram = biases[layer] + weights[layer] * covariance
    return gram


@partial(jax.jit, static_argnames="activation")
def _gram(parameters: Any, x: jax.Array, y: jax.Array | None, activation: str) -> jax.Array:
    return _recursion(parameters, x, y, activation)


@partial(jax.jit, static_argnames="activation")
def _variance(parameters: Any, x: jax.Array, activation: str) -> jax.Array:
    return _diagonal(parameters, x, activation)[-1]


@partial(jax.jit, static_argnames=("activation", "inputs"))
def _pull(parameters: Any, x: jax.Array, cotangent: jax.Array, activation: str, inputs: bool) -> Any:
    if inputs:
        _, vjp = jax.vjp(lambda p, x: _recursion(p, x, None, activation), parameters, x)
    else:
        _, vjp = jax.vjp(lambda p: _recursion(p, x, None, activation), parameters)
    return vjp(cotangent)


class NNGP(Kernel):
    """The covariance of a dense network of infinite width (Lee et al. 2018; Khalid 2022, eq. 2.19–2.20).

    K⁰ = σ_b² + σ_w² x·x'/d,  K^{l+1} = σ_b² + σ_w² F(K^l),  with `depth` activations F: `relu` or `erf`.

    depth: ≥ 0; 0 is the linear kernel.
    weight_variance, bias_variance: σ_w², σ_b² ≥ 0, one number for the network or one for each of depth + 1 layers.
    Images count as vectors of their pixels. Computed in x's dtype and returned on x's device.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {"weight_variance": (1e-3, 200.0), "bias_variance": (1e-3, 200.0)}

    def __init__(
        self,
        depth: int = 3,
        activation: str = "relu",
        weight_variance: float | Iterable[float] = 1.0,
        bias_variance: float | Iterable[float] = 0.1,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        if depth < 0:
            raise ValueError(f"depth must be >= 0, got {depth}")
        super().__init__({"weight_variance": weight_variance, "bias_variance": bias_variance}, trainable, bounds)
        for name, value in self._values.items():
            if np.size(value) not in (1, depth + 1):
                raise ValueError(f"{name} takes one number or {depth + 1}, one a layer; got {np.size(value)}")
        self.depth, self.activation = depth, activation

    def _arguments(self, *arrays: torch.Tensor | None) -> list[Any]:
        dtype = next(a for a in arrays if a is not None).dtype
        kind = str(dtype).removeprefix("torch.")
        parameters = tuple(jnp.asarray(np.broadcast_to(v, self.depth + 1), kind) for v in self._values.values())
        flattened = [None if a is None else jnp.asarray(a.reshape(len(a), -1).cpu().numpy()) for a in arrays]
        return [parameters, *flattened]

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return _to_torch(_gram(*self._arguments(x, y), activation=self.activation), x)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return _to_torch(_variance(*self._arguments(x), activation=self.activation), x)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        return self._gram(x, None), _NNGPPull(self, x)


class _NNGPPull(Pull):
    """Runs the recursion again inside one compiled vjp, rather than keep every layer's matrix alive."""

    def __init__(self, kernel: NNGP, x: torch.Tensor) -> None:
        self.kernel, self.x = kernel, x

    def __call__(self, cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, Any], torch.Tensor | None]:
        parameters, points, given = self.kernel._arguments(self.x, cotangent.to(self.x.dtype))
        pulled = _pull(parameters, points, given, activation=self.kernel.activation, inputs=inputs)
        to_parameters, to_points = pulled if inputs else (pulled[0], None)
        by_name = {
            name: np.asarray(slope) if isinstance(value, np.ndarray) and value.size > 1 else float(slope.sum())
            for (name, value), slope in zip(self.kernel._values.items(), to_parameters, strict=True)
        }
        return by_name, None if to_points is None else _to_torch(to_points, self.x).reshape(self.x.shape)


def _to_torch(array: jax.Array, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(like)
