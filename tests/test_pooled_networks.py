"""Kernels of convolutional networks with pooling, and tangent kernels of convolutional networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfx.kernels import CNNGP, CNTK, AvgPool2d, Conv2d, Dense, Erf, Flipped, GlobalAvgPool, ReLU, Residual, Sequential
from kfx.kernels.cnngp.architectures import ARCHITECTURES, architecture
from kfx.kernels.cnngp.spatial_engine import _tables
from kfx.numerics import threads
from tests.networks import every_engine, pooled_networks, relative
from tests.oracles import convolutional, needs_neural_tangents

KINDS = {"nngp": CNNGP, "ntk": CNTK}
# θ enters an NTK's slopes, and at equal points round-off in cos θ makes θ the root of it.
TOLERANCE = {"nngp": 1e-10, "ntk": 1e-7}
every_kind = pytest.mark.parametrize("kind", KINDS)
SMALL = Sequential(
    Conv2d(3, padding="same"), ReLU(), AvgPool2d(2), Conv2d(3, padding="same"), Erf(), GlobalAvgPool(), Dense(2.0)
)


@pytest.mark.slow
@given(network=pooled_networks(), channels=st.integers(1, 3), n=st.integers(1, 5), seed=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_engines_agree(network, channels, n, seed):
    layers, image = network
    rng = np.random.default_rng(seed)
    x, y, g = rng.normal(size=(n, channels, *image)), rng.normal(size=(2, channels, *image)), rng.normal(size=(n, n))
    x[rng.integers(n)] = x[rng.integers(n)]
    for kernel in KINDS.values():
        fused, reference = (kernel(Sequential(*layers), 1.3, 0.2, engine=engine) for engine in ("fused", "torch"))
        np.testing.assert_allclose(fused.gram(x, y), reference.gram(x, y), rtol=1e-10, atol=1e-12)
        (gram, pull), (expected, pull_back) = fused.pullback(x), reference.pullback(x)
        np.testing.assert_allclose(gram, expected, rtol=1e-10, atol=1e-12)
        for found, wanted in zip(pull(g + g.T, inputs=True), pull_back(g + g.T, inputs=True), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7 * np.abs(wanted).max())


@needs_neural_tangents
@every_kind
@pytest.mark.parametrize("name", ["cntk_gap", "myrtle5", pytest.param("myrtle10", marks=pytest.mark.slow)])
def test_named_architectures_against_neural_tangents(kind, name):
    x = np.random.default_rng(0).normal(size=(4, 3, 8, 8))
    network = architecture(name, (8, 8), 1.0, 5 if name == "cntk_gap" else None)
    found = KINDS[kind](network, 1.3, 0.2).gram(x)
    assert relative(found, convolutional(network.layers, x, 1.3, 0.2, kind)) < 1e-10


@pytest.mark.slow
@needs_neural_tangents
@pytest.mark.filterwarnings("ignore:`FanIn` layers assume independent inputs")
@given(network=pooled_networks(), seed=st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_random_architectures_against_neural_tangents(network, seed):
    layers, image = network
    x = np.random.default_rng(seed).normal(size=(3, 2, *image))
    for (kind, kernel), expected in zip(KINDS.items(), convolutional(layers, x, 1.3, 0.2, tuple(KINDS)), strict=True):
        assert relative(kernel(Sequential(*layers), 1.3, 0.2).gram(x), expected) < TOLERANCE[kind]


def published_recursion(x, z, depth):
    """The kernel of ruosongwang/CNTK with first and last layer fixed, entry by entry: S and T over pairs of pixels."""
    size = x.shape[-1]
    pixels = [(a, b) for a in range(size) for b in range(size)]

    def shifted_sum(s):
        out = np.zeros_like(s)
        for i, (a, b) in enumerate(pixels):
            for j, (c, d) in enumerate(pixels):
                for e in (-1, 0, 1):
                    for f in (-1, 0, 1):
                        if min(a + e, b + f, c + e, d + f) >= 0 and max(a + e, b + f, c + e, d + f) < size:
                            out[i, j] += s[(a + e) * size + b + f, (c + e) * size + d + f]
        return out

    def covariances(u, w):
        return shifted_sum(np.einsum("cp,cq->pq", u.reshape(len(u), -1), w.reshape(len(w), -1)))

    (sxx, sxz, szz), t = [covariances(*pair) for pair in ((x, x), (x, z), (z, z))], np.zeros((size**2, size**2))
    for layer in range(depth - 1):
        v, w = np.diagonal(sxx), np.diagonal(szz)

        def activated(s, left, right):
            r = np.sqrt(np.outer(left, right))
            cosine = np.clip(s / r, -1, 1)
            angle = math.pi - np.arccos(cosine)
            return r * (cosine * angle + np.sqrt(1 - cosine**2)) / (9 * math.pi), angle / (9 * math.pi)

        (sxx, _), (sxz, slope), (szz, _) = activated(sxx, v, v), activated(sxz, v, w), activated(szz, w, w)
        t = t * slope + sxz
        if layer < depth - 2:
            sxx, sxz, szz, t = map(shifted_sum, (sxx, sxz, szz, t))
    return np.mean(t - sxz)


def test_cntk_is_the_published_recursion():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    kernel = CNTK(architecture("cntk_gap", (4, 4), depth=4), 1.0, 0.0, fixed_layers="first_and_last")
    # kfx takes means over channels and patches throughout, and its last layer has the factor 2
    assert kernel.gram(x)[0, 1] == pytest.approx(published_recursion(*x, 4) / 3, rel=1e-12)


@pytest.mark.slow
def test_wide_networks_have_this_covariance():
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    network = Sequential(Conv2d(3, padding="same"), ReLU(), AvgPool2d(2), Conv2d(3, padding="same"), ReLU(),
                         GlobalAvgPool(), Dense())  # fmt: skip
    expected, width, outputs = CNNGP(network, 1.5, 0.2).gram(x), 300, []
    generator = torch.Generator().manual_seed(1)

    def layer(u, channels, k):
        weights = torch.randn(channels, u.shape[1], k, k, dtype=u.dtype, generator=generator)
        bias = torch.randn(channels, dtype=u.dtype, generator=generator) * 0.2**0.5
        return torch.nn.functional.conv2d(u, weights * (1.5 / u.shape[1] / k**2) ** 0.5, bias, padding=k // 2)

    for _ in range(30):
        u = torch.nn.functional.avg_pool2d(layer(x, width, 3).relu(), 2)
        u = layer(u, width, 3).relu().mean(dim=(2, 3), keepdim=True)
        outputs.append(layer(u, width, 1)[:, :, 0, 0])
    drawn = torch.cat(outputs, dim=1)
    torch.testing.assert_close(drawn @ drawn.mT / drawn.shape[1], expected, rtol=0.05, atol=0.0)


@pytest.mark.slow
@every_engine
@every_kind
def test_gradients_against_differences(engine, kind):
    rng = np.random.default_rng(0)
    x, g, direction = rng.normal(size=(3, 2, 6, 6)), rng.normal(size=(3, 3)), rng.normal(size=(3, 2, 6, 6))
    g += g.T
    kernel = KINDS[kind](SMALL, [1.3, 0.8, 1.1], [0.2, 0.1, 0.3], engine=engine)
    found, to_x = kernel.pullback(x)[1](g, inputs=True)

    def value(flat, points):
        return float((kernel.with_flat(flat).gram(points) * g).sum())

    for k, step in enumerate(1e-5 * np.eye(len(kernel.flat))):
        slope = (value(kernel.flat + step, x) - value(kernel.flat - step, x)) / 2e-5
        assert found[k] == pytest.approx(slope, rel=1e-6)
    slope = (value(kernel.flat, x + 1e-5 * direction) - value(kernel.flat, x - 1e-5 * direction)) / 2e-5
    assert (to_x * direction).sum() == pytest.approx(slope, rel=1e-6)


@pytest.mark.slow
@given(network=pooled_networks(), n=st.integers(1, 6), seed=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_forward_mode_is_reverse_mode(network, n, seed):
    layers, image = network
    rng = np.random.default_rng(seed)
    x, g = rng.normal(size=(n, 2, *image)), rng.normal(size=(n, n))
    kernel = CNNGP(Sequential(*layers), 1.3, 0.2, engine="fused")
    gram, pull = kernel.pullback(x)
    np.testing.assert_array_equal(gram, kernel.gram(x))
    reverse, _ = pull(g + g.T, inputs=True)
    np.testing.assert_allclose(pull(g + g.T), reverse, rtol=1e-8, atol=1e-10 * np.abs(reverse).max())


def test_bits_do_not_depend_on_threads():
    x, g = np.random.default_rng(0).normal(size=(11, 1, 6, 6)), np.ones((11, 11))
    kernel, before, found = CNTK(SMALL, 1.6, 0.2), torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            threads.use(count)
            found.append((*kernel.pullback(x)[1](g, inputs=True), kernel.gram(x), kernel.diagonal(x)))
    finally:
        threads.use(before)
    for each in found[1:]:
        for a, b in zip(each, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_fixed_layers_give_parts_of_the_whole():
    x = np.random.default_rng(0).normal(size=(3, 2, 6, 6))
    whole, first, last, both = (
        CNTK(SMALL, 1.3, 0.2, fixed_layers=fixed).gram(x) for fixed in ("none", "first", "last", "first_and_last")
    )
    np.testing.assert_allclose(first + last, whole + both, rtol=1e-12)
    np.testing.assert_allclose(whole - last, CNNGP(SMALL, 1.3, 0.2).gram(x), rtol=1e-12)


@pytest.mark.slow
def test_an_image_without_variance_gives_no_nan():
    x = np.zeros((3, 2, 6, 6))
    x[1, :, 2:4] = 1.0
    for kernel in KINDS.values():
        gram, pull = kernel(SMALL, 1.3, 0.0).pullback(x)
        assert np.isfinite(gram).all()
        assert all(np.isfinite(each).all() for each in pull(np.ones((3, 3)), inputs=True))


def test_a_gradient_of_myrtle5_fits_in_30_megabytes_a_thread():
    maps, largest, cotangents, kept, *_ = _tables(ARCHITECTURES["myrtle5"]((32, 32)).program((32, 32))).sizes
    assert 4 * (maps + cotangents * largest + kept) <= 30e6
    assert 4 * 3 * maps <= 30e6


@every_kind
def test_flips_average_over_mirror_images(kind):
    rng = np.random.default_rng(0)
    x, z, g, direction = (rng.normal(size=shape) for shape in ((3, 2, 5, 6), (2, 2, 5, 6), (3, 3), (3, 2, 5, 6)))
    kernel = KINDS[kind](Sequential(Conv2d(2, padding="same"), ReLU(), AvgPool2d(2), Dense()), 1.3, 0.2)
    flipped, g = Flipped(kernel), g + g.T
    mirrored = [(x, z), (x[..., ::-1].copy(), z), (x, z[..., ::-1].copy()), (x[..., ::-1].copy(), z[..., ::-1].copy())]
    expected = np.mean([kernel.gram(*pair) for pair in mirrored], axis=0)
    np.testing.assert_allclose(flipped.gram(x, z), expected, rtol=1e-12)
    np.testing.assert_allclose(flipped.gram(mirrored[1][0], z), expected, rtol=1e-12)
    np.testing.assert_allclose(np.diagonal(flipped.gram(x)), np.diagonal(flipped.gram(x, x)), rtol=1e-10)
    mapped, compare = flipped.feature_map_and_kernel()  # as in every evaluation
    np.testing.assert_array_equal(compare.gram(mapped(x), mapped(z)), flipped.gram(x, z))
    found, to_x = flipped.pullback(x)[1](g, inputs=True)

    def value(flat, points):
        return float((flipped.with_flat(flat).gram(points) * g).sum())

    slope = (value(flipped.flat, x + 1e-5 * direction) - value(flipped.flat, x - 1e-5 * direction)) / 2e-5
    assert (to_x * direction).sum() == pytest.approx(slope, rel=1e-6)
    step = np.array([1e-5, 0.0])
    slope = (value(flipped.flat + step, x) - value(flipped.flat - step, x)) / 2e-5
    assert found[0] == pytest.approx(slope, rel=1e-6)


def test_triton_takes_no_pooling():
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="engine=triton: does not take CNNGP with pooling; use torch or auto"):
        CNNGP(SMALL, engine="triton").gram(np.ones((2, 1, 6, 6)))


def test_errors():
    x = np.ones((2, 1, 6, 6))
    with pytest.raises(ValueError, match="depth=3: sets the layers of architecture=cntk_gap; architecture=myrtle5"):
        architecture("myrtle5", (8, 8), depth=3)
    with pytest.raises(ValueError, match="fixed_layers=all: expected one of none, first, last, first_and_last"):
        CNTK(SMALL, fixed_layers="all")
    with pytest.raises(ValueError, match="AvgPool2d: window takes whole numbers >= 1, got 0"):
        AvgPool2d(0)
    with pytest.raises(ValueError, match=r"maps of 1 × 1 reach it and are too small for it"):
        CNNGP(Sequential(Conv2d(1), GlobalAvgPool(), AvgPool2d(2))).gram(x)
    assert Sequential(Residual(Conv2d(1), AvgPool2d(1))).pools
