"""Copies of rows count once, where equal rows are no chance."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest

from kfx import KernelFlowRegressor
from kfx.cli import main
from kfx.data.copies import counted
from kfx.outcomes import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:.*rows are copies of others")

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (60, 3))
Y = np.sin(2 * X[:, :1]) + X[:, 1:2] ** 2 + 0.1 * RNG.standard_normal((60, 1))
COPIES = np.r_[0:60, 0:40]
TABLES = {
    "values": (X, Y),
    "a missing value": (np.where(np.arange(180).reshape(60, 3) % 7 == 0, np.nan, X), Y),
    "rounded targets": (X, np.round(Y, 2)),
    "two measured twice": (X[np.r_[0:58, 0, 1]], Y),
    "classes": (X, np.eye(2)[(Y[:, 0] > 0.3).astype(int)]),
    "grades": (X, np.round(3 * Y)),
}


@pytest.mark.parametrize("table", TABLES)
def test_the_first_of_copies_counts(table):
    x, y = TABLES[table]
    order = RNG.permutation(COPIES)
    counts = counted("auto", x[order], y[order])
    seen = [each not in order[:i] for i, each in enumerate(order)]
    assert counts.tolist() == seen
    assert counted("auto", x, y).all()


def test_signs_of_zero_are_no_difference():
    x = X.copy()
    x[:, 2] = 0.0
    assert counted("auto", np.vstack([x, x * [1, 1, -1]]), np.vstack([Y, Y])).sum() == 60


CHANCE = {
    "codes": (RNG.integers(0, 3, (200, 2)), RNG.integers(0, 2, (200, 1))),
    "scores of two groups": (RNG.integers(0, 2, (200, 1)), RNG.integers(0, 20, (200, 1))),
    "mostly zero": (np.where(RNG.random((200, 1)) < 0.5, 0, RNG.random((200, 1))), RNG.integers(0, 9, (200, 1))),
    "few of a class": (X[np.r_[0:60, 0:15]], np.round(3 * Y[np.r_[0:60, 0:15]])),
    "classes of codes": (RNG.integers(0, 3, (200, 3)), np.zeros((200, 1))),
    "rounded": (np.round(RNG.standard_normal((200, 1)), 1), np.round(RNG.standard_normal((200, 1)), 1)),
}


@pytest.mark.parametrize("table", CHANCE)
def test_equal_rows_by_chance_count_each_unless_once_is_asked(table):
    x, y = (each.astype(float) for each in CHANCE[table])
    different = len(np.unique(np.hstack([x, y]), axis=0))
    assert different < len(x)
    assert counted("auto", x, y).all()
    assert counted("once", x, y).sum() == different


def test_equal_features_with_targets_measured_anew_are_no_copies():
    assert counted("auto", X[COPIES], np.arange(100.0)[:, None]).all()


FAST = {"optimizer": {"name": "adam", "iterations": 2}}


def test_a_fit_is_that_of_the_table_without_copies():
    expected = KernelFlowRegressor(**FAST).fit(X, Y).predict(X, return_std=True)
    with pytest.warns(UserWarning, match="40 of 100 rows are copies of others"):
        found = KernelFlowRegressor(**FAST, copies="once").fit(X[COPIES], Y[COPIES]).predict(X, return_std=True)
    assert np.array_equal(expected, found)


def test_who_wants_copies_has_them():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        each = KernelFlowRegressor(**FAST, copies="each").fit(X[COPIES], Y[COPIES])
        weighted = KernelFlowRegressor(**FAST).fit(X[COPIES], Y[COPIES], sample_weight=1 + np.arange(100) % 2)
    assert {len(each._predictor.parts[0].interpolant.points), len(weighted._predictor.parts[0].interpolant.points)} == {
        100
    }
    with pytest.raises(ConfigError, match="copies='twice': expected auto, once or each"):
        KernelFlowRegressor(copies="twice").fit(X, Y)


def test_equal_weights_are_none():
    alone = KernelFlowRegressor(**FAST).fit(X, Y).predict(X)
    weights = np.full(100, 2.0)
    np.testing.assert_array_equal(
        KernelFlowRegressor(**FAST).fit(X[COPIES], Y[COPIES], sample_weight=weights).predict(X), alone
    )


@pytest.mark.parametrize(("weight", "points"), [(2.0, 48), (np.r_[[2.0] * 99, 1.0], 80)])
def test_a_run_counts_copies_once_unless_their_weights_differ(tmp_path, weight, points):
    assert _run(tmp_path, _frame().assign(w=weight), "dataset.weights=w")["n_train"] == points


def _run(folder, frame, *words):
    frame.to_csv(folder / "table.csv", index=False)
    given = [f"dataset.path={folder / 'table.csv'}", "dataset.target=y", "optimizer.iterations=2", "figures=false"]
    assert (
        main(["run", "dataset=table", *given, "device.precision_check=off", f"hydra.run.dir={folder}/run", *words]) == 0
    )
    return json.loads((folder / "run" / "metrics.json").read_text())


def _frame(classes=False):
    frame = pd.DataFrame(X[COPIES], columns=list("abc"))
    return frame.assign(y=np.where(Y[COPIES, 0] > 0.3, "high", "low") if classes else Y[COPIES, 0])


@pytest.mark.parametrize(
    ("words", "classes", "points"),
    [((), False, 60), (("dataset.copies=each",), False, 100), ((), True, 60), (("dataset.copies=each",), True, 100)],
)
def test_a_run_counts_them_before_it_splits(tmp_path, words, classes, points):
    found = _run(tmp_path, _frame(classes), *words)
    assert found["n_train"] == points * 4 // 5


def test_copies_among_test_rows_stay(tmp_path):
    frame = _frame().assign(test=[False] * 50 + [True] * 10 + [False] * 30 + [True] * 10)
    found = _run(tmp_path, frame, "dataset.test=test", "evaluation.save_predictions=true")
    assert found["n_train"] == 50
    assert pd.read_csv(tmp_path / "run" / "predictions.csv")["point"].nunique() == 20
