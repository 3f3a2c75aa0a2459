"""ρ against its definition, its range, its limit and its derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfx.kernels import NNGP, RBF, RationalQuadratic
from kfx.linear_algebra import cholesky
from kfx.notices import watch
from kfx.objectives import rho
from kfx.outcomes import Event, NumericalError
from kfx.regularization import SCALES, Regularization


def problem(n=14, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(n, n + 2))
    return factor @ factor.T / n, rng.normal(size=(n, outputs))


def rho_from_its_definition(gram, y, n_c, regularization):
    """‖v† − vˢ‖² / ‖v†‖² with both interpolants written out as coefficients (Owhadi & Yoo, eq. 3.3)."""
    a = gram + regularization * np.eye(len(gram))
    full = np.linalg.solve(a, y)
    sample = np.zeros_like(full)
    sample[:n_c] = np.linalg.solve(a[:n_c, :n_c], y[:n_c])
    lost = full - sample
    return np.trace(lost.T @ a @ lost) / np.trace(full.T @ a @ full)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("regularization", [0.0, 1e-3, 10.0])
def test_rho_against_its_definition(outputs, regularization):
    gram, y = problem(outputs=outputs)
    value, _ = rho(gram, y, 6, regularization)
    assert value == pytest.approx(rho_from_its_definition(gram, y, 6, regularization), rel=1e-10)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 12), rank=st.integers(1, 12), exponent=st.integers(-10, 6))
@settings(max_examples=60, deadline=None)
def test_rho_lies_between_0_and_1(seed, n, rank, exponent):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(n, rank))
    value, cotangent = rho(factor @ factor.T, rng.normal(size=(n, 2)), int(rng.integers(1, n)), 10.0**exponent)
    assert 0 <= value <= 1
    assert np.all(np.isfinite(cotangent))


def test_rho_tends_to_the_energy_left_out():
    gram, y = problem()
    value, _ = rho(gram, y, 6, 1e9)
    assert value == pytest.approx(1 - np.sum(y[:6] ** 2) / np.sum(y**2), rel=1e-6)


def test_rho_is_blind_to_the_scale_of_the_kernel_without_regularization():
    gram, y = problem()
    for scale in ("mean_diagonal", "centered"):
        regularization = Regularization(1e-2, scale)
        assert rho(7 * gram, y, 6, regularization)[0] == pytest.approx(rho(gram, y, 6, regularization)[0], rel=1e-12)
    assert rho(7 * gram, y, 6, 0.0)[0] == pytest.approx(rho(gram, y, 6, 0.0)[0], rel=1e-10)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("value", [1e-4, 0.3])
def test_cotangent_against_central_differences(scale, value):
    gram, y = problem()
    regularization = Regularization(value, scale)
    _, cotangent = rho(gram, y, 6, regularization)
    np.testing.assert_allclose(cotangent, cotangent.T, atol=1e-14 * np.abs(cotangent).max())
    direction = np.random.default_rng(3).normal(size=gram.shape)
    direction += direction.T
    h = 1e-5

    def along(t):
        return rho(gram + t * direction, y, 6, regularization, cotangent=False)[0]

    expected = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    assert np.sum(cotangent * direction) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "kernel", [RBF(2.0), RationalQuadratic(0.7, 1.2), NNGP(2, "relu", 1.5, 0.2)], ids=lambda k: type(k).__name__
)
@pytest.mark.parametrize("scale", SCALES)
def test_gradient_of_rho_through_a_kernel(kernel, scale):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(14, 3)), rng.normal(size=(14, 2))
    regularization = Regularization(1e-2, scale)

    def value(k, points):
        return rho(k.gram(points), y, 7, regularization, cotangent=False)[0]

    gram, pull = kernel.pullback(x)
    to_parameters, to_inputs = pull(rho(gram, y, 7, regularization)[1], inputs=True)
    h = 1e-4
    for i in range(len(kernel.flat)):
        step = np.eye(len(kernel.flat))[i] * h
        expected = (value(kernel.with_flat(kernel.flat + step), x) - value(kernel.with_flat(kernel.flat - step), x)) / (
            2 * h
        )
        assert to_parameters[i] == pytest.approx(expected, rel=1e-6)
    direction = rng.normal(size=x.shape)
    expected = (value(kernel, x + h * direction) - value(kernel, x - h * direction)) / (2 * h)
    assert np.sum(to_inputs * direction) == pytest.approx(expected, rel=1e-6)


def test_numpy_and_torch_answer_in_kind():
    gram, y = problem()
    value, cotangent = rho(gram, y, 6, 1e-3)
    value_torch, cotangent_torch = rho(torch.as_tensor(gram), torch.as_tensor(y), 6, 1e-3)
    assert isinstance(value, float)
    assert isinstance(cotangent, np.ndarray)
    assert isinstance(cotangent_torch, torch.Tensor)
    assert value == value_torch
    assert rho(gram, y, 6, 1e-3, cotangent=False) == (value, None)


def test_arguments_are_checked():
    gram, y = problem()
    for bad in (0, 14, 15):
        with pytest.raises(ValueError, match="sample_size"):
            rho(gram, y, bad, 1e-3)
    with pytest.raises(ValueError, match="square Gram matrix"):
        rho(gram[:5], y, 3, 1e-3)
    with pytest.raises(NumericalError, match="every target of the batch is zero"):
        rho(gram, 0 * y, 6, 1e-3)
    for value, scale in ((-1.0, "absolute"), (float("nan"), "absolute"), (1.0, "relative")):
        with pytest.raises(ValueError, match="regularization"):
            Regularization(value, scale)


def test_jitter_is_added_and_told():
    gram = torch.ones(6, 6, dtype=torch.float64)
    with watch() as notices:
        factor = cholesky(gram, 0.0)
    assert notices.jitter == pytest.approx(6 * np.finfo(float).eps)
    torch.testing.assert_close(factor @ factor.mT, gram)


def test_a_matrix_beyond_help_names_its_size_and_eigenvalue():
    gram = torch.diag(torch.tensor([1.0, 1.0, -0.5], dtype=torch.float64))
    with pytest.raises(NumericalError, match=r"3 points in float64.*smallest eigenvalue -0\.5") as caught:
        cholesky(gram, 0.0)
    assert caught.value.event is Event.NOT_POSITIVE_DEFINITE
    assert torch.equal(gram, torch.diag(torch.tensor([1.0, 1.0, -0.5], dtype=torch.float64)))
    with pytest.raises(NumericalError, match="not finite") as caught:
        cholesky(torch.full((3, 3), float("nan"), dtype=torch.float64), 0.0)
    assert caught.value.event is Event.DIVERGED
