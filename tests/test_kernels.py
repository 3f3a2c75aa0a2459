"""One set of tests over all kernels. A new kernel is tested by adding a line to KERNELS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.metrics import pairwise

from kfx.kernels import (
    CNNGP,
    NNGP,
    NTK,
    RBF,
    Conv2d,
    Dictionary,
    Erf,
    Laplace,
    Linear,
    Matern,
    Polynomial,
    RationalQuadratic,
    ReLU,
    Residual,
    Scaled,
    Sequential,
    SmoothAndRough,
    stationary,
)
from kfx.kernels.ard import ARD
from kfx.kernels.cnngp.architectures import ARCHITECTURES
from kfx.kernels.stationary import Stationary
from kfx.numerics import process
from kfx.numerics.linear_algebra import cholesky
from tests.oracles import HAS_NEURAL_TANGENTS
from tests.slow import slow

TABLE = (12, 5)
IMAGES = (7, 2, 6, 5)
STRIDED = Sequential(
    Conv2d(3, padding="same"),
    ReLU(),
    Conv2d((3, 2), stride=(2, 1), padding=1, dilation=(1, 2), weight_multiplier=2.5),
    ReLU(),
    Conv2d((3, 5)),
)
RESIDUAL = Sequential(
    Residual(Conv2d(3, padding="same"), Erf(), Conv2d(2, stride=2), shortcut=Conv2d(1, stride=(2, 3), dilation=1)),
    ReLU(),
    Residual(Conv2d(3, padding="same"), ReLU()),
    Conv2d((3, 2)),
)

DENSE = [
    *((NNGP, backend) for backend in ("fused", "torch", "native", *["neural_tangents"] * HAS_NEURAL_TANGENTS)),
    *((NTK, backend) for backend in ("fused", "native")),
]

KERNELS = {
    "rbf": (RBF(1.3), TABLE),
    "rbf_long": (RBF(40.0), TABLE),
    "matern_1/2": (Matern(1.3, 0.5), TABLE),
    "matern_3/2": (Matern(1.3, 1.5), TABLE),
    "matern_5/2": (Matern(1.3, 2.5), TABLE),
    "laplace": (Laplace(1.3), TABLE),
    "smooth_and_rough": (SmoothAndRough(0.7, 1.4), TABLE),
    "linear": (Linear(0.7), TABLE),
    "polynomial": (Polynomial(3, 0.4, 0.7), TABLE),
    "sum": (RBF(1.3) + 0.5 * Matern(0.8, 2.5) + Linear(0.3), TABLE),
    "product": (RBF(1.3) * Matern(0.8, 2.5) * Linear(0.3), TABLE),
    "network": (Scaled(RBF(1.3), 0.6) + Scaled(RationalQuadratic(0.7, 1.2), 1.4), TABLE),
    "sum_of_images": (RBF(2.0) * 3 + CNNGP(STRIDED, 1.6, 0.2), IMAGES),
    "dictionary": (Dictionary(weights=np.arange(1.0, 12.0)), TABLE),
    "rational_quadratic": (RationalQuadratic(0.7, 1.2, 0.8, trainable=["alpha", "beta", "gamma"]), TABLE),
    **{
        f"{kind.__name__}_{backend}_{name}": (kind(*arguments, backend=backend, trainable=trainable), shape)
        for kind, backend in DENSE
        for name, arguments, trainable, shape in (
            ("relu", (3, "relu", 1.6, 0.2), None, TABLE),
            ("relu_no_bias", (2, "relu", 1.6, 0.0), ["weight_variance"], TABLE),
            ("erf", (2, "erf", 1.6, 0.2), None, TABLE),
            ("linear", (0, "relu", 1.6, 0.2), None, TABLE),
            ("layers", (2, "relu", [1.6, 0.7, 1.1], [0.2, 0.1, 0.3]), None, TABLE),
            ("images", (2, "relu", 1.6, 0.2), None, (7, 2, 3, 4)),
        )
    },
    **{
        f"cnngp_{engine}_{name}": (CNNGP(architecture, weights, biases, engine=engine, **options), shape)
        for engine in ("fused", "torch")
        for name, architecture, weights, biases, options, shape in (
            ("simple", ARCHITECTURES["simple"]((6, 5)), 1.6, 0.2, {}, IMAGES),
            ("convnet", ARCHITECTURES["convnet"]((6, 5), 49.0), 1.6, 0.2, {}, IMAGES),
            ("resnet", ARCHITECTURES["resnet"]((6, 5), 4.0), 1.6, 0.2, {}, IMAGES),
            ("strided", STRIDED, 1.6, 0.2, {}, IMAGES),
            ("residual", RESIDUAL, 1.6, 0.2, {}, IMAGES),
            ("one_trainable", STRIDED, 1.6, 0.2, {"trainable": ["bias_variance"]}, IMAGES),
            ("weight_scaling", STRIDED, 0.3, 0.2, {"variance_scaling": "weight"}, IMAGES),
            ("layers", STRIDED, [1.6, 0.7, 1.1], [0.2, 0.1, 0.3], {}, IMAGES),
            ("residual_layers", RESIDUAL, [1.6, 0.7, 1.1, 0.9, 1.3], [0.2, 0.1, 0.3, 0.2, 0.1], {}, IMAGES),
            ("many", STRIDED, 1.6, 0.2, {}, (37, 1, 6, 5)),
        )
    },
    "cnngp_torch_small_tiles": (CNNGP(STRIDED, 1.6, 0.2, engine="torch", tile_megabytes=0.05), IMAGES),
}

FAMILIES = (
    *("rbf", "rbf_long", "matern_1/2", "laplace", "linear", "polynomial", "sum", "product", "network", "sum_of_images"),
    *("dictionary", "smooth_and_rough"),
    *("rational_quadratic", "cnngp_torch_small_tiles", *(f"{kind.__name__}_{backend}_relu" for kind, backend in DENSE)),
    *(f"cnngp_{engine}_{name}" for engine in ("fused", "torch") for name in ("strided", "residual", "many")),
)
"""One of each that shares its code: what holds for them all is tested of these, derivatives of every kernel."""


def over(names, are_slow=()):
    cases = [slow(KERNELS[name]) if name in are_slow else KERNELS[name] for name in names]
    return pytest.mark.parametrize(("kernel", "shape"), cases, ids=names)


IN_JAX = [name for name in KERNELS if "_native_" in name or "_neural_tangents_" in name]
every_kernel, every_family = over(KERNELS, are_slow=IN_JAX), over(FAMILIES)


def points(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def difference(f, h):
    """Central difference of order four at 0."""
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)


def symmetric(n, seed=1):
    g = np.random.default_rng(seed).normal(size=(n, n))
    return g + g.T


@every_family
def test_gram_is_a_covariance(kernel, shape):
    x = points(shape)
    gram = kernel.gram(x)
    assert gram.shape == (len(x), len(x))
    np.testing.assert_allclose(gram, gram.T, rtol=1e-13, atol=0)
    assert np.linalg.eigvalsh(gram)[0] > -1e-12 * np.trace(gram)
    np.testing.assert_array_equal(np.diagonal(gram), kernel.diagonal(x))


@every_family
def test_tiles_agree_with_the_whole(kernel, shape):
    x = points(shape)
    gram = kernel.gram(x)
    np.testing.assert_allclose(kernel.gram(x[:3], x[2:]), gram[:3, 2:], rtol=1e-12, atol=1e-14)


@every_family
@pytest.mark.parametrize("far", [30.0, 1e6, 1e9])
def test_a_far_companion_leaves_every_pair_its_value(kernel, shape, far):
    """In any order, wherever the far point stands, in values and in gradients."""
    x, y, g = points(shape), points(shape, seed=3), symmetric(shape[0])
    alone, inside = kernel.gram(x, y), kernel.gram(x)
    scale = np.abs(kernel.diagonal(np.concatenate([x, y]))).max()
    companion, order = far * points((1, *shape[1:]), seed=4), np.random.default_rng(5).permutation(len(x))
    for at in (0, 3, len(x)):
        crowd = np.insert(x[order], at, companion, axis=0)
        others = np.arange(len(crowd)) != at
        np.testing.assert_allclose(kernel.gram(crowd, y)[others], alone[order], rtol=1e-12, atol=1e-13 * scale)
        np.testing.assert_allclose(kernel.gram(y, crowd)[:, others], alone[order].T, rtol=1e-12, atol=1e-13 * scale)
        gram, pull = kernel.pullback(crowd)
        np.testing.assert_allclose(gram[np.ix_(others, others)], inside[np.ix_(order, order)], 1e-12, 1e-13 * scale)
        assert np.abs(gram - gram.T).max() <= 1e-12 * np.abs(gram).max()
        padded = np.insert(np.insert(g, at, 0.0, axis=0), at, 0.0, axis=1)
        expected = kernel.pullback(x[order])[1](g, inputs=True)[1]
        found = pull(padded, inputs=True)[1][others]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * np.abs(expected).max())


OF_DISTANCES = {
    "rbf": (RBF(0.8), lambda d: np.exp(-((d**2).sum(-1)) / (2 * 0.64))),
    "rational_quadratic": (
        RationalQuadratic(0.7, 1.2, 2.0),
        lambda d: (1.44 + 2.0 * (d**2).sum(-1)) ** -0.7,
    ),
    "matern": (Matern(0.8, 0.5), lambda d: np.exp(-np.sqrt((d**2).sum(-1)) / 0.8)),
    "laplace": (Laplace(0.8), lambda d: np.exp(-np.abs(d).sum(-1) / 0.8)),
    "ard": (ARD(RBF(1.0), 0.8), lambda d: np.exp(-((d**2).sum(-1)) / (2 * 0.64))),
}


@pytest.mark.parametrize(("kernel", "formula"), OF_DISTANCES.values(), ids=OF_DISTANCES)
@pytest.mark.parametrize(("dtype", "offset"), [(np.float64, 0.0), (np.float64, 2.0**30), (np.float32, 0.0)])
@pytest.mark.parametrize(("n", "features"), [(40, 3), (40, 90), (300, 3), (300, 90)])
def test_distances_have_the_digits_of_their_pair(kernel, formula, dtype, offset, n, features):
    """Near pairs, two distant clusters and outliers, far from zero, against differences in NumPy."""
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(n, features)) / np.sqrt(features) * 2**12) / 2**12  # so that an offset is exact
    x[::3] += 64.0
    x[1], x[-1] = x[4] + 2.0**-12, 2.0**20
    expected = formula(x[:, None] - x[None])
    x = (x + offset).astype(dtype)
    tolerance = 1e-13 if dtype == np.float64 else 4e-6
    for some in (np.arange(n), np.arange(n)[::-1], np.arange(0, n, 2)):
        np.testing.assert_allclose(kernel.gram(x[some]), expected[np.ix_(some, some)], rtol=0, atol=tolerance)
        found = kernel.gram(x[some], x[:17])
        np.testing.assert_allclose(found, expected[np.ix_(some, range(17))], rtol=0, atol=tolerance)
        if dtype == np.float64 and isinstance(kernel, Stationary):
            found = kernel.against(x[:17])(x[some])
            np.testing.assert_allclose(found, expected[np.ix_(some, range(17))], rtol=0, atol=tolerance)


def awkward(shape):
    """Points of which two are equal, two opposite, one zero and one tiny; and a direction that keeps them so."""
    x, direction = points(shape), points(shape, seed=2)
    x[3], direction[3] = x[2], direction[2]
    x[4], direction[4] = 0.0, 0.0
    x[5], direction[5] = 1e-9 * x[5], 1e-9 * direction[5]
    x[6], direction[6] = -x[2], -direction[2]
    return x, direction


def regular(shape):
    return points(shape), points(shape, seed=2)


def assert_derivative(found, cotangent, slopes):
    """Relative error < 1e-8, measured against the sum of the terms that may cancel in Σ G_ij dK_ij."""
    assert abs(found - np.sum(cotangent * slopes)) < 1e-8 * np.sum(np.abs(cotangent * slopes))


def assert_derivatives(kernel, place, shape):
    """To parameters and to inputs, those of differences."""
    (x, direction), g = place(shape), symmetric(shape[0])
    gram, pull = kernel.pullback(x)
    np.testing.assert_array_equal(gram, kernel.gram(x))
    gradient = pull(g)
    assert gradient.shape == kernel.flat.shape
    for i in range(len(kernel.names)):

        def along(t, i=i):
            vector = kernel.flat
            vector[i] *= 1 + t
            return kernel.with_flat(vector).gram(x)

        assert_derivative(gradient[i], g, difference(along, 1e-3) / kernel.flat[i])
    again, to_inputs = kernel.pullback(x)[1](g, inputs=True)
    assert to_inputs.shape == x.shape
    np.testing.assert_allclose(again, gradient, rtol=1e-12)
    assert_derivative(np.sum(to_inputs * direction), g, difference(lambda t: kernel.gram(x + t * direction), 1e-3))


@every_kernel
def test_derivatives_at_awkward_points(kernel, shape):
    """Some of the points are like any others."""
    assert_derivatives(kernel, awkward, shape)


@every_family
def test_derivatives(kernel, shape):
    assert_derivatives(kernel, regular, shape)


@every_family
def test_repeated_and_zero_points(kernel, shape):
    x, _ = awkward(shape)
    gram, pull = kernel.pullback(x)
    gradient, to_inputs = pull(symmetric(shape[0]), inputs=True)
    assert np.all(np.isfinite(gram))
    assert np.all(np.isfinite(gradient))
    assert np.all(np.isfinite(to_inputs))
    assert gram[2, 3] == pytest.approx(gram[2, 2], rel=1e-12)


@every_family
def test_no_points_have_a_matrix_without_entries(kernel, shape):
    x, none = points(shape), points((0, *shape[1:]))
    assert kernel.gram(none).shape == (0, 0)
    assert kernel.gram(x, none).shape == (len(x), 0)
    assert kernel.gram(none, x).shape == (0, len(x))
    assert kernel.diagonal(none).shape == (0,)


@every_family
def test_points_of_another_byte_order_are_the_same_points(kernel, shape):
    x = points(shape)
    np.testing.assert_array_equal(kernel.gram(x.astype(">f8")), kernel.gram(x))


@every_family
@pytest.mark.parametrize("dtype", [pytest.param(np.float32, marks=pytest.mark.slow), np.float64])
def test_dtype_and_kind_follow_the_points(kernel, shape, dtype):
    x = points(shape).astype(dtype)
    gram, pull = kernel.pullback(x)
    assert isinstance(gram, np.ndarray)
    assert gram.dtype == kernel.gram(x, x[:2]).dtype == kernel.diagonal(x).dtype == dtype
    to_parameters, to_inputs = pull(symmetric(shape[0]), inputs=True)
    assert to_parameters.dtype == np.float64
    assert (to_inputs.shape, to_inputs.dtype) == (x.shape, dtype)
    tensor = kernel.gram(torch.as_tensor(x))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), gram)
    np.testing.assert_allclose(gram, kernel.gram(points(shape)), rtol=2e-5, atol=2e-6)
    if dtype == np.float32:
        gentle, exact = pull(np.eye(len(x))), kernel.pullback(points(shape))[1](np.eye(len(x)))
        np.testing.assert_allclose(gentle, exact, rtol=1e-4, atol=1e-5)


@every_family
def test_a_cotangent_of_another_size_is_refused(kernel, shape):
    n = shape[0]
    _, pull = kernel.pullback(points(shape))
    for wrong in ((n + 9, n + 9), (n - 2, n - 2), (n, 1)):
        with pytest.raises(ValueError, match=rf"the cotangent must be \({n}, {n}\)"):
            pull(np.ones(wrong))


@every_family
def test_parameters_round_trip(kernel, shape):
    vector = kernel.flat * 1.5
    moved = kernel.with_flat(vector)
    np.testing.assert_array_equal(moved.flat, vector)
    assert len(kernel.names) == len(kernel.flat) == len(kernel.bounds)
    again = kernel.with_parameters(**moved.parameters)
    np.testing.assert_array_equal(again.gram(points(shape)), moved.gram(points(shape)))
    assert not np.array_equal(kernel.flat, vector), "a kernel must not change in place"


# ---- against independent implementations


def test_rbf_against_scikit_learn():
    x, y = points((9, 3)), points((6, 3), 1)
    np.testing.assert_allclose(RBF(1.7).gram(x, y), sklearn_kernels.RBF(1.7)(x, y), rtol=1e-13)


def test_rational_quadratic_against_scikit_learn():
    # (β² + r²)^−α = β^−2α (1 + r² / (2 α l²))^−α with l = β / √(2α)
    x, alpha, beta = points((9, 3)), 0.8, 1.3
    expected = sklearn_kernels.RationalQuadratic(beta / np.sqrt(2 * alpha), alpha)(x) * beta ** (-2 * alpha)
    np.testing.assert_allclose(RationalQuadratic(alpha, beta).gram(x), expected, rtol=1e-13)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_against_scikit_learn(nu):
    x, y = points((9, 3)), points((6, 3), 1)
    np.testing.assert_allclose(Matern(1.7, nu).gram(x, y), sklearn_kernels.Matern(1.7, nu=nu)(x, y), rtol=1e-13)


def test_the_others_against_scikit_learn():
    x, y = points((9, 3)), points((6, 3), 1)
    expected = pairwise.laplacian_kernel(x, y, gamma=1 / 1.7)
    np.testing.assert_allclose(Laplace(1.7).gram(x, y), expected, rtol=1e-13)
    np.testing.assert_allclose(Linear(1.7).gram(x, y), sklearn_kernels.DotProduct(np.sqrt(1.7))(x, y), rtol=1e-13)
    expected = pairwise.polynomial_kernel(x, y, degree=4, gamma=0.3, coef0=1.7)
    np.testing.assert_allclose(Polynomial(4, 0.3, 1.7).gram(x, y), expected, rtol=1e-12)


def test_algebra_against_scikit_learn():
    x, y = points((9, 3)), points((6, 3), 1)
    s = sklearn_kernels
    found = (2 * RBF(1.7) + RBF(0.5) * Matern(1.1, 2.5) + Linear(0.3)) * RBF(4.0)
    expected = (2 * s.RBF(1.7) + s.RBF(0.5) * s.Matern(1.1, nu=2.5) + s.DotProduct(np.sqrt(0.3))) * s.RBF(4.0)
    np.testing.assert_allclose(found.gram(x, y), expected(x, y), rtol=1e-12)


def test_parameters_of_a_combination():
    kernel = 2 * RBF(1.7, bounds={"sigma": (0.1, 10)}) + RationalQuadratic(0.5, 2.0) + Linear(0.3)
    assert kernel.names == ["0.coefficient", "0.0.sigma", "1.alpha", "1.beta", "2.bias_variance"]
    assert kernel.parameters["1.gamma"] == 1.0
    np.testing.assert_array_equal(kernel.bounds[1], [0.1, 10])
    moved = kernel.with_flat([1.0, 2.0, 3.0, 4.0, 5.0])
    assert [part.parameters for part in moved.parts[1:]] == [{"alpha": 3, "beta": 4, "gamma": 1}, {"bias_variance": 5}]
    assert kernel.with_parameters(**{"1.gamma": 3.0}).parts[1].parameters["gamma"] == 3.0


def test_gamma_of_rational_quadratic_stays_unless_asked():
    assert RationalQuadratic().names == ["alpha", "beta"]
    assert RationalQuadratic(gamma=2.0).parameters["gamma"] == 2.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RBF(-1.0), "sigma takes a finite number > 0, got -1.0"),
        (lambda: RBF(float("nan")), "sigma takes a finite number > 0"),
        (lambda: RBF(1.0, trainable=["lengthscale"]), "RBF has no parameter 'lengthscale'; it has sigma"),
        (lambda: RBF() * -1.0, "multiplied by a number > 0, got -1.0"),
        (lambda: Matern(nu=2.0), "nu=2.0: expected 0.5, 1.5 or 2.5"),
        (lambda: Polynomial(degree=0), "degree=0: expected a whole number >= 1"),
        (lambda: RBF().with_flat([1.0, 2.0]), "expected 1 parameters"),
        (lambda: RBF().with_parameters(gamma=1.0), "no parameter 'gamma'"),
        (lambda: RBF().gram(np.zeros(4)), r"points must be \(n, features\)"),
        (lambda: RBF().gram(np.zeros((4, 2)), np.zeros((4, 3))), "do not match"),
        (lambda: NNGP(activation="tanh"), "activation=tanh: expected one of relu, erf"),
        (lambda: NNGP(depth=2, weight_variance=[1.0, 2.0]), "one number or 3, one per layer"),
        (lambda: NNGP(backend="jax"), "backend=jax: expected one of auto, fused, torch, native, neural_tangents"),
        (lambda: NTK(backend="torch"), "backend must be one of auto, fused, native, neural_tangents"),
        (lambda: CNNGP(STRIDED, [1.0, 2.0]), "one number or 3, one per convolution"),
        (lambda: CNNGP(STRIDED, variance_scaling="fan_out"), "expected one of fan_in, weight"),
        (lambda: CNNGP(STRIDED).gram(np.zeros((4, 9))), r"images \(n, channels, height, width\)"),
        (lambda: CNNGP(STRIDED).gram(np.zeros((4, 1, 9, 9))), r"layer 4, Conv2d.*5 × 9 reach it and 3 × 5 leave"),
        (lambda: CNNGP(STRIDED).gram(np.zeros((4, 1, 2, 2))), r"layer 4, Conv2d.*1 × 2 reach it and are too small"),
        (lambda: Sequential(ReLU(), Conv2d(3)), "starts with a Conv2d"),
        (lambda: Sequential(Conv2d(3), "relu"), "Sequential takes"),
        (lambda: Conv2d(0), "kernel_size takes whole numbers >= 1"),
        (lambda: Conv2d(3, padding="full"), "'same' or 'valid'"),
        (lambda: Conv2d(3, weight_multiplier=-1.0), "weight_multiplier takes a number > 0"),
    ],
)
def test_errors_say_what_was_expected(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "kernel",
    [RBF(1.7), Matern(1.3), Matern(1.3, nu=1.5), RationalQuadratic(1.0, 1.1), Laplace(2.0), SmoothAndRough(0.7, 2.0)],
    ids=str,
)
def test_a_gram_matrix_computed_in_blocks_has_the_bits_of_a_whole_one(kernel, monkeypatch):
    monkeypatch.setattr(stationary, "AT_A_TIME", 1 << 12)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(301, 5)))
    assert torch.equal(kernel.gram(x), kernel.pullback(x)[0])  # a pullback keeps distances and values, both whole
    assert torch.equal(kernel.gram(x, x[:290]).diagonal(), kernel.gram(x[:290], x).diagonal())


@pytest.mark.parametrize("count", [1, 2])
def test_a_factor_in_the_memory_of_its_matrix_is_that_of_lapack(count):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(777, 5)))
    gram = RBF(3.0).gram(x)
    assert not torch.equal(gram, gram.mT)  # by round-off, so that it matters which triangle is read
    before = gram.clone()
    with process.exclusively(count):
        found = cholesky(gram, 1e-3)
    matrix = gram.clone()
    matrix.diagonal().add_(1e-3)
    assert torch.equal(gram, before)
    torch.testing.assert_close(found @ found.mT, matrix, rtol=1e-12, atol=1e-13)
    if count > 1:
        with process.exclusively(count):
            assert torch.equal(found, torch.linalg.cholesky_ex(matrix)[0])


_PEAK = """
import sys
import torch
from kfx.kernels import Matern
from kfx.numerics import threads
from kfx.numerics.linear_algebra import cholesky

threads.use(int(sys.argv[1]))
x = torch.randn(3000, 5, dtype=torch.float64)
cholesky(Matern().gram(x[:300]), 1.0)  # loads what is loaded once


def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024


for step in (lambda: Matern().gram(x), lambda: cholesky(kept[0], 1.0)):
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before, kept = status("VmRSS"), [step()]
    print((status("VmHWM") - before) / (8 * 3000**2 / 2**20))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read as Linux tells it")
@pytest.mark.parametrize("count", ["1", "2"])
def test_a_large_gram_matrix_and_its_factor_take_little_more_than_their_memory(count):
    done = subprocess.run([sys.executable, "-c", _PEAK, count], capture_output=True, text=True, check=True)
    of_gram, of_factor = map(float, done.stdout.split())
    assert of_gram < 3  # in matrices: its own, and temporaries of 32 MB each; whole ones made it 4
    assert of_factor < 1.2
