"""Small matrices: compiled loops and the direct way of `Loss` against the general one; cotangents kept as vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kfx.kernels import RBF, Linear, Matern, RationalQuadratic
from kfx.kernels.stationary_arrays import squared_distances
from kfx.numerics import small_loops
from kfx.numerics.arrays import extent
from kfx.numerics.linear_algebra import cholesky
from kfx.numerics.outer_products import OuterProducts
from kfx.numerics.regularization import Regularization
from kfx.objectives import rho
from kfx.optimizers.loss import Loss
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch

KERNELS = {
    "rbf": RBF(1.7),
    "rational_quadratic": RationalQuadratic(0.8, 1.3, 0.7, trainable=["alpha", "beta", "gamma"]),
    "matern_0.5": Matern(1.4, 0.5),
    "matern_1.5": Matern(1.4, 1.5),
    "matern_2.5": Matern(1.4, 2.5),
}
SCALES = ("absolute", "mean_diagonal", "centered")


def problem(n=60, features=3, outputs=2, dtype=torch.float64, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(n, features))).to(dtype)
    return x, torch.from_numpy(rng.normal(size=(n, outputs)))


def both_ways(kernel, x, y, batch, regularization, points, monkeypatch):
    found = []
    for direct in (True, False):
        loss = Loss(rho, regularization, kernel, x, y)
        if not direct:
            monkeypatch.setattr(type(kernel), "small_pullback", lambda *_: None)
            monkeypatch.setattr("kfx.numerics.arrays.MOST_SMALL", 0)
        found.append(loss.at(kernel, x, y, batch, points=points))
    return found


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("features", "outputs", "dtype"), [(1, 1, torch.float64), (3, 2, torch.float32), (70, 3, torch.float64)]
)
def test_the_direct_way_is_the_general_one(name, scale, features, outputs, dtype, monkeypatch):
    x, y = problem(40, features, outputs, dtype)
    batch = Batch(np.arange(40), 17, half_size=20)
    # The general way takes distances by a matrix product, whose round-off is that of the squares.
    rtol = 1e-9 if dtype == torch.float64 else 2e-3
    with np.errstate(all="raise"):
        direct, general = both_ways(KERNELS[name], x, y, batch, Regularization(0.05, scale), True, monkeypatch)
    for attribute in ("objective", "rho", "rho_half", "regularization"):
        assert getattr(direct, attribute) == pytest.approx(getattr(general, attribute), rel=rtol)
    np.testing.assert_allclose(direct.gradient, general.gradient, rtol=rtol, atol=rtol * np.abs(general.gradient).max())
    scale_of_points = float(general.to_points.abs().max())
    assert direct.to_points.dtype == x.dtype
    assert direct.to_points.shape == x.shape
    np.testing.assert_allclose(direct.to_points, general.to_points, rtol=10 * rtol, atol=10 * rtol * scale_of_points)


def test_the_direct_way_takes_a_jitter_and_tells_of_it(monkeypatch):
    x, y = problem(30, 1, 1)
    direct, general = both_ways(
        RBF(50.0), x, y, Batch(np.arange(30), 15), Regularization(0.0, "absolute"), False, monkeypatch
    )
    assert direct.jitter > 0
    assert direct.jitter == pytest.approx(general.jitter, rel=1e-6)


@pytest.mark.parametrize("kernel", [RBF(1e-200), RBF(1e200), RationalQuadratic(300.0, 1e-4)])
def test_the_direct_way_ends_in_an_event(kernel):
    x, y = problem(10, 2, 1)
    found = Loss(rho, Regularization(1e-3), kernel, x, y).at(kernel, x, y * 0.0, Batch(np.arange(10), 5))
    assert found.failed
    assert found.events[-1] in (Event.DIVERGED, Event.NOT_POSITIVE_DEFINITE)


def test_targets_of_any_size(monkeypatch):
    x, y = problem(20, 2, 1)
    loss = Loss(rho, Regularization(1e-3), RBF(1.0), x, y)
    batch = Batch(np.arange(20), 10)
    expected = loss.at(RBF(1.0), x, y, batch)
    for factor in (1e-160, 1e160):
        found = loss.at(RBF(1.0), x, factor * y, batch)
        assert found.rho == pytest.approx(expected.rho, rel=1e-12)
        np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-9)


def test_distances_by_differences():
    x = np.random.default_rng(0).normal(size=(50, 5)) + 1e6
    exact = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    found = squared_distances(x, None, 1.0)
    np.testing.assert_allclose(found, exact, rtol=1e-14)
    assert np.array_equal(found, found.T)
    assert not np.diagonal(found).any()
    assert squared_distances(x[:, :0], None, 1.0).tolist() == np.zeros((50, 50)).tolist()


def test_solves_with_heads_of_a_factor():
    rng = np.random.default_rng(0)
    a, y = rng.normal(size=(30, 30)), rng.normal(size=(30, 2))
    a = a @ a.T + np.eye(30)
    factor = np.linalg.cholesky(a)
    w, vectors = np.empty((30, 2)), np.empty((30, 4))
    small_loops.solve_nested(np.ascontiguousarray(factor.T), y, 12, w, vectors)
    np.testing.assert_allclose(w, np.linalg.solve(factor, y), rtol=1e-11)
    np.testing.assert_allclose(vectors[:, :2], np.linalg.solve(a, y), rtol=1e-10)
    np.testing.assert_allclose(vectors[:12, 2:], np.linalg.solve(a[:12, :12], y[:12]), rtol=1e-10)
    assert not vectors[12:, 2:].any()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("columns", [2, 9])
def test_outer_products_are_the_matrix_that_they_stand_for(kind, columns):
    rng = np.random.default_rng(0)
    as_asked = torch.from_numpy if kind == "torch" else np.asarray
    vectors, weights = as_asked(rng.normal(size=(20, 3))), as_asked(np.array([1.5, -0.5, 2.0]))
    m = rng.normal(size=(20, 20))
    m, right = as_asked(m + m.T), as_asked(rng.normal(size=(20, columns)))
    for cotangent in (OuterProducts(vectors, weights), OuterProducts(vectors, weights).shifted(0.3, -0.2)):
        g = np.asarray(cotangent.dense())
        assert cotangent.shape == g.shape
        assert cotangent.trace() == pytest.approx(np.trace(g))
        assert cotangent.inner(m) == pytest.approx(np.sum(g * np.asarray(m)))
        np.testing.assert_allclose(cotangent.product(m, right), (g * np.asarray(m)) @ np.asarray(right), rtol=1e-10)
    expected = np.asarray(OuterProducts(vectors, weights).dense()) + 0.3 * np.eye(20) - 0.2
    np.testing.assert_allclose(g, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [7, 300])
def test_how_far_points_reach(n):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(n, 2)))
    size, spread = extent(x)
    assert size == float(x.abs().max())
    assert spread == float((x - x[0]).abs().max())
    x[n // 2, 1] = np.nan
    assert np.isnan(extent(x)).all()


# ---- what does not go the direct way, or not at once


@pytest.mark.parametrize("sample_size", [0, -2, 8, 200])
def test_a_sample_of_a_size_that_there_is_not(sample_size):
    x, y = problem(8, 2, 1)
    with pytest.raises(ValueError, match=f"sample_size={sample_size}"):
        Loss(rho, Regularization(0.1), RBF(1.0), x, y)(np.array([1.0]), Batch(np.arange(8), sample_size))


@pytest.mark.parametrize("count", [7, 9])
def test_as_many_targets_as_points(count):
    x, y = problem(9, 2, 1)
    with pytest.raises(ValueError, match="as many targets"):
        Loss(rho, Regularization(0.1), RBF(1.0), x, y).at(RBF(1.0), x[:8], y[:count], Batch(np.arange(8), 4))


def test_a_factor_does_not_depend_on_the_order_in_memory():
    rng = np.random.default_rng(0)
    for n in (6, 300):
        a = torch.from_numpy(rng.normal(size=(n, n)))
        a = a @ a.mT + torch.eye(n, dtype=torch.float64)
        for matrix in (a, a.mT, a.mT.contiguous().mT):
            factor = cholesky(matrix, 10.0)
            np.testing.assert_allclose(factor @ factor.mT, a + 10.0 * torch.eye(n), rtol=1e-12, atol=1e-12 * n)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", [RBF(2.0), RationalQuadratic()])
def test_points_of_other_dtypes(dtype, kernel):
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 5, (8, 3))).to(dtype)
    y = torch.arange(8, dtype=torch.float64)[:, None]
    found, exact = (
        Loss(rho, Regularization(0.1), kernel, points, y).at(kernel, points, y, Batch(np.arange(8), 4), points=True)
        for points in (x, x.double())
    )
    assert not found.failed
    assert found.rho == pytest.approx(exact.rho, rel=0.1)
    np.testing.assert_allclose(found.gradient, exact.gradient, rtol=0.3, atol=1e-3)
    assert float(found.to_points.abs().max()) > 0
    _, pull = kernel.pullback(x)
    assert np.isfinite(pull(np.ones((8, 8)))).all()
    assert np.isfinite(pull(np.ones((8, 8)).tolist())).all()


@pytest.mark.parametrize("n", [40, 300])
@pytest.mark.parametrize(("alpha", "beta"), [(4.0, 1e-4), (2.0, 1e-7)])
def test_a_slope_may_leave_float32_where_the_value_does_not(n, alpha, beta):
    x, y = problem(n, 3, 1, torch.float32)
    kernel = RationalQuadratic(alpha, beta)
    assert not Loss(rho, Regularization(1e-3), kernel, x, y).at(kernel, x, y, Batch(np.arange(n), n // 2)).failed


def test_numbers_out_of_range_are_no_warnings():
    gram, y = np.eye(6), np.arange(1.0, 7.0)
    with pytest.raises(NumericalError):
        rho(np.full((6, 6), 1e308), y, 3, Regularization(1.0, "mean_diagonal"))
    gram[0, 0] = 1e308
    assert 0 <= rho(gram, y, 3, Regularization(1.0, "centered"))[0] <= 1
    x, y = problem(8, 2, 1)
    assert Loss(rho, Regularization(), Linear(), 1e154 * x, y).at(Linear(), 1e154 * x, y, Batch(np.arange(8), 4)).failed


def test_gradients_are_not_lost_in_silence():
    x, y = problem(8, 2, 1)
    with pytest.raises(ValueError, match="would be lost"):
        rho(RBF(1.0).gram(x), y.requires_grad_(), 4)
    points, y = x.clone().requires_grad_(), y.detach()
    found, expected = (
        Loss(rho, Regularization(0.1), RBF(1.0), each, y)(np.array([1.0]), Batch(np.arange(8), 4))
        for each in (points, x)
    )
    assert found.rho == pytest.approx(expected.rho)
