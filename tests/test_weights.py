"""Points with weights: a point of weight w has the noise λ / w, and its squared error counts w times."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.metrics import log_loss, r2_score
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kfx import KernelFlowClassifier, KernelFlowRegressor, KernelFlowTransformer, load_run
from kfx.data.dataset import Dataset
from kfx.evaluation.calibrated import distribution
from kfx.evaluation.cross_validation import errors_of_candidates
from kfx.evaluation.interpolants import Computed
from kfx.evaluation.judges import errors
from kfx.evaluation.systems import InMemory
from kfx.kernels import RBF, Regularized
from kfx.numerics import calibration
from kfx.numerics.regularization import SCALES, Regularization
from kfx.objectives import (
    alignment,
    crps,
    gcv,
    interpolation_error,
    loo,
    loo_likelihood,
    nll,
    rho,
    rho_polarized,
    rho_prediction,
)
from kfx.objectives.by_inverse import rho_by_inverse
from kfx.optimizers.loss import Loss
from kfx.outcomes import ConfigError
from kfx.sampling.samplers import Batch

N, N_C = 12, 5


def problem(n=N, outputs=2, seed=0):
    """Θ, Y and weights."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(n, n + 2))
    return factor @ factor.T / n, rng.normal(size=(n, outputs)), rng.uniform(0.2, 4.0, size=n)


# ---- objectives, by their definitions with A = Θ + λ diag(1 / w)


def a_of(gram, w, regularization=0.3):
    return gram + regularization * np.diag(1 / w)


def left_out(a, y):
    """Errors at points that are left out, and the variances of the observed values, each by a system of its own."""
    found = []
    for i in range(len(y)):
        rest = np.delete(np.arange(len(y)), i)
        solved = np.linalg.solve(a[np.ix_(rest, rest)], np.column_stack([y[rest], a[rest, i]]))
        found.append((y[i] - a[i, rest] @ solved[:, :-1], a[i, i] - a[i, rest] @ solved[:, -1]))
    return np.array([error for error, _ in found]), np.array([variance for _, variance in found])[:, None]


def rho_by_hand(gram, y, w):
    a = a_of(gram, w)
    full = np.linalg.solve(a, y)
    sample = np.zeros_like(full)
    sample[:N_C] = np.linalg.solve(a[:N_C, :N_C], y[:N_C])
    lost = full - sample
    return np.trace(lost.T @ a @ lost) / np.trace(full.T @ a @ full)


def rho_polarized_by_hand(gram, y, w):
    a = a_of(gram, w)
    full, sample = np.linalg.solve(a, y), np.zeros_like(y)
    sample[:N_C] = np.linalg.solve(a[:N_C, :N_C], y[:N_C])
    lost = full - sample
    return np.trace(lost.T @ gram @ lost) / np.trace(full.T @ gram @ full)


def errors_of_sample(gram, y, w):
    """Of the sample's predictions at all points."""
    return y - gram[:, :N_C] @ np.linalg.solve(a_of(gram, w)[:N_C, :N_C], y[:N_C])


def rho_prediction_by_hand(gram, y, w):
    squares = w[:, None] * errors_of_sample(gram, y, w) ** 2
    return squares[N_C:].sum() / (N - N_C) / ((w[:, None] * y**2).sum() / N)


def nll_by_hand(gram, y, w):
    return -multivariate_normal(np.zeros(N), a_of(gram, w)).logpdf(y.T).sum()


def nll_held_out_by_hand(gram, y, w):
    of_sample = multivariate_normal(np.zeros(N_C), a_of(gram, w)[:N_C, :N_C]).logpdf(y[:N_C].T).sum()
    return nll_by_hand(gram, y, w) + of_sample


def loo_by_hand(gram, y, w):
    return np.mean(w[:, None] * left_out(a_of(gram, w), y)[0] ** 2)


def loo_in_folds_by_hand(gram, y, w):
    a, found = a_of(gram, w), np.empty_like(y)
    for fold in range(3):
        rest = np.arange(N) % 3 != fold
        found[~rest] = y[~rest] - gram[np.ix_(~rest, rest)] @ np.linalg.solve(a[np.ix_(rest, rest)], y[rest])
    return np.mean(w[:, None] * found**2)


def loo_likelihood_by_hand(gram, y, w):
    error, variance = left_out(a_of(gram, w), y)
    return -norm.logpdf(error, scale=np.sqrt(variance)).sum()


def crps_by_hand(gram, y, w):
    error, variance = left_out(a_of(gram, w), y)
    deviation = np.sqrt(variance)
    z = error / deviation
    score = deviation * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    return np.mean(w[:, None] * score)


def gcv_by_hand(gram, y, w):
    """n⁻¹ ‖W^½ (I − H) y‖² / (tr(I − H) / n)², H the matrix that smooths y, and outputs alike."""
    rest = np.eye(N) - gram @ np.linalg.inv(a_of(gram, w))
    return np.sum(w[:, None] * (rest @ y) ** 2) / N / y.shape[1] / (np.trace(rest) / N) ** 2


BY_HAND = {
    "rho": (rho, rho_by_hand),
    "rho by inverses": (rho_by_inverse, rho_by_hand),
    "rho_polarized": (rho_polarized, rho_polarized_by_hand),
    "interpolation_error": (
        interpolation_error,
        lambda gram, y, w: np.sum(w[:, None] * errors_of_sample(gram, y, w) ** 2),
    ),
    "rho_prediction": (rho_prediction.with_settings(form="held_out"), rho_prediction_by_hand),
    "nll": (nll, nll_by_hand),
    "nll held out": (nll.with_settings(form="held_out"), nll_held_out_by_hand),
    "loo": (loo, loo_by_hand),
    "loo in folds": (loo.with_settings(folds=3), loo_in_folds_by_hand),
    "loo_likelihood": (loo_likelihood, loo_likelihood_by_hand),
    "crps": (crps, crps_by_hand),
    "gcv": (gcv, gcv_by_hand),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_objectives_against_their_definitions(name):
    objective, by_hand = BY_HAND[name]
    gram, y, w = problem()
    value, _ = objective(gram, y, N_C, 0.3, weights=w)
    assert value == pytest.approx(by_hand(gram, y, w), rel=1e-10)
    assert value != pytest.approx(objective(gram, y, N_C, 0.3)[0], rel=1e-3)
    alike, plain = objective(gram, y, N_C, 0.3, weights=np.ones(N)), objective(gram, y, N_C, 0.3)
    assert alike[0] == pytest.approx(plain[0], rel=1e-12)
    assert np.allclose(alike[1], plain[1], rtol=1e-9, atol=1e-12)


PROFILED = {
    f"{name} profiled": BY_HAND[name][0].with_settings(scale="profiled")
    for name in ("nll", "nll held out", "loo_likelihood", "crps")
}
DIFFERENTIATED = {name: objective for name, (objective, _) in BY_HAND.items()} | PROFILED


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_against_differences(name, scale):
    objective, (gram, y, w) = DIFFERENTIATED[name], problem()
    regularization, step = Regularization(0.2, scale), 1e-5
    direction = np.random.default_rng(1).normal(size=(N, N))
    direction += direction.T
    above, below = (
        objective(gram + sign * step * direction, y, N_C, regularization, False, weights=w)[0] for sign in (1, -1)
    )
    cotangent = objective(gram, y, N_C, regularization, weights=w)[1]
    assert np.allclose(cotangent, cotangent.T, rtol=1e-12)
    assert np.sum(cotangent * direction) == pytest.approx((above - below) / 2 / step, rel=1e-6)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["nll held out", "loo", "crps", "rho_prediction"])
@pytest.mark.parametrize("samples", [1, 2])
def test_the_gradient_of_a_fit_follows_trained_regularization(name, scale, samples):
    rng = np.random.default_rng(0)
    x, y, w = torch.as_tensor(rng.normal(size=(30, 2))), torch.as_tensor(rng.normal(size=(30, 1))), problem(30)[2]
    kernel = Regularized(RBF(1.3), Regularization(0.2, scale), trained=True)
    loss = Loss(BY_HAND[name][0], Regularization(1.0), kernel, x, y, torch.as_tensor(w))
    batch = Batch(rng.permutation(30)[:N], N_C, orders=tuple(rng.permutation(N) for _ in range(samples - 1)))
    found, step = loss(kernel.flat, batch), 1e-6
    assert list(kernel.names) == ["sigma", "regularization"]
    for i in range(2):
        ends = [loss(kernel.flat + sign * step * np.eye(2)[i], batch, False).objective for sign in (1, -1)]
        assert found.gradient[i] == pytest.approx((ends[0] - ends[1]) / 2 / step, rel=1e-5)
    own = w[batch.indices]
    if samples == 1:  # weights follow their points
        gram = RBF(1.3).gram(x[batch.indices])
        expected = BY_HAND[name][0](gram, y[batch.indices], N_C, Regularization(0.2, scale), False, weights=own)[0]
        assert found.objective == pytest.approx(expected, rel=1e-12)


def test_weights_that_do_not_fit_are_refused():
    gram, y, w = problem()
    for wrong in (w[:-1], np.where(w == w[3], 0.0, w), np.where(w == w[3], np.nan, w)):
        with pytest.raises(ValueError, match=f"weights: expected {N} finite numbers > 0"):
            nll(gram, y, N_C, 0.3, weights=wrong)
    with pytest.raises(ValueError, match="alignment takes none"):
        alignment(gram, y, N_C, 0.3, weights=w)


# ---- whole weights are repeated points


def repeated(n=20, seed=3):
    rng = np.random.default_rng(seed)
    x, y, w = rng.normal(size=(n, 2)), rng.normal(size=(n, 1)), rng.integers(1, 5, size=n)
    return x, y, w.astype(float), np.repeat(np.arange(n), w)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("solver", ["cholesky", "conjugate_gradients", "inverse", "lstsq"])
def test_a_regression_with_whole_weights_is_that_of_repeated_points(scale, solver):
    x, y, w, rows = repeated()
    new, regularization = torch.as_tensor(np.random.default_rng(4).normal(size=(7, 2))), Regularization(0.1, scale)
    given = [(x, y, w), (x[rows], y[rows], None)]
    found = []
    for points, targets, weights in given:
        system = InMemory(RBF(1.0), torch.as_tensor(points), new, solver, None, 1e-13, weights)
        interpolant = system.interpolant(regularization, torch.as_tensor(targets))
        at = Computed(RBF(1.0), new, torch.as_tensor(points))
        found.append((interpolant.effective, interpolant.mean(system.test), interpolant.variance(at)))
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, rtol=1e-9, atol=1e-11)


def test_the_likelihoods_of_whole_weights_and_of_repeated_points_differ_by_a_constant():
    x, y, w, rows = repeated()
    constants = []
    for sigma in (0.5, 1.0, 2.0):
        once, _ = nll(RBF(sigma).gram(x), y, 5, 0.1, False, weights=w)
        often, _ = nll(RBF(sigma).gram(x[rows]), y[rows], 5, 0.1, False)
        constants.append(often - once)
    expected = 0.5 * (len(rows) - len(x)) * np.log(2 * np.pi * 0.1) + 0.5 * np.log(w).sum()
    assert np.allclose(constants, expected, rtol=1e-9)


# ---- λ, deviations, probabilities, metrics


@pytest.mark.parametrize("folds", [None, 4])
def test_candidates_are_judged_by_weighted_errors_of_points_left_out(folds):
    x, y, w, _ = repeated()
    candidates = [Regularization(value, "centered") for value in (1e-2, 1.0)]
    tensors = torch.as_tensor(x), torch.as_tensor(y)
    order = np.random.default_rng(5).permutation(len(x))
    found = errors_of_candidates(RBF(1.0), *tensors, candidates, folds, None, np.random.default_rng(5), weights=w)
    gram = RBF(1.0).gram(x)
    for candidate, value in zip(candidates, found, strict=True):
        total = 0.0
        for held in np.array_split(order, folds or len(x)):
            rest = np.setdiff1d(order, held)
            used, own = (gram, w) if folds is None else (gram[np.ix_(rest, rest)], w[rest])
            unit = own @ used.diagonal() / own.sum() - own @ used @ own / own.sum() ** 2
            a = a_of(gram[np.ix_(rest, rest)], w[rest], candidate.value * unit)
            total += np.sum(w[held, None] * (y[held] - gram[np.ix_(held, rest)] @ np.linalg.solve(a, y[rest])) ** 2)
        assert value == pytest.approx(total, rel=1e-8)


def test_deviations_are_those_of_a_process_with_the_noise_of_each_point():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(80, 3)), rng.uniform(0.05, 2.0, size=80)
    y, new = np.sin(x[:, 0]) + np.sqrt(noise) * rng.normal(size=80), rng.normal(size=(10, 3))
    theirs = GaussianProcessRegressor(sklearn_kernels.RBF(1.5), alpha=noise, optimizer=None).fit(x, y)
    of_one = 1 / np.mean(1 / noise)  # the noise of a point of the mean weight
    own = KernelFlowRegressor(
        RBF(1.5), optimizer="none", regularization=Regularization(of_one, "absolute"), targets="as_given"
    ).fit(x, y, sample_weight=7 / noise)
    (mean, deviation), (expected, spread) = (each.predict(new, return_std=True) for each in (own, theirs))
    assert np.allclose(mean, expected, rtol=1e-8)
    error, variance = left_out(RBF(1.5).gram(x) + np.diag(noise), y[:, None])
    assert own.scale_ == pytest.approx(np.mean(error**2 / variance), rel=1e-9)
    assert np.allclose(deviation, np.sqrt((spread**2 + of_one) * own.scale_), rtol=1e-7)
    again = pickle.loads(pickle.dumps(own))
    assert np.array_equal(again.predict(new, return_std=True)[1], deviation)


def test_probabilities_fit_the_weighted_classes_of_points_left_out():
    rng = np.random.default_rng(0)
    scores, labels, w = rng.normal(size=(400, 3)), rng.integers(0, 3, size=400), rng.integers(1, 4, size=400)
    rows = np.repeat(np.arange(400), w)
    scores[np.arange(400), labels] += 0.7
    once, often = calibration.sharpness(scores, labels, w), calibration.sharpness(scores[rows], labels[rows])
    assert once == pytest.approx(often, rel=1e-2)  # but for the one further point of any class
    assert abs(calibration.sharpness(scores, labels) - often) > 3 * abs(once - often)
    x, y = rng.normal(size=(30, 2)), np.eye(2)[rng.integers(0, 2, size=30)]
    own = InMemory(RBF(1.0), torch.as_tensor(x), torch.as_tensor(x[:4]), weights=rng.uniform(0.5, 2.0, 30))
    interpolant = own.interpolant(Regularization(0.1), torch.as_tensor(y))
    targets, predicted, _ = interpolant.left_out()
    assert np.allclose(targets, y)
    data = Dataset("d", x, y, x[:4], y[:4], y.argmax(axis=1), y[:4].argmax(axis=1))
    assert distribution(interpolant, own.test, data)["probability"].shape == (4, 2)
    assert not np.allclose(predicted, y)


def test_metrics_are_those_of_repeated_test_points():
    rng = np.random.default_rng(0)
    y, w = rng.normal(size=(50, 2)), rng.integers(1, 5, size=50)
    prediction, deviation, rows = y + rng.normal(size=(50, 2)), rng.uniform(0.5, 2, (50, 2)), np.repeat(range(50), w)
    data = Dataset("d", y, y, y, y, weights_test=w.astype(float))
    often = Dataset("d", y, y, y[rows], y[rows])
    pairs = [(errors(prediction, data), errors(prediction[rows], often))]
    pairs.append(
        (
            calibration.of_values(prediction, deviation, y, w),
            calibration.of_values(prediction[rows], deviation[rows], y[rows]),
        )
    )
    chances, labels = rng.dirichlet([1, 1, 1], size=50), rng.integers(0, 3, size=50)
    pairs.append(
        (calibration.of_classes(chances, labels, weights=w), calibration.of_classes(chances[rows], labels[rows]))
    )
    assert pairs[2][0]["log_loss"] == pytest.approx(log_loss(labels, chances, sample_weight=w), rel=1e-12)
    for one, other in pairs:
        assert one.keys() == other.keys()
        assert all(one[name] == pytest.approx(other[name], rel=1e-12) for name in one)


# ---- estimators

FEW = {"iterations": 4}


def table(n=120, seed=0):
    """Points with noise of known size: rows x, y, w."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(n, 3)), rng.uniform(0.1, 5.0, size=n)
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=n) / np.sqrt(w), w


@pytest.mark.parametrize("kind", [KernelFlowRegressor, KernelFlowClassifier])
def test_only_ratios_of_weights_matter_and_zero_leaves_out(kind):
    x, y, w = table()
    y = y if kind is KernelFlowRegressor else y > 0
    first, w0 = kind(optimizer=FEW).fit(x[20:], y[20:], w[20:]), np.where(np.arange(120) < 20, 0.0, w)
    others = [kind(optimizer=FEW).fit(x, y, w0), kind(optimizer=FEW).fit(x[20:], y[20:], 1e3 * w[20:])]
    predict = "predict" if kind is KernelFlowRegressor else "predict_proba"
    for other in others:
        assert np.allclose(getattr(other, predict)(x), getattr(first, predict)(x), rtol=1e-9)
    plain = kind(optimizer=FEW).fit(x[20:], y[20:])
    assert not np.allclose(getattr(plain, predict)(x), getattr(first, predict)(x), rtol=1e-3)
    alike = kind(optimizer=FEW).fit(x[20:], y[20:], np.full(100, 3.0))
    assert np.array_equal(getattr(alike, predict)(x), getattr(plain, predict)(x))


def test_weights_help_where_noise_is_known():
    x, y, w = table(200)
    w, y = w**3, np.sin(2 * x[:, 0]) + (y - np.sin(2 * x[:, 0])) / w
    new = np.random.default_rng(9).normal(size=(300, 3))
    with_weights, without = (KernelFlowRegressor(optimizer=FEW).fit(x, y, given).predict(new) for given in (w, None))
    mse = [np.mean((found - np.sin(2 * new[:, 0])) ** 2) for found in (with_weights, without)]
    assert mse[0] < mse[1]


def test_outputs_with_a_kernel_each_have_the_weights():
    x, y, w = table(60)
    both = KernelFlowRegressor(optimizer=FEW, outputs={"kernels": "separate"}).fit(x, np.stack([y, x[:, 1]], axis=1), w)
    mean, unit = np.average(y, weights=w), np.sqrt(np.cov(y, aweights=w, ddof=0))
    alone = KernelFlowRegressor(optimizer=FEW, targets="as_given").fit(x, (y - mean) / unit, w)
    assert np.allclose(both.predict(x)[:, 0], alone.predict(x) * unit + mean, rtol=1e-9)


def test_weights_are_routed_through_pipelines_and_searches():
    x, y, w = table(60)
    with sklearn.config_context(enable_metadata_routing=True):
        own = KernelFlowRegressor(optimizer=FEW).set_fit_request(sample_weight=True)
        own.set_score_request(sample_weight=True)
        pipeline = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), own)
        found = pipeline.fit(x, y, sample_weight=w)
        alone = KernelFlowRegressor(optimizer=FEW).fit(StandardScaler().fit_transform(x), y, w)
        assert np.array_equal(found.predict(x), alone.predict(StandardScaler().fit_transform(x)))
        expected = r2_score(y, found.predict(x), sample_weight=w)
        assert found.score(x, y, sample_weight=w) == pytest.approx(expected, rel=1e-12)
        search = GridSearchCV(own, {"kernel": ["rbf", "auto"]}, cv=2, error_score="raise").fit(x, y, sample_weight=w)
        scores = cross_validate(own, x, y, cv=2, params={"sample_weight": w}, error_score="raise")["test_score"]
    assert scores.mean() == pytest.approx(search.cv_results_["mean_test_score"][1], rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"optimizer": "flow_euler"},
            "dataset.weights=sample_weight: optimizer=flow_euler moves points and takes no",
        ),
        ({"solver": "nystrom"}, "evaluation.solver=nystrom takes no weights"),
        ({"objective": "alignment"}, "objective=alignment takes no weights"),
        ({"objective": lambda *_: (0.0, None)}, "objective=given takes no weights"),
        ({"outputs": {"reduce": "pca"}}, "outputs.reduce=pca takes no weights"),
    ],
)
def test_estimators_refuse_what_takes_no_weights(settings, said):
    x, y, w = table(40)
    with pytest.raises(ConfigError, match=re.escape(said)):
        KernelFlowRegressor(**settings).fit(x, np.stack([y, x[:, 1]], axis=1), w)


def test_wrong_sample_weights_are_refused():
    x, y, w = table(40)
    for wrong in (-w, w[:-1], np.where(w == w[0], np.nan, w)):
        with pytest.raises(ValueError, match="weight"):
            KernelFlowRegressor(optimizer=FEW).fit(x, y, wrong)
    with pytest.raises(ValueError, match="sample_weight: 1 of 40 weights are above 0; expected two or more"):
        KernelFlowRegressor(optimizer=FEW).fit(x, y, (np.arange(40) == 3).astype(float))
    with pytest.raises(TypeError):
        KernelFlowTransformer(optimizer=FEW).fit(x, y, sample_weight=w)


# ---- runs


@pytest.fixture
def files(in_folder):
    """A table with weights, some of them 0 in rows that miss a value, and the same as arrays."""
    x, y, w = table(100)
    w[:4] = 0.0
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=y, w=w, gaps=w, group=np.where(y > 0, "high", "low"))
    frame.loc[:2, "a"] = frame.loc[10:12, "gaps"] = np.nan
    frame.to_csv("t.csv", index=False)
    frame[:70].to_csv("one.csv", index=False)
    frame[70:].to_csv("two.csv", index=False)
    np.savez("whole.npz", x=x[4:], y=y[4:], w=w[4:])
    np.savez("two.npz", x_train=x[4:70], y_train=y[4:70], w_train=w[4:70], x_test=x[70:], y_test=y[70:], w_test=w[70:])
    return frame[4:]


COMMON = ["optimizer.iterations=4", "figures=false", "hydra.run.dir=r"]
TABLE = ["dataset=table", "dataset.target=y", "dataset.exclude=[group,gaps]", "dataset.weights=w", *COMMON]


def test_a_run_on_a_table_with_weights(kfx, files):
    code, _, err = kfx("run", *TABLE, "dataset.path=one.csv", "dataset.test=two.csv", "dataset.preprocess=[]")
    assert code == 0, err
    run, predicted = load_run("r"), pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    train, test = files[:66], files[66:]
    assert np.allclose(predicted["weight"], test["w"])
    own = KernelFlowRegressor(optimizer=FEW, scale=None).fit(train[["a", "b", "c"]], train["y"], train["w"])
    for name, value in run.kernel.parameters.items():
        assert np.allclose(own.kernel_.parameters[name], value, rtol=1e-9)
    mean, deviation = own.predict(test[["a", "b", "c"]], return_std=True)
    assert np.allclose(predicted["prediction"], mean, rtol=1e-9)
    assert np.allclose(predicted["deviation"], deviation, rtol=1e-7)
    assert kfx("predict", "r", "two.csv", "--output", "new.csv")[0] == 0
    new = pd.read_csv("new.csv")
    assert np.allclose(new[["prediction", "deviation"]], predicted[["prediction", "deviation"]], rtol=1e-9)
    found = {row["metric"]: row["mean"] for row in run.metrics["evaluation"] if row["kernel"] == "trained"}
    error = predicted["target"] - predicted["prediction"]
    assert found["mse"] == pytest.approx(np.average(error**2, weights=test["w"]), rel=1e-12)
    assert found["mae"] == pytest.approx(np.average(error.abs(), weights=test["w"]), rel=1e-12)
    assert found["r2"] == pytest.approx(own.score(test[["a", "b", "c"]], test["y"], test["w"]), rel=1e-9)
    density = -norm.logpdf(error, scale=predicted["deviation"])
    assert found["nlpd"] == pytest.approx(np.average(density, weights=test["w"]), rel=1e-12)
    assert run.metrics["features"] == ["a", "b", "c"]


def test_folds_and_classes_have_the_weights_of_their_points(kfx, files):
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=group", "dataset.weights=w"]
    words += ["dataset.exclude=[y,gaps]", "evaluation=k_fold", "evaluation.folds=3", "dataset.test=0"]
    code, _, err = kfx("run", *words, *COMMON)
    assert code == 0, err
    rows = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    assert sorted(rows["weight"]) == pytest.approx(sorted(files["w"]))
    right = rows["class"] == rows["prediction"]
    each = [np.average(right[own.index], weights=own["weight"]) for _, own in rows.groupby("repeat")]
    evaluation = load_run("r").evaluation.query("kernel == 'trained' and metric == 'accuracy'")
    assert np.allclose(evaluation.sort_values("repeat")["value"], each)
    assert kfx("predict", "r", "t.csv")[0] == 0


@pytest.mark.parametrize("path", ["whole.npz", "two.npz"])
def test_a_run_on_arrays_with_weights(kfx, files, path):
    words = ["dataset=arrays", f"dataset.path={path}", "dataset.weights=w", "objective=loo", *COMMON]
    code, _, err = kfx("run", *words, "regularization.selection=validation", "report=true")
    assert code == 0, err
    weights = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")["weight"]
    assert set(np.round(weights, 9)) <= set(np.round(files["w"], 9))
    assert json.loads(Path("r/metrics.json").read_text())["status"] == "completed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset.weights=W"], "dataset.weights=W: no column of t.csv"),
        (["dataset.weights=y"], "dataset.weights=y: is the target; expected a column of weights"),
        (["dataset.weights=b", "dataset.features=[a,b]"], "dataset.features=b: is the column of weights"),
        (["dataset.weights=b"], "t.csv: column b: holds -"),
        (["dataset.weights=group", "dataset.exclude=[]"], "weights are numbers >= 0"),
        (
            ["dataset.weights=gaps", "dataset.exclude=[group]", "dataset.missing=mean"],
            "3 rows without a value, 11, 12, 13, in the columns gaps; set dataset.missing=drop",
        ),
        (["optimizer=flow_euler"], "dataset.weights=w: optimizer=flow_euler moves points and takes no weights"),
        (["evaluation.centres=20"], "dataset.weights=w: evaluation.solver=nystrom takes no weights"),
        (["objective=alignment"], "dataset.weights=w: objective=alignment takes no weights"),
        (["follow.every=2"], "dataset.weights=w: follow takes no weights"),
        (["evaluation.memory=1MB"], "dataset.weights=w: needs the Gram matrix of"),
    ],
)
def test_the_command_refuses_in_one_line(kfx, files, words, said):
    frame = pd.read_csv("t.csv")
    if "memory" in words[0]:
        pd.concat([frame[4:]] * 12).to_csv("t.csv", index=False)
    code, _, err = kfx("run", *TABLE, "dataset.path=t.csv", *words)
    assert code != 0
    assert said in err.strip().splitlines()[-1]


def test_arrays_without_the_weights_are_refused(kfx, files):
    for name, said in (("v", "expected x and y, v, or"), ("y", "y holds the points or their targets; name the array")):
        code, _, err = kfx("run", "dataset=arrays", "dataset.path=whole.npz", f"dataset.weights={name}", *COMMON)
        assert code != 0
        assert said in err
    x, y, w = table(30)
    for wrong, said in ((w[:-1], "w has 29 entries, x 30"), (np.stack([w, w], axis=1), "of weights expected a number")):
        np.savez("wrong.npz", x=x, y=y, w=wrong)
        code, _, err = kfx("run", "dataset=arrays", "dataset.path=wrong.npz", "dataset.weights=w", *COMMON)
        assert code != 0
        assert said in err
