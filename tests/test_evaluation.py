"""Kernel ridge regression against scikit-learn, and the subsets that it uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.kernel_ridge import KernelRidge

from kfx.data import Dataset
from kfx.evaluation import evaluate, interpolation_order, metrics, summary
from kfx.kernels import RBF
from kfx.regression import SOLVERS, coefficients, posterior_variance
from kfx.regularization import Regularization


def table(n=40, m=15):
    rng = np.random.default_rng(0)
    x, x_test = rng.normal(size=(n, 3)), rng.normal(size=(m, 3))
    return x, np.sin(x[:, :1]) + x[:, 1:2], x_test, np.sin(x_test[:, :1]) + x_test[:, 1:2]


@pytest.mark.parametrize("solver", SOLVERS)
def test_ridge_against_scikit_learn(solver):
    x, y, x_test, _ = table()
    kernel = RBF(1.5)
    alpha = coefficients(torch.as_tensor(kernel.gram(x)), torch.as_tensor(y), 1e-2, solver)
    expected = KernelRidge(alpha=1e-2, kernel="rbf", gamma=1 / (2 * 1.5**2)).fit(x, y).predict(x_test)
    np.testing.assert_allclose(kernel.gram(x_test, x) @ alpha.numpy(), expected, rtol=1e-8)


def test_rcond_cuts_small_singular_values():
    gram = torch.diag(torch.tensor([1.0, 1e-9], dtype=torch.float64))
    y = torch.ones(2, 1, dtype=torch.float64)
    assert coefficients(gram, y, 0.0, "lstsq", 1e-6)[:, 0].tolist() == pytest.approx([1.0, 0.0])
    assert coefficients(gram, y, 0.0, "lstsq", 1e-12)[:, 0].tolist() == pytest.approx([1.0, 1e9])


def test_posterior_variance_against_scikit_learn():
    x, y, x_test, _ = table()
    kernel = RBF(1.5)
    process = GaussianProcessRegressor(sklearn_kernels.RBF(1.5), alpha=1e-3, optimizer=None).fit(x, y[:, 0])
    _, deviation = process.predict(x_test, return_std=True)
    gram, cross, prior = (torch.as_tensor(a) for a in (kernel.gram(x), kernel.gram(x_test, x), kernel.diagonal(x_test)))
    variance = posterior_variance(gram, cross, prior, 1e-3)
    np.testing.assert_allclose(variance.numpy(), deviation**2, rtol=1e-7)


def classified(n=60):
    rng = np.random.default_rng(0)
    labels = np.r_[np.zeros(n - 12, int), np.ones(8, int), np.full(4, 2)]
    x = rng.normal(size=(n, 2)) + labels[:, None]
    return Dataset("t", x, np.eye(3)[labels], x, np.eye(3)[labels], labels, labels)


def test_balanced_heads_hold_the_classes_in_equal_numbers():
    data = classified()
    order = interpolation_order(data, True, np.random.default_rng(0))
    assert sorted(order) == list(range(60))
    assert np.bincount(data.labels_train[order[:12]]).tolist() == [4, 4, 4]
    assert np.bincount(data.labels_train[order[:20]]).tolist() == [8, 8, 4]
    plain = interpolation_order(data, False, np.random.default_rng(0))
    assert np.bincount(data.labels_train[plain[:12]], minlength=3).tolist() != [4, 4, 4]


def test_metrics():
    data = classified()
    prediction = data.y_test.copy()
    assert metrics(prediction, data) == {"accuracy": 1.0, "mse": 0.0, "mae": 0.0}
    prediction[:6] = [0, 1, 0]
    measured = metrics(prediction, data)
    assert measured["accuracy"] == pytest.approx(54 / 60)
    assert measured["mse"] == pytest.approx(6 * 2 / 180)
    signs = Dataset(
        "s", np.zeros((4, 1)), np.ones((4, 1)), np.zeros((4, 1)), np.ones((4, 1)), np.ones(4, int), np.ones(4, int)
    )
    assert metrics(np.array([[0.3], [2.0], [-0.1], [0.9]]), signs)["accuracy"] == 0.75


def test_one_gram_serves_every_size():
    data = classified()
    tensors = tuple(torch.as_tensor(a) for a in (data.x_train, data.y_train, data.x_test))
    orders = [interpolation_order(data, False, np.random.default_rng(r)) for r in range(2)]
    regularization = Regularization(1e-3, "centered")
    rows = []
    for measured, arrays, failures in evaluate(
        "initial", RBF(1.0), data, tensors, sizes=[10, 30], orders=orders, regularizations=[regularization]
    ):
        rows += measured
        assert failures == []
        assert arrays["initial/10/0/0.001/mean" if rows[-1]["repeat"] == 0 else "initial/10/1/0.001/mean"].shape == (
            60,
            3,
        )
    x, y = data.x_train[orders[1][:10]], data.y_train[orders[1][:10]]
    gram = RBF(1.0).gram(x)
    effective = 1e-3 * (np.trace(gram) / 10 - gram.sum() / 100)
    expected = RBF(1.0).gram(data.x_test, x) @ np.linalg.solve(gram + effective * np.eye(10), y)
    mse = next(r["value"] for r in rows if (r["repeat"], r["n_interpolation"], r["metric"]) == (1, 10, "mse"))
    assert mse == pytest.approx(np.mean((expected - data.y_test) ** 2), rel=1e-9)
    table_ = {(r["n_interpolation"], r["metric"]): r for r in summary(rows)}
    values = [r["value"] for r in rows if r["n_interpolation"] == 30 and r["metric"] == "mse"]
    assert table_[30, "mse"]["mean"] == pytest.approx(np.mean(values))
    assert table_[30, "mse"]["sd"] == pytest.approx(np.std(values, ddof=1))
    assert table_[30, "mse"]["repeats"] == 2
