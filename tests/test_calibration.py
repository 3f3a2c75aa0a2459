"""Standard deviations and probabilities: by definition, against others, in runs and in estimators."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.datasets import load_wine
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from kfx import KernelFlowClassifier, KernelFlowRegressor, load_run, plots
from kfx.data import Dataset
from kfx.evaluation import interpolants
from kfx.evaluation.scoring import Scoring, evaluate
from kfx.files import read_rows
from kfx.kernels import RBF
from kfx.numerics import calibration, regression
from kfx.numerics.regularization import Regularization
from kfx.record.evaluations import Evaluations

FEW = ("optimizer.iterations=3", "device.precision_check=off", "figures=false", "hydra.run.dir=r")


def test_scores_of_values_are_those_of_their_definitions():
    rng = np.random.default_rng(0)
    mean, deviation = rng.normal(size=(5, 1)), rng.uniform(0.5, 2, size=(5, 1))
    y = mean + deviation * np.array([[0.1], [-1.9], [2.1], [0.5], [-3.0]])
    found = calibration.of_values(mean, deviation, y)
    assert found["nlpd"] == pytest.approx(-norm.logpdf(y, mean, deviation).mean())
    assert found["coverage_95"] == 0.6
    crps = [
        quad(lambda t, m=m, s=s, at=at: (norm.cdf(t, m, s) - (t >= at)) ** 2, -30, 30, points=[at], limit=200)[0]
        for m, s, at in zip(mean[:, 0], deviation[:, 0], y[:, 0], strict=True)
    ]
    assert found["crps"] == pytest.approx(np.mean(crps), rel=1e-6)


def test_scores_of_classes_are_those_of_their_definitions():
    rng = np.random.default_rng(0)
    chances = rng.dirichlet([1, 1, 1], size=400)
    labels = rng.integers(3, size=400)
    found = calibration.of_classes(chances, labels, bins=10)
    assert found["log_loss"] == pytest.approx(log_loss(labels, chances))
    assert found["brier"] == pytest.approx(np.mean(np.sum((chances - np.eye(3)[labels]) ** 2, axis=1)))
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == labels
    bins = np.minimum((confidence * 10).astype(int), 9)
    by_hand = sum(
        np.mean(bins == b) * abs(right[bins == b].mean() - confidence[bins == b].mean()) for b in np.unique(bins)
    )
    assert found["calibration_error"] == pytest.approx(by_hand)


def test_the_sharpness_is_found_again_and_finite_for_separable_classes():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4000, 3))
    chances = calibration.probabilities(scores, 2.5)
    labels = np.array([rng.choice(3, p=each) for each in chances])
    assert calibration.sharpness(scores, labels) == pytest.approx(2.5, rel=0.1)
    assert calibration.sharpness(scores, scores.argmax(axis=1)) < 1e3
    assert calibration.sharpness(scores, rng.integers(3, size=4000)) < 0.1, "scores that say nothing"


@pytest.fixture(scope="module")
def wine():
    x, y = load_wine(return_X_y=True)
    return train_test_split(StandardScaler().fit_transform(x), y, test_size=0.5, random_state=0)


def test_probabilities_of_a_classifier(wine):
    x, at, y, truth = wine
    names = np.array(["red", "white", "rose"])
    fitted = KernelFlowClassifier(optimizer={"iterations": 20}).fit(x, names[y])
    chances = fitted.predict_proba(at)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert np.array_equal(fitted.classes_[chances.argmax(axis=1)], fitted.predict(at))
    assert accuracy_score(names[truth], fitted.predict(at)) > 0.9
    assert log_loss(names[truth], chances, labels=fitted.classes_) < 0.3
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(at), chances)
    two = KernelFlowClassifier(optimizer={"iterations": 3}).fit(x, y == 0)
    np.testing.assert_allclose(two.predict_proba(at)[:, 1] > 0.5, two.predict(at))


@pytest.mark.slow
def test_intervals_cover_what_they_say():
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, size=(700, 2))
    y = np.sin(2 * x[:, 0]) * x[:, 1] + 0.3 * rng.normal(size=700)
    fitted = KernelFlowRegressor().fit(x[:300], y[:300])
    mean, deviation = fitted.predict(x[300:], return_std=True)
    assert 0.92 < np.mean(np.abs(y[300:] - mean) < 1.96 * deviation) < 0.98
    assert 0.27 < np.median(deviation) < 0.4, "the noise is in it"


MANY = 2 * regression.ROWS + 500


def _estimator(cls, y, **settings):
    def deviations_from(x):
        fitted = cls(optimizer={"name": "none", "iterations": 1}, **settings).fit(x, y(x))
        ask = fitted.decision_function if cls is KernelFlowClassifier else fitted.predict
        return lambda at: ask(at, return_std=True)[1]

    return deviations_from


def _evaluation(x):
    y, scoring = np.sin(x[:, :1]), Scoring([Regularization(1e-2)], variance=True, calibration=True)

    def deviations(at):
        data, tensors = Dataset("t", x, y, at, np.zeros((len(at), 1))), map(torch.as_tensor, (x, y, at))
        (found,) = evaluate(RBF(1.5), data, tuple(tensors), np.arange(len(x)), [len(x)], scoring)
        return np.column_stack([found.arrays["deviation"], found.arrays["variance"]])

    return deviations


@pytest.mark.parametrize(
    "made",
    [
        _estimator(KernelFlowRegressor, lambda x: np.sin(x[:, 0])),
        _estimator(KernelFlowRegressor, lambda x: np.sin(x)),
        _estimator(KernelFlowRegressor, lambda x: np.sin(x), outputs={"reduce": "pca", "components": 2}),
        _estimator(KernelFlowRegressor, lambda x: np.sin(x[:, 0]), solver="nystrom", centres=20),
        _estimator(KernelFlowClassifier, lambda x: (x[:, 0] > 0).astype(int)),
        _evaluation,
    ],
    ids=["values", "outputs", "components", "centres", "classes", "evaluation"],
)
def test_deviations_of_many_points_are_computed_some_at_a_time(monkeypatch, made):
    rng = np.random.default_rng(0)
    x, at = rng.normal(size=(30, 3)), rng.normal(size=(MANY, 3))
    columns, deviations = [], made(x)
    for module in (interpolants, regression):

        def watched(factor, y, solve=module.solve_lower):
            columns.append(y.shape[1])
            return solve(factor, y)

        monkeypatch.setattr(module, "solve_lower", watched)
    whole = deviations(at)
    assert len(whole) == MANY
    assert max(columns) <= regression.ROWS
    some = np.concatenate([deviations(at[i : i + 700]) for i in range(0, MANY, 700)])
    np.testing.assert_allclose(whole, some, rtol=1e-9)


def recomputed(rows, of_classes):
    """The recorded metrics from the columns of predictions.csv."""
    if of_classes:
        scores = rows.filter(regex=r"^score\.").to_numpy()
        chances, labels = rows.filter(regex=r"^probability\.").to_numpy(), rows["class"].to_numpy()
        hot = np.eye(scores.shape[1])[labels]
        found = {"accuracy": np.mean(rows["prediction"] == labels), "mse": np.mean((scores - hot) ** 2)}
        return found | calibration.of_classes(chances, labels)
    error = rows["prediction"] - rows["target"]
    columns = (rows[[name]].to_numpy() for name in ("prediction", "deviation", "target"))
    return {"mse": np.mean(error**2), "mae": np.mean(np.abs(error))} | calibration.of_values(*columns)


@pytest.mark.parametrize(
    "words",
    [
        ("dataset.target=value",),
        ("dataset.target=value", "evaluation=k_fold", "evaluation.folds=3", "dataset.test=0"),
        ("dataset.target=value", "evaluation.n_interpolation=[20,40]", "evaluation.repeats=2"),
        ("dataset.target=kind",),
        ("dataset.target=value", "optimizer=none"),
    ],
)
def test_recorded_metrics_can_be_recomputed_from_predictions(kfx, in_folder, words):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 90))
    kinds = np.array(["low", "middle", "high"])[np.digitize(a, [-0.5, 0.5])]
    lines = [f"{i!r},{j!r},{float(np.sin(i) + j)!r},{k}" for i, j, k in zip(a.tolist(), b.tolist(), kinds, strict=True)]
    (in_folder / "t.csv").write_text("a,b,value,kind\n" + "\n".join(lines) + "\n")
    own = "kind" if "dataset.target=value" in words else "value"
    code, _, err = kfx("run", "dataset=table", "dataset.path=t.csv", f"dataset.exclude=[{own}]", *words, *FEW)
    assert code == 0, err
    run = load_run("r")
    found = read_rows(run.directory / "predictions.csv")
    assert set(found["kernel"]) == {"initial", "trained"}
    for (kernel, repeat), rows in found.groupby(["kernel", "repeat"]):
        table = run.evaluation.query("kernel == @kernel and repeat == @repeat")
        table = table[table["n_interpolation"] == table["n_interpolation"].max()].set_index("metric")["value"]
        for metric, value in recomputed(rows, own == "value").items():
            assert table[metric] == pytest.approx(value, rel=1e-9), (kernel, repeat, metric)
    (axes, *_) = plots.one(run, "calibration").axes
    assert axes.get_xlabel()


def test_the_picture_leaves_out_an_output_that_does_not_vary(kfx, in_folder):
    x = np.random.default_rng(0).normal(size=(120, 2))
    columns = {"a": x[:, 0], "b": x[:, 1], "y": np.sin(x[:, 0]) + 0.1 * x[:, 1], "k": 5.0}
    pd.DataFrame(columns).to_csv("t.csv", index=False)
    assert kfx("run", "dataset=table", "dataset.path=t.csv", "dataset.target=[y,k]", *FEW)[0] == 0
    run = load_run("r")
    (axes,) = plots.one(run, "calibration").axes
    at = list(axes.lines[-1].get_xdata()).index(0.95)
    (measured,) = run.evaluation.query("kernel == 'trained' and metric == 'coverage_95'")["value"]
    assert axes.lines[-1].get_ydata()[at] == pytest.approx(measured)
    assert measured > 0.8


def test_an_interrupted_evaluation_has_each_prediction_once(kfx, in_folder):
    words = ["dataset=diabetes", "evaluation.repeats=3", "evaluation.n_interpolation=[40]", *FEW]
    assert kfx("run", *words)[0] == 0
    whole = (in_folder / "r/predictions.csv").read_text()
    rows = read_rows(in_folder / "r/predictions.csv")
    assert len(rows) == len(rows.drop_duplicates(["kernel", "repeat", "point"])) == 6 * 100
    assert whole.count("\n") == 601


def test_predictions_of_an_unchanged_kernel_are_copied_for_missing_repeats_alone(kfx, in_folder, monkeypatch):
    words = ["dataset=diabetes", "evaluation.repeats=3", "evaluation.n_interpolation=[40]", "optimizer=none"]
    words += ["figures=false", "device.precision_check=off", "hydra.run.dir=r"]
    write = Evaluations.add

    def interrupted(self, rows):
        of_trained = [row for row in rows if row["kernel"] == "trained"]
        write(self, [row for row in rows if row["kernel"] != "trained" or row["repeat"] == 0])
        if of_trained:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Evaluations, "add", interrupted)
        assert kfx("run", *words)[0] == 130
    assert kfx("run", *words, "resume=true")[0] == 0
    rows = read_rows(in_folder / "r/predictions.csv")
    assert len(rows) == len(rows.drop_duplicates(["kernel", "repeat", "point"])) == 6 * 100
