"""Errors on the way of a fit that moves no points."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from kfx import load_run
from kfx.evaluation.follower import _statistics

SMALL = ["dataset=digits", "dataset.n_train=120", "dataset.n_test=60", "sampler.batch_size=30", "figures=false"]
SMALL += [
    "optimizer.iterations=6",
    "evaluation.n_interpolation=[10,40]",
    "device.precision_check=off",
    "hydra.run.dir=r",
]


def test_folds_whose_sizes_differ_by_a_point_make_one_mean(kfx, in_folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    pd.DataFrame(x, columns=["a", "b"]).assign(y=np.sin(x[:, 0]) + x[:, 1]).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "evaluation=k_fold", "evaluation.folds=3"]
    more = ["optimizer.iterations=4", "follow.every=2", "follow.last=1", "follow.windows=[[2,4]]", "figures=false"]
    code, _, err = kfx("run", *words, *more, "hydra.run.dir=r")
    assert code == 0, err
    run, table = load_run("r"), pd.read_csv("r/follow.csv")
    assert table["n_interpolation"].dropna().nunique() == 2, "26 points or 27"
    last = table[(table["iteration"] == 4) & (table["metric"] == "mse")]
    (row,) = [row for row in run.metrics["last_iterations"] if row["metric"] == "mse"]
    assert row["mean"] == pytest.approx(last["value"].mean())
    assert len([row for row in run.metrics["windows"] if row["metric"] == "mse"]) == 1


def test_errors_come_every_so_often_and_at_the_end(kfx):
    code, _, err = kfx("run", *SMALL, "optimizer=adam", "kernel.sigma=30", "follow.every=4", "follow.repeats=3")
    assert code == 0, err
    table, run = pd.read_csv("r/follow.csv"), load_run("r")
    assert list(table) == ["part", "iteration", "n_interpolation", "regularization", "repeat", "metric", "value"]
    assert sorted(set(table["iteration"])) == [0, 4, 6]
    expected = {"error", "squared_error", "rho", "interpolation_error"}
    assert set(table["metric"]) == expected, "points do not move, so their distances are not measured"
    assert len(table) == 3 * (2 * 3 * 2 + 2)
    assert table[table["metric"] == "rho"]["value"].between(0, 1).all()
    table = table[table["metric"] == "error"]
    last = run.metrics["last_iterations"]
    assert {row["n_interpolation"] for row in last} == {10, 40}
    ends = table[(table["iteration"] == 6) & (table["n_interpolation"] == 40)]["value"]
    assert last[-1]["mean"] == pytest.approx(ends.mean())


@pytest.mark.slow
def test_subsets_are_the_same_or_new_each_time(kfx):
    errors = {}
    for draw in ("once", "anew"):
        words = ["optimizer=none", f"follow.draw={draw}", "follow.every=1", f"hydra.run.dir={draw}"]
        assert kfx("run", *SMALL[:-1], *words)[0] == 0
        table = pd.read_csv(f"{draw}/follow.csv")
        errors[draw] = table[(table["n_interpolation"] == 10) & (table["metric"] == "error")]["value"].nunique()
    assert errors["once"] == 1
    assert errors["anew"] > 2


@pytest.mark.parametrize("optimizer", ["bayesian", "grid", "finite_difference"])
def test_a_search_is_followed_by_the_kernel_that_it_would_end_with(kfx, optimizer):
    quick = {"bayesian": ["optimizer.initial_points=3"], "grid": ["optimizer.points=3", "optimizer.space=log"]}
    words = [f"optimizer={optimizer}", "follow.every=2", *quick.get(optimizer, [])]
    code, _, err = kfx("run", *SMALL, "kernel.sigma=30", *words)
    assert code == 0, err
    table, run = pd.read_csv("r/follow.csv"), load_run("r")
    assert {0, run.trace["iteration"].max() + 1} <= set(table["iteration"])
    finals = run.evaluation[(run.evaluation["metric"] == "accuracy") & (run.evaluation["kernel"] == "initial")]
    assert finals["value"].between(0, 1).all()


def test_folds_are_followed_each(kfx):
    words = ["dataset.n_test=0", "evaluation=k_fold", "evaluation.folds=2", "optimizer=adam", "follow.every=3"]
    assert kfx("run", *SMALL, *words)[0] == 0
    table = pd.read_csv("r/follow.csv")
    assert sorted(set(zip(table["part"], table["iteration"], strict=True))) == [
        (p, i) for p in (0, 1) for i in (0, 3, 6)
    ]


@pytest.mark.slow
def test_losses_are_drawn_against_the_number_of_points(kfx):
    for objective in ("rho", "loo"):
        assert (
            kfx("run", *SMALL[:-1], "optimizer=adam", f"objective={objective}", f"hydra.run.dir=s/{objective}")[0] == 0
        )
    code, out, err = kfx("compare", "s", "--by", "objective", "--curve", "curve.png")
    assert code == 0, err
    assert "curve.png" in out
    from pathlib import Path

    from kfx.record.comparison import over_sizes, read

    found = over_sizes(read([Path("s")])[0], ["objective"], "accuracy", "trained", False)
    assert sorted(zip(found["objective"], found["n_interpolation"], strict=True)) == [
        *(("loo", 10), ("loo", 40), ("rho", 10), ("rho", 40)),
    ]
    code, _, err = kfx("compare", "s", "--by", "objective", "--curve", "curve.what")
    assert (code, "--curve curve.what" in err) == (2, True)


def test_windows_have_the_statistics_of_what_was_evaluated_within(kfx):
    words = ["optimizer=none", "optimizer.iterations=6", "follow.every=2", "follow.draw=anew"]
    assert kfx("run", *SMALL, *words, "follow.windows=[[1,4],[5,6]]")[0] == 0
    table, rows = pd.read_csv("r/follow.csv"), load_run("r").metrics["windows"]
    table = table[table["metric"] == "error"]
    within = table[table["iteration"].isin([2, 4]) & (table["n_interpolation"] == 10)]["value"]
    first = next(row for row in rows if row["window"] == [1, 4] and row["n_interpolation"] == 10)
    assert first["iterations"] == 2
    assert [first["min"], first["max"]] == pytest.approx([within.min(), within.max()], rel=1e-14)
    assert first["sd"] == pytest.approx(within.std())
    assert {row["iterations"] for row in rows if row["window"] == [5, 6]} == {1}


def test_a_failed_evaluation_leaves_no_mean():
    rows = pd.DataFrame({"metric": "error", "n_interpolation": 10, "regularization": 0.1, "layer": [2, 2, 3, 3]})
    (found,) = _statistics(rows.assign(value=[0.1, 0.3, np.nan, 0.5]), "layer")
    assert found["layers"] == 2
    assert all(math.isnan(found[name]) for name in ("mean", "min", "max", "sd"))
    (found,) = _statistics(rows.assign(value=[0.1, 0.3, 0.4, 0.6]), "layer")
    assert [found["mean"], found["sd"]] == pytest.approx([0.35, 0.3 / 2**0.5])


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ("[[3,2]]", "follow.windows=[[3, 2]]: expected a list of [first, last], whole numbers with 1 <= first <= last"),
        ("[4]", "follow.windows=[4]: expected a list of [first, last]"),
        ("[[1.5,3]]", "follow.windows=[[1.5, 3]]: expected a list of [first, last]"),
        (
            "[[5,5]]",
            "none of the 6 iterations from 5 to 5 is evaluated; set follow.every to at most the window's length",
        ),
        ("[[7,9]]", "none of the 6 iterations from 7 to 9 is evaluated"),
    ],
)
def test_a_window_without_an_evaluation_is_refused(kfx, windows, said):
    code, _, err = kfx(
        "run", *SMALL, "optimizer=adam", "kernel.sigma=30", "follow.every=2", f"follow.windows={windows}"
    )
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
