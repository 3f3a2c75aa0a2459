"""The recursion of an infinitely wide dense network in plain JAX: the native backend of `NNGP`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

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
def gram(parameters: Any, x: jax.Array, y: jax.Array | None, activation: str) -> jax.Array:
    """K(x, y); parameters: (σ_w², σ_b²), (depth + 1,) each."""
    return _recursion(parameters, x, y, activation)


@partial(jax.jit, static_argnames="activation")
def variance(parameters: Any, x: jax.Array, activation: str) -> jax.Array:
    """K(x_i, x_i), (n,)."""
    return _diagonal(parameters, x, activation)[-1]


@partial(jax.jit, static_argnames=("activation", "inputs"))
def pull(parameters: Any, x: jax.Array, cotangent: jax.Array, activation: str, inputs: bool) -> Any:
    """Gradients of Σ G_ij K(x, x)_ij: to the parameters and, with `inputs`, to x.

    Runs the recursion again inside one compiled vjp, rather than keep every layer's matrix alive between calls.
    """
    if inputs:
        _, vjp = jax.vjp(lambda p, x: _recursion(p, x, None, activation), parameters, x)
    else:
        _, vjp = jax.vjp(lambda p: _recursion(p, x, None, activation), parameters)
    return vjp(cotangent)
