"""The dense network of infinite width by neural-tangents, an independent reference for the other backends.

It has the same functions as `native` and no code in common. neural-tangents 0.6.5 needs jax < 0.6.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from types import ModuleType

import jax
import jax.numpy as jnp

from kfx.outcomes import ConfigError
from kfx.version import to_install


def _import_stax() -> ModuleType:
    """Return neural-tangents' `stax` without its experimental part, which imports TensorFlow for six seconds.

    ConfigError if it cannot be imported.
    """
    unused = "neural_tangents.experimental"
    stand_in = sys.modules.setdefault(unused, ModuleType(unused))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies are older than the interpreters that run them
            from neural_tangents import stax
    except Exception as error:  # its code meets another JAX than it was written for
        raise ConfigError(
            f"kernel.backend=neural_tangents: neural-tangents cannot be imported with jax {jax.__version__}, "
            f"{type(error).__name__}; {to_install('neural-tangents')} brings it with jax < 0.6; native works with any"
        ) from error
    finally:
        if sys.modules.get(unused) is stand_in and not hasattr(stand_in, "__file__"):
            del sys.modules[unused]
    return stax


stax = _import_stax()

traces: Counter[str] = Counter()
"""The number of times that JAX has traced the kernel: once for each shape."""

_ACTIVATIONS = {"relu": stax.Relu, "erf": stax.Erf}
_LEAST = 1e-30  # added to variances, since the standard deviation has no derivative at 0


def gram(parameters: jax.Array, x: jax.Array, y: jax.Array | None, activation: str, fixed: int) -> jax.Array:
    """Return K(x, y), (n, m). Derivatives go through the standard deviations W_std and b_std.

    parameters: σ_w² and σ_b², (2, depth + 1). x: (n, features). y: (m, features), or None for x. fixed: the number
    of first layers that are not trained; all but the last for the NNGP.
    """
    traces["gram"] += 1
    weight_stds, bias_stds = jnp.sqrt(parameters + _LEAST)
    first, *others = (stax.Dense(1, W_std=w, b_std=b) for w, b in zip(weight_stds, bias_stds, strict=True))
    found = first[2](x, y)
    for i, layer in enumerate(others):
        found = _ACTIVATIONS[activation]()[2](found)
        found = layer[2](found.replace(ntk=jnp.zeros_like(found.ntk)) if i < fixed else found)
    return found.ntk.astype(x.dtype)  # the parameters would make it float64


def variance(parameters: jax.Array, x: jax.Array, activation: str, fixed: int) -> jax.Array:
    """Return K(x_i, x_i), (n,). Arguments as for `gram`."""
    return jax.vmap(lambda point: gram(parameters, point[None], None, activation, fixed)[0, 0])(x)
