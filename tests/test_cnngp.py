"""The CNNGP against neural-tangents, against wide finite networks, and in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfx.kernels import CNNGP, NNGP, Conv2d, ReLU, Sequential
from kfx.kernels.cnngp.architectures import ARCHITECTURES
from tests.networks import every_engine, networks, relative
from tests.oracles import convolutional, needs_neural_tangents
from tests.recursion import by_convolutions_of_ones

not_independent = pytest.mark.filterwarnings("ignore:`FanIn` layers assume independent inputs")


@pytest.mark.slow
@needs_neural_tangents
@not_independent
@given(network=networks(), channels=st.integers(1, 3), seed=st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_random_architectures_against_neural_tangents(network, channels, seed):
    layers, image = network
    x = np.random.default_rng(seed).normal(size=(4, channels, *image))
    expected = convolutional(layers, x, 1.7, 0.3)
    for engine in ("fused", "torch"):
        assert relative(CNNGP(Sequential(*layers), 1.7, 0.3, engine=engine).gram(x), expected) < 1e-10


@every_engine
@needs_neural_tangents
@not_independent
@pytest.mark.parametrize("name", ["simple", "convnet", "convnet_cifar"])  # neural-tangents refuses resnet's sums
@pytest.mark.parametrize("image", [(8, 8), (9, 12)])
def test_named_architectures_against_neural_tangents(engine, name, image):
    x = np.random.default_rng(0).normal(size=(5, 1, *image))
    architecture = ARCHITECTURES[name](image, 49.0)
    expected = convolutional(architecture.layers, x, 2.79, 7.86)
    assert relative(CNNGP(architecture, 2.79, 7.86, engine=engine).gram(x), expected) < 1e-10


CNN_GP = {  # K(x, x[:2]) of the images below by cnn-gp's mnist_paper_convnet_gp, …_residual_cnn_gp and mnist_as_tf
    "convnet": (49.0, 2.79, 7.86, [[2323458261500.603, 1902752618308.0798], [1902752618308.0798, 2285316698745.6836],
                                   [1824957871838.2012, 1877217239412.7366]]),
    "resnet": (16.0, 7.27, 4.69, [[7633265224166540.0, 5861555639544818.0], [5861555639544818.0, 7192537744999313.0],
                                  [5469581751258075.0, 5706855635909613.0]]),
    "resnet32": (1.0, 1.0, 0.0, [[0.2751681452794199, 0.18918065016009708], [0.18918065016009705, 0.2518402071855129],
                                 [0.17983088300632585, 0.18733651715292]]),
}  # fmt: skip


@every_engine
@pytest.mark.parametrize("name", CNN_GP)
def test_the_architectures_of_garriga_alonso_against_cnn_gp(engine, name):
    multiplier, weight_variance, bias_variance, expected = CNN_GP[name]
    i = np.arange(3 * 28 * 28).reshape(3, 1, 28, 28)
    x = np.sin(0.37 * i) ** 2 * (np.cos(i / 97) + 1) / 2
    kernel = CNNGP(ARCHITECTURES[name]((28, 28), multiplier), weight_variance, bias_variance, engine=engine)
    np.testing.assert_allclose(kernel.gram(x, x[:2]), expected, rtol=2e-7)  # it works with clamps


# ---- the fused engine against the torch one


def test_images_of_one_pixel_are_a_dense_network():
    x = np.random.default_rng(0).normal(size=(8, 6))
    layers = Sequential(Conv2d(1), ReLU(), Conv2d(1), ReLU(), Conv2d(1))
    dense = NNGP(2, "relu", 1.6, 0.2, backend="native")
    np.testing.assert_allclose(CNNGP(layers, 1.6, 0.2).gram(x[:, :, None, None]), dense.gram(x), rtol=1e-12)


# ---- finite networks


@pytest.mark.slow
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
