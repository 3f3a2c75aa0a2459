"""Every backend and engine against Gram matrices that neural-tangents computed, wherever it does not import."""

from __future__ import annotations

import numpy as np
import pytest

from kfx.kernels import CNNGP, NNGP, NTK
from kfx.kernels.cnngp.architectures import ARCHITECTURES
from tests import oracles
from tests.networks import every_engine, relative

STORED = dict(np.load(oracles.REFERENCE))


@pytest.mark.parametrize("backend", ["fused", "torch", "native"])
@pytest.mark.parametrize("name", oracles.DENSE)
def test_dense(backend, name):
    kind, activation, depth = oracles.DENSE[name]
    if (kind, backend) == ("ntk", "torch"):
        pytest.skip("torch has no NTK")
    build = NTK if kind == "ntk" else NNGP
    kernel = build(depth, activation, oracles.WEIGHT_VARIANCE, oracles.BIAS_VARIANCE, backend=backend)
    # its angle of a point with itself is a rounding error's root
    tolerance = 1e-6 if (kind, activation) == ("ntk", "relu") else 1e-11
    np.testing.assert_allclose(kernel.gram(STORED["x"], STORED["y"]), STORED[name], rtol=tolerance, atol=tolerance)


@every_engine
@pytest.mark.parametrize("name", oracles.CONVOLUTIONAL)
def test_convolutional(engine, name):
    network = ARCHITECTURES[name](oracles.IMAGES[2:], 1.0)
    kernel = CNNGP(network, oracles.WEIGHT_VARIANCE, oracles.BIAS_VARIANCE, engine=engine)
    assert relative(kernel.gram(STORED["images"]), STORED[name]) < 1e-10


@pytest.mark.slow
@oracles.needs_neural_tangents
@pytest.mark.filterwarnings("ignore:`FanIn` layers assume independent inputs")
def test_the_stored_ones_are_what_it_says_today():
    for name, each in oracles.computed().items():
        np.testing.assert_allclose(STORED[name], each, rtol=1e-7, atol=1e-9, err_msg=name)
