"""Predictions of a recorded run for new rows: they are those of its evaluation, and what cannot be read is named."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kfx import load_run
from kfx.estimators import recorded
from kfx.evaluation import kept_factor
from kfx.experiment.compose import load
from kfx.files import read_rows
from kfx.numerics.linear_algebra import Factored
from kfx.outcomes import ChangedError, DataError

FIT = ("kernel.initial=mean_squared_distance", "sampler.batch_size=40", "optimizer.iterations=5")
TABLE = ("dataset=table", "dataset.path=train.csv", "dataset.categorical=[city,code]", "dataset.missing=mean")


def people(n=120, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "city": rng.choice(["Rome", "Paris", "Oslo"], n),
            "code": rng.choice([1, 2, 10], n),
            "size": rng.normal(size=n).round(3),
        }
    )
    frame["price"] = 0.1 * frame["age"] + 2 * (frame["city"] == "Rome") + np.sin(frame["size"])
    frame["kind"] = np.where(frame["price"] > frame["price"].median(), "dear", "cheap")
    frame.loc[frame.index[3], "size"] = np.nan
    return frame


@pytest.fixture
def files(in_folder):
    people().to_csv("train.csv", index=False)
    new = people(30, seed=1)
    new.to_csv("new.csv", index=False)
    return new


def predicted(kfx, *words):
    code, out, err = kfx("predict", *words)
    assert code == 0, err
    return pd.read_csv(io.StringIO(out)), err


@pytest.mark.parametrize(
    "words",
    [
        ("dataset.preprocess=[normalize]", "evaluation.n_interpolation=[30,60]", "evaluation.repeats=2"),
        ("dataset.preprocess=[zca]", "regularization.selection=validation", "dataset.targets=centered"),
        ("dataset.targets=standardized", "evaluation.posterior_variance=true", "evaluation.train_error=true"),
        ("optimizer=flow_euler", "flow.record_layers=true", "device.dtype=float32"),
        ("evaluation.clip=[3,8]", "objective=nll", "regularization.selection=trained"),
    ],
)
def test_predictions_for_the_test_rows_have_the_recorded_error(kfx, files, words):
    assert kfx("run", *TABLE, "dataset.target=price", "dataset.exclude=[kind]", "dataset.test=new.csv", *FIT, *words,
               "hydra.run.dir=r")[0] == 0  # fmt: skip
    found, _ = predicted(kfx, "r", "new.csv")
    assert list(found) == ["row", "prediction", "deviation"]
    assert list(found["row"]) == list(range(1, 31))
    table = load_run("r").evaluation.query("kernel == 'trained' and metric == 'mse' and repeat == 0")
    recorded = table.loc[table["n_interpolation"].idxmax(), "value"]
    assert ((found["prediction"] - files["price"]) ** 2).mean() == pytest.approx(recorded, rel=1e-6)
    assert (found["deviation"] > 0).all()


def test_a_prediction_says_which_of_several_lambda_it_takes(kfx, files):
    words = (*TABLE, "dataset.target=price", "dataset.exclude=[kind]", *FIT, "hydra.run.dir=r")
    assert kfx("run", *words, "evaluation.regularization.value=[1e-6,1.0]")[0] == 0
    assert "predictions take the first of several lambda that it evaluated, 1e-06" in predicted(kfx, "r", "new.csv")[1]


def test_classes_are_predicted_as_they_came(kfx, files):
    words = (*TABLE, "dataset.target=kind", "dataset.exclude=[price]", "dataset.test=new.csv", *FIT)
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    found, _ = predicted(kfx, "r", "new.csv")
    assert list(found) == ["row", "prediction", "probability.cheap", "probability.dear"]
    run = load_run("r")
    recorded = run.evaluation.query("kernel == 'trained' and metric == 'accuracy'")["value"].item()
    assert (found["prediction"] == files["kind"]).mean() == pytest.approx(recorded)
    estimator = run.estimator()
    again = pickle.loads(pickle.dumps(estimator))
    points = np.random.default_rng(0).normal(size=(5, estimator.n_features_in_))
    np.testing.assert_array_equal(again.predict(points), estimator.predict(points))
    assert set(estimator.classes_) == {"cheap", "dear"}


def test_probabilities_are_those_of_the_record_also_with_clipped_scores(kfx, files):
    words = (*TABLE, "dataset.target=kind", "dataset.exclude=[price]", "dataset.test=new.csv", *FIT)
    assert kfx("run", *words, "evaluation.clip=[0.4,0.6]", "hydra.run.dir=r")[0] == 0
    found, _ = predicted(kfx, "r", "new.csv")
    recorded = read_rows(Path("r/predictions.csv")).query("kernel == 'trained'")
    expected = recorded.filter(regex="^probability").to_numpy()
    np.testing.assert_allclose(found.filter(regex="^probability").to_numpy(), expected, rtol=1e-6)


@pytest.mark.slow
def test_a_frame_is_predicted_as_the_file(kfx, files):
    words = (*TABLE, "dataset.target=[price,size]", "dataset.exclude=[kind]", "dataset.missing=drop", *FIT)
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    found, _ = predicted(kfx, "r", "new.csv")
    assert list(found) == ["row", "prediction.price", "deviation.price", "prediction.size", "deviation.size"]
    frame = files.assign(code=files["code"].astype(float)).set_index(files.index + 100)
    ours = load_run("r").predict(frame)
    assert list(ours.index) == list(frame.index)
    np.testing.assert_allclose(ours.to_numpy(), found[ours.columns].to_numpy(), rtol=1e-9)
    with pytest.warns(UserWarning, match="column city holds 'Bonn', which no training row has"):
        assert len(load_run("r").predict(frame.assign(city=["Rome", "Bonn"] * 15))) == 30


def test_rows_that_cannot_be_read_are_named_and_the_rest_is_written(kfx, files):
    assert kfx("run", *TABLE, "dataset.target=price", "dataset.exclude=[kind]", *FIT, "hydra.run.dir=r")[0] == 0
    rows = ["age,city,code,size", "30,Rome,1.0,0.5", "old,Rome,1,0.5", "30,Bonn,1,0.5", "30,Rome,1", "40,Oslo,10,NA"]
    with open("some.csv", "w") as stream:
        stream.write("\n".join(rows) + "\n")
    found, err = predicted(kfx, "r", "some.csv")
    assert list(found["row"]) == [1, 3, 5]
    for said in ("row 2 is left out: column age holds 'old', which is no number",
                 "row 3: column city holds 'Bonn', which no training row has; it counts as none",
                 "row 4 is left out: its line has 3 fields, the first line 4"):  # fmt: skip
        assert said in err
    code, _, err = kfx("predict", "r", "some.csv", "--strict", "--output", "out/p.csv")
    assert code == 2
    assert "some.csv: row 2: column age" in err
    assert kfx("predict", "r", "some.csv", "--output", "out/p.csv")[0] == 0
    assert len(pd.read_csv("out/p.csv")) == 3
    with open("other.csv", "w") as stream:
        stream.write("age,city\n30,Rome\n")
    assert (
        "expected each feature of the run once among its columns; look at code, size"
        in kfx("predict", "r", "other.csv")[2]
    )
    assert "nowhere.csv: is not there" in kfx("predict", "r", "nowhere.csv")[2]
    people(60).to_csv("train.csv", index=False)
    code, _, err = kfx("predict", "r", "some.csv")
    assert code == ChangedError("").exit_code
    assert "its data have changed: train.csv (SHA-256" in err


def test_the_training_table_is_encoded_as_it_was_read(in_folder):
    pytest.importorskip("pyarrow")
    frame = people()
    for path, suffix in (("t.csv", "csv"), ("t.parquet", "parquet")):
        frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
        words = [w.replace("train.csv", path) for w in TABLE]
        option = load([*words, "dataset.target=price", "dataset.exclude=[kind]", "sampler.batch_size=10"]).dataset
        encoding = option.read().encoding
        (chunk,) = encoding.chunks(option.file(), 1000)
        assert not chunk.problems
        np.testing.assert_array_equal(chunk.x, option.read().x)
        mixed = "t.csv" if suffix == "parquet" else "t.parquet"
        frame.to_csv(mixed, index=False) if mixed.endswith("csv") else frame.to_parquet(mixed)
        (other,) = encoding.chunks(in_folder / mixed, 1000)
        assert [len(part.x) for part in encoding.chunks(in_folder / mixed, 50)] == [50, 50, 20]
        np.testing.assert_array_equal(other.x, chunk.x)


@pytest.mark.slow
def test_points_of_arrays_and_of_built_in_data(kfx, in_folder):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), np.tile([3, 7], 30)
    np.savez("a.npz", x=x + y[:, None], y=y)
    np.savez("new.npz", x=x[:4] + 7)
    assert kfx("run", "dataset=arrays", "dataset.path=a.npz", *FIT, "hydra.run.dir=r")[0] == 0
    assert list(predicted(kfx, "r", "new.npz")[0]["prediction"]) == [7] * 4
    np.savez("roll.npz", x=rng.normal(size=(4, 2)))
    assert kfx("run", "dataset=swiss_roll", "dataset.n_train=60", *FIT, "hydra.run.dir=s")[0] == 0
    run = load_run("s")
    recorded = run.evaluation.query("kernel == 'trained' and metric == 'accuracy'")["value"].item()
    assert set(predicted(kfx, "s", "roll.npz")[0]["prediction"]) <= {0, 1}
    data = run._model.data
    assert (run.predict(data.x_test)["prediction"] == data.labels_test).mean() == pytest.approx(recorded)
    code, _, err = kfx("predict", "s", "new.npz")
    assert code == 2
    assert "new.npz: the points have the shape (3,); expected (2,)" in err
    wrong = {"row 1: holds what is no finite number": [[np.nan, 0.0]], "could not convert": [["a", "b"]]}
    for said, points in wrong.items():
        with pytest.raises(DataError, match=said):
            run.predict(np.array(points, dtype=object))
    assert run.predict(np.zeros((0, 2))).empty


def test_images_pass_through_the_estimator(kfx, in_folder):
    rng = np.random.default_rng(0)
    np.savez("i.npz", x=rng.normal(size=(40, 1, 8, 8)), y=np.tile([0, 1], 20))
    words = ("dataset=arrays", "dataset.path=i.npz", "dataset.task=classification", "kernel=cnngp", *FIT[1:])
    assert kfx("run", *words, "sampler.batch_size=16", "hydra.run.dir=r")[0] == 0
    run, x = load_run("r"), rng.normal(size=(3, 1, 8, 8))
    assert list(run.estimator().predict(x)) == list(run.predict(x)["prediction"])


@pytest.mark.slow
def test_true_and_false_are_features_and_signs_are_classes(kfx, in_folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "flag": rng.random(60) < 0.5})
    frame["sign"] = np.where(frame["a"] + frame["flag"] > 0.5, 1, -1)
    frame.to_csv("t.csv", index=False)
    words = ("dataset=table", "dataset.path=t.csv", "dataset.target=sign", "dataset.test=t2.csv", *FIT)
    frame.to_csv("t2.csv", index=False)
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    recorded = run.evaluation.query("kernel == 'trained' and metric == 'accuracy'")["value"].item()
    assert (predicted(kfx, "r", "t2.csv")[0]["prediction"] == frame["sign"]).mean() == pytest.approx(recorded)
    assert (run.predict(frame)["prediction"] == frame["sign"]).mean() == pytest.approx(recorded)
    frame.set_index("a").to_parquet("t.parquet")
    assert (predicted(kfx, "r", "t.parquet")[0]["prediction"] == frame["sign"]).mean() == pytest.approx(recorded)
    with pytest.raises(DataError, match="column a holds datetime64"):
        run.predict(frame.assign(a=pd.Timestamp("2020-01-01")))
    for name, said in (("t.csv", "is the file of the rows"), ("t2.csv", "is the file of the rows")):
        code, _, err = kfx("predict", "r", "t2.csv", "--output", name)
        assert code == 2
        assert said in err
    assert len(pd.read_csv("t.csv")) == len(pd.read_csv("t2.csv")) == 60
    assert "holds no run" in kfx("predict", "nowhere", "t.csv")[2]
    assert "the run reads a table; expected .csv" in kfx("predict", "r", _points("p.npz"))[2]
    lines = ["a,flag", *["x,true"] * 700, "0.5,true"]
    with open("late.csv", "w") as stream:
        stream.write("\n".join(lines))
    found, err = predicted(kfx, "r", "late.csv")
    assert list(found["row"]) == [701]
    assert "680 more rows are left out" in err


def _points(path):
    np.savez(path, x=np.zeros((2, 2)))
    return path


def test_a_run_with_least_squares_does_not_predict(kfx, files):
    words = (*TABLE, "dataset.target=price", "dataset.exclude=[kind]", *FIT, "evaluation.solver=lstsq")
    assert kfx("run", *words, "evaluation.rcond=0.1", "hydra.run.dir=r")[0] == 0
    assert "predictions use Cholesky factors" in kfx("predict", "r", "new.csv")[2]


@pytest.mark.parametrize("optimizer", ["flow_euler", "hybrid"])
def test_new_rows_need_the_layers_of_a_flow(kfx, files, optimizer):
    words = (*TABLE, "dataset.target=price", "dataset.exclude=[kind]", *FIT, f"optimizer={optimizer}")
    code, _, err = kfx("run", *words, "optimizer.iterations=2", "hydra.run.dir=r")
    assert code == 0, err
    code, _, err = kfx("predict", "r", "new.csv")
    assert code == 2
    assert "flow.record_layers=false: no layers were recorded" in err.splitlines()[-1]
    words = (*words, "optimizer.iterations=2", "dataset.predict=new.csv", "hydra.run.dir=s")
    _, _, err = kfx("run", *words)
    assert "dataset.predict=new.csv: new rows need the layers of the flow; set flow.record_layers=true" in err
    code, _, err = kfx("run", *words, "flow.record_layers=true")
    assert code == 0, err
    found, _ = predicted(kfx, "s", "new.csv")
    pd.testing.assert_frame_equal(pd.read_csv("s/new_predictions.csv"), found)


@pytest.mark.slow
def test_a_run_predicts_the_rows_of_a_file_that_its_config_names(kfx, files):
    words = (*TABLE, "dataset.target=price", "dataset.exclude=[kind]", *FIT)
    code, _, err = kfx("run", *words, "dataset.predict=new.csv", "hydra.run.dir=r")
    assert code == 0, err
    found, _ = predicted(kfx, "r", "new.csv")
    pd.testing.assert_frame_equal(pd.read_csv("r/new_predictions.csv"), found)
    assert kfx("run", *words, "hydra.run.dir=s")[0] == 0
    assert load_run("r").metrics["identity"] == load_run("s").metrics["identity"], "the file does not change the run"
    code, _, err = kfx("run", "-m", *words, "dataset.predict=new.csv", "seed=0,1", "hydra.sweep.dir=m")
    assert code == 0, err
    assert Path("m/1/new_predictions.csv").read_text() != Path("m/0/new_predictions.csv").read_text()
    code, _, err = kfx("run", *words, "dataset.predict=nowhere.csv", "hydra.run.dir=t")
    assert code == 2
    assert "dataset.predict=nowhere.csv: is not there; expected a file with new rows" in err


@pytest.fixture
def solved(kfx, files, monkeypatch):
    """A run whose factor is kept in several panels, and the predictions of a record without a solution."""
    monkeypatch.setattr(kept_factor, "FEWEST", 50)
    monkeypatch.setattr(kept_factor, "_ROWS", 32)
    words = ("dataset.target=price", "dataset.exclude=[kind]", "evaluation.n_interpolation=[30,90]", *FIT)
    assert kfx("run", *TABLE, *words, "evaluation.repeats=2", "hydra.run.dir=r")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(recorded, "recorded_exact", lambda *_: None)
        return predicted(kfx, "r", "new.csv")[0]


def test_a_prediction_from_the_kept_solution_solves_nothing_and_is_that_of_solving_again(kfx, solved, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Factored, "factor", None)  # a call would fail
        found, err = predicted(kfx, "r", "new.csv")
    assert "again" not in err
    np.testing.assert_array_equal(found["prediction"], solved["prediction"])
    np.testing.assert_allclose(found["deviation"], solved["deviation"], rtol=1e-9)
    estimator = pickle.loads(pickle.dumps(load_run("r").estimator()))  # elsewhere, without the file
    points = np.random.default_rng(0).normal(size=(1, estimator.n_features_in_))
    ours = load_run("r").estimator().predict(points, return_std=True)
    np.testing.assert_allclose(estimator.predict(points, return_std=True), ours, rtol=1e-9)


def test_a_factor_that_is_deleted_is_computed_again_and_one_that_is_damaged_is_refused(kfx, solved):
    factor = Path("r/factor.bin")
    whole = bytearray(factor.read_bytes())
    whole[-5] ^= 1
    factor.write_bytes(whole)
    code, _, err = kfx("predict", "r", "new.csv")
    assert code == 3
    assert "factor.bin: is damaged" in err
    assert "delete it, to solve again" in err
    factor.unlink()
    found, err = predicted(kfx, "r", "new.csv")
    assert "factor.bin: is gone; solving again for deviations" in err
    pd.testing.assert_frame_equal(found, solved, rtol=0, atol=0)


def test_the_solution_is_one_of_the_results_that_a_record_seals(kfx, solved):
    with np.load("r/solution.npz") as stored:
        arrays = dict(stored)
    np.savez("r/solution.npz", **arrays | {"alpha": 2 * arrays["alpha"]})
    code, _, err = kfx("predict", "r", "new.csv")
    assert code == 3
    assert "solution.npz: is damaged, or has changed" in err


def test_the_factor_of_few_points_is_not_kept(kfx, files):
    assert kfx("run", *TABLE, "dataset.target=price", "dataset.exclude=[kind]", *FIT, "hydra.run.dir=r")[0] == 0
    assert Path("r/solution.npz").stat().st_size < 10_000
    assert not Path("r/factor.bin").exists()


@pytest.mark.filterwarnings("ignore")
def test_new_dates_whose_days_and_months_are_exchanged_are_refused(kfx, in_folder):
    rng, days = np.random.default_rng(1), pd.date_range("2021-01-01", periods=60, freq="3D")
    frame = pd.DataFrame({"day": days.strftime("%d/%m/%Y"), "size": rng.standard_normal(60)})
    frame["y"] = np.arange(60) / 10 + frame["size"]
    frame.to_csv("t.csv", index=False)
    words = ("dataset=table", "dataset.path=t.csv", "dataset.target=y", "optimizer=none", "figures=false")
    code, _, err = kfx("run", *words, "hydra.run.dir=r")
    assert code == 0, err
    frame.assign(day=days.strftime("%m/%d/%Y")).to_csv("new.csv", index=False)
    code, out, err = kfx("predict", "r", "new.csv")
    assert (code, out) == (2, "")
    assert "column day: all its dates are written as %m/%d/%Y, those of the training rows as %d/%m/%Y" in err
    frame.assign(day=[*days.strftime("%d/%m/%Y")[:-1], "never"]).to_csv("new.csv", index=False)
    code, out, err = kfx("predict", "r", "new.csv")
    assert len(out.splitlines()) == 60, err
    assert "holds 'never', which is no date as in the training rows" in err
