"""The CNNGP against neural-tangents, against wide finite networks, and in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfx.kernels import CNNGP, NNGP, Conv2d, Erf, ReLU, Residual, Sequential
from kfx.kernels.cnngp import torch_engine as cnngp_torch
from kfx.kernels.cnngp.architectures import ARCHITECTURES
from kfx.numerics import threads
from kfx.numerics.incidents import collect
from kfx.outcomes import Event


def relative(found, expected):
    scale = np.sqrt(np.outer(np.diagonal(expected), np.diagonal(expected)))
    return np.max(np.abs(found - expected) / scale)


# ---- neural-tangents


def by_neural_tangents(layers, x, weight_variance, bias_variance):
    """The same network in stax: explicit padding, so that strides and even kernels mean the same."""
    import jax.numpy as jnp

    from kfx.kernels.nngp.by_neural_tangents import stax

    padded = jnp.asarray(x.transpose(0, 2, 3, 1))

    def converted(layers, size, first=False):
        nonlocal padded
        for layer in layers:
            if isinstance(layer, ReLU):
                yield stax.Relu()
            elif isinstance(layer, Erf):
                yield stax.Erf()
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
    return np.asarray(network[2](padded, None, "nngp"))


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


not_independent = pytest.mark.filterwarnings("ignore:`FanIn` layers assume independent inputs")
every_engine = pytest.mark.parametrize("engine", ["fused", "torch"])


@every_engine
@not_independent
@given(network=networks(), channels=st.integers(1, 3), seed=st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_random_architectures_against_neural_tangents(engine, network, channels, seed):
    layers, image = network
    x = np.random.default_rng(seed).normal(size=(4, channels, *image))
    expected = by_neural_tangents(layers, x, 1.7, 0.3)
    assert relative(CNNGP(Sequential(*layers), 1.7, 0.3, engine=engine).gram(x), expected) < 1e-10


@every_engine
@not_independent
@pytest.mark.parametrize("name", ["simple", "convnet", "convnet_cifar"])  # neural-tangents refuses resnet's sums
@pytest.mark.parametrize("image", [(8, 8), (9, 12)])
def test_named_architectures_against_neural_tangents(engine, name, image):
    x = np.random.default_rng(0).normal(size=(5, 1, *image))
    architecture = ARCHITECTURES[name](image, 49.0)
    expected = by_neural_tangents(architecture.layers, x, 2.79, 7.86)
    assert relative(CNNGP(architecture, 2.79, 7.86, engine=engine).gram(x), expected) < 1e-10


# ---- the fused engine against the torch one


@given(network=networks(dilations=(1, 2)), channels=st.integers(1, 3), n=st.integers(1, 20), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_engines_agree(network, channels, n, seed):
    layers, image = network
    rng = np.random.default_rng(seed)
    x, g = rng.normal(size=(n, channels, *image)), rng.normal(size=(n, n))
    x[rng.integers(n)] = x[rng.integers(n)]  # two equal, one zero, one tiny
    x[rng.integers(n)] *= 0.0
    x[rng.integers(n)] *= 1e-9
    architecture = Sequential(*layers)
    fused, reference = (CNNGP(architecture, 1.7, 0.3, engine=engine) for engine in ("fused", "torch"))
    assert relative(fused.gram(x), reference.gram(x)) < 1e-12
    assert relative(fused.gram(x, x), reference.gram(x)) < 1e-7  # equal images by their covariance, not variance
    assert_pulls_agree(fused, reference, x, g + g.T)
    layered = [np.full(architecture.convolutions, value) for value in (1.7, 0.3)]
    per_layer = [CNNGP(architecture, *layered, engine=engine) for engine in ("fused", "torch")]
    assert_pulls_agree(*per_layer, x, g + g.T)
    sums = per_layer[0].pullback(x)[1](g + g.T).reshape(2, -1).sum(axis=1)
    np.testing.assert_allclose(sums, fused.pullback(x)[1](g + g.T), rtol=1e-7, atol=1e-7 * np.abs(g).sum())


def assert_pulls_agree(fused, reference, x, g):
    size = np.abs(g).sum() + 1
    for (found, found_x), (expected, expected_x) in [(k.pullback(x)[1](g, inputs=True) for k in (fused, reference))]:
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7 * size)
        np.testing.assert_allclose(found_x, expected_x, rtol=1e-6, atol=1e-7 * size)
        np.testing.assert_allclose(fused.pullback(x)[1](g), found, rtol=1e-7, atol=1e-7 * size)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_to_two_parts_in_a_million(name):
    x = np.random.default_rng(0).random((40, 1, 28, 28))
    x[1], x[2] = x[0], x[3] + 1e-3 * x[4]
    x[:, :, :5] = 0.0  # borders, as digits have them
    kernel = CNNGP(ARCHITECTURES[name]((28, 28), 49.0), 2.79, 7.86)
    assert relative(kernel.gram(x.astype(np.float32)), kernel.gram(x)) < 2e-6


def test_bits_do_not_depend_on_threads():
    x = np.random.default_rng(0).normal(size=(150, 1, 6, 6))
    g = np.ones((150, 150))
    architecture = ARCHITECTURES["convnet"]((6, 6))
    shared, layered = CNNGP(architecture, 1.6, 0.2), CNNGP(architecture, [1.6] * 8, [0.2] * 8)
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            threads.use(count)
            found.append((shared.pullback(x)[1](g), *layered.pullback(x)[1](g, inputs=True), shared.gram(x)))
    finally:
        threads.use(before)
    for each in found[1:]:
        for a, b in zip(each, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_engine_follows_the_device(monkeypatch):
    kernel = CNNGP(ARCHITECTURES["simple"]((6, 6)))
    assert kernel.backend_on(torch.device("cpu")) == "fused"
    assert kernel.backend_on(torch.device("cuda")) == "torch"
    fused = CNNGP(ARCHITECTURES["simple"]((6, 6)), engine="fused")
    with pytest.raises(ValueError, match=r"float32 or float64 on a CPU, and the points are torch\.float32 on meta"):
        fused.gram(torch.ones(2, 1, 6, 6, device="meta"))
    half = torch.ones(2, 1, 6, 6, dtype=torch.float16)
    assert kernel.gram(half).dtype == torch.float16
    with pytest.raises(ValueError, match=r"the points are torch\.float16"):
        fused.gram(half)
    monkeypatch.setattr("kfx.kernels.cnngp.choice.find_spec", lambda name: None)
    assert kernel.backend_on(torch.device("cpu")) == "torch"


def test_compiling_is_kept_between_processes():
    from kfx.kernels.cnngp import maps as cnngp_maps

    CNNGP(ARCHITECTURES["simple"]((6, 6))).prepare(torch.float64, torch.device("cpu"))
    script = """
import torch
from kfx.kernels.cnngp import fused_engine as cnngp_fused
from kfx.kernels.cnngp import maps as cnngp_maps
cnngp_fused.compile_for(torch.float64)
print(sum(sum(f.stats.cache_hits.values()) for f in (cnngp_maps.gram, cnngp_maps.gram_along, cnngp_maps.pull)))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "3"
    assert cnngp_maps.gram.stats.cache_path


def test_images_of_one_pixel_are_a_dense_network():
    x = np.random.default_rng(0).normal(size=(8, 6))
    layers = Sequential(Conv2d(1), ReLU(), Conv2d(1), ReLU(), Conv2d(1))
    dense = NNGP(2, "relu", 1.6, 0.2, backend="native")
    np.testing.assert_allclose(CNNGP(layers, 1.6, 0.2).gram(x[:, :, None, None]), dense.gram(x), rtol=1e-12)


# ---- finite networks


def test_against_wide_finite_networks():
    """The covariance of the outputs of random CNNs of 300 channels lies within 3 standard errors."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    x = torch.as_tensor(rng.normal(size=(3, 2, 6, 6)))
    layers = [Conv2d(3, padding=1), ReLU(), Conv2d(2, stride=2), ReLU(), Conv2d(3)]
    weight_variance, bias_variance, width, count = 1.7, 0.3, 300, 60
    samples = []
    for _ in range(count):
        h = x
        for layer in layers:
            if isinstance(layer, ReLU):
                h = h.relu()
                continue
            k, channels = layer.kernel_size, h.shape[1]
            weights = (
                torch.randn(width, channels, k, k, dtype=torch.float64) * (weight_variance / channels / k**2) ** 0.5
            )
            biases = torch.randn(width, dtype=torch.float64) * bias_variance**0.5
            h = torch.nn.functional.conv2d(h, weights, biases, layer.stride, layer.padding)
        outputs = h[:, :, 0, 0].numpy()
        samples.append(outputs @ outputs.T / width)
    standard_error = np.std(samples, axis=0, ddof=1) / np.sqrt(count)
    gram = CNNGP(Sequential(*layers), weight_variance, bias_variance).gram(x.numpy())
    assert np.all(np.abs(np.mean(samples, axis=0) - gram) < 3 * standard_error)
    assert np.all(standard_error < 0.03 * gram.max())


def by_convolutions_of_ones(layers, x, weight_variance, bias_variance):
    """The recursion on whole covariance maps with torch's own conv2d, and the arccosine as printed in papers."""
    x = torch.as_tensor(x)
    c = through_convolutions_of_ones(layers, (x[:, None] * x[None, :]).mean(dim=2), weight_variance, bias_variance)
    return c[..., 0, 0].numpy()


def through_convolutions_of_ones(layers, c, weight_variance, bias_variance):
    n = len(c)
    for layer in layers:
        if isinstance(layer, ReLU):
            v = c[torch.arange(n), torch.arange(n)]
            r = (v[:, None] * v[None, :]).sqrt()
            cosine = (c / r).clamp(-1, 1)
            angle = torch.arccos(cosine)
            c = r * (torch.sin(angle) + (torch.pi - angle) * cosine) / (2 * torch.pi)
            continue
        if isinstance(layer, Residual):
            c = c + through_convolutions_of_ones(layer.body, c, weight_variance, bias_variance)
            continue
        k = layer.kernel_size if isinstance(layer.kernel_size, tuple) else (layer.kernel_size,) * 2
        ones = torch.ones(1, 1, *k, dtype=torch.float64) / (k[0] * k[1])
        spread = torch.nn.functional.conv2d(
            c.flatten(0, 1)[:, None], ones, None, layer.stride, layer.padding, layer.dilation
        )
        c = bias_variance + weight_variance * layer.weight_multiplier * spread[:, 0].unflatten(0, (n, n))
    return c


@every_engine
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_resnet_as_published(engine):
    x = np.random.default_rng(0).normal(size=(5, 1, 9, 12))
    architecture = ARCHITECTURES["resnet"]((9, 12), 16.0)
    assert architecture.convolutions == 10
    expected = by_convolutions_of_ones(architecture.layers, x, 7.27, 4.69)
    assert relative(CNNGP(architecture, 7.27, 4.69, engine=engine).gram(x), expected) < 1e-7


@given(
    pads=st.lists(st.integers(0, 3), min_size=2, max_size=2),
    strides=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    kernels=st.lists(st.integers(1, 5), min_size=2, max_size=2),
    dilation=st.integers(1, 2),
)
@settings(max_examples=25, deadline=None)
def test_strides_padding_and_dilation_in_every_layer(pads, strides, kernels, dilation):
    layers, size = [], (9, 8)
    for i, (padding, stride, kernel) in enumerate(zip(pads, strides, kernels, strict=True)):
        layer = Conv2d(kernel, stride, padding, dilation if i else 1)
        if min(layer.output_size(size)) >= 1:
            layers += [layer, ReLU()]
            size = layer.output_size(size)
    layers.append(Conv2d(size))
    x = np.random.default_rng(0).normal(size=(4, 2, 9, 8))
    expected = by_convolutions_of_ones(layers, x, 1.7, 0.3)
    assert (
        relative(CNNGP(Sequential(*layers), 1.7, 0.3).gram(x), expected) < 1e-7
    )  # arccos near 1 costs half the digits


# ---- padding


def test_same_padding_keeps_the_published_offsets():
    """Offsets −((k−1)//2) … k//2 at every stride: an even kernel drops the first."""
    taps = Conv2d(4, padding="same").band(0, 6)
    np.testing.assert_array_equal(np.flatnonzero(taps[2]), [1, 2, 3, 4])
    taps = Conv2d(4, stride=2, padding="same").band(0, 7)
    assert taps.shape == (4, 7)
    np.testing.assert_array_equal(np.flatnonzero(taps[1]), [1, 2, 3, 4])
    taps = Conv2d(3, padding="same", dilation=2).band(0, 7)
    np.testing.assert_array_equal(np.flatnonzero(taps[3]), [1, 3, 5])


def test_bands_against_a_convolution_of_ones():
    for layer in (Conv2d(3, 2, 1), Conv2d(4, 3, 2), Conv2d(3, 1, 2, 2), Conv2d((2, 3), (1, 2), (1, 0), (2, 1))):
        c = torch.randn(1, 1, 9, 8, dtype=torch.float64)
        k = layer.kernel_size if isinstance(layer.kernel_size, tuple) else (layer.kernel_size,) * 2
        expected = torch.nn.functional.conv2d(
            c,
            torch.ones(1, 1, *k, dtype=torch.float64),
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
        )
        rows, columns = torch.as_tensor(layer.band(0, 9)), torch.as_tensor(layer.band(1, 8))
        torch.testing.assert_close(rows @ c @ columns.mT, expected)
        assert layer.output_size((9, 8)) == tuple(expected.shape[2:])


# ---- tiles and memory


def test_tiles_cover_a_triangle_once():
    for n, side in ((7, 3), (6, 3), (5, 8), (1, 1)):
        seen = np.zeros((n, n), int)
        for rows, columns in cnngp_torch.tiles(n, None, side):
            seen[rows, columns] += 1
        assert np.all(seen[np.triu_indices(n)] == 1)
        assert all(rows.start <= columns.start for rows, columns in cnngp_torch.tiles(n, None, side))


def test_the_size_of_a_tile_changes_round_off_alone():
    x = np.random.default_rng(0).normal(size=(11, 2, 6, 6))
    g = np.random.default_rng(1).normal(size=(11, 11))
    g = g + g.T
    architecture = ARCHITECTURES["convnet"]((6, 6))
    reference = None
    for megabytes in (0.001, 0.1, 100.0):
        kernel = CNNGP(architecture, 1.6, 0.2, engine="torch", tile_megabytes=megabytes)
        gram, pull = kernel.pullback(x)
        found = (gram, *pull(g, inputs=True))
        reference = reference or found
        for a, b in zip(found, reference, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


def test_a_tile_is_halved_when_memory_runs_out():
    sides = []

    def compute(side):
        sides.append(side)
        if side > 5:
            raise torch.OutOfMemoryError("scripted")
        return side

    with collect() as incidents:
        assert cnngp_torch._halving(compute, 20) == 5
    assert sides == [20, 10, 5]
    assert incidents.events == [Event.TILE_HALVED]
    with pytest.raises(torch.OutOfMemoryError):
        cnngp_torch._halving(lambda side: compute(6), 1)


_PEAK = """
import sys
import torch
from kfx.kernels import CNNGP
from kfx.kernels.cnngp.architectures import ARCHITECTURES
torch.set_num_threads(1)
n, gradient = int(sys.argv[1]), sys.argv[2] == "gradient"
kernel = CNNGP(ARCHITECTURES["convnet"]((16, 16)), 1.6, 0.2, engine=sys.argv[3], tile_megabytes=16)
x = torch.randn(n, 1, 16, 16)
kernel.prepare(x.dtype, x.device)
kernel.pullback(x[:40])[1](torch.eye(40), inputs=True)


def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))


with open("/proc/self/clear_refs", "w") as reset:  # the peak so far is that of loading and compiling
    reset.write("5")
before = status("VmRSS")
if gradient:
    gram, pull = kernel.pullback(x)
    pull(torch.eye(n), inputs=True)
else:
    kernel.gram(x)
print((status("VmHWM") - before) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read as Linux tells it")
@every_engine
@pytest.mark.parametrize("what", ["value", "gradient"])
@pytest.mark.parametrize("n", [250, 500])
def test_memory_does_not_grow_with_the_batch(what, n, engine):
    """Beyond the N × N matrices (1 MB each here) and the images, growth over a warmed-up small batch is a tile's."""
    run = subprocess.run(
        [sys.executable, "-c", _PEAK, str(n), what, engine], capture_output=True, text=True, check=True
    )
    # With every map of every layer kept it would be 1700 MB.
    assert float(run.stdout) < 64
