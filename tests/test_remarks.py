"""What a person is told of a fit: in the closing lines and the record of a run, and by an estimator."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes

from kfx import KernelFlowRegressor, load_run
from kfx.kernels import RBF, Sum
from kfx.numerics.formatting import spread
from kfx.outcomes import Event
from kfx.running import remarks
from tests.slow import slow_after


def mackey_glass(n, tau=17):
    """n values of the Mackey-Glass series, by Euler steps of 1."""
    values = [1.2] * (tau + 1)
    for _ in range(n + 500):
        values.append(0.9 * values[-1] + 0.2 * values[-1 - tau] / (1 + values[-1 - tau] ** 10))
    return np.array(values[-n:])


def embedded(n=360, lags=8):
    """A series to be predicted from its last values."""
    values = mackey_glass(n + lags)
    values = (values - values.mean()) / values.std()
    return np.stack([values[i : i + n] for i in range(lags)], axis=1), values[lags:]


def sines(n=360):
    x = np.random.default_rng(0).uniform(-3, 3, size=(n, 1))
    return x, np.sin(x[:, 0])


def standardized(shift=0.0):
    x, y = load_diabetes(return_X_y=True)
    return (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std() + shift


SEARCH = {"name": "bayesian", "iterations": 4, "initial_points": 4, "bounds": [0.05, 0.5]}
USUAL = {"objective": {"name": "rho"}, "regularization": {"value": 1e-4}, "sampler": {"batch_size": 100}}
CASES = {
    Event.OBJECTIVE_ROSE: (
        standardized(),
        {"kernel": {"sigma": 8.0}, "objective": {"name": "loo"}, "regularization": {"value": 0.1}, "optimizer": SEARCH},
    ),
    Event.NEARLY_IDENTITY: (standardized(), {"kernel": {"sigma": 3.0}}),
    Event.ERROR_ROSE: (embedded(), {"kernel": {"sigma": 1.0}}),
    Event.AT_BOUND: (
        standardized(),
        {"kernel": {"sigma": 9.0}, "optimizer": {"name": "grid", "bounds": [5.0, 9.0], "points": 5, "iterations": 20}},
    ),
    Event.REGULARIZATION_AT_BOUND: (
        sines(),
        {
            "kernel": {"sigma": 0.1},
            "objective": {"name": "nll"},
            "regularization": {"selection": "trained", "value": 1e-8},
            "optimizer": {"name": "adam", "learning_rate": 0.5, "iterations": 40},
        },
    ),
    Event.MEAN_DOMINATES: (standardized(5.0), {"kernel": {"sigma": 5.0}}),
}
SPEC = [(event, data, {**USUAL, **settings}) for event, (data, settings) in CASES.items()]


def written(x, y, path):
    pd.DataFrame(x, columns=[f"f{i}" for i in range(x.shape[1])]).assign(y=y).to_csv(path, index=False)


def words(settings):
    """The same settings as words of a run."""
    found = []
    for group, values in settings.items():
        for key, value in values.items():
            if isinstance(value, dict):
                found += [f"{group}.{key}.{name}={ends}" for name, ends in value.items()]
            else:
                found.append(f"{group}={value}" if key == "name" else f"{group}.{key}={value}")
    return found


@pytest.mark.parametrize(("event", "data", "settings"), SPEC, ids=list(CASES))
def test_each_remark_comes_where_it_should(kfx, in_folder, event, data, settings):
    (x, y), train = data, slice(0, 300)
    written(x[train], y[train], "one.csv")
    written(x[300:], y[300:], "two.csv")
    files = ["dataset=table", "dataset.path=one.csv", "dataset.test=two.csv", "dataset.target=y"]
    files += ["dataset.preprocess=[]", "dataset.targets=as_given"]
    code, out, err = kfx("run", *files, *words(settings), "figures=false", "hydra.run.dir=r")
    assert code == 0, err
    notes = [line.partition(" ")[2].strip() for line in out.splitlines() if line.startswith("note ")]
    told = [note for note in notes if note.endswith(f": {event.advice}")]
    assert len(told) == 1, out
    assert told[0] in load_run("r").metrics["remarks"]
    assert f",{event}," in (in_folder / "r/history.csv").read_text()
    regressor = KernelFlowRegressor(**settings, scale=None, targets="as_given").fit(x[train], y[train])
    of_estimator = [text for text in regressor.remarks_ if text.endswith(f": {event.advice}")]
    assert len(of_estimator) == 1, regressor.remarks_
    assert of_estimator == told or event is Event.ERROR_ROSE, "its errors are of other points"


@pytest.mark.parametrize("optimizer", slow_after(1, ["adam", "none"]))
def test_no_remark_comes_where_nothing_is_wrong(kfx, in_folder, optimizer):
    x, y = standardized()
    settings = {"kernel": {"sigma": 8.0}, "objective": {"name": "loo"}, "regularization": {"value": 0.1}}
    written(x[:300], y[:300], "one.csv")
    written(x[300:], y[300:], "two.csv")
    files = ["dataset=table", "dataset.path=one.csv", "dataset.test=two.csv", "dataset.target=y"]
    code, out, _ = kfx("run", *files, *words(settings), f"optimizer={optimizer}", "figures=false", "hydra.run.dir=r")
    assert code == 0
    assert "note" not in out
    assert KernelFlowRegressor(**settings, optimizer=optimizer).fit(x[:300], y[:300]).remarks_ == []


@pytest.mark.parametrize("metric", ["mse", "accuracy"])
@pytest.mark.parametrize(
    ("worse", "error", "is_told"),
    [
        (0.01, 0.009, True),
        (0.01, 0.011, False),
        (0.0001, 0.00001, True),
        (-0.01, 0.001, False),
        (0.01, float("nan"), True),
        (1e-9, 1e-10, False),  # it reads the same
        *((1 / n, 1 / n, False) for n in (11, 60, 61, 97, 199)),  # one test point that is lost
    ],
)
@pytest.mark.parametrize("objective", [-1.0, 1.0, None])
def test_any_worsening_beyond_its_error_is_told(metric, worse, error, is_told, objective):
    mean = {"mean": objective}
    held_out = {"objective": dict.fromkeys(("initial", "trained", "change"), mean)}
    told = []
    notes = SimpleNamespace(
        metrics={} if objective is None else {"held_out": held_out}, remark=lambda *a: told.append(a)
    )
    context = SimpleNamespace(notes=notes, config=SimpleNamespace(objective=SimpleNamespace(name="loo")))
    remarks.of_errors(context, metric, 0.5, 0.5 + (worse if metric == "mse" else -worse), error, "on test points")
    assert [event for event, _ in told] == [Event.ERROR_ROSE] * is_told
    assert all(("while loo fell" in text) == (objective == -1.0) for _, text in told)


def test_each_preparation_is_told_with_its_folds_and_their_mean_loss():
    def prepared(how, loss):
        return SimpleNamespace(how=how, usual="normalize", losses={how: loss, "normalize": 0.5}, document=dict)

    folds = [prepared("log", -0.1), prepared("log", -0.3), prepared("quantile", 0.1), prepared("normalize", 0.5)]
    told = []
    remarks.of_preparations(SimpleNamespace(metrics={}, remark=lambda *a: told.append(a)), folds)
    ((event, text),) = told
    assert event == Event.TRANSFORMED
    assert text.startswith("log in 2 of 4 folds, quantile in 1 of 4 folds (mean loss -0.1000, without 0.5000)")


def test_ends_of_ranges_are_told_of_folds_whose_kernels_have_different_parameters():
    told = []
    search = SimpleNamespace(
        moves_points=False, searched=lambda kernel: [(0.5, 2.0 if name == "sigma" else 9.0) for name in kernel.names]
    )
    config = SimpleNamespace(optimizer=search, kernel=None, outputs=SimpleNamespace(unit="fold"))
    notes = SimpleNamespace(trace=None, remark=lambda *a: told.append(a))
    pairs = [(RBF(1.0), RBF(2.0)), (RBF(1.0), Sum([RBF(2.0), RBF(9.0)])), (RBF(1.0), RBF(1.5))]
    remarks._of_bounds(SimpleNamespace(notes=notes, config=config), pairs)
    assert [text.partition(":")[0] for _, text in told] == [
        f"{name} ended at {end}, an end of its range in 1 of 3 folds" for name, end in (("sigma", 2), ("1.sigma", 9))
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["dataset=table", "dataset.path=t.csv", "dataset.target=y"],
        ["dataset=table", "dataset.path=t.csv", "dataset.target=c"],
        ["dataset=table", "dataset.path=t.csv", "dataset.target=[y,z]"],
        [
            "dataset=table",
            "dataset.path=t.csv",
            "dataset.target=y",
            "evaluation.repeats=3",
            "evaluation.n_interpolation=[30]",
        ],
    ],
    ids=["values", "classes", "outputs", "repeats"],
)
def test_the_error_of_a_worsening_is_that_of_paired_points_or_repeats(kfx, in_folder, words):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "e"]).assign(y=np.sin(2 * x[:, 0]), z=x[:, 1] ** 2)
    targets = {
        name: name
        for word in words
        for name in ("y", "z", "c")
        if word.startswith("dataset.target=") and name in word[15:]
    }
    frame = frame.assign(c=np.where(frame["y"] + frame["z"] > 1, "u", "v"))[["a", "b", "e", *targets]]
    frame.to_csv("t.csv", index=False)
    spoil = ["optimizer.learning_rate=6", "optimizer.iterations=3", "optimizer.fall_back=false", "kernel.ard=false"]
    assert kfx("run", *words, *spoil, "hydra.run.dir=r")[0] == 0
    run, table = load_run("r"), pd.read_csv("r/predictions.csv")
    metric = "accuracy" if "class" in table else "mse"
    if "repeats" in " ".join(words):
        pairs = run.evaluation.query("metric == 'mse'").pivot_table(index="repeat", columns="kernel", values="value")
        differences = (pairs["trained"] - pairs["initial"]).to_numpy()
    else:
        initial, trained = (table[table["kernel"] == name] for name in ("initial", "trained"))
        if metric == "accuracy":
            losses = [(each["class"] != each["prediction"]).to_numpy(dtype=float) for each in (initial, trained)]
        else:
            losses = [
                np.square(each.filter(like="prediction").to_numpy() - each.filter(like="target").to_numpy()).mean(
                    axis=1
                )
                for each in (initial, trained)
            ]
        differences = losses[1] - losses[0]
    mean, error = differences.mean(), differences.std(ddof=1) / len(differences) ** 0.5
    noted = [text for text in run.metrics["remarks"] if text.startswith(f"{metric} on test points got worse")]
    assert mean > error, "the case shows its point"
    assert spread(mean, error) in noted[0]


def test_a_grid_within_its_bounds_has_no_remark():
    grid = {"name": "grid", "bounds": [0.1, 10.0], "space": "log", "points": 9, "iterations": 45}
    x, y = sines()
    y = y + 0.2 * np.random.default_rng(1).normal(size=len(y))
    regressor = KernelFlowRegressor({"sigma": 0.2}, optimizer=grid, objective="loo", regularization=0.1).fit(x, y)
    assert 0.1 < regressor.kernel_.parameters["sigma"] < 10.0
    assert regressor.remarks_ == []
