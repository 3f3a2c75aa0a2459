"""Kernel Flows as scikit-learn estimators."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from kfx import KernelFlowClassifier, KernelFlowForecaster, KernelFlowRegressor, KernelFlowTransformer, load_run
from kfx.config import registry
from kfx.experiment.compose import load
from kfx.kernels import CNNGP, RBF, Conv2d, Matern, ReLU, Sequential
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.outcomes import ConfigError, DataError
from tests.plugins import BLOCKS
from tests.slow import slow_after

FEW = {"iterations": 5}


REPEATED = "weights count relative to their mean; repeated rows change batches and what is left out for lambda"
OF_FLOWS = "flows take no weights"


def known_failures(estimator):
    """Checks of scikit-learn that do not hold, with the reason."""
    if "flow_euler" in repr(estimator.optimizer):
        names = "check_sample_weight_equivalence_on_dense_data", "check_sample_weights_not_overwritten"
        return dict.fromkeys(names, OF_FLOWS)
    return {"check_sample_weight_equivalence_on_dense_data": REPEATED}


@parametrize_with_checks(
    [
        KernelFlowRegressor(optimizer=FEW),
        KernelFlowClassifier(optimizer=FEW),
        KernelFlowTransformer(optimizer=FEW),
        KernelFlowRegressor(optimizer={"name": "flow_euler", **FEW}),
    ],
    expected_failed_checks=known_failures,
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def test_settings_that_an_estimator_does_not_have_are_refused():
    assert not any(name.startswith("outputs") for name in KernelFlowTransformer().get_params())
    with pytest.raises(ValueError, match="outputs"):
        KernelFlowTransformer().set_params(outputs__kernels="separate")


# ---- the same as a run


@pytest.fixture
def halves(in_folder):
    """Diabetes patients in two files."""
    frame = load_diabetes(as_frame=True).frame
    frame[:300].to_csv("one.csv", index=False)
    frame[300:].to_csv("two.csv", index=False)
    return frame[:300], frame[300:]


def are_equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


SETTINGS = {
    "a length for each feature": ([], {}),
    "adam": (["kernel.sigma=0.5"], {"kernel": {"sigma": 0.5}}),
    "a sum": (
        ["kernel=sum", "kernel.parts=[{name: rbf,sigma: 2.0},{name: matern,nu: 2.5}]"],
        {"kernel": RBF(2.0) + Matern(nu=2.5), "scale": ["normalize"]},
    ),
    "validation": (["regularization.selection=validation"], {"regularization": "validation"}),
    "likelihood": (
        ["objective=nll", "regularization.selection=trained", "regularization.value=0.1"],
        {"objective": {"name": "nll"}, "regularization": {"selection": "trained", "value": 0.1}},
    ),
    "starts": (["kernel.starts=3"], {"kernel": {"starts": 3}}),
    "bayesian": (["optimizer=bayesian"], {"optimizer": "bayesian"}),
    "samples": (["sampler=dynamic", "sampler.samples=2"], {"sampler": {"name": "dynamic", "samples": 2}}),
    "flow": (["optimizer=flow_euler", "flow.record_layers=true"], {"optimizer": "flow_euler"}),
}


@pytest.mark.parametrize("name", slow_after(4, SETTINGS))
def test_parameters_and_predictions_are_those_of_a_run(kfx, halves, name):
    words, settings = SETTINGS[name]
    common = ["dataset=table", "dataset.path=one.csv", "dataset.test=two.csv", "dataset.target=target", "seed=3"]
    common += ["evaluation.save_predictions=true", "figures=false", "optimizer.iterations=6", "hydra.run.dir=r"]
    common += (
        ["dataset.transform=false"]
        if name in ("adam", "validation", "starts", "bayesian", "samples", "a length for each feature")
        else []
    )
    if name == "likelihood":
        words = [*words, "evaluation.batches=2"]
    code, _, err = kfx("run", *common, *words)
    assert code == 0, err
    run = load_run("r")
    train, test = halves
    flow_or = KernelFlowRegressor(**settings, random_state=3).set_params(optimizer__iterations=6)
    flow_or.fit(train.drop(columns="target").to_numpy(), train["target"])
    for name_of, value in run.kernel.parameters.items():  # the last bits of two calls differ with some BLAS
        np.testing.assert_allclose(flow_or.kernel_.parameters[name_of], value, rtol=1e-9)
    columns = ["iteration", "rho", "objective", "regularization", "kernel_evaluations"]
    pd.testing.assert_frame_equal(flow_or.trace_[columns], run.trace[columns], rtol=1e-9)
    with np.load("r/predictions.npz") as stored:
        expected = next(stored[key] for key in stored.files if key.startswith("trained/300/0") and key.endswith("mean"))
    predicted = flow_or.predict(test.drop(columns="target").to_numpy())
    np.testing.assert_allclose(predicted, expected[:, 0], rtol=1e-5 if name == "flow" else 1e-9)


def test_classes_are_those_of_a_run_on_images(kfx, in_folder):
    digits = load_digits()
    images = digits.images[:, None] / 16
    parts = {"x_train": images[:200], "y_train": digits.target[:200], "x_test": images[200:300]}
    np.savez("d.npz", **parts, y_test=digits.target[200:300])
    words = ["dataset=arrays", "dataset.path=d.npz", "dataset.task=classification", "kernel=cnngp", "figures=false"]
    assert kfx("run", *words, "optimizer.iterations=3", "sampler.batch_size=40", "hydra.run.dir=r")[0] == 0
    classifier = KernelFlowClassifier("cnngp", optimizer={"iterations": 3}, sampler={"batch_size": 40})
    classifier.fit(images[:200], digits.target[:200])
    run = load_run("r")
    assert dict(classifier.kernel_.parameters) == dict(run.kernel.parameters)
    accuracy = run.evaluation.query("kernel == 'trained' and metric == 'accuracy'")["value"].iloc[0]
    assert classifier.score(images[200:300], digits.target[200:300]) == accuracy
    rows = KernelFlowClassifier(
        "cnngp", optimizer={"iterations": 3}, sampler={"batch_size": 40}, image_shape=(1, 8, 8)
    ).fit(images[:200].reshape(200, -1), digits.target[:200])
    assert dict(rows.kernel_.parameters) == dict(classifier.kernel_.parameters)


def test_some_points_interpolate_as_in_a_run(kfx, halves):
    words = ["dataset=table", "dataset.path=one.csv", "dataset.test=two.csv", "dataset.target=target"]
    words += ["optimizer.iterations=2", "evaluation.n_interpolation=[50]", "figures=false", "hydra.run.dir=r"]
    assert kfx("run", *words)[0] == 0
    train, test = (half.drop(columns="target").to_numpy() for half in halves)
    regressor = KernelFlowRegressor(optimizer={"iterations": 2}, n_interpolation=50).fit(train, halves[0]["target"])
    mse = np.mean((regressor.predict(test) - halves[1]["target"]) ** 2)
    found = load_run("r").evaluation.query("kernel == 'trained' and metric == 'mse'")["value"].iloc[0]
    assert np.isclose(mse, found, rtol=1e-12)


# ---- within scikit-learn


@pytest.mark.slow
def test_settings_of_names_mappings_and_kernels_are_searched(in_folder):
    x, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), KernelFlowClassifier(optimizer=FEW))
    by_name = {"kernelflowclassifier__kernel": ["rbf", "laplace"], "kernelflowclassifier__kernel__sigma": [0.01, 2.0]}
    found = GridSearchCV(pipeline, by_name, cv=3).fit(x, y)
    assert found.best_params_["kernelflowclassifier__kernel__sigma"] == 2.0
    assert found.best_score_ > 0.9
    nested = KernelFlowClassifier(RBF(1.0) + Matern(1.0), optimizer="none")
    assert nested.get_params()["kernel__1.sigma"] == 1.0
    search = GridSearchCV(nested, {"kernel__0.sigma": [1e-3, 1.0], "optimizer__iterations": [1]}, cv=3).fit(x, y)
    assert search.best_estimator_.kernel.parameters["0.sigma"] == search.best_params_["kernel__0.sigma"]
    assert nested.kernel.parameters["0.sigma"] == 1.0, "the kernel that was given does not change"


def test_clones_are_alike_and_know_nothing_of_each_other():
    first = KernelFlowRegressor(Matern(2.0, nu=2.5), regularization=Regularization(1e-3), optimizer=FEW)
    second = clone(first).set_params(kernel__sigma=3.0, regularization__value=1e-2, sampler__batch_size=20)
    assert first.kernel.parameters["sigma"] == 2.0
    assert first.regularization == Regularization(1e-3)
    assert (second.kernel.parameters["sigma"], second.regularization.value) == (3.0, 1e-2)
    assert second.get_params()["sampler__batch_size"] == 20
    assert "Matern" in repr(first)
    x, y = load_diabetes(return_X_y=True)
    fitted = second.fit(x[:100], y[:100])
    assert repr(fitted.kernel_) in repr(fitted)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(x[100:]), fitted.predict(x[100:]))


@pytest.mark.parametrize("name", ["nngp", "cnngp", "network_features", "conv_dkm", "sum", "hybrid"])
def test_every_kind_of_fit_is_cloned_and_pickled(name):
    digits = load_digits()
    x, y = digits.images[:80, None] / 16, digits.target[:80]
    kernel, optimizer, objective = name, dict(FEW), "rho"
    if name == "sum":
        kernel = {"name": "sum", "parts": [{"name": "rbf", "sigma": 2.0}, {"name": "matern"}]}
    if name == "conv_dkm":
        kernel = {"name": "conv_dkm", "architecture": "small", "inducing": [4, 6, 10]}
        optimizer, objective = {"name": "adam", **FEW}, "elbo"
    if name == "hybrid":
        kernel, optimizer = "rbf", {"name": "hybrid", **FEW}
    fitted = clone(KernelFlowClassifier(kernel, optimizer=optimizer, objective=objective)).fit(x, y)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(x), fitted.predict(x))
    clone(KernelFlowClassifier(fitted.kernel_))


def test_the_deviation_is_that_of_a_gaussian_process_whose_errors_left_out_have_its_variance():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF as TheirRBF

    x, y = load_diabetes(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    y -= y[:200].mean()
    own = KernelFlowRegressor(
        RBF(3.0), optimizer="none", regularization=Regularization(0.5, "absolute"), targets="as_given"
    )
    mean, deviation = own.set_params(optimizer__iterations=1).fit(x[:200], y[:200]).predict(x[200:], return_std=True)
    theirs = GaussianProcessRegressor(TheirRBF(3.0), alpha=0.5, optimizer=None)
    left_out = []
    for i in range(200):
        rest = np.delete(np.arange(200), i)
        one, spread = theirs.fit(x[rest], y[rest]).predict(x[i : i + 1], return_std=True)
        left_out.append((y[i] - one[0]) ** 2 / (spread[0] ** 2 + 0.5))
    expected = theirs.fit(x[:200], y[:200]).predict(x[200:], return_std=True)
    assert np.allclose(mean, expected[0], rtol=1e-8)
    assert np.allclose(own.scale_, np.mean(left_out), rtol=1e-8)
    assert np.allclose(deviation, np.sqrt((expected[1] ** 2 + 0.5) * np.mean(left_out)), rtol=1e-6)
    both = KernelFlowRegressor(RBF(3.0), optimizer="none").fit(x[:50], np.stack([y[:50], -2 * y[:50]], axis=1))
    mean, deviation = both.predict(x[50:60], return_std=True)
    assert mean.shape == deviation.shape == (10, 2)
    assert np.allclose(deviation[:, 1], 2 * deviation[:, 0])


@pytest.mark.slow
def test_a_flow_transforms_for_another_classifier():
    from sklearn.neighbors import KNeighborsClassifier

    x, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(
        StandardScaler(), KernelFlowTransformer(optimizer={"iterations": 100}), KNeighborsClassifier()
    )
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.9
    flow = KernelFlowTransformer(optimizer={"iterations": 20}, flow={"step_size": 0.02}).fit(x, y)
    assert flow.get_feature_names_out().tolist() == [f"kernelflowtransformer{i}" for i in range(4)]
    assert not np.array_equal(flow.transform(x), x)
    again = pickle.loads(pickle.dumps(flow))
    assert np.array_equal(again.transform(x + 0.01), flow.transform(x + 0.01))
    assert len(flow.trace_) == 20


def test_deviations_of_a_decision():
    x, y = load_iris(return_X_y=True)
    three = KernelFlowClassifier(optimizer=FEW).fit(x[::2], y[::2])
    decision, deviation = three.decision_function(x[1::2], return_std=True)
    assert decision.shape == deviation.shape == (75, 3)
    two = KernelFlowClassifier(optimizer=FEW).fit(x[:100:2], y[:100:2])
    decision, deviation = two.decision_function(x[1:100:2], return_std=True)
    assert decision.shape == deviation.shape == (50,)
    assert (deviation > 0).all()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kernel": "rbff"}, "kernel.name=rbff: unknown"),
        ({"kernel": {"name": "rbf", "sigam": 2}}, "kernel.sigam: unknown key"),
        ({"kernel": {"name": "rbf", "sigma": -2}}, "kernel.sigma=-2.0: expected a number > 0"),
        ({"kernel": "cnngp"}, "kernel=cnngp: takes images"),
        ({"optimizer": {"iterations": 0}}, "optimizer.iterations=0: expected a whole number"),
        ({"sampler": {"batch_size": 99999}}, "sampler.batch_size=99999"),
        ({"optimizer": "flow_euler", "kernel": "nngp", "flow": 3}, "flow=3: expected settings by name"),
        ({"regularization": "trained", "objective": "rho"}, "regularization.selection=trained"),
        ({"objective": 3}, "objective=3: expected a name"),
        ({"device": {"name": "cpu", "dtype": "int8"}}, "device.dtype=int8"),
    ],
)
def test_settings_that_cannot_be_are_one_line(settings, expected):
    x, y = load_diabetes(return_X_y=True)
    with pytest.raises(ConfigError) as raised:
        KernelFlowRegressor(**settings).fit(x[:50], y[:50])
    assert expected in str(raised.value)


def test_values_that_cannot_be_are_refused():
    x, y = load_diabetes(return_X_y=True)
    with pytest.raises(ValueError, match=r"invalid parameter kernel__sigam: kernel takes .*sigma"):
        KernelFlowRegressor().set_params(kernel__sigam=2)
    with pytest.raises(ConfigError, match=r"kernel.name=periodc: unknown; it takes auto, rbf"):
        KernelFlowRegressor("periodc").set_params(kernel__period=2)
    with pytest.raises(ValueError, match="n_interpolation=99"):
        KernelFlowRegressor(n_interpolation=99, optimizer=FEW).fit(x[:50], y[:50])
    with pytest.raises(ValueError, match=r"image_shape=\(1, 3, 3\)"):
        KernelFlowRegressor(image_shape=(1, 3, 3)).fit(x[:50], y[:50])
    with pytest.raises(ValueError, match="moves no points"):
        KernelFlowTransformer(optimizer={"name": "adam", "iterations": 1}).fit(x[:50], y[:50])


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", None])
def test_tables_of_arrow_keep_the_zones_of_their_times(zone):
    pa = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"t": pd.date_range("2024-03-01", periods=60, freq="7h", tz=zone), "a": np.arange(60) % 7.0})
    y = frame["a"] + frame["t"].dt.hour / 24
    fitted = KernelFlowRegressor(optimizer={"iterations": 1}).fit(frame, y)
    again = KernelFlowRegressor(optimizer={"iterations": 1}).fit(pa.Table.from_pandas(frame), y)
    np.testing.assert_array_equal(fitted.predict(frame), again.predict(pa.Table.from_pandas(frame)))


TIMES = pd.date_range("2020-01-31", periods=30, tz="Europe/Paris")


@pytest.mark.parametrize(
    "y",
    [
        TIMES.to_numpy(),
        pd.Series(TIMES),
        TIMES - TIMES[0],
        list(TIMES.date),
        pd.DataFrame({"a": range(30), "b": TIMES}),
    ],
    ids=["dates", "zone", "durations", "list", "a column"],
)
def test_times_are_no_targets(y):
    x = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(ValueError, match="y holds dates or durations"):
        KernelFlowRegressor().fit(x, y)


@pytest.mark.parametrize("kind", [KernelFlowRegressor, KernelFlowClassifier])
@pytest.mark.parametrize("value", [1e300, -np.inf])
def test_new_points_too_large_to_be_squared_are_refused_as_those_of_the_fit(kind, value):
    x = np.random.default_rng(0).normal(size=(40, 2))
    fitted = kind(optimizer={"iterations": 1}).fit(x, np.arange(40) % 2)
    with pytest.raises((ValueError, DataError), match=r"X.* (row 2|infinity)"):
        fitted.predict([[0.0, 0.0], [0.0, value]])


@pytest.mark.parametrize("form", [np.asfortranarray, pd.DataFrame, lambda y: np.repeat(y, 2, axis=1)[:, ::2]])
def test_the_memory_of_targets_is_without_effect(form):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = np.stack([np.sin(x[:, 0]), x[:, 1] * x[:, 2]], axis=1) + 0.1 * rng.normal(size=(60, 2))
    first, again = (KernelFlowRegressor(optimizer={"iterations": 5}).fit(x, each).predict(x) for each in (y, form(y)))
    np.testing.assert_array_equal(first, again)


def test_images_have_the_shape_of_the_fit_and_their_channels_first():
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 8, 8, 3)), rng.random(20)
    for fit_on in (x, np.broadcast_to(x[..., :1], x.shape)):
        with pytest.raises(
            ValueError, match=r"looks like \(n, height, width, channels\); give np.moveaxis\(X, -1, 1\), or"
        ):
            KernelFlowRegressor(optimizer="none").fit(fit_on, y)
    KernelFlowRegressor(optimizer="none", image_shape=(8, 8, 3)).fit(x, y)
    with pytest.raises(ValueError, match=r"image_shape=\(3, 8, 8\): expected .* of X, which has shape \(20, 8, 8, 3\)"):
        KernelFlowRegressor(optimizer="none", image_shape=(3, 8, 8)).fit(x, y)
    model = KernelFlowRegressor(optimizer="none").fit(np.moveaxis(x, -1, 1), y)
    with pytest.raises(ValueError, match=r"X has points of shape \(3, 4, 16\); the fit had \(3, 8, 8\)"):
        model.predict(x.reshape(-1, 3, 4, 16))


def test_a_fit_leaves_threads_and_random_numbers_as_they_were():
    import torch

    x, y = load_diabetes(return_X_y=True)
    before = torch.get_num_threads(), torch.get_rng_state()
    KernelFlowRegressor(CNNGP(Sequential(Conv2d(2), ReLU(), Conv2d((1, 4)))), optimizer=FEW, image_shape=(1, 2, 5)).fit(
        x, y
    )
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_the_splits_of_a_run_can_be_had(in_folder):
    """What `kfx run dataset=diabetes` trains on is `dataset.build` by its stream of the seed."""
    config = load(["dataset=diabetes", "seed=5"])
    data = config.dataset.build(Streams(5)["data"])
    assert data.x_train.shape == (342, 10)


@pytest.mark.slow
def test_a_plugins_kernel_is_a_name_like_any_other(in_folder, own_registry):
    import kfx

    (in_folder / "periodic.py").write_text(BLOCKS["periodic"])
    kfx.plug_in("periodic.py")
    x = np.linspace(0, 4, 80)[:, None]
    y = np.sin(2 * np.pi * x[:, 0])
    grid = {"kernel__period": [0.3, 1.0]}
    periodic = KernelFlowRegressor("periodic", optimizer=FEW, objective="rho", regularization=1e-4)
    found = GridSearchCV(periodic, grid, cv=4).fit(x, y)
    assert found.best_params_ == {"kernel__period": 1.0}
    run = kfx.run(["kernel=periodic", "dataset=noisy_sine", "optimizer.iterations=2", "figures=false"], progress=False)
    assert run.plugins[0]["path"].endswith("periodic.py")


LOADS = """
import pickle, sys
from kfx.outcomes import ConfigError
for name in sys.argv[1:]:
    try:
        with open(name, "rb") as stream:
            found = pickle.load(stream)
        print(found.predict([[0.5], [1.5]]).tolist() if hasattr(found, "kernel_") else type(found).__name__)
    except ConfigError as error:
        print(f"ConfigError: {error}")
"""


def loaded_elsewhere(*names):
    """What a new process says of pickles, a line each."""
    command = [sys.executable, "-W", "ignore", "-c", LOADS, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.splitlines()


@pytest.mark.slow
def test_a_search_in_processes_knows_plugins(in_folder, own_registry):
    """By the name that the estimator has, and by one that is in the grid alone."""
    import kfx

    (in_folder / "periodic.py").write_text(BLOCKS["periodic"])
    kfx.plug_in("periodic.py")
    x = np.linspace(0, 4, 60)[:, None]
    y = np.sin(2 * np.pi * x[:, 0])
    grid = {"kernel": ["periodic", {"name": "periodic", "period": 0.3}, "rbf"]}
    for kernel in ("rbf", "periodic"):
        search = GridSearchCV(KernelFlowRegressor(kernel, optimizer=FEW), grid, cv=2, n_jobs=2, error_score="raise")
        assert np.isfinite(search.fit(x, y).cv_results_["mean_test_score"]).all()


@pytest.mark.slow
def test_a_pickle_carries_its_plugin_and_no_other_will_do(in_folder, own_registry):
    import kfx

    (in_folder / "periodic.py").write_text(BLOCKS["periodic"])
    kfx.plug_in("periodic.py")
    x = np.linspace(0, 4, 60)[:, None]
    fitted = {kernel: KernelFlowRegressor(kernel, optimizer=FEW).fit(x, x[:, 0]) for kernel in ("periodic", "rbf")}
    kinds = {**fitted, "kernel": fitted["periodic"].kernel_.kernel, "named": clone(fitted["periodic"])}
    kinds["option"] = registry.OPTIONS["kernel"]["periodic"](period=2.0)
    for name, each in kinds.items():
        (in_folder / name).write_bytes(pickle.dumps(each))
    predicted = {name: str(each.predict([[0.5], [1.5]]).tolist()) for name, each in fitted.items()}
    assert loaded_elsewhere(*kinds) == [*predicted.values(), "Formula", "KernelFlowRegressor", "Periodic"]
    path = in_folder / "periodic.py"
    path.write_text(path.read_text() + "# changed\n")
    of_rbf, *others = loaded_elsewhere("rbf", "periodic", "kernel", "named", "option")
    assert of_rbf == predicted["rbf"], "it needs no plugin"
    for said in others:
        assert said.startswith(f"ConfigError: what is loaded needs a plugin: --plugin {path}: has changed (SHA-256 ")
    path.unlink()
    assert "expected a Python file (No such file or directory)" in loaded_elsewhere("named")[0]


@pytest.mark.slow
def test_grids_of_numpys_numbers_and_all_settings_written_back(in_folder):
    x, y = load_diabetes(return_X_y=True)
    grid = {
        "regularization": np.logspace(-3, 0, 2),
        "kernel__sigma": np.array([0.5, 2.0]),
        "optimizer__iterations": np.arange(1, 3),
    }
    found = GridSearchCV(KernelFlowRegressor(), grid, cv=2, error_score="raise").fit(x[:80], y[:80])
    assert found.best_params_["kernel__sigma"] in (0.5, 2.0)
    same = KernelFlowRegressor(optimizer=FEW)
    again = clone(same).set_params(**same.get_params()).fit(x[:80], y[:80])
    assert are_equal(again.kernel_.parameters, same.fit(x[:80], y[:80]).kernel_.parameters)


@pytest.mark.slow
def test_fits_in_threads_are_those_of_one(in_folder):
    from joblib import parallel_backend

    x, y = load_iris(return_X_y=True)
    search = GridSearchCV(KernelFlowClassifier(optimizer=FEW), {"kernel": ["rbf", "laplace", "matern"]}, cv=3)
    alone = clone(search).fit(x, y).cv_results_["mean_test_score"]
    with parallel_backend("threading", n_jobs=3):
        assert np.array_equal(search.fit(x, y).cv_results_["mean_test_score"], alone)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kernel": RBF}, "expected a name, settings with a name, or an object"),
        ({"kernel": "cnngp"}, r"set image_shape=\(channels, height, width\)"),
        ({"sampler": {"batch_size": 99}}, "dataset given has 50 training points; take at most 50"),
    ],
)
def test_words_are_those_of_estimators(settings, expected):
    x, y = load_diabetes(return_X_y=True)
    with pytest.raises(ConfigError, match=expected):
        KernelFlowRegressor(**settings).fit(x[:50], y[:50])
    with pytest.raises(ConfigError, match="expected auto, classification or regression"):
        KernelFlowTransformer(task="regresion").fit(x[:50], y[:50])
    with pytest.raises(ValueError, match="expected \\(channels, height, width\\)"):
        KernelFlowRegressor(image_shape=10).fit(x[:50], y[:50])


@pytest.mark.parametrize("outputs", [1, 2])
def test_draws_have_the_mean_and_the_covariance_of_the_process(outputs):
    rng = np.random.default_rng(0)
    x, at = rng.normal(size=(30, 2)), rng.normal(size=(4, 2))
    y = np.sin(x) if outputs == 2 else np.sin(x[:, 0])
    fitted = KernelFlowRegressor(RBF(1.0), optimizer="none", regularization=0.01).fit(x, y)
    draws = fitted.sample_y(at, 20_000, random_state=1)
    assert draws.shape == ((4, 20_000) if outputs == 1 else (4, 2, 20_000))
    mean, deviation = fitted.predict(at, return_std=True)
    np.testing.assert_allclose(draws.mean(axis=-1), mean, atol=5 * deviation.max() / np.sqrt(20_000))
    gram, cross = fitted.kernel_.gram(x), fitted.kernel_.gram(x, at)
    noise = fitted.regularization_.of(gram)
    without_noise = np.sqrt(np.square(deviation) - (noise * np.squeeze(fitted.scale_)))
    np.testing.assert_allclose(draws.std(axis=-1), without_noise, rtol=0.03)
    a = gram + noise * np.eye(30)
    expected = fitted.scale_[0] * (fitted.kernel_.gram(at) - cross.T @ np.linalg.solve(a, cross))
    first = draws if outputs == 1 else draws[:, 0]
    np.testing.assert_allclose(np.cov(first), expected, atol=0.03 * expected.max())
    prior = fitted.sample_y(at, 20_000, random_state=1, prior=True)
    prior = prior if outputs == 1 else prior[:, 0]
    of_prior = fitted.scale_[0] * fitted.kernel_.gram(at)
    np.testing.assert_allclose(np.cov(prior), of_prior, atol=0.03 * of_prior.max())


BASE = pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30.0) ** 2, "w": np.where(np.arange(30) % 2, "u", "v")})
FRAMES = {
    "words": lambda: BASE,
    "nullable": lambda: BASE.convert_dtypes(),
    "Arrow's types": lambda: BASE.convert_dtypes(dtype_backend="pyarrow"),
    "objects": lambda: BASE.astype(object),
    "categories": lambda: BASE.astype({"w": "category"}),
    "numbered columns": lambda: BASE.set_axis([0, 1, 2], axis=1),
    "an Arrow table": lambda: importlib.import_module("pyarrow").table(BASE),
    "an Arrow table with a dictionary": lambda: importlib.import_module("pyarrow").table(
        BASE.astype({"w": "category"})
    ),
    "polars": lambda: importlib.import_module("polars").DataFrame(BASE.to_dict("list")),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_all_kinds_give_the_same_fit(kind):
    try:
        frame = FRAMES[kind]()
    except (ImportError, NameError) as error:  # the latter by pandas, which has not imported pyarrow
        pytest.skip(f"{error.name} is not installed")
    y = np.sin(BASE["a"] / 5)
    encoded = np.c_[BASE[["a", "b"]], BASE["w"] == "u", BASE["w"] == "v"]
    expected = KernelFlowRegressor(optimizer="none").fit(encoded, y).predict(encoded[:5])
    model = KernelFlowRegressor(optimizer="none").fit(frame, y)
    assert model.n_features_in_ == 3
    if kind != "numbered columns":
        assert list(model.feature_names_in_) == ["a", "b", "w"]
    np.testing.assert_allclose(model.predict(frame[:5]), expected)
    as_pandas = BASE if kind != "numbered columns" else frame
    for wrong in (as_pandas.iloc[:, ::-1], as_pandas.iloc[:, :2]):  # as scikit-learn has it
        with pytest.raises(ValueError, match=r"same order|missing|features|the fit had 0, 1, 2"):
            model.predict(wrong)


def test_arrays_with_negative_strides_are_like_their_copies():
    rng = np.random.default_rng(0)
    x, y = rng.random((30, 3)), rng.random(30)
    model = KernelFlowRegressor(optimizer="none").fit(x[::-1, ::-1], y[::-1])
    other = KernelFlowRegressor(optimizer="none").fit(x[::-1, ::-1].copy(), y[::-1].copy())
    np.testing.assert_array_equal(model.predict(x[:, ::-1]), other.predict(x[:, ::-1].copy()))
    series = np.sin(np.arange(80) / 5)
    forecasts = [KernelFlowForecaster(lags=4).fit(each).predict(3) for each in (series[::-1], series[::-1].copy())]
    np.testing.assert_array_equal(*forecasts)
    np.testing.assert_array_equal(RBF(1.0).gram(x[::-1], x[:, ::-1]), RBF(1.0).gram(x[::-1].copy(), x[:, ::-1].copy()))


def test_a_frames_words_and_categories_are_features_of_zeros_and_ones():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": rng.choice(["Rome", "Oslo", "Bonn"], 90),
            "grade": pd.Categorical(rng.choice([1, 2, 10], 90)),
            "wet": rng.random(90) > 0.5,
            "size": rng.normal(size=90),
        }
    )
    y = 3.0 * (frame["city"] == "Rome") + frame["wet"] + 0.1 * frame["size"] + 0.05 * rng.normal(size=90)
    fitted = KernelFlowRegressor(optimizer={"iterations": 20}).fit(frame[:60], y[:60])
    assert fitted.categories_ == {"city": ["Bonn", "Oslo", "Rome"], "grade": [1, 2, 10]}
    assert list(fitted.feature_names_in_) == list(frame.columns)
    assert fitted.n_features_in_ == 4
    assert fitted.score(frame[60:], y[60:]) > 0.9
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(frame[60:]), fitted.predict(frame[60:]))
    with pytest.warns(UserWarning, match="column city holds 'Nice', which no training row has"):
        assert np.isfinite(fitted.predict(frame[:2].assign(city="Nice"))).all()
    as_text = KernelFlowRegressor(optimizer={"iterations": 5}).fit(frame[["size"]].astype(str), y)
    assert (as_text.categories_, as_text.n_features_in_) == ({}, 1)
    for wrong, message in (
        (frame.assign(**{"city=Rome": frame["size"]}), "two features are named city=Rome"),
        (frame.assign(city=[1, "2", "x"] * 30), "column city holds 'x' in row 3, which is no number"),
        (frame.assign(city=[["u"]] * 90), "column city holds list; expected numbers, words or dates"),
        (frame.assign(size=frame["size"] + 1j), "column size holds complex128; expected numbers, words or dates"),
    ):
        with pytest.raises((ValueError, DataError), match=message):
            KernelFlowRegressor().fit(wrong, y)


def test_masked_targets_and_labels_in_another_order_are_refused():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    with pytest.raises(ValueError, match="masked values"):
        KernelFlowRegressor(optimizer="none").fit(x, np.ma.masked_array(y, mask=y > 0.9))
    frame = pd.DataFrame(x, columns=[0, 1, 2])
    model = KernelFlowRegressor(optimizer="none").fit(frame, y)
    np.testing.assert_array_equal(model.predict(frame), model.predict(x))
    with pytest.raises(ValueError, match="the fit had 0, 1, 2"):
        model.predict(frame[[2, 0, 1]])
    both = pd.DataFrame({"a": np.sin(np.arange(60) / 5), "b": np.cos(np.arange(60) / 5)})
    forecaster = KernelFlowForecaster(lags=3, regularization=1e-6).fit(both)
    assert forecaster.predict(2, series=both).shape == (2, 2)
    with pytest.raises(ValueError, match="the fit had a, b"):
        forecaster.predict(2, series=both[["b", "a"]])


def test_the_order_in_memory_does_not_matter():
    x = np.random.default_rng(0).normal(size=(80, 4))
    y = np.sin(x[:, 0]) + x[:, 1]
    in_rows, in_columns = (
        KernelFlowRegressor(optimizer={"name": "adam", "iterations": 3}).fit(each, y)
        for each in (x, np.asfortranarray(x))
    )
    assert np.array_equal(in_rows.predict(x), in_columns.predict(np.asfortranarray(x)))


MISSING = {
    "None": lambda c: c,
    "a list": list,
    "a series": pd.Series,
    "strings": lambda c: pd.Series(c, dtype="string"),
    "a category": lambda c: pd.Series(c).astype("category"),
    "NaN": lambda c: np.where(pd.isna(c), np.nan, c),
}


@pytest.mark.parametrize("form", MISSING)
@pytest.mark.parametrize("make", [KernelFlowRegressor, KernelFlowClassifier])
def test_missing_targets_are_refused_in_words(make, form):
    values = ["a", "b"] * 6 if make is KernelFlowClassifier else list(np.arange(12.0))
    given = MISSING[form](np.array([None, *values[1:]], dtype=object))
    if make is KernelFlowRegressor and form in ("strings", "a category"):
        given = pd.Series([None, *values[1:]], dtype="Float64")
    with pytest.raises(ValueError, match=r"^y has 1 missing value; leave these rows out$|Input y contains NaN"):
        make().fit(np.arange(24.0).reshape(12, 2), given)


def test_classes_of_several_types_are_refused_in_words():
    with pytest.raises(ValueError, match=r"^y holds classes of several types, int, str; give one type$"):
        KernelFlowClassifier().fit(np.arange(8.0).reshape(4, 2), np.array(["a", 1, "b", "a"], dtype=object))


@pytest.mark.parametrize("features", [1, 3])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_fewest_rows_are_fitted(count, features):
    x = np.random.default_rng(0).normal(size=(count, features))
    model = KernelFlowRegressor(optimizer={"iterations": 3}).fit(x, x[:, 0])
    mean, deviation = model.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(deviation).all()
