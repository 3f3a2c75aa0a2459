"""The recursion of an infinitely wide dense network in plain JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import jax
import jax.numpy as jnp

Kept = tuple[jax.Array, ...]
"""Arrays of a function's forward pass that its derivative needs."""

traces: Counter[str] = Counter()
"""The number of times that JAX has traced each function of this module: once for each shape."""


# ---- the covariance of an activation of two Gaussian variables u and u', with covariance c and variances v and v' (w)


@jax.custom_vjp
def relu(c: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """Return E[max(u, 0) max(u', 0)] = (s + (π − θ) c) / 2π with s = √(v v' − c²), θ = atan2(s, c) (Cho & Saul 2009).

    c: covariances, (n, m). v: variances of u, (n, 1). w: variances of u', (1, m).
    """
    return _relu_forward(c, v, w)[0]


def _relu_forward(c: jax.Array, v: jax.Array, w: jax.Array) -> tuple[jax.Array, Kept]:
    # √v √v' rather than √(v v'): the product of two tiny variances would underflow.
    r = jnp.sqrt(v) * jnp.sqrt(w)
    s = jnp.sqrt(jnp.maximum((r - c) * (r + c), 0.0))
    angle = jnp.pi - jnp.arctan2(s, c)
    return (s + angle * c) / (2 * jnp.pi), (s, angle, v, w)


def _relu_backward(kept: Kept, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    s, angle, v, w = kept
    both = (v > 0) & (w > 0)  # where a variance is 0, the value and its derivatives are 0
    to_v = jnp.where(both, s / jnp.where(both, v, 1.0), 0.0) / (4 * jnp.pi)
    to_w = jnp.where(both, s / jnp.where(both, w, 1.0), 0.0) / (4 * jnp.pi)
    to_c = jnp.where(both, angle, 0.0) / (2 * jnp.pi)
    return g * to_c, _summed_to(g * to_v, v.shape), _summed_to(g * to_w, w.shape)


def _summed_to(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    axes = tuple(i for i, (a, b) in enumerate(zip(array.shape, shape, strict=True)) if a != b)
    return array.sum(axis=axes, keepdims=True)


relu.defvjp(_relu_forward, _relu_backward)


def erf(c: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """Return E[erf(u) erf(u')] = 2/π asin(2c / √((1 + 2v)(1 + 2v'))) (Williams 1997), (n, m). Shapes as for `relu`."""
    return 2 / jnp.pi * jnp.arcsin(2 * c / jnp.sqrt((1 + 2 * v) * (1 + 2 * w)))


@jax.custom_vjp
def relu_slope(c: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """Return E[1(u > 0) 1(u' > 0)] = (π − θ) / 2π, (n, m). Shapes as for `relu`."""
    return _relu_slope_forward(c, v, w)[0]


def _relu_slope_forward(c: jax.Array, v: jax.Array, w: jax.Array) -> tuple[jax.Array, Kept]:
    _, (s, angle, v, w) = _relu_forward(c, v, w)
    apart = s > jnp.sqrt(32 * jnp.finfo(s.dtype).eps) * jnp.sqrt(v) * jnp.sqrt(w)
    angle = jnp.where(apart, angle, jnp.where(c > 0, jnp.pi, 0.0))  # exact for equal points
    return jnp.where((v > 0) & (w > 0), angle, 0.0) / (2 * jnp.pi), (c, s, apart, v, w)


def _relu_slope_backward(kept: Kept, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    c, s, apart, v, w = kept  # the derivative does not exist at equal points; 0 is used
    to_c = jnp.where(apart, g / jnp.where(apart, s, 1.0), 0.0) / (2 * jnp.pi)
    to_v, to_w = (jnp.where(apart, -to_c * c / jnp.where(apart, 2 * each, 1.0), 0.0) for each in (v, w))
    return to_c, _summed_to(to_v, v.shape), _summed_to(to_w, w.shape)


relu_slope.defvjp(_relu_slope_forward, _relu_slope_backward)


def erf_slope(c: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """Return E[erf'(u) erf'(u')] = 4/π / √((1 + 2v)(1 + 2v') − 4c²), (n, m). Shapes as for `relu`."""
    return 4 / jnp.pi / jnp.sqrt((1 + 2 * v) * (1 + 2 * w) - 4 * c * c)


Function = Callable[..., jax.Array]
ACTIVATIONS: dict[str, tuple[Function, Function, Function, Function]] = {
    "relu": (relu, lambda v: v / 2, relu_slope, lambda v: jnp.full_like(v, 0.5)),
    "erf": (
        erf,
        lambda v: 2 / jnp.pi * jnp.arcsin(2 * v / (1 + 2 * v)),
        erf_slope,
        lambda v: 4 / jnp.pi / jnp.sqrt(1 + 4 * v),
    ),
}
"""By activation: its covariance of two variables, its variance, and the same two for its derivative."""


# ---- the recursion, traced once for each shape


def _diagonal(parameters: jax.Array, x: jax.Array, activation: str) -> list[jax.Array]:
    """Return the variance at each layer, (n,) each, K⁰ first."""
    weights, biases = parameters
    variances = [biases[0] + weights[0] * jnp.square(x).mean(axis=1)]
    for weight, bias in zip(weights[1:], biases[1:], strict=True):
        variances.append(bias + weight * ACTIVATIONS[activation][1](variances[-1]))
    return variances


def variance(parameters: jax.Array, x: jax.Array, activation: str, fixed: int) -> jax.Array:
    """Return K(x_i, x_i), (n,). Arguments as for `gram`."""
    variances = _diagonal(parameters, x, activation)
    tangent = variances[fixed]
    for layer in range(fixed + 1, len(variances)):
        slope = ACTIVATIONS[activation][3](variances[layer - 1])
        tangent = variances[layer] + parameters[0, layer] * slope * tangent
    return tangent


def gram(parameters: jax.Array, x: jax.Array, y: jax.Array | None, activation: str, fixed: int) -> jax.Array:
    """Return K(x, y), (n, m), by K⁰ = σ_b² + σ_w² x·x'/d,  K^{l+1} = σ_b² + σ_w² F(K^l), and for the tangent kernel
    Θ^f = K^f,  Θ^{l+1} = K^{l+1} + σ_w² F'(K^l) Θ^l, with f `fixed` layers.

    parameters: σ_w² and σ_b², (2, depth + 1). x: (n, features). y: (m, features), or None for x. fixed: the number
    of first layers that are not trained; all but the last for the NNGP.
    """
    traces["gram"] += 1
    weights, biases = parameters
    rows = _diagonal(parameters, x, activation)
    columns = rows if y is None else _diagonal(parameters, y, activation)
    product = jnp.matmul(x, (x if y is None else y).T, precision=jax.lax.Precision.HIGHEST)
    gram = biases[0] + weights[0] * product / x.shape[1]
    theta = gram
    for layer in range(1, len(weights)):
        both = rows[layer - 1][:, None], columns[layer - 1][None, :]
        value, _, slope, _ = ACTIVATIONS[activation]
        carried = weights[layer] * slope(gram, *both) * theta if layer > fixed else 0.0
        gram = biases[layer] + weights[layer] * value(gram, *both)
        theta = gram + carried
    if y is not None:
        return theta
    return jnp.fill_diagonal(theta, variance(parameters, x, activation, fixed), inplace=False)
