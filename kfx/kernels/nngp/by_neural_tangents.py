"""The dense network of infinite width by neural-tangents: the default backend of `NNGP` where it imports.

The same functions as `nngp_native`, with no code in common: each tests the other.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp


def _import_stax() -> ModuleType:
    """neural-tangents' `stax`, without its experimental part: that alone needs TensorFlow, six seconds of import."""
    unused = "neural_tangents.experimental"
    stand_in = sys.modules.setdefault(unused, ModuleType(unused))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies are older than the interpreters that run them
            from neural_tangents import stax
    finally:
        if sys.modules.get(unused) is stand_in and not hasattr(stand_in, "__file__"):
            del sys.modules[unused]
    return stax


stax = _import_stax()

traces: Counter[str] = Counter()
"""How often JAX has traced the kernel: once a shape, however many iterations."""

_ACTIVATIONS = {"relu": stax.Relu, "erf": stax.Erf}
_LEAST = 1e-30  # added to variances: at 0 the standard deviation has no derivative


def _kernel(parameters: Any, x: jax.Array, y: jax.Array | None, activation: str) -> jax.Array:
    traces["gram"] += 1
    weight_stds, bias_stds = (jnp.sqrt(p + _LEAST) for p in parameters)
    layers = []
    for i, (w, b) in enumerate(zip(weight_stds, bias_stds, strict=True)):
        layers += [_ACTIVATIONS[activation]()] if i else []
        layers.append(stax.Dense(1, W_std=w, b_std=b))
    return stax.serial(*layers)[2](x, y, "nngp").astype(x.dtype)  # of its own it would go over to float64


@partial(jax.jit, static_argnames="activation")
def gram(parameters: Any, x: jax.Array, y: jax.Array | None, activation: str) -> jax.Array:
    """K(x, y); parameters: (σ_w², σ_b²), (depth + 1,) each."""
    return _kernel(parameters, x, y, activation)


@partial(jax.jit, static_argnames="activation")
def variance(parameters: Any, x: jax.Array, activation: str) -> jax.Array:
    """K(x_i, x_i), (n,)."""
    return jax.vmap(lambda point: _kernel(parameters, point[None], None, activation)[0, 0])(x)


@partial(jax.jit, static_argnames=("activation", "inputs"))
def pull(parameters: Any, x: jax.Array, cotangent: jax.Array, activation: str, inputs: bool) -> Any:
    """Gradients of Σ G_ij K(x, x)_ij: to the parameters, through W_std and b_std, and with `inputs` to x."""
    if inputs:
        _, vjp = jax.vjp(lambda p, x: _kernel(p, x, None, activation), parameters, x)
    else:
        _, vjp = jax.vjp(lambda p: _kernel(p, x, None, activation), parameters)
    return vjp(cotangent)
