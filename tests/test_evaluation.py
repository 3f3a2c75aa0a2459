"""Kernel ridge regression against scikit-learn, and the subsets that it uses."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import KFold, cross_val_predict

from kfx import KernelFlowRegressor, load_run, plug_in
from kfx.config.choices import SOLVERS
from kfx.data import Dataset
from kfx.data.splits import folds
from kfx.evaluation.cross_validation import errors_of_candidates, least
from kfx.evaluation.judges import errors
from kfx.evaluation.results import summary
from kfx.evaluation.scoring import Scoring, evaluate, interpolation_order
from kfx.evaluation.systems import InMemory
from kfx.experiment.compose import load
from kfx.experiment.config import check
from kfx.kernels import RBF, Matern
from kfx.numerics import regression
from kfx.numerics.incidents import collect
from kfx.numerics.regression import coefficients
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.outcomes import Event, NumericalError


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
    system = InMemory(kernel, torch.as_tensor(x), torch.as_tensor(x_test))
    interpolant = system.interpolant(Regularization(1e-3, "absolute"), torch.as_tensor(y))
    variance = interpolant.variance(system.test)
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
    assert errors(prediction, data) == {"accuracy": 1.0, "mse": 0.0, "mae": 0.0}
    prediction[:6] = [0, 1, 0]
    measured = errors(prediction, data)
    assert measured["accuracy"] == pytest.approx(54 / 60)
    assert measured["mse"] == pytest.approx(6 * 2 / 180)
    signs = Dataset(
        "s", np.zeros((4, 1)), np.ones((4, 1)), np.zeros((4, 1)), np.ones((4, 1)), np.ones(4, int), np.ones(4, int)
    )
    assert errors(np.array([[0.3], [2.0], [-0.1], [0.9]]), signs)["accuracy"] == 0.75


def test_one_gram_serves_every_size():
    data = classified()
    tensors = tuple(torch.as_tensor(a) for a in (data.x_train, data.y_train, data.x_test))
    orders = [interpolation_order(data, False, np.random.default_rng(r)) for r in range(2)]
    regularization = Regularization(1e-3, "centered")
    rows = []
    for repeat, order in enumerate(orders):
        for result in evaluate(RBF(1.0), data, tensors, order, [10, 30], Scoring([regularization])):
            rows += result.rows("initial", repeat)
            assert result.problems == []
            named = result.named("initial", repeat)
            assert named[f"initial/{result.n_interpolation}/{repeat}/0.001/mean"].shape == (60, 3)
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


# ---- cross-validation


def test_folds_are_scikit_learns():
    x, y, x_test, y_test = table()
    data = Dataset("t", x, y, x_test, y_test)
    for shuffle in (False, True):
        parts = folds(data, 4, shuffle, np.random.default_rng(3))
        seed = int(np.random.default_rng(3).integers(2**31)) if shuffle else None
        expected = KFold(4, shuffle=shuffle, random_state=seed).split(x)
        for part, (train, test) in zip(parts, expected, strict=True):
            np.testing.assert_array_equal(part.x_train, x[train])
            np.testing.assert_array_equal(part.x_test, x[test])
            np.testing.assert_array_equal(part.y_test, y[test])


@pytest.mark.parametrize("order", ["sorted", "alternating", "random"])
@pytest.mark.parametrize("sizes", [(50, 50, 50), (97, 40, 3), (7, 1, 13), (2, 2)])
@pytest.mark.parametrize("count", [2, 4])
def test_shuffled_folds_hold_their_share_of_each_class(sizes, order, count):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if order != "sorted":
        place = np.concatenate([np.arange(n) / n for n in sizes]) if order == "alternating" else None
        labels = labels[np.argsort(place) if place is not None else np.random.default_rng(1).permutation(len(labels))]
    n = len(labels)
    x = np.arange(n, dtype=float)[:, None]
    data = Dataset("t", x, np.eye(len(sizes))[labels], x[:0], np.zeros((0, len(sizes))), labels, labels[:0])
    parts, again, other = (folds(data, count, True, np.random.default_rng(seed)) for seed in (0, 0, 1))
    held = [part.x_test[:, 0].astype(int) for part in parts]
    assert sorted(np.concatenate(held)) == list(range(n))
    assert np.ptp([len(each) for each in held]) <= 1
    for part, each in zip(parts, held, strict=True):
        np.testing.assert_array_equal(part.labels_test, labels[each])
        np.testing.assert_array_equal(part.y_train.argmax(axis=1), part.labels_train)
        assert not np.isin(part.x_train[:, 0], each).any()
    counts = np.array([np.bincount(part.labels_test, minlength=len(sizes)) for part in parts])
    assert np.ptp(counts, axis=0).max() <= 1
    assert all(np.array_equal(a.x_test, b.x_test) for a, b in zip(parts, again, strict=True))
    assert n < 10 or any(not np.array_equal(a.x_test, b.x_test) for a, b in zip(parts, other, strict=True))


SORTED = """
import numpy as np
from kfx.data import Dataset
from kfx.options import DatasetOption, number, option

@option("dataset", "sorted_plugin", "Points in the order of their targets")
class SortedPlugin(DatasetOption):
    is_table = True
    n_train: int = number(60, "whole >= 2", "number of training points")
    n_test: int = number(0, "whole >= 0", "number of test points")

    def build(self, rng):
        x = np.arange(self.n_train, dtype=float)[:, None]
        return Dataset("sorted_plugin", x, np.sin(x), x[:0], x[:0])
"""


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("table", "classification"),
        ("table", "regression"),
        ("arrays", "classification"),
        ("arrays", "regression"),
        ("plugin", "regression"),
        ("simulator", "regression"),
    ],
)
def test_folds_of_own_data_do_not_follow_the_order_of_the_file(in_folder, own_registry, kind, task):
    y, x = np.repeat([0, 1, 2], 20) if task == "classification" else np.arange(60) / 7, np.arange(60.0)[:, None]
    pd.DataFrame({"x": x[:, 0], "y": y}).to_csv("t.csv", index=False)
    np.savez("t.npz", x=x, y=y)
    (in_folder / "sorted_plugin.py").write_text(SORTED)
    plug_in("sorted_plugin.py")
    words = {
        "table": ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "dataset.test=0", f"dataset.task={task}"],
        "arrays": ["dataset=arrays", "dataset.path=t.npz", "dataset.test=0", f"dataset.task={task}"],
        "plugin": ["dataset=sorted_plugin", "sampler.batch_size=20"],
        "simulator": ["dataset=simulator", "dataset.n_train=60", "dataset.n_test=0"],
    }[kind]

    def held(seed, *more):
        config = load([*words, "evaluation=k_fold", "evaluation.folds=3", *more])
        rng = Streams(seed)["data"]
        parts = config.evaluation.parts(config.dataset.build(rng), rng)
        return config, parts

    config, parts = held(0)
    assert config.evaluation.shuffle is True
    other, in_order = held(1)[1], held(0, "evaluation.shuffle=false")[1]
    assert not np.array_equal(parts[0].x_test, other[0].x_test), "another seed, other folds"
    if kind != "simulator":  # its points are drawn at random
        assert np.ptp(parts[0].x_test) > 40
        assert np.ptp(in_order[0].x_test) == 19
    if task == "classification":
        assert all(np.ptp(np.bincount(part.labels_test, minlength=3)) <= 1 for part in parts)
    else:
        assert len(parts[0].x_test) == 20


def test_tables_of_papers_keep_the_order_of_their_files():
    config = load(["dataset=diabetes", "dataset.n_test=0", "evaluation=k_fold"])
    assert config.evaluation.shuffle is False
    whole = config.dataset.build(Streams(0)["data"])
    parts = config.evaluation.parts(whole, Streams(0)["data"])
    np.testing.assert_array_equal(np.concatenate([part.x_test for part in parts]), whole.x_train)


def test_a_table_sorted_by_class_is_classified(kfx):
    frame = load_iris(as_frame=True).frame.sort_values("target")
    frame["target"] = frame["target"].map({0: "setosa", 1: "versicolor", 2: "virginica"})
    frame.to_csv("iris.csv", index=False)
    words = ["dataset=table", "dataset.path=iris.csv", "dataset.target=target", "dataset.test=0", "evaluation=k_fold"]
    found = {}
    for seed in (0, 1):
        more = ["optimizer=none", "evaluation.folds=3", "evaluation.batches=0", f"seed={seed}"]
        assert kfx("run", *words, *more, f"hydra.run.dir={seed}")[0] == 0
        found[seed] = load_run(str(seed)).evaluation.query("kernel == 'initial' and metric == 'accuracy'")["value"]
    assert found[0].mean() > 0.9
    assert found[0].tolist() != found[1].tolist()


def test_folds_that_leave_one_class_are_refused(kfx):
    pd.DataFrame({"x": np.arange(20.0), "y": ["a"] * 10 + ["b"] * 10}).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "dataset.test=0", "evaluation=k_fold"]
    code, _, err = kfx("run", *words, "evaluation.folds=2", "evaluation.shuffle=false", "hydra.run.dir=r")
    assert code == 2
    assert "evaluation.folds=2: one of them leaves 10 training points of one class; set evaluation.shuffle=true" in err


def test_lambda_of_series_is_validated_on_blocks():
    rng = np.random.default_rng(0)
    series = np.cumsum(rng.normal(size=123))
    x = np.lib.stride_tricks.sliding_window_view(series, 4)[:-1].copy()
    y = series[4:, None]
    values = [1e-4, 1e-2, 1.0]
    candidates = [Regularization(v, "absolute") for v in values]
    arguments = RBF(5.0), torch.as_tensor(x), torch.as_tensor(y), candidates, 4, None
    found = errors_of_candidates(*arguments, np.random.default_rng(3), in_blocks=True)
    expected = []
    for value in values:
        ridge = KernelRidge(alpha=value, kernel="rbf", gamma=1 / 50)
        predicted = cross_val_predict(ridge, x, y, cv=KFold(4))
        expected.append(np.sum((predicted - y) ** 2))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("count", [8, 20, 50, 51])
@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_few_noisy_points_take_the_largest_lambda_that_is_as_good(count, noisy, seed):
    rng = np.random.default_rng(seed)
    x = torch.as_tensor(rng.normal(size=(count, 1)))
    y = torch.sin(1.5 * x) + 0.1 * torch.as_tensor(rng.normal(size=(count, 1)))
    candidates = [Regularization(10.0**k, "centered") for k in range(-11, 3)]
    given = Matern(0.85, 2.5), x, y, candidates, None, None
    found = np.array(errors_of_candidates(*given, np.random.default_rng(0), noisy=noisy))
    plain = np.array(errors_of_candidates(*given, np.random.default_rng(0)))
    chosen, least_ = int(found.argmin()), int(plain.argmin())
    if not noisy or count > 50:
        assert chosen >= least_, "more only where densities rule it out"
        assert not noisy or plain[chosen] == plain[np.isfinite(found)].min()
    else:
        as_good = np.flatnonzero(
            np.isfinite(found) & (found <= found[np.isfinite(found)].min() * (1 + 0.5 / count**0.5))
        )
        assert chosen == as_good.max()
        assert candidates[chosen].value > 1e-6


def test_densities_of_points_left_out_rule_out_lambdas_that_equal_points_contradict():
    """Against the densities of each point by a Gaussian process of the others, with the scale that fits best."""
    rng = np.random.default_rng(0)
    x, values = rng.uniform(-1, 1, size=(60, 2)), [1e-10, 1e-6, 1e-3, 1e-1]
    y = np.stack([np.sin(2 * x[:, 0]), x[:, 1]], axis=1)
    x[1], y[1] = x[0], y[0] + 0.1
    gram = Matern(3.0, 1.5).gram(torch.as_tensor(x)).numpy()
    errors, densities = [], []
    for value in values:
        noisy, left_out = gram + value * np.eye(60), []
        for i in range(60):
            rest = np.delete(np.arange(60), i)
            weights = np.linalg.solve(noisy[np.ix_(rest, rest)], gram[rest, i])
            left_out.append([*(y[i] - weights @ y[rest]), noisy[i, i] - weights @ gram[rest, i]])
        error, variance = np.array(left_out)[:, :2], np.array(left_out)[:, 2]
        scale = np.mean(error**2 / variance[:, None], axis=0)
        errors.append(np.sum(error**2))
        densities.append(-np.mean(np.log(variance)) / 2 - np.mean(np.log(scale)) / 2)
    candidates = [Regularization(value, "absolute") for value in values]
    given = Matern(3.0, 1.5), torch.as_tensor(x), torch.as_tensor(y), candidates, None, None
    found = errors_of_candidates(*given, np.random.default_rng(0))
    np.testing.assert_allclose(found, errors, rtol=1e-3)
    allowed = np.array([densities[i] >= max(densities[i:]) - 1 for i in range(4)])
    assert np.argmin(errors) == 1  # 1e-6
    assert allowed.tolist() == [False, False, True, True]
    of_noisy = errors_of_candidates(*given, np.random.default_rng(0), noisy=True)
    np.testing.assert_array_equal(of_noisy, np.where(allowed, found, np.inf))


def test_copies_of_some_rows_rule_out_no_larger_lambda():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3))
    y = (np.sin(x[:, 0]) + 0.3 * rng.normal(size=100))[:, None]
    x, y = np.concatenate([x, x[:15]]), np.concatenate([y, y[:15]])
    candidates = [Regularization(value, "absolute") for value in (1e-9, 1e-6, 1e-3, 0.1)]
    given = RBF(2.0), torch.as_tensor(x), torch.as_tensor(y), candidates, None, None
    found = errors_of_candidates(*given, np.random.default_rng(0), noisy=True)
    assert np.argmin(found) == 3
    assert found[3] == errors_of_candidates(*given, np.random.default_rng(0))[3]


@pytest.mark.parametrize("rows", [60, 400])
@pytest.mark.parametrize("seed", [2, 3])
def test_one_pair_of_equal_rows_with_different_targets_spoils_no_interval(rows, seed):
    rng = np.random.default_rng(seed)

    def function(x):
        return np.sin(x @ [1, 2, 0.5, 0])

    x, new = rng.uniform(-1, 1, size=(rows, 4)), rng.uniform(-1, 1, size=(200, 4))
    y = function(x)
    x[-1], y[-1] = x[0], y[0] + 0.3
    mean, deviation = KernelFlowRegressor(optimizer={"iterations": 20}).fit(x, y).predict(new, return_std=True)
    errors = np.abs(mean - function(new))
    assert errors.max() < 0.5
    assert deviation.max() < 2
    assert np.mean(errors < 2 * deviation) > 0.9


def test_a_run_on_a_series_chooses_lambda_on_blocks(kfx):
    rng = np.random.default_rng(3)
    walk = np.cumsum(0.02 * rng.normal(size=300))
    pd.DataFrame({"x": np.sin(np.arange(300) / 9) + walk + 0.05 * rng.normal(size=300)}).to_csv("s.csv", index=False)
    values = [1e-6, 1e-4, 1e-2, 1.0]
    words = ["dataset=series", "dataset.path=s.csv", "dataset.columns=[x]", "dataset.lags=12", "dataset.horizon=12"]
    words += ["dataset.n_test=60", "kernel=rbf", "kernel.sigma=0.5", "optimizer=none", "evaluation.batches=0"]
    words += ["regularization.scale=absolute", f"regularization.candidates={values}", "regularization.points=null"]
    words += ["regularization.folds=5", "evaluation.regularization.value=validation"]
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    config = load(words)
    data = config.dataset.preprocessed(config.dataset.build(Streams(0)["data"]))
    best = {}
    for how in (KFold(5), KFold(5, shuffle=True, random_state=0)):
        ridges = [KernelRidge(alpha=value, kernel="rbf", gamma=2.0) for value in values]
        left_out = [cross_val_predict(ridge, data.x_train, data.y_train, cv=how) for ridge in ridges]
        best[how.shuffle] = values[np.argmin([np.sum((each - data.y_train) ** 2) for each in left_out])]
    assert load_run("r").evaluation["regularization"].unique().tolist() == [best[False]]
    assert best[True] != best[False], "a fold at random holds neighbours of what it leaves out"


CROSS_VALIDATED = ["dataset.n_test=0", "evaluation=k_fold", "optimizer=none", "optimizer.iterations=1"]
ABSOLUTE = ["regularization.scale=absolute", "figures=false", "device.precision_check=off", "hydra.run.dir=r"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # Darcy 2020, Table 5.1, row 1; then by the mean squared distance, where he prints 30.892 (11.78); then row 4.
        (
            ["dataset=boston", "kernel.initial=natural", "regularization.value=1e-3"],
            {"mse": 34.363, "train_mse": 7.564, "mae": 4.009, "train_mae": 1.881},
        ),
        (
            ["dataset=boston", "kernel.initial=mean_squared_distance", "regularization.value=1e-3"],
            {"mse": 30.908, "train_mse": 11.789},
        ),
        (
            ["dataset=boston", "kernel=rational_quadratic", "kernel.alpha=0.5", "regularization.value=1e-7"],
            {"mse": 126.024, "train_mse": 0.0},
        ),
        # Table 5.3, row 1, of which he prints 2936.088 (2519.247)
        (
            ["dataset=diabetes", "kernel.sigma=10", "regularization.value=1e-7"],
            {"mse": 2936.094, "train_mse": 2519.250, "mae": 43.367, "train_mae": 40.228},
        ),
        # Tables 5.5 and 5.7, row 1
        (
            ["dataset=wine_red", "kernel.sigma=500", "regularization.value=1e-4", "evaluation.clip=[1,10]"],
            {"mse": 0.4415, "train_mse": 0.4242},
        ),
        pytest.param(
            ["dataset=wine_white", "kernel.sigma=500", "regularization.value=1e-4", "evaluation.clip=[1,10]"],
            {"mse": 0.5706, "train_mse": 0.5400},
            marks=pytest.mark.slow,
        ),
        # The rows "KF Gaussian" of both, which plain ridge gives: the gain is that of λ
        (
            ["dataset=wine_red", "kernel.sigma=500", "regularization.value=1e-6", "evaluation.clip=[1,10]"],
            {"mse": 0.4201, "train_mse": 0.3916},
        ),
        pytest.param(
            ["dataset=wine_white", "kernel.sigma=500", "regularization.value=1e-6", "evaluation.clip=[1,10]"],
            {"mse": 0.5631, "train_mse": 0.5229},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_published_baselines(kfx, real_data, words, expected):
    code, _, _ = kfx("run", *words, *CROSS_VALIDATED, *ABSOLUTE)
    assert code == 0
    found = {row["metric"]: row for row in load_run("r").metrics["evaluation"] if row["kernel"] == "initial"}
    assert {row["repeats"] for row in found.values()} == {5}
    for metric, value in expected.items():
        assert found[metric]["mean"] == pytest.approx(value, abs=6e-5 if value < 1 else 6e-4)


def test_each_fold_has_its_kernel(kfx):
    words = ["dataset=diabetes", "dataset.n_test=0", "evaluation=k_fold", "optimizer=adam", "optimizer.iterations=4"]
    code, _, _ = kfx("run", *words, *ABSOLUTE, "sampler.batch_size=30", "evaluation.save_predictions=true")
    assert code == 0
    run = load_run("r")
    assert run.trace["iteration"].tolist() == list(range(20))
    assert run.trace["diagnostic.fold"].tolist() == [k for k in range(5) for _ in range(4)]
    assert run.trace["kernel_evaluations"].tolist() == list(range(1, 21))
    assert len({tuple(each.values()) for each in run.metrics["parameters"]["folds"]}) == 5
    assert sorted(run.evaluation["repeat"].unique()) == [0, 1, 2, 3, 4]
    mean = next(row for row in run.metrics["evaluation"] if (row["kernel"], row["metric"]) == ("trained", "mse"))
    assert (mean["n_interpolation"], mean["repeats"]) == (354, 5)


@pytest.mark.parametrize(
    "words", [(), ("dataset.weights=w",), ("outputs.kernels=separate", "evaluation=k_fold", "evaluation.folds=2")]
)
def test_each_of_several_targets_has_errors_of_its_own(kfx, tmp_path, words):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    targets = {"T °C": np.sin(x[:, 0]), "flat": np.full(60, 3.0), "big": 1000 * x[:, 1] + rng.normal(size=60)}
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "w": rng.uniform(0.5, 2, 60), **targets})
    frame.drop(columns=[] if "dataset.weights=w" in words else "w").to_csv(tmp_path / "t.csv", index=False)
    own = ["dataset=table", "dataset.path=t.csv", 'dataset.target=["T °C",flat,big]', "optimizer.iterations=2"]
    code, out, err = kfx("run", *own, *words, "figures=false", "device.precision_check=off", "hydra.run.dir=r")
    assert code == 0, err
    run = load_run("r")
    predicted = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    of_fold = dict(iter(predicted.groupby("repeat")))
    shown = {row["metric"]: row["mean"] for row in run.metrics["evaluation"] if row["kernel"] == "trained"}
    for i, (name, whole) in enumerate(targets.items()):
        found = {"mse": [], "rmse": [], "r2": []}
        for own in of_fold.values():
            y, w = own[f"target.{i}"], own.get("weight", pd.Series(1.0, own.index))
            assert set(y.round(6)) <= set(whole.round(6))
            mse = np.average((own[f"prediction.{i}"] - y) ** 2, weights=w)
            variance = np.average((y - np.average(y, weights=w)) ** 2, weights=w)
            found["mse"].append(mse)
            found["rmse"].append(np.sqrt(mse))
            found["r2"].append(1 - mse / variance if name != "flat" else np.nan)
        for metric, values in found.items():
            expected = np.mean(values)
            assert shown[f"{metric}.{i}"] == (pytest.approx(expected, rel=1e-9) if np.isfinite(expected) else None)
        assert f"{name}: rmse " in out
    assert np.mean([shown[f"mse.{i}"] for i in range(3)]) == pytest.approx(shown["mse"])
    assert run.metrics["targets"] == list(targets)


def test_clipped_predictions_and_errors_in_training():
    data = Dataset("t", np.zeros((2, 1)), np.array([[1.0], [3.0]]), np.zeros((1, 1)), np.array([[5.0]]))
    tensors = tuple(torch.as_tensor(a) for a in (data.x_train, data.y_train, data.x_test))
    scoring = Scoring([Regularization(1.0, "absolute")], clip=(0.0, 1.0), train_error=True)
    (result,) = evaluate(RBF(1.0), data, tensors, np.arange(2), [2], scoring)
    found = result.metrics  # every prediction is 4/3
    assert (found["mse"], found["mae"]) == (16.0, 4.0)
    assert (found["train_mse"], found["train_mae"]) == (2.0, 1.0)


def test_lambda_by_validation_is_used_by_every_kernel(kfx, in_folder):
    words = ["dataset=diabetes", "dataset.n_train=60", "sampler.batch_size=30", "optimizer=flow_euler"]
    more = ["optimizer.iterations=2", "figures=false", "device.precision_check=off", "evaluation.random_kernels=1"]
    for name, how in (
        ("a", "regularization.selection=validation"),
        ("b", "evaluation.regularization.value=validation"),
    ):
        scale = ["evaluation.regularization.scale=absolute"] if name == "b" else []
        assert kfx("run", *words, *more, how, *scale, f"hydra.run.dir={name}")[0] == 0
        rows = load_run(name).evaluation.query("metric == 'effective_regularization'").set_index("kernel")["value"]
        if name == "b":
            candidates = [10.0**i for i in range(-8, 1)]
            assert all(min(abs(value / c - 1) for c in candidates) < 1e-12 for value in rows)
        else:
            assert rows["initial"] == pytest.approx(rows["trained"], rel=1e-2)
            assert rows["initial"] > 1e-3, "noisy data: the fixed value would be 1e-4"


def test_a_length_that_the_points_do_not_have_is_an_error(kfx):
    words = ["dataset.preprocess=[unit_norm]", "kernel.initial=natural", "dataset.n_train=50", "sampler.batch_size=20"]
    code, _, err = kfx("run", *words, "hydra.run.dir=r")
    assert code == 2
    assert "kernel.initial=natural: gives sigma=" in err


def test_the_column_of_lambda_holds_what_was_used(kfx):
    words = ["regularization.selection=validation", "dataset.n_test=0", "evaluation=k_fold", "evaluation.folds=3"]
    small = ["optimizer.iterations=2", "sampler.batch_size=30", "figures=false", "device.precision_check=off"]
    code, _, _ = kfx("run", *words, *small, "hydra.run.dir=r")
    assert code == 0
    run = load_run("r")
    assert set(run.evaluation["configured_regularization"]) == {1e-4}
    used = {
        kernel: run.evaluation.query(f"kernel == '{kernel}' and metric == 'mse'")["regularization"].tolist()
        for kernel in ("initial", "trained")
    }
    assert used["initial"] == [fold["regularization"] for fold in run.metrics["parameters"]["folds"]]
    assert all(value != 1e-4 for value in used["initial"])
    for row in run.metrics["evaluation"]:
        chosen = used[row["kernel"]]
        assert row["configured_regularization"] == 1e-4
        assert row["regularization"] == (chosen[0] if len(set(chosen)) == 1 else None)


def test_validation_chooses_lambda_again_for_the_trained_kernel(kfx, in_folder):
    words = ["dataset=gp_sample", "dataset.noise=0.1", "dataset.n_train=100", "kernel.sigma=9", "objective=loo"]
    words += ["regularization.selection=validation", "sampler.batch_size=50", "optimizer.iterations=20"]
    assert kfx("run", *words, "optimizer.learning_rate=0.3", "figures=false", "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    used = run.evaluation.query("metric == 'mse'").set_index("kernel")["regularization"]
    trained = run.metrics["parameters"]["final"]
    assert used["initial"] == trained["regularization"], "what it was trained with"
    config = check(run.config)
    data = config.dataset.build(Streams(0)["data"])
    arguments = (
        torch.as_tensor(data.x_train),
        torch.as_tensor(data.y_train),
        config.regularization.selected("validation").values,
        5,
        1000,
    )
    errors = errors_of_candidates(RBF(trained["sigma"]), *arguments, Streams(0)["validation"])
    chosen = least(arguments[2], errors)
    assert used["initial"] != used["trained"] == chosen.value
    regressor = KernelFlowRegressor(
        {"name": "rbf", "sigma": 9.0},
        objective="loo",
        regularization={"selection": "validation", "candidates": [10.0**k for k in range(-8, 1)]},
        scale=None,
        targets="as_given",
        sampler={"batch_size": 50},
        optimizer={"iterations": 20, "learning_rate": 0.3},
    ).fit(data.x_train, data.y_train)
    assert regressor.regularization_ == chosen
    mse = np.mean((regressor.predict(data.x_test) - data.y_test) ** 2)
    assert mse == run.evaluation.query("kernel == 'trained' and metric == 'mse'")["value"].item()


def test_a_kernel_that_fails_at_the_most_points_ends_no_run(kfx, in_folder, monkeypatch):
    from kfx.evaluation import scoring

    usual = scoring._judge

    def failing(subject, own, scoring_, every, found):
        if found.n_interpolation == 40:
            raise NumericalError(Event.NOT_POSITIVE_DEFINITE, "scripted")
        return usual(subject, own, scoring_, every, found)

    monkeypatch.setattr(scoring, "_judge", failing)
    words = ["dataset=three_bumps", "dataset.n_train=40", "sampler.batch_size=20", "optimizer.iterations=2"]
    code, _, err = kfx("run", *words, "evaluation.n_interpolation=[10,40]", "figures=false", "hydra.run.dir=r")
    assert code == 0, err
    assert load_run("r").metrics["status"] == "completed"


def test_what_is_said_of_folds_is_said_of_the_most_points(kfx, in_folder):
    words = ["dataset=diabetes", "evaluation=k_fold", "evaluation.folds=3", "figures=false", "optimizer.iterations=8"]
    said = {}
    for sizes in ("[200]", "[4,5,200]"):
        code, _, err = kfx("run", *words, f"evaluation.n_interpolation={sizes}", f"hydra.run.dir=r{len(said)}")
        assert code == 0, err
        said[sizes] = load_run(f"r{len(said)}").metrics.get("remarks", [])
    assert said["[4,5,200]"] == said["[200]"]
    assert not any("no better than" in each for each in said["[200]"])


@pytest.mark.slow
def test_what_a_person_should_know_is_said(kfx, in_folder):
    words = ["dataset=diabetes", "kernel.sigma=0.02", "optimizer=none", "optimizer.iterations=1", "figures=false"]
    code, out, _ = kfx("run", *words, "hydra.run.dir=r")
    assert code == 0
    assert "is no better than what the mean of the training targets predicts" in out
    assert ",no_better_than_constant," in (in_folder / "r/history.csv").read_text()
    edge = [
        "regularization.selection=validation",
        "regularization.candidates=[1e-8,1e-7,1e-6]",
        "optimizer.iterations=1",
    ]
    code, out, _ = kfx("run", "dataset=diabetes", *edge, "figures=false", "hydra.run.dir=s")
    assert "of the initial kernel is at the edge of regularization.candidates" in out
    code, out, _ = kfx(
        "run", "dataset=digits", "dataset.n_train=60", "sampler.batch_size=20", *words[2:], "hydra.run.dir=t"
    )
    assert "note" not in out


def test_published_stands_beside_measured(kfx):
    code, out, _ = kfx("run", "+experiment=khalid/three_bumps_rbf", "optimizer=none", "optimizer.iterations=1")
    assert code == 0
    assert "published   mse before training 6.865, measured 6.8701 (Khalid 2022" in out


def test_an_evaluation_without_a_number_fails_the_run(kfx):
    words = ["dataset=gp_sample", "dataset.noise=1e200", "dataset.n_train=60", "sampler.batch_size=20", "figures=false"]
    code, _, err = kfx("run", *words, "optimizer=none", "optimizer.iterations=1", "hydra.run.dir=r")
    assert code == 1
    assert "no evaluation of the trained kernel gave a number" in err
    assert load_run("r").metrics["status"] == "failed"


def test_large_systems_are_solved_in_place_with_the_same_result(monkeypatch):
    rng = np.random.default_rng(0)
    a = torch.as_tensor(rng.normal(size=(60, 80)))
    gram, y = a @ a.mT, torch.as_tensor(rng.normal(size=(60, 3)))
    expected, before = regression.coefficients(gram, y, 1e-3), gram.clone()
    monkeypatch.setattr(regression, "LARGE", 10)
    torch.testing.assert_close(regression.coefficients(gram, y, 1e-3), expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(gram, before)
    with collect() as incidents:  # where there is no factor, with jitter
        regression.coefficients(torch.ones(20, 20, dtype=torch.float64), y[:20], 0.0)
    assert incidents.jitter > 0
