"""Architectures that several tests share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from kfx.kernels import AvgPool2d, Conv2d, Dense, Erf, GlobalAvgPool, ReLU, Residual


def relative(found, expected):
    scale = np.sqrt(np.outer(np.diagonal(expected), np.diagonal(expected)))
    return np.max(np.abs(found - expected) / scale)


# ---- neural-tangents


@st.composite
def networks(draw, dilations=(1,)):
    """Random layers down to 1 × 1 maps, and the size of the images."""
    size = image = (draw(st.integers(5, 10)), draw(st.integers(5, 10)))
    layers = []
    for i in range(draw(st.integers(1, 3))):
        activation = draw(st.sampled_from([ReLU(), Erf()]))
        kind = draw(st.sampled_from(["same", "valid"] + ["explicit"] * (i == 0 or len(dilations) > 1)))
        kernel = draw(st.integers(1, 8))
        stride = 1 if kind == "same" else draw(st.integers(1, 3))
        padding = draw(st.integers(0, 3)) if kind == "explicit" else kind
        multiplier = draw(st.sampled_from([1.0, 2.5]))
        layer = Conv2d(kernel, stride, padding, draw(st.sampled_from(dilations)), weight_multiplier=multiplier)
        if min(layer.output_size(size)) < 1:
            continue
        size = layer.output_size(size)
        shortcut = draw(st.sampled_from([None, Conv2d(1)]))
        block = Residual(activation, Conv2d(draw(st.integers(1, 4)), padding="same"), shortcut=shortcut)
        layers += [layer, *([block] if draw(st.booleans()) else []), activation]
    return [*layers, Conv2d(size)], image


@st.composite
def pooled_networks(draw):
    """Random layers with pooling, and the size of the images."""
    size = image = (draw(st.integers(4, 7)), draw(st.integers(4, 7)))
    layers = [Conv2d(draw(st.integers(1, 3)), padding="same")]
    for _ in range(draw(st.integers(1, 3))):
        activation = draw(st.sampled_from([ReLU(), Erf()]))
        convolution = Conv2d(
            draw(st.integers(1, 4)), padding="same", weight_multiplier=draw(st.sampled_from([1.0, 2.0]))
        )
        window = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
        pool = AvgPool2d(window, draw(st.sampled_from([None, 1, 2])))
        block = Residual(activation, convolution, shortcut=draw(st.sampled_from([None, Conv2d(1)])))
        for layer in draw(st.permutations([[convolution], [pool], [Conv2d(1), block]]))[:2]:
            after = layer[0].output_size(size) if layer == [pool] else size
            if min(after) >= 1:
                layers, size = [*layers, *layer], after
        layers += [Conv2d(1), activation]
    return [*layers, *draw(st.sampled_from([[GlobalAvgPool(), Dense(2.0)], [Dense()], [GlobalAvgPool()]]))], image


every_engine = pytest.mark.parametrize("engine", ["fused", "torch"])
