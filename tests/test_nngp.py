"""The NNGP against what it is the limit of, and its compilation."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from kfx.kernels import NNGP, NTK
from kfx.kernels.nngp.kernel import functions
from kfx.numerics import process, threads
from tests.oracles import HAS_NEURAL_TANGENTS, needs_neural_tangents
from tests.slow import slow_after


@pytest.mark.parametrize("activation", slow_after(1, ["relu", "erf"]))
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


@pytest.mark.parametrize("backend", ["native", pytest.param("neural_tangents", marks=needs_neural_tangents)])
def test_compiled_once_for_a_shape(backend):
    module = functions(backend)
    x = np.random.default_rng(0).normal(size=(11, 4))
    g = np.eye(11)
    kernel = NNGP(2, "relu", 1.0, 0.1, backend=backend)

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


NNGPS = ("fused", "torch", "native", *["neural_tangents"] * HAS_NEURAL_TANGENTS)
NTKS = ("fused", "native", *["neural_tangents"] * HAS_NEURAL_TANGENTS)
every_kind = pytest.mark.parametrize(("kind", "backends"), [(NNGP, NNGPS), (NTK, NTKS)], ids=["nngp", "ntk"])


def parts(kernel, x, y, g):
    """K(x, x), K(x, y), the diagonal, the gradients to parameters and to x."""
    return kernel.gram(x), kernel.gram(x, y), kernel.diagonal(x), *kernel.pullback(x)[1](g, inputs=True)


def gap(ours, theirs):
    """The largest difference of an entry, each relative to the largest entry of its array."""
    pairs = [(each, other) for each, other in zip(ours, theirs, strict=True) if other.size]
    return max(np.abs(each - other).max() / np.abs(other).max() for each, other in pairs)


@every_kind
@pytest.mark.parametrize("activation", slow_after(1, ["relu", "erf"]))
@pytest.mark.parametrize("depth", slow_after(1, [2, 0, 1, 3, 4, 5]))
def test_backends_agree(kind, backends, activation, depth):
    rng = np.random.default_rng(0)
    x, y, g = rng.normal(size=(37, 5)), rng.normal(size=(4, 5)), rng.normal(size=(37, 37))
    weights, biases = rng.uniform(1, 2, depth + 1), rng.uniform(0, 0.3, depth + 1)
    ours, *others = (parts(kind(depth, activation, weights, biases, backend=b), x, y, g + g.T) for b in backends)
    for backend, theirs in zip(backends[1:], others, strict=True):
        # neural-tangents' angle of a point with itself is a rounding error's root
        assert gap(ours, theirs) < (1e-6 if (kind, activation, backend) == (NTK, "relu", "neural_tangents") else 1e-10)


@pytest.mark.parametrize("activation", slow_after(1, ["relu", "erf"]))
@pytest.mark.parametrize("fixed", slow_after(1, [2, 1, 3]))
def test_fixed_layers_agree_between_backends_and_with_differences(activation, fixed):
    rng = np.random.default_rng(0)
    x, y, g = rng.normal(size=(37, 5)), rng.normal(size=(4, 5)), rng.normal(size=(37, 37))
    given = 3, activation, rng.uniform(1, 2, 4), rng.uniform(0.1, 0.3, 4)
    ours, *others = (parts(NTK(*given, fixed_layers=fixed, backend=b), x, y, g + g.T) for b in NTKS)
    for backend, theirs in zip(NTKS[1:], others, strict=True):
        is_rounded = activation == "relu" and backend == "neural_tangents" and fixed < 3
        assert gap(ours, theirs) < (1e-6 if is_rounded else 1e-10), backend
    kernel, step = NTK(*given, fixed_layers=fixed), 1e-6
    value = lambda k, x: float(((g + g.T) * k.gram(x)).sum())  # noqa: E731
    for slope, (name, i) in zip(
        ours[3], itertools.product(("weight_variance", "bias_variance"), range(4)), strict=True
    ):
        moved = np.eye(4)[i] * step
        up, down = (kernel.with_parameters(**{name: kernel.parameters[name] + each}) for each in (moved, -moved))
        assert slope == pytest.approx((value(up, x) - value(down, x)) / (2 * step), rel=1e-5, abs=1e-4)
    if fixed == 3:
        np.testing.assert_array_equal(ours[0], NNGP(*given).gram(x))


def test_fixed_layers_as_arora_and_others_define_them():
    """Arora et al. 2020, section 3.2: without bias, with weight variance 2, the sum of the layers from the fixed ones
    on."""
    x = np.random.default_rng(0).normal(size=(6, 4))
    for depth in range(4):
        for fixed in range(depth + 1):
            covariance, tangent = x @ x.T, np.zeros((6, 6))
            for layer in range(depth + 1):
                if layer >= fixed:
                    tangent = tangent + covariance
                if layer < depth:
                    norms = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
                    cosine = np.clip(covariance / norms, -1, 1)
                    angle = np.pi - np.arccos(cosine)
                    covariance = norms * (cosine * angle + np.sqrt(1 - cosine**2)) / np.pi
                    tangent = tangent * angle / np.pi
            kernel = NTK(depth, "relu", [4.0] + [2.0] * depth, 0.0, fixed_layers=fixed)
            np.testing.assert_allclose(kernel.gram(x), tangent, rtol=1e-7, atol=1e-7)
    with pytest.raises(ValueError, match="fixed_layers must be from 0 to depth=2, got 3"):
        NTK(2, fixed_layers=3)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_fused_in_float32(kind, backends, activation):
    rng = np.random.default_rng(1)
    x, y, g = rng.normal(size=(37, 5)), rng.normal(size=(4, 5)), rng.normal(size=(37, 37))
    given = [a.astype(np.float32) for a in (x, y, g + g.T)]
    ours = parts(kind(2, activation, 1.6, 0.2), *given)
    assert all(each.dtype == np.float32 for each in ours if each.ndim > 1)
    assert gap(ours, parts(kind(2, activation, 1.6, 0.2, backend="native"), x, y, g + g.T)) < 5e-6


@pytest.mark.parametrize("kind", [NNGP, NTK])
def test_bits_of_fused_do_not_depend_on_threads(kind):
    rng = np.random.default_rng(2)
    x, g = rng.normal(size=(500, 40)), rng.normal(size=(500, 500))
    given = x, x[:300], g + g.T

    def on(count):
        with process.exclusively():
            threads.use(count)
            return parts(kind(2, "relu", 1.6, 0.2, backend="fused"), *given)

    for one, many in zip(on(1), on(3), strict=True):
        np.testing.assert_array_equal(one, many)


@every_kind
@pytest.mark.parametrize(
    "case", slow_after(3, ["equal", "zero", "none", "opposite", "no_variance", "no_weights", "alone"])
)
def test_degenerate_points(kind, backends, case):
    """What is finite agrees between the backends of our own; derivatives are finite throughout."""
    x = np.random.default_rng(3).normal(size=(9, 4))
    bias = 0.0 if case in ("no_variance", "no_weights") else 0.2
    if case == "equal":
        x[3] = x[5]
    elif case == "opposite":
        x[3] = -x[5]
    elif case in ("zero", "no_variance"):
        x[3] = 0.0
    x = x[: {"alone": 1, "none": 0}.get(case, 9)]
    kernels = [
        kind(2, "relu", 0.0 if case == "no_weights" else 1.6, bias, backend=b)
        for b in backends
        if b != "neural_tangents"
    ]
    ours, *others = (parts(kernel, x, x[:2], np.ones((len(x), len(x)))) for kernel in kernels)
    assert all(np.isfinite(each).all() for each in ours)
    if case == "none":
        assert ours[0].shape == (0, 0)
        return
    for theirs in others:
        for each, other in zip(ours[:3], theirs[:3], strict=True):
            np.testing.assert_allclose(each, other, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(ours[3], theirs[3], rtol=1e-6, atol=1e-9)


def test_bias_gradient_at_zero_bias():
    x = np.random.default_rng(0).normal(size=(6, 4))
    ours, *others = (NNGP(2, "relu", 1.6, 0.0, backend=b).pullback(x)[1](np.eye(6) + 1) for b in NNGPS)
    for theirs in others:
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_auto_is_fused_on_a_cpu_and_torch_for_other_numbers():
    kernel = NNGP()
    x = torch.randn(5, 3, dtype=torch.bfloat16)
    assert [kernel.backend_at(each) for each in (x.float(), x.float().to("meta"), x)] == ["fused", "torch", "torch"]
    assert kernel.gram(x).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="backend=fused takes float32 or float64"):
        NNGP(backend="fused").gram(x)


@pytest.mark.slow
def test_fused_needs_no_jax():
    check = (
        "import sys, numpy as np; from kfx.kernels import NNGP; NNGP().gram(np.eye(3)); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)


def test_linear_kernel_at_depth_zero():
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(NNGP(0, "relu", 2.0, 0.5).gram(x), 0.5 + 2.0 * x @ x.T / 3, rtol=1e-14)


def test_a_neural_tangents_that_cannot_be_imported_is_one_line(kfx, monkeypatch):
    monkeypatch.delitem(sys.modules, "kfx.kernels.nngp.by_neural_tangents", raising=False)
    monkeypatch.setitem(sys.modules, "neural_tangents", None)  # an import then fails
    code, _, err = kfx("run", "dataset=three_bumps", "kernel=nngp", "kernel.backend=neural_tangents")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "kernel.backend=neural_tangents: neural-tangents cannot be imported with jax" in err
    assert "kernel-flows[neural-tangents]" in err
