"""The Triton engine of a CNNGP, under Triton's interpreter where there is no GPU: the torch engine is its reference."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfx.kernels import CNNGP, CNTK, Conv2d, Erf, ReLU, Residual, Sequential, network_options
from kfx.kernels.cnngp.architectures import ARCHITECTURES
from kfx.numerics.incidents import collect
from kfx.outcomes import ConfigError, Event
from tests.networks import networks
from tests.slow import slow

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")  # read with the import
pytest.importorskip(
    "triton", minversion=None if torch.cuda.is_available() else "3.9"
)  # its older interpreters lack much

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOTH = ("triton", "torch")
STRIDED = Sequential(
    Conv2d(3, stride=2, padding="same"), Erf(), Conv2d(3, padding=1, dilation=1), Erf(),
    Residual(Conv2d(3, padding="same"), ReLU(), Conv2d(2, padding="same"), shortcut=Conv2d(1)), Conv2d((4, 5)),
)  # fmt: skip


def images(shape, n=5, seed=0):
    """Some, of which two are equal and one is black."""
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32))
    x[1] = x[2 % n]
    x[n - 1] = 0.0
    return x.to(DEVICE)


def near(found, expected, tolerance=1e-6):
    found, expected = (torch.as_tensor(each, dtype=torch.float64).cpu() for each in (found, expected))
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * max(float(expected.abs().max()), 1e-30)


def assert_as_torch(architecture, x, *parameters):
    """Gram matrices and every gradient in float32 against those of the torch engine in float64."""
    triton, reference = (CNNGP(architecture, *parameters, engine=engine) for engine in BOTH)
    g = torch.from_numpy(np.random.default_rng(1).normal(size=(len(x), len(x))).astype(np.float32)).to(DEVICE)
    g = g + g.mT
    gram, pull = triton.pullback(x)
    exact, exact_pull = reference.pullback(x.double())
    near(gram, exact)
    near(triton.gram(x[:2], x), reference.gram(x[:2].double(), x.double()))
    for found, expected in zip(pull(g, inputs=True), exact_pull(g.double(), inputs=True), strict=True):
        near(found, expected)


@pytest.mark.parametrize(
    ("architecture", "shape"),
    [
        (ARCHITECTURES["simple"]((6, 6), 1.0), (2, 6, 6)),
        pytest.param(ARCHITECTURES["resnet"]((7, 5), 1.0), (1, 7, 5), marks=pytest.mark.slow),
        pytest.param(ARCHITECTURES["resnet32"]((9, 9), 1.0), (1, 9, 9), marks=pytest.mark.slow),
        slow((STRIDED, (2, 8, 9))),
    ],
    ids=["simple", "resnet", "resnet32", "strided"],
)
def test_as_the_torch_engine(architecture, shape):
    x, count = images(shape, n=4), architecture.convolutions
    assert_as_torch(architecture, x, 1.7, 0.3)
    assert_as_torch(architecture, x[:3], np.linspace(1.2, 1.9, count), np.linspace(0.1, 0.4, count))


@pytest.mark.slow
@given(network=networks(dilations=(1, 2)), channels=st.integers(1, 2), seed=st.integers(0, 100))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_architectures(network, channels, seed):
    layers, image = network
    assert_as_torch(Sequential(*layers), images((channels, *image), 3, seed), 1.7, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("variances", [(0.0, 0.3), (1.7, 0.0)])
def test_a_variance_of_zero(variances):
    assert_as_torch(Sequential(Conv2d(3, padding="same"), ReLU(), Conv2d(5)), images((1, 5, 5)), *variances)


@pytest.mark.slow
def test_the_same_bits_again_and_in_launches_of_few_programs():
    x = images((1, 5, 5), 6)
    found = []
    for megabytes in (32.0, 32.0, 0.001):
        kernel = CNNGP(ARCHITECTURES["simple"]((5, 5), 1.0), 1.7, 0.3, engine="triton", tile_megabytes=megabytes)
        gram, pull = kernel.pullback(x)
        found.append((gram, *pull(torch.ones_like(gram), inputs=True)))
    for first, again, few in zip(*found, strict=True):
        assert torch.equal(*map(torch.as_tensor, (first, again)))
        near(few, first)


@pytest.mark.slow
def test_tiles_of_several_images(monkeypatch):
    monkeypatch.setattr("kfx.kernels.cnngp.triton_engine.MOST_PROGRAMS", 3)
    assert_as_torch(Sequential(Conv2d(3, padding="same"), ReLU(), Conv2d(5)), images((1, 5, 5), 8), 1.7, 0.3)


def test_blocks_are_halved_when_memory_runs_out(monkeypatch):
    from kfx.kernels.cnngp import triton_kernels

    launch, failed = triton_kernels.gram.run, []

    def run(*arguments, **options):
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("out of memory")
        return launch(*arguments, **options)

    monkeypatch.setattr(triton_kernels.gram, "run", run)
    x = images((1, 4, 4))
    kernel, reference = (CNNGP(Sequential(Conv2d(4)), 1.7, 0.3, engine=engine) for engine in BOTH)
    with collect() as incidents:
        found = kernel.gram(x)
    assert failed
    assert incidents.events == [Event.TILE_HALVED]
    near(found, reference.gram(x))


def test_what_it_does_not_take(monkeypatch):
    kernel = CNNGP(Sequential(Conv2d(4)), engine="triton")
    with pytest.raises(ValueError, match=r"takes float32 on a CUDA device, and the points are torch\.float64 on"):
        kernel.gram(torch.ones(2, 1, 4, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="at most 64 × 64, got 70 × 4"):
        CNNGP(Sequential(Conv2d((70, 4))), engine="triton").gram(torch.ones(2, 1, 70, 4, device=DEVICE))
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ConfigError, match=r"kernel\.engine=triton: needs a CUDA device, and device=cpu; use auto"):
        network_options.CNNGPOption(engine="triton").check_device("cpu", torch.device("cpu"))
    monkeypatch.setattr("kfx.kernels.engine.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="engine=triton needs Triton"):
        kernel.gram(torch.ones(2, 1, 4, 4))


_COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kfx.kernels.cnngp import triton_kernels

TYPES = {"tiles": "*i32", "table": "*i32", "sums": "*fp64"}
TYPES |= dict.fromkeys(["n", "m", "is_triangle", "side", "steps", "channels", "activations", "convolutions"], "i32")
TYPES |= {"wanted_channels": "i32", "SIDE": "constexpr", "PRECISION": "constexpr"}
for program in (triton_kernels.gram, triton_kernels.pull):
    signature = {name: TYPES.get(name, "*fp32") for name in program.arg_names}
    for precision in ("ieee", "tf32"):
        source = ASTSource(fn=program, signature=signature, constexprs={"SIDE": 32, "PRECISION": precision})
        made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 2})
        print(int("tf32" in made.asm["ptx"]), len(made.asm["cubin"]) > 1000)
"""


@pytest.mark.slow
def test_it_compiles_for_a_gpu_and_rounds_products_only_where_allowed():
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, "-c", _COMPILE], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[:4] == ["0 True", "1 True"] * 2


@pytest.mark.gpu
def test_auto_takes_it_on_a_gpu_where_it_takes_the_images():
    x = torch.rand(2, 1, 28, 28, device=DEVICE)
    kernel, large = (CNNGP(ARCHITECTURES["convnet"]((side, side), 1.0)) for side in (28, 70))
    assert [kernel.backend_at(each) for each in (x, x.double())] == ["triton", "torch"]
    assert large.backend_at(torch.rand(2, 1, 70, 70, device=DEVICE)) == "torch"
    assert CNTK(ARCHITECTURES["cntk_gap"]((28, 28), 1.0)).backend_at(x) == "torch"


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2, 33, 130])
def test_on_a_gpu_with_images_of_28_by_28(n):
    x = torch.rand(n, 1, 28, 28, device=DEVICE)
    architecture = ARCHITECTURES["convnet"]((28, 28), 1.0)
    triton, reference = (CNNGP(architecture, 2.79, 7.86, engine=engine) for engine in BOTH)
    near(triton.gram(x), reference.gram(x.double()), 2e-6)
    g = torch.ones(n, n, device=DEVICE)
    for found, expected in zip(
        triton.pullback(x)[1](g, inputs=True), reference.pullback(x.double())[1](g.double(), inputs=True), strict=True
    ):
        near(found, expected, 1e-5)
