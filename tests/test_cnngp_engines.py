"""The engines of a CNNGP: they agree, their bits know no threads, and their memory does not grow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfx.kernels import CNNGP, Sequential
from kfx.kernels.cnngp import maps, spatial_loops
from kfx.kernels.cnngp import torch_engine as cnngp_torch
from kfx.kernels.cnngp.architectures import ARCHITECTURES
from kfx.kernels.nngp import loops as dense_loops
from kfx.numerics import threads
from kfx.numerics.incidents import collect
from kfx.outcomes import Event
from tests.networks import every_engine, networks, relative


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_to_two_parts_in_a_million(name):
    pooled = [each for each in ARCHITECTURES if ARCHITECTURES[each]((28, 28)).pools]
    x = np.random.default_rng(0).random((6 if name in pooled else 40, 1, 28, 28))
    x[1], x[2] = x[0], x[3] + 1e-3 * x[4]
    x[:, :, :5] = 0.0  # borders, as digits have them
    deep = name in ("resnet32", *pooled)  # their layers would leave float32
    published = (1.0, 1.0, 0.0) if deep else (49.0, 2.79, 7.86)
    kernel = CNNGP(ARCHITECTURES[name]((28, 28), published[0]), *published[1:])
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
    x = torch.ones(2, 1, 6, 6)
    assert kernel.backend_at(x) == "fused"
    assert kernel.backend_at(x.to("meta")) == "torch"
    fused = CNNGP(ARCHITECTURES["simple"]((6, 6)), engine="fused")
    with pytest.raises(ValueError, match=r"float32 or float64 on a CPU, and the points are torch\.float32 on meta"):
        fused.gram(torch.ones(2, 1, 6, 6, device="meta"))
    half = torch.ones(2, 1, 6, 6, dtype=torch.float16)
    assert kernel.gram(half).dtype == torch.float16
    with pytest.raises(ValueError, match=r"the points are torch\.float16"):
        fused.gram(half)
    monkeypatch.setattr("kfx.kernels.engine.find_spec", lambda name: None)
    assert kernel.backend_at(x) == "torch"


@pytest.mark.parametrize("module", [maps, spatial_loops, dense_loops], ids=lambda module: module.__name__)
def test_compiled_functions_have_names_of_their_own(module):
    """Two of one name, in code that different processes kept, would be taken for each other."""
    functions = {each for each in vars(module).values() if hasattr(each, "py_func")}
    assert len(functions) > 20
    assert len({(each.py_func.__module__, each.py_func.__qualname__) for each in functions}) == len(functions)


@pytest.mark.slow
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
        assert cnngp_torch.halving(compute, 20) == 5
    assert sides == [20, 10, 5]
    assert incidents.events == [Event.TILE_HALVED]
    with pytest.raises(torch.OutOfMemoryError):
        cnngp_torch.halving(lambda side: compute(6), 1)


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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read as Linux tells it")
@every_engine
@pytest.mark.parametrize(
    ("what", "n"),
    [("gradient", 200), ("value", 500), ("gradient", 300)],
)
def test_memory_does_not_grow_with_the_batch(what, n, engine):
    """Beyond the N × N matrices (1 MB each here) and the images, growth over a warmed-up small batch is a tile's."""
    run = subprocess.run(
        [sys.executable, "-c", _PEAK, str(n), what, engine], capture_output=True, text=True, check=True
    )
    # With every map of every layer kept it would be 1700 MB for 250 points.
    assert float(run.stdout) < 64
