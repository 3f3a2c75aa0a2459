"""ρ against its definition, its range, its limit and its derivative."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sklearn_kernels

from kfx.kernels import NNGP, RBF, RationalQuadratic
from kfx.numerics.incidents import collect
from kfx.numerics.linear_algebra import Factored, cholesky
from kfx.numerics.regularization import SCALES, Regularization
from kfx.objectives import (
    alignment,
    crps,
    gcv,
    interpolation_error,
    loo,
    loo_likelihood,
    nll,
    ratio,
    rho,
    rho_polarized,
    rho_prediction,
)
from kfx.objectives.base import as_objective
from kfx.objectives.by_inverse import rho_by_inverse
from kfx.outcomes import Event, NumericalError


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


def test_rho_by_inverse_leaves_its_range_where_float32_ends():
    x = torch.linspace(0, 1, 200)[:, None]
    y = torch.sin(9 * x.double())
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    grams = [RBF(sigma).gram(x[order]) for sigma in (0.3, 0.5, 0.7, 1.0, 2.0)]
    both = [
        [objective(gram, y[order], n, 1e-7, cotangent=False)[0] for gram in grams for n in (50, 100, 150)]
        for objective in (rho_by_inverse, rho)
    ]
    assert any(not 0 <= value <= 1 for value in both[0])
    assert all(0 <= value <= 1 for value in both[1])
    with pytest.raises(NumericalError):
        rho_by_inverse(torch.zeros(4, 4), torch.ones(4, 1), 2, 0.0)


@pytest.mark.parametrize("n_c", [1, 6, 11])
def test_rho_of_a_kernel_made_from_the_targets_is_zero(n_c):
    # K(x, y) = w(x) w(y), w = y on the training points: one of them predicts all others (Owhadi & Yoo 2019, §8.3)
    _, w = problem(outputs=1)
    regularization, kept, whole = 1e-6, np.sum(w[:n_c] ** 2), np.sum(w**2)
    value, _ = rho(w @ w.T, w, n_c, regularization)
    explained = kept / (kept + regularization) / (whole / (whole + regularization))
    assert value == pytest.approx(1 - explained, abs=1e-9)
    assert value < 2 * regularization / kept


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


def polarized_by_hand(gram, y, n_c, a):
    full, sample = np.linalg.solve(a, y), np.zeros_like(y)
    sample[:n_c] = np.linalg.solve(a[:n_c, :n_c], y[:n_c])
    inner = [np.trace(u.T @ gram @ v) for u, v in ((full, full), (sample, sample), (full, sample))]
    return (inner[0] + inner[1] - 2 * inner[2]) / inner[0]


def predicted_by_hand(gram, y, n_c, a):
    return gram[:, :n_c] @ np.linalg.inv(a[:n_c, :n_c]) @ y[:n_c]


def left_out_by_hand(gram, y, n_c, a):
    return np.mean((y - refitted(gram, y, a, len(y))[0]) ** 2)


def refitted(gram, y, a, folds):
    """Mean, (n, outputs), and variance, (n, 1), of each fold's points by the regression on the others."""
    mean, variance = np.empty_like(y), np.empty((len(y), 1))
    for i in range(folds):
        own = np.arange(len(y)) % folds == i
        rest = np.linalg.solve(a[~own][:, ~own], gram[~own][:, own]).T
        mean[own], variance[own, 0] = rest @ y[~own], np.diag(a[own][:, own] - rest @ gram[~own][:, own])
    return mean, variance


def left_out_likelihood_by_hand(gram, y, n_c, a, s=1.0):
    mean, variance = refitted(gram, y, a, len(y))
    return -np.sum(norm(mean, np.sqrt(s * variance)).logpdf(y))


def left_out_profiled_by_hand(gram, y, n_c, a):
    return minimize_scalar(lambda t: left_out_likelihood_by_hand(gram, y, n_c, a, np.exp(t)), bounds=(-9, 9)).fun


def crps_by_hand(gram, y, n_c, a, s=1.0):
    """The mean integral of (F(t) - [y <= t])^2."""
    mean, variance = refitted(gram, y, a, len(y))
    found = []
    for i, j in np.ndindex(y.shape):
        f, at = norm(mean[i, j], np.sqrt(s * variance[i, 0])), y[i, j]
        found.append(quad(lambda t: f.cdf(t) ** 2, -np.inf, at)[0] + quad(lambda t: f.sf(t) ** 2, at, np.inf)[0])  # noqa: B023
    return np.mean(found)


def crps_profiled_by_hand(gram, y, n_c, a):
    mean, variance = refitted(gram, y, a, len(y))
    return crps_by_hand(gram, y, n_c, a, np.mean((y - mean) ** 2 / variance))


def alignment_by_hand(gram, y, n_c, a):
    h = np.eye(len(y)) - 1 / len(y)
    k, t = h @ gram @ h, h @ y @ y.T @ h
    return 1 - np.sum(k * t) / np.linalg.norm(k) / np.linalg.norm(t)


def gcv_by_hand(gram, y, n_c, a):
    """Mean squared residual over the squared mean share of each point that is left over (Golub et al. 1979)."""
    hat = np.eye(len(y)) - (a[0, 0] - gram[0, 0]) * np.linalg.inv(a)
    left = np.eye(len(y)) - hat
    return np.mean((left @ y) ** 2) / np.mean(np.diag(left)) ** 2


def likelihood_by_hand(gram, y, n_c, a):
    return -sum(multivariate_normal(np.zeros(len(y)), a).logpdf(column) for column in y.T)


def profiled_by_hand(gram, y, n_c, a):
    return minimize_scalar(lambda t: likelihood_by_hand(gram, y, n_c, np.exp(t) * a), bounds=(-9, 9)).fun


def held_out_likelihood_by_hand(gram, y, n_c, a):
    """-log p(held-out points | sample), by the conditional mean and covariance."""
    rest = np.linalg.solve(a[:n_c, :n_c], a[:n_c, n_c:]).T
    mean, covariance = rest @ y[:n_c], a[n_c:, n_c:] - rest @ a[:n_c, n_c:]
    return -sum(multivariate_normal(m, covariance).logpdf(c) for m, c in zip(mean.T, y[n_c:].T, strict=True))


OBJECTIVES = {
    "rho": (rho, lambda k, y, n, a: rho_from_its_definition(k, y, n, a[0, 0] - k[0, 0])),
    "rho_by_inverse": (rho_by_inverse, lambda k, y, n, a: rho_from_its_definition(k, y, n, a[0, 0] - k[0, 0])),
    "rho_polarized": (rho_polarized, polarized_by_hand),
    "rho_prediction": (
        rho_prediction,
        lambda *p: np.sum((p[1] - predicted_by_hand(*p)) ** 2) / np.sum(p[1] ** 2),
    ),
    "held_out": (
        partial(rho_prediction, form="held_out"),
        lambda *p: np.mean((p[1] - predicted_by_hand(*p))[p[2] :] ** 2) / np.mean(p[1] ** 2),
    ),
    "consistent": (
        partial(rho_prediction, form="consistent"),
        lambda *p: 1 - np.sum(predicted_by_hand(*p) ** 2) / np.sum(p[1] ** 2),
    ),
    "printed": (
        partial(rho_prediction, form="printed"),
        lambda *p: 1 - np.sum(predicted_by_hand(*p) ** 2) / np.trace(p[1].T @ np.linalg.inv(p[3]) @ p[1]),
    ),
    "interpolation_error": (interpolation_error, lambda *p: np.sum((p[1] - predicted_by_hand(*p)) ** 2)),
    "nll": (nll, likelihood_by_hand),
    "nll_profiled": (partial(nll, scale="profiled"), profiled_by_hand),
    "nll_held_out": (partial(nll, form="held_out"), held_out_likelihood_by_hand),
    "nll_held_out_profiled": (
        partial(nll, form="held_out", scale="profiled"),
        lambda k, y, n, a: (
            minimize_scalar(lambda t: held_out_likelihood_by_hand(k, y, n, np.exp(t) * a), bounds=(-9, 9)).fun
        ),
    ),
    "loo": (loo, left_out_by_hand),
    "loo_folds": (partial(loo, folds=4), lambda k, y, n, a: np.mean((y - refitted(k, y, a, 4)[0]) ** 2)),
    "loo_likelihood": (loo_likelihood, left_out_likelihood_by_hand),
    "loo_likelihood_profiled": (partial(loo_likelihood, scale="profiled"), left_out_profiled_by_hand),
    "crps": (crps, crps_by_hand),
    "crps_profiled": (partial(crps, scale="profiled"), crps_profiled_by_hand),
    "alignment": (alignment, alignment_by_hand),
    "gcv": (gcv, gcv_by_hand),
}
every_objective = pytest.mark.parametrize(("objective", "by_hand"), OBJECTIVES.values(), ids=OBJECTIVES.keys())


@every_objective
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("scale", SCALES)
def test_every_objective_against_its_definition(objective, by_hand, outputs, scale):
    gram, y = problem(outputs=outputs)
    regularization = Regularization(0.02, scale)
    a = gram + regularization.of(torch.as_tensor(gram)) * np.eye(len(gram))
    assert objective(gram, y, 6, regularization, cotangent=False)[0] == pytest.approx(by_hand(gram, y, 6, a), rel=1e-8)


@every_objective
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_target_that_is_no_number_is_refused(objective, by_hand, value):
    gram, y = problem()
    y[3] = value
    with pytest.raises(NumericalError, match="a target is not a finite number"):
        objective(gram, y, 6, 0.1)


def test_folds_of_one_point_leave_out_one_point():
    gram, y = problem()
    expected, its_own = loo(gram, y, 6, 0.1)
    for folds in (len(y), 10 * len(y)):
        value, cotangent = loo(gram, y, 6, 0.1, folds=folds)
        assert value == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(cotangent, its_own, rtol=1e-9, atol=1e-14)
    for asked in ({"folds": 1}, {"folds": 3, "form": "held_out"}):
        with pytest.raises(ValueError, match="folds="):
            loo(gram, y, 6, 0.1, **asked)


def test_alignment_of_constants_is_refused():
    gram, y = problem()
    for constant in ((np.ones_like(gram), y), (gram, np.ones_like(y))):
        with pytest.raises(NumericalError, match="constant"):
            alignment(*constant, 6)


def test_polarized_is_rho_without_regularization():
    gram, y = problem()
    assert rho_polarized(gram, y, 6, 0.0)[0] == pytest.approx(rho(gram, y, 6, 0.0)[0], rel=1e-8)


def test_nll_against_scikit_learn():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), rng.normal(size=(20, 2))
    regression = GaussianProcessRegressor(sklearn_kernels.RBF(1.3), alpha=0.1, optimizer=None).fit(x, y)
    expected, slope = regression.log_marginal_likelihood(np.log([1.3]), eval_gradient=True)
    gram, pull = RBF(1.3).pullback(x)
    value, cotangent = nll(gram, y, 10, 0.1)
    assert value == pytest.approx(-expected, rel=1e-10)
    assert pull(cotangent)[0] * 1.3 == pytest.approx(-slope[0], rel=1e-8)


@every_objective
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("value", [1e-4, 0.3])
def test_cotangent_against_central_differences(objective, by_hand, scale, value):
    gram, y = problem()
    regularization = Regularization(value, scale)
    _, cotangent = objective(gram, y, 6, regularization)
    np.testing.assert_allclose(cotangent, cotangent.T, atol=1e-14 * np.abs(cotangent).max())
    direction = np.random.default_rng(3).normal(size=gram.shape)
    direction += direction.T
    h = 1e-5

    def along(t):
        return objective(gram + t * direction, y, 6, regularization, cotangent=False)[0]

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
    with collect() as incidents:
        factor = cholesky(gram, 0.0)
    assert incidents.jitter == pytest.approx(6 * np.finfo(float).eps)
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


class _Ten:
    """Ten times an objective, which it keeps under a name that `Objective` has too."""

    def __init__(self, function):
        self.function, self.symbol, self.measure = function, 3, None

    def __call__(self, gram, y, sample_size, regularization, cotangent=True):
        return 10 * self.function(gram, y, sample_size, regularization, cotangent)[0], None


def test_attributes_of_a_callable_object_do_not_replace_those_of_the_objective():
    gram, y = problem()
    value, _, _ = as_objective(_Ten(rho)).measure(
        Factored(torch.as_tensor(gram)), torch.as_tensor(y), (5,), Regularization(0.1, "absolute"), False
    )
    assert value == pytest.approx(10 * rho(gram, y, 5, 0.1, False)[0], rel=1e-12)


def test_a_function_of_a_ratio_is_a_ratio():
    assert ratio(nll).is_ratio
    assert as_objective(partial(ratio(_Ten(rho)), w=2)).is_ratio


def test_an_objective_with_settings_can_be_pickled():
    gram, y = problem()
    profiled = nll.with_settings(scale="profiled")
    loaded = pickle.loads(pickle.dumps(profiled))
    assert loaded(gram, y, 5)[0] == profiled(gram, y, 5)[0] == nll(gram, y, 5, scale="profiled")[0]
