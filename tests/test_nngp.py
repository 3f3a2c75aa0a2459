"""The NNGP against what it is the limit of, and its compilation."""

from __future__ import annotations

import numpy as np
import pytest

from kfx.kernels import NNGP
from kfx.kernels.nngp import by_neural_tangents as nngp_neural_tangents
from kfx.kernels.nngp import kernel as nngp
from kfx.kernels.nngp import native as nngp_native


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize("depth", [1, 3])
def test_against_wide_finite_networks(activation, depth):
    """The covariance of the outputs of many random networks of width 400 lies within 3 standard errors."""
    from scipy.special import erf

    rng = np.random.default_rng(depth)
    phi = {"relu": lambda u: np.maximum(u, 0), "erf": erf}[activation]
    weight_variance, bias_variance, width, networks, outputs = 1.7, 0.3, 400, 40, 400
    x = rng.normal(size=(3, 6))
    samples = []
    for _ in range(networks):
        h = x
        for layer in range(depth + 1):
            fan_in, fan_out = h.shape[1], outputs if layer == depth else width
            weights = rng.normal(size=(fan_in, fan_out)) * np.sqrt(weight_variance / fan_in)
            h = h @ weights + rng.normal(size=fan_out) * np.sqrt(bias_variance)
            if layer < depth:
                h = phi(h)
        samples.append(h @ h.T / outputs)
    mean = np.mean(samples, axis=0)
    standard_error = np.std(samples, axis=0, ddof=1) / np.sqrt(networks)
    gram = NNGP(depth, activation, weight_variance, bias_variance).gram(x)
    assert np.all(np.abs(mean - gram) < 3 * standard_error)
    assert np.all(standard_error < 0.03 * np.diagonal(gram).max())


@pytest.mark.parametrize("module", [nngp_native, nngp_neural_tangents], ids=["native", "neural_tangents"])
def test_compiled_once_for_a_shape(module):
    x = np.random.default_rng(0).normal(size=(11, 4))
    g = np.eye(11)
    kernel = NNGP(2, "relu", 1.0, 0.1, backend=module.__name__.rpartition(".")[2].removeprefix("by_"))

    def iteration(k):
        gram, pull = k.pullback(x)
        return gram, pull(g)

    iteration(kernel)
    before = module.traces["gram"]
    for step in range(5):
        iteration(kernel.with_flat(kernel.flat + 0.1 * step))
    assert module.traces["gram"] == before
    kernel.gram(x[:7])
    assert module.traces["gram"] > before, "the counter must count"


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize("depth", range(6))
def test_backends_agree(activation, depth):
    rng = np.random.default_rng(0)
    x, y, g = rng.normal(size=(8, 5)), rng.normal(size=(4, 5)), rng.normal(size=(8, 8))
    g = g + g.T
    native, other = (NNGP(depth, activation, 1.6, 0.2, backend=b) for b in ("native", "neural_tangents"))
    np.testing.assert_allclose(native.gram(x), other.gram(x), rtol=1e-13)
    np.testing.assert_allclose(native.gram(x, y), other.gram(x, y), rtol=1e-12, atol=1e-15)
    for ours, theirs in zip(native.pullback(x)[1](g, inputs=True), other.pullback(x)[1](g, inputs=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_bias_gradient_at_zero_bias():
    x = np.random.default_rng(0).normal(size=(6, 4))
    gradients = [NNGP(2, "relu", 1.6, 0.0, backend=b).pullback(x)[1](np.eye(6) + 1) for b in nngp.BACKENDS]
    np.testing.assert_allclose(*gradients, rtol=1e-6)


def test_the_default_backend_is_neural_tangents_where_it_imports(monkeypatch):
    assert NNGP().backend == "neural_tangents"
    nngp.default_backend.cache_clear()

    def fail(name):
        raise AttributeError("module 'jax.core' has no attribute 'Jaxpr'")

    monkeypatch.setattr(nngp, "_backend", fail)
    assert nngp.default_backend() == "native"
    monkeypatch.undo()
    nngp.default_backend.cache_clear()


def test_linear_kernel_at_depth_zero():
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(NNGP(0, "relu", 2.0, 0.5).gram(x), 0.5 + 2.0 * x @ x.T / 3, rtol=1e-14)
