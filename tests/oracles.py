"""neural-tangents, where it is installed, and what it said where it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kfx.kernels import AvgPool2d, Dense, Erf, GlobalAvgPool, ReLU, Residual
from kfx.kernels.cnngp.architectures import ARCHITECTURES
from kfx.outcomes import ConfigError

REFERENCE = Path(__file__).with_name("neural_tangents.npz")

try:
    import jax

    from kfx.kernels.nngp.by_neural_tangents import stax

    jax.config.update("jax_enable_x64", True)
except ConfigError:  # not installed, or JAX is later than it knows
    stax = None

HAS_NEURAL_TANGENTS = stax is not None
needs_neural_tangents = pytest.mark.skipif(not HAS_NEURAL_TANGENTS, reason="needs kernel-flows[neural-tangents]")


def dense(depth, activation, weight_variance, bias_variance, x, y, kind):
    """K(x, y) of a dense network in stax; kind: nngp or ntk."""
    between = {"relu": stax.Relu, "erf": stax.Erf}[activation]
    layers = []
    for layer in range(depth + 1):
        layers += [between()] if layer else []
        layers.append(stax.Dense(1, W_std=weight_variance**0.5, b_std=bias_variance**0.5))
    return np.asarray(stax.serial(*layers)[2](x, y, kind))


def convolutional(layers, x, weight_variance, bias_variance, kind="nngp"):
    """The same network in stax: explicit padding, so that strides and even kernels mean the same.

    kind: one, or several, whose matrices are then stacked: an NTK needs the NNGP's anyway.
    """
    import jax.numpy as jnp

    padded = jnp.asarray(x.transpose(0, 2, 3, 1))

    def converted(layers, size, first=False):
        nonlocal padded
        for layer in layers:
            if isinstance(layer, ReLU):
                yield stax.Relu()
            elif isinstance(layer, Erf):
                yield stax.Erf()
            elif isinstance(layer, AvgPool2d):
                window, stride = zip(layer.along(0), layer.along(1), strict=True)
                yield stax.AvgPool(window, stride)
                size = layer.output_size(size)
            elif isinstance(layer, GlobalAvgPool):
                yield stax.GlobalAvgPool()
            elif isinstance(layer, Dense):
                w = np.sqrt(weight_variance * layer.weight_multiplier)
                yield stax.serial(stax.Flatten(), stax.Dense(1, W_std=w, b_std=np.sqrt(bias_variance)))
            elif isinstance(layer, Residual):
                body = stax.serial(*converted(layer.body, size))
                beside = [*converted([layer.shortcut], size)] if layer.shortcut else [stax.Identity()]
                yield stax.serial(stax.FanOut(2), stax.parallel(body, *beside), stax.FanInSum())
                size = layer.shortcut.output_size(size) if layer.shortcut else size
            else:
                kernel, stride = ((v, v) if isinstance(v, int) else v for v in (layer.kernel_size, layer.stride))
                padding = "SAME"
                if layer.padding != "same" or stride != (1, 1):
                    # stax pads within its layer only by name; zeros around the images do for the first layer
                    assert layer.padding in (0, "valid") or first
                    p = 0 if layer.padding == "valid" else layer.padding
                    padded, padding = jnp.pad(padded, ((0, 0), (p, p), (p, p), (0, 0))), "VALID"
                w = np.sqrt(weight_variance * layer.weight_multiplier)
                yield stax.Conv(1, kernel, stride, padding, W_std=w, b_std=np.sqrt(bias_variance))
                size = layer.output_size(size)
            first = False

    network = stax.serial(*converted(layers, x.shape[2:], first=True), stax.Flatten())
    return np.asarray(network[2](padded, None, kind))


# ---- what it said, stored


WEIGHT_VARIANCE, BIAS_VARIANCE = 1.7, 0.3
POINTS, IMAGES = (9, 6), (5, 2, 8, 8)
DENSE = {
    f"{kind}_{activation}_{depth}": (kind, activation, depth)
    for kind in ("nngp", "ntk")
    for activation in ("relu", "erf")
    for depth in (0, 1, 2, 5)
}
CONVOLUTIONAL = ("simple", "convnet", "convnet_cifar")


def sine(shape):
    """Points that every version of NumPy makes alike."""
    return np.sin(0.37 * np.arange(np.prod(shape)) ** 1.5).reshape(shape)


def computed():
    """K(x, y) of the dense networks, y the first three points and three others, and K(x, x) of the convolutional."""
    x = sine(POINTS)
    y = np.concatenate([x[:3], sine((6, POINTS[1]))[3:] ** 2])
    grams = {
        name: dense(depth, activation, WEIGHT_VARIANCE, BIAS_VARIANCE, x, y, kind)
        for name, (kind, activation, depth) in DENSE.items()
    }
    for name in CONVOLUTIONAL:
        layers = ARCHITECTURES[name](IMAGES[2:], 1.0).layers
        grams[name] = convolutional(layers, sine(IMAGES), WEIGHT_VARIANCE, BIAS_VARIANCE)
    return {"x": x, "y": y, "images": sine(IMAGES), **grams}


if __name__ == "__main__":  # python -m tests.oracles, with kernel-flows[neural-tangents]
    np.savez_compressed(REFERENCE, **computed())
