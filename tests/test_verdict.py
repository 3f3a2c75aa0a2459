"""What a page says of a run in words, the simple predictors beside it, and the means over the seeds of a sweep."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

import kfx as package
from kfx.experiment.config import typed
from kfx.record.reading import typed_words
from kfx.record.search import runs_below
from kfx.record.verdict import discarded, verdict
from kfx.report import baselines, run_page
from kfx.report.compared import of_sweep
from kfx.report.typed import own_words

QUICK = ["optimizer.iterations=5", "figures=false", "device.precision_check=off"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run, once for all tests."""
    return package.run([*QUICK, f"hydra.run.dir='{tmp_path_factory.mktemp('verdict') / 'r'}'"], progress=False)


def having(run, metric, before, after, **more):
    """The run, as if its main metric had these values."""
    place = {"metric": metric, "n_interpolation": 342, "configured_regularization": 1e-4, "sd": 0.0, "repeats": 1}
    rows = [{"kernel": kernel, "mean": mean, **place} for kernel, mean in (("initial", before), ("trained", after))]
    return replace(run, metrics={**run.metrics, "evaluation": rows, "evaluation_change": [], **more})


def test_a_verdict_says_what_training_did(ran):
    assert verdict(having(ran, "mse", 3683.0, 2814.0)) == (
        "Training reduced the test mse from 3683.0 to 2814.0 (−24 %), on 100 test points."
    )
    assert verdict(having(ran, "mse", 2.0, 2.5)) == (
        "Training raised the test mse from 2.0000 to 2.5000 (+25 %), which is worse, on 100 test points."
    )
    assert verdict(having(ran, "mse", 2.0, 2.0)) == "Training left the test mse at 2.0000, on 100 test points."
    beside = [("the mean", 5900.0), ("a ridge regression", 2950.0)]
    assert verdict(having(ran, "mse", 3683.0, 2814.0), beside).endswith(
        "; the mean has 5900.0, a ridge regression 2950.0."
    )
    assert verdict(having(ran, "accuracy", 0.9, 0.8)).startswith(
        "Training lowered the test accuracy from 0.9000 to 0.8000, which is worse"
    )
    assert verdict(having(ran, "mse", 2.0, 1.0, status="failed")) == ""
    run = having(ran, "mse", 2.0, 1.0)
    run.metrics["evaluation"] += [{**row, "n_interpolation": 20, "mean": 3.0} for row in run.metrics["evaluation"]]
    assert verdict(run).startswith("Training reduced the test mse from 2.0000 to 1.0000 (−50 %), at N_I 342, on 100")


def test_a_verdict_says_that_training_was_discarded(ran):
    kept = {"initial_kept": 1, "one_length_kept": 0, "fits": 1, "kept": ["initial"]}
    run = having(ran, "mse", 2.0, 2.0, fall_back=kept)
    run.metrics["evaluation"].append({**run.metrics["evaluation"][0], "kernel": "rejected", "mean": 3.0})
    assert discarded(run.metrics) == [True]
    assert "was discarded" in verdict(run)
    assert "the test mse stays 2.0000, where training reached 3.0000" in verdict(run)


def test_a_verdict_says_in_how_many_folds_training_was_discarded(ran):
    said = "what training reached was kept in 1 of 5 folds"
    for initial, one in ((4, 0), (3, 1)):
        kept = {"initial_kept": initial, "one_length_kept": one, "fits": 5}
        assert f"which is worse, {said}, on" in verdict(having(ran, "mse", 2.0, 2.5, fall_back=kept))
        assert said in verdict(having(ran, "mse", 2.0, 2.0, fall_back=kept))
    for initial, one in ((0, 0), (5, 0), (0, 5)):
        kept = {"initial_kept": initial, "one_length_kept": one, "fits": 5}
        assert "what training reached was kept" not in verdict(having(ran, "mse", 2.0, 2.5, fall_back=kept))


def test_of_folds_each_is_discarded_or_not():
    kept = {"initial_kept": 1, "one_length_kept": 0, "fits": 3}
    assert discarded({"fall_back": {**kept, "kept": ["fitted", "initial", "fitted"]}}) == [False, True, False]
    assert discarded({"fall_back": kept}) == [False] * 3
    assert discarded({}) == [False]


def test_baselines_are_those_of_scikit_learn(ran):
    found = baselines.of_run(ran)
    assert (found.features, found.missing) == (10, "")
    table = pd.read_csv(ran.directory / "predictions.csv").query("kernel == 'trained'")
    mean, ridge = found.values["the mean of the training targets"], found.values["a ridge regression"]
    variance = np.var(table["target"])
    assert found.explained["a ridge regression"] == pytest.approx(1 - ridge / variance)
    assert found.explained["the mean of the training targets"] == pytest.approx(1 - mean / variance)
    assert ridge < 0.7 * mean
    (part,) = baselines._parts(ran, typed(ran.config))
    np.testing.assert_allclose(part.y_test[:, 0], table["target"])
    scaler = StandardScaler().fit(part.x_train)
    model = RidgeCV(np.logspace(-3, 5, 17)).fit(scaler.transform(part.x_train), part.y_train[:, 0])
    errors = model.predict(scaler.transform(part.x_test)) - part.y_test[:, 0]
    assert ridge == pytest.approx(np.mean(errors**2))
    assert mean == pytest.approx(np.mean((part.y_test - part.y_train.mean()) ** 2))


def test_a_page_says_why_it_has_no_baseline(in_folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "y"])
    frame.to_csv("own.csv", index=False)
    words = ["dataset=table", "dataset.path=own.csv", "dataset.target=y", "hydra.run.dir=r"]
    run = package.run([*words, *QUICK], progress=False)
    assert baselines.of_run(run).missing == ""
    assert baselines.of_run(run).features == 2
    frame.assign(y=0.5 + frame["a"]).to_csv("own.csv", index=False)
    assert "its data have changed: own.csv" in baselines.of_run(run).missing
    assert "Not computed: " in run_page.page([run.directory])
    place = run_page.view_beside_baselines(run).beside
    assert place.heads[-1] == "R²#"
    r2 = {row["kernel"]: row["mean"] for row in run.metrics["evaluation"] if row["metric"] == "r2"}
    assert [float(row[-1]) for row in place.rows] == pytest.approx([r2["initial"], r2["trained"]], abs=1e-4)
    (in_folder / "own.csv").unlink()
    assert "own.csv" in baselines.of_run(run).missing


def test_a_page_of_a_run_has_its_verdict_sizes_and_baselines(ran):
    text = re.sub(r"<[^>]+>", "\n", run_page.page([ran.directory]))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert verdict(ran, list(baselines.of_run(ran).values.items()), "342") in lines
    for name, value in (("training points", "342"), ("test points", "100"), ("features", "10")):
        assert lines[lines.index(name) + 1] == value
    (trained,) = [row for row in ran.metrics["evaluation"] if (row["kernel"], row["metric"]) == ("trained", "r2")]
    place = lines.index("the trained kernel")
    assert lines[place + 2 : place + 4] == ["342", f"{trained['mean']:.4f}"]


def test_a_page_says_that_baselines_have_more_points_than_the_kernel(tmp_path):
    words = [*QUICK, "evaluation.n_interpolation=[50]", f"hydra.run.dir='{tmp_path / 'r'}'"]
    run = package.run(words, progress=False)
    page = run_page.view_beside_baselines(run)
    assert page.verdict.endswith(", from all 342 training points.")
    place = page.beside.heads.index("from training points#")
    assert [row[place] for row in page.beside.rows] == ["342", "342", "50", "50"]
    folds = package.run([*QUICK, "evaluation=k_fold", f"hydra.run.dir='{tmp_path / 'folds'}'"], progress=False)
    assert baselines.of_run(folds).points == "273 to 274"


def test_a_sweep_has_the_means_of_kfx_compare(kfx, in_folder):
    words = ["optimizer=none,adam", "seed=0,1,2", "hydra.sweep.dir=s"]
    assert kfx("run", "-m", *words, *QUICK)[0] == 0
    assert kfx("compare", "s", "--by", "optimizer", "--markdown", "t.md")[0] == 0
    cells = [line.strip("| ").split(" | ") for line in (in_folder / "t.md").read_text().splitlines() if "|" in line]
    text = run_page.page([in_folder / "s"])
    part = text[text.index("Means over seeds") : text.index("<h2>Runs</h2>")]
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", part, re.DOTALL)]
    plain = [[cell.replace("**", "").replace("\\", "") for cell in row] for row in (cells[0], *cells[2:])]
    assert [[cell.removesuffix(" *") for cell in row] for row in rows] == plain
    marked = [any(cell.endswith(" *") for cell in row) for row in rows]
    assert marked == [any("**" in cell for cell in row) for row in (cells[0], *cells[2:])]
    assert "one-tailed t-test" in part


def test_a_sweep_without_seeds_has_no_means(kfx, in_folder):
    assert kfx("run", "-m", "optimizer=none,adam", *QUICK, "hydra.sweep.dir=s")[0] == 0
    assert "Means over seeds" not in run_page.page([in_folder / "s"])


def test_a_sweep_over_experiments_names_them_and_compares_rows_of_one_size_only(kfx, in_folder):
    first, second = "first_light/digits_flow", "first_light/digits_cnngp"
    words = ["--smoke", f"+experiment={first},{second}", "seed=0,1,2", "figures=false", "hydra.sweep.dir=s"]
    assert kfx("run", "-m", *words)[0] == 0
    runs = [package.load_run(found.directory) for found in runs_below(["s"])]
    typed = [typed_words(run.directory) for run in runs]
    shown = of_sweep([run.directory for run in runs], own_words(typed))
    place = [shown.heads.index(name) for name in ("n_interpolation", "experiment")]
    assert place == [0, 1]
    sizes = {run.metrics["evaluation"][0]["n_interpolation"] for run in runs}
    assert [row[:2] for row in shown.rows] == [["10", first], [str(max(sizes)), second]]
    assert len(sizes) == 2
    assert shown.heads[2] == "n#"
    assert [row[2] for row in shown.rows] == ["3", "3"]
    assert not shown.note
    assert not any(shown.marks)


def test_rows_of_a_sweep_are_compared_with_the_best_of_their_size(kfx, in_folder):
    words = ["optimizer=none,adam", "evaluation.n_interpolation=[20],[342]", "seed=0,1,2", "hydra.sweep.dir=s"]
    assert kfx("run", "-m", *words, *QUICK)[0] == 0
    found = [found.directory for found in runs_below(["s"])]
    shown = of_sweep(found, own_words([typed_words(directory) for directory in found]))
    size = shown.heads.index("n_interpolation")
    assert [row[size] for row in shown.rows] == ["20", "20", "342", "342"]
    assert shown.note.startswith("not significantly worse than the best of its N_I")
    assert [shown.marks[0], shown.marks[2]] == ["*", "*"]
