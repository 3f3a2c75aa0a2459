"""Architectures that several tests share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from kfx.kernels import Conv2d, Erf, ReLU, Residual


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


every_engine = pytest.mark.parametrize("engine", ["fused", "torch"])
