"""A length for each feature: gradients, values against other implementations, starts, records and estimators."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.metrics.pairwise import laplacian_kernel

from kfx import KernelFlowClassifier, KernelFlowRegressor, load_run, plots
from kfx.experiment.compose import load
from kfx.kernels import (
    NNGP,
    NTK,
    RBF,
    Laplace,
    Linear,
    Matern,
    RationalQuadratic,
    SmoothAndRough,
    stationary_arrays,
    stationary_tensors,
)
from kfx.kernels.ard import ARD
from kfx.kernels.covariance import OfOuterProducts
from kfx.kernels.names import lengths_of
from kfx.kernels.starts import candidates
from kfx.numerics.outer_products import OuterProducts
from kfx.numerics.streams import Streams
from kfx.outcomes import ConfigError, DataError
from kfx.running.refitted import with_smooth_part

README = Path(__file__).parent.parent / "README.md"

LENGTHS = np.array([0.7, 1.9, 3.0, 0.4])
KERNELS = {
    "rbf": RBF(2.0),
    "rational_quadratic": RationalQuadratic(1.3, 2.0),
    "matern": Matern(1.0, 2.5),
    "laplace": Laplace(2.0),
    "smooth_and_rough": SmoothAndRough(0.7, [1.3, 0.6, 2.0, 0.9]),
    "nngp": NNGP(depth=2),
    "ntk": NTK(depth=2),
}
ALONE = ("figures=false", "device.precision_check=off", "optimizer.iterations=4", "sampler.batch_size=30")


def points(n=30, features=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, features))


@pytest.mark.parametrize("size", [30, 300])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_to_lengths_parameters_and_points_are_those_of_differences(name, size):
    kernel, x = ARD(KERNELS[name], LENGTHS), points(size)
    cotangent = np.random.default_rng(1).normal(size=(size, size))
    cotangent += cotangent.T
    _, pull = kernel.pullback(x)
    flat, moved = pull(cotangent, inputs=True)
    expected = []
    for i, value in enumerate(kernel.flat):
        step = np.zeros_like(kernel.flat)
        step[i] = 1e-6 * value
        up, down = (kernel.with_flat(kernel.flat + sign * step).gram(x) for sign in (1, -1))
        expected.append(float(((up - down) * cotangent).sum()) / (2 * step[i]))
    np.testing.assert_allclose(flat, expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())
    for i, d in ((0, 0), (3, 2)):
        step = np.zeros_like(x)
        step[i, d] = 1e-6
        change = float(((kernel.gram(x + step) - kernel.gram(x - step)) * cotangent).sum()) / 2e-6
        assert moved[i, d] == pytest.approx(change, rel=1e-5, abs=1e-6 * np.abs(moved).max())


def test_values_are_those_of_scikit_learn_with_a_length_scale_for_each_feature():
    x, y = points(20), points(15, seed=1)
    theirs = {
        "rbf": sklearn_kernels.RBF(LENGTHS),
        "matern": sklearn_kernels.Matern(LENGTHS, nu=2.5),
    }
    for name, their in theirs.items():
        np.testing.assert_allclose(ARD(KERNELS[name], LENGTHS).gram(x, y), their(x, y), rtol=1e-10)
    laplace = laplacian_kernel(x / LENGTHS, y / LENGTHS, gamma=1.0)
    np.testing.assert_allclose(ARD(Laplace(5.0), LENGTHS).gram(x, y), laplace, rtol=1e-12)


def test_lengths_of_an_nngp_are_weights_of_its_first_layer():
    x, network = points(10), NNGP(depth=1, bias_variance=0.0)
    widths = points(4, 40_000, seed=2) / LENGTHS[:, None]
    hidden = np.maximum(x @ widths / 2, 0)  # weight_variance 1, divided by the 4 features
    sampled = hidden @ hidden.T / hidden.shape[1]
    np.testing.assert_allclose(ARD(network, LENGTHS).gram(x), sampled, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("name", KERNELS)
def test_small_batches_by_numpy_give_the_same_gradients(name):
    kernel, x = ARD(KERNELS[name], LENGTHS), torch.as_tensor(points())
    small = kernel.small_pullback(x)
    if small is None:
        assert not isinstance(KERNELS[name], OfOuterProducts)
        return
    vectors, weights = np.random.default_rng(3).normal(size=(30, 2)), np.array([1.0, -0.5])
    outer = OuterProducts(vectors, weights)
    by_name, moved = small[1](outer, True)
    flat, expected = kernel.pullback(x.numpy())[1](outer.of_kind(x.numpy()).dense(), inputs=True)
    np.testing.assert_allclose(kernel.flatten(by_name), flat, rtol=1e-9)
    np.testing.assert_allclose(moved, expected, rtol=1e-9, atol=1e-12)


def test_the_length_of_the_kernel_inside_is_replaced():
    kernel = ARD(RationalQuadratic(1.3, 2.0), LENGTHS)
    assert kernel.trainable == ("lengths", "alpha")
    assert kernel.names == ["lengths.0", "lengths.1", "lengths.2", "lengths.3", "alpha"]
    assert kernel.kernel.parameters["beta"] == 1.0
    with pytest.raises(ValueError, match="3 features, and the kernel 4 lengths"):
        kernel.gram(points(5, 3))


def test_one_length_becomes_one_for_each_feature_with_its_name_also_in_a_sum():
    whole = (ARD(RBF(), 2.0) + Linear()).for_features(2, ("age", "size"))
    assert whole.names == ["0.lengths.age", "0.lengths.size", "1.bias_variance"]
    assert whole.shown["0.lengths.age"] == 2.0
    x = points(6, 2)
    np.testing.assert_allclose(whole.gram(x), RBF(2.0).gram(x) + Linear().gram(x))
    assert pickle.loads(pickle.dumps(whole)).names == whole.names


class Part:
    def __init__(self, x, features=()):
        self.x_train, self.features = x, features


def start(x, *words):
    option = load(["dataset=diabetes", *words]).kernel
    return candidates(option, option.build(None), [Part(x)], np.random.default_rng(0))[0][0]


def test_lengths_start_at_the_median_distance_of_each_feature():
    x = points(200, 3) * [1.0, 1e6, 0.0] + [0, 0, 7.0]
    lengths = start(x, "kernel.ard=true", "kernel.initial=median_distance").parameters["lengths"]
    median = np.median(np.abs(x[:, None, 0] - x[None, :, 0])[np.triu_indices(200, 1)])
    assert lengths[0] == pytest.approx(median * np.sqrt(2))
    assert 1e6 / 1.2 < lengths[1] / lengths[0] < 1.2e6, "in the units of the feature"
    assert lengths[2] > 50 * lengths[1], "a constant feature does not count"
    one = start(x[:, :1], "kernel.initial=median_distance").parameters["sigma"]
    assert one == pytest.approx(median)
    manhattan = start(points(200, 3), "kernel=laplace", "kernel.initial=median_distance").parameters["sigma"]
    assert manhattan > 1.3 * start(points(200, 3), "kernel.initial=median_distance").parameters["sigma"]


@pytest.mark.parametrize("value", [7.0, 0.1])
@pytest.mark.parametrize("rule", ["median_distance", "natural", "mean_squared_distance"])
def test_a_constant_feature_does_not_count_in_any_rule_of_lengths(rule, value):
    x = points(200, 3) * [1.0, 2.0, 0.0] + [0, 0, value]  # the mean of 0.1 is not 0.1
    lengths = start(x, "kernel.ard=true", f"kernel.initial={rule}").parameters["lengths"]
    without = start(x[:, :2], "kernel.ard=true", f"kernel.initial={rule}").parameters["lengths"]
    np.testing.assert_allclose(lengths[:2], without)
    assert np.isfinite(lengths[2])
    assert lengths[2] > 20 * lengths[1]
    near = start(x, "kernel.ard=true", f"kernel.initial={rule}", "+kernel.bounds.lengths=[0.01,5]").parameters[
        "lengths"
    ]
    assert near[2] == 5, "the longest that the bounds allow"
    with pytest.raises(DataError, match="all training points are equal"):
        start(np.full((20, 2), value), "kernel.ard=true", f"kernel.initial={rule}")


def test_a_smooth_and_rough_kernel_is_the_sum_of_its_formulas():
    x, y = points(20), points(9, seed=1)
    stretch, c = np.array([1.3, 0.6, 2.0, 0.9]), 0.7
    kernel = ARD(SmoothAndRough(c, stretch), LENGTHS)
    difference = (x[:, None] - y[None, :]) / LENGTHS
    r = np.sqrt(5 * (difference**2).sum(axis=-1))
    expected = (1 + r + r**2 / 3) * np.exp(-r) + c**2 * np.exp(-(np.abs(difference) / stretch).sum(axis=-1))
    np.testing.assert_allclose(kernel.gram(x, y), expected, rtol=1e-13)
    np.testing.assert_array_equal(kernel.gram(x).diagonal(), 1 + c**2)
    assert kernel.names == [*(f"lengths.{i}" for i in range(4)), "roughness", *(f"stretch.{i}" for i in range(4))]


def test_the_rough_part_starts_with_the_lengths_of_the_sum_of_absolute_differences():
    kernel = start(points(50, 4), "kernel=smooth_and_rough")
    assert kernel.parameters["stretch"].tolist() == [2.0] * 4
    assert kernel.labels.keys() == {"lengths", "stretch"}
    one = kernel.with_one_length()
    assert one.trainable == ("lengths", "roughness")
    assert isinstance(one.parameters["lengths"], float)
    bounds = ["kernel=smooth_and_rough", "kernel.initial=explicit", "kernel.bounds.stretch=[1.2,1.5]"]
    load(bounds)
    assert start(points(50, 4), *bounds).parameters["stretch"].tolist() == [1.5] * 4


@pytest.mark.parametrize(
    ("stretch", "lengths", "said"),
    [([1, 2], [1, 2, 3], "stretch 2 numbers"), ([1, 2, 3], [1, 2], "the kernel 2 lengths"), ([1, 2], 1.0, "stretch 2")],
)
def test_as_many_lengths_of_each_part_as_features(stretch, lengths, said):
    kernel = ARD(SmoothAndRough(1.0, stretch), lengths)
    with pytest.raises(ConfigError, match=f"points have 3 features, and {said}"):
        KernelFlowRegressor(kernel=kernel).fit(np.random.default_rng(0).normal(size=(30, 3)), np.arange(30.0))


def test_the_length_of_a_feature_is_that_of_the_part_in_which_it_is_shorter():
    kernel = ARD(SmoothAndRough(1.0, [2.0, 0.5]), [3.0, 8.0])
    assert lengths_of(kernel.parameters).tolist() == [3.0, 4.0]
    assert lengths_of(RBF(2.0).parameters) is None


@pytest.mark.parametrize("stretch", [0.1, 0.5, 1.0, 4.0])
def test_the_lengths_of_the_smooth_part_alone_are_its_own(stretch):
    alone = with_smooth_part(ARD(SmoothAndRough(0.1, stretch), LENGTHS).for_features(4))
    np.testing.assert_array_equal(lengths_of(alone.parameters), LENGTHS)
    x = np.random.default_rng(0).normal(size=(6, 4))
    np.testing.assert_allclose(alone.gram(x), ARD(Matern(1.0, 2.5), LENGTHS).gram(x), atol=2e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_of_signs_are_alike_by_loops_and_by_tensors(dtype):
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.integers(-2, 3, size=(300, 5)), dtype=dtype)
    weights = torch.as_tensor(rng.normal(size=(300, 300)), dtype=dtype)
    loops, tensors = (module.sums_of_signs(weights, x) for module in (stationary_arrays, stationary_tensors))
    torch.testing.assert_close(loops, tensors)


def test_a_given_length_is_that_of_every_feature():
    kernel = start(points(50, 3), "kernel.ard=true", "kernel.sigma=4")
    assert kernel.parameters["lengths"].tolist() == [4.0, 4.0, 4.0]


@pytest.fixture
def relevant(in_folder):
    """A table with two features that matter and two that do not."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(-2, 2, size=(260, 4)), columns=["a", "noise", "b", "more noise"])
    frame["y"] = 100 + 30 * np.sin(2 * frame["a"]) + 10 * frame["b"] + rng.normal(size=260)
    frame.to_csv("t.csv", index=False)
    return frame


def test_an_own_table_gets_a_length_for_each_feature_by_name(kfx, relevant, in_folder):
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "device.precision_check=off"]
    code, out, err = kfx("run", *words, "hydra.run.dir=r")
    assert code == 0, err
    run = load_run("r")
    assert list(run.lengths.index[:2]) == ["a", "b"]
    assert "lengths     a " in out
    assert {"parameter.lengths.a", "parameter.lengths.more noise"} <= {*run.trace.columns}
    (axes,) = plots.one(run, "lengths").axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(run.lengths.index[::-1])
    mse = run.evaluation.query("metric == 'mse'").set_index("kernel")["value"]
    assert mse["trained"] < 3 < mse["initial"], "the noise has variance 1"
    config = run.config
    assert config.kernel.name == "smooth_and_rough"
    assert (config.dataset.targets, config.objective.name) == ("standardized", "nll")
    assert config.evaluation.regularization.value == "leave_one_out"
    assert config.sampler.batch_size == 208
    predicted = run.predict(relevant[:5])
    assert np.abs(predicted["prediction"] - relevant["y"][:5]).max() < 5
    fitted = KernelFlowRegressor().fit(relevant[["a", "noise", "b", "more noise"]], relevant["y"])
    assert set(np.argsort(fitted.lengths_)[:2]) == {0, 2}
    assert "parameter.lengths.noise" in fitted.trace_


@pytest.mark.slow
def test_what_is_given_stays(kfx, relevant):
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", *ALONE]
    given = ["kernel.sigma=3", "regularization.value=0.01", "objective=rho", "dataset.targets=as_given"]
    assert kfx("run", *words, *given, "dataset.preprocess=[]", "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    assert run.trace["parameter.sigma"][0] == pytest.approx(3.0)
    assert set(run.evaluation["regularization"]) == {0.01}
    assert run.config.objective.name == "rho"
    assert (run.config.kernel.ard, run.config.kernel.initial) == (False, "explicit")
    assert kfx("run", *words, "optimizer=bayesian", "optimizer.iterations=4", "hydra.run.dir=s")[0] == 0
    searched = load_run("s")
    assert searched.config.kernel.ard is False, "a search has few dimensions"
    assert searched.metrics["parameters"]["initial"]["sigma"] == pytest.approx(2.6, rel=0.2)


@pytest.mark.slow
def test_bounds_that_are_given_hold_at_the_start(kfx, relevant):
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", *ALONE, "optimizer.iterations=3"]
    assert kfx("run", *words, "kernel.bounds.sigma=[0.5,2]", "hydra.run.dir=r")[0] == 0
    assert kfx("run", *words, "kernel.ard=false", "kernel.bounds.sigma=[0.5,2]", "hydra.run.dir=s")[0] == 0
    assert load_run("r").metrics["parameters"]["initial"]["lengths"] == [2.0] * 4
    assert load_run("s").metrics["parameters"]["initial"]["sigma"] == 2.0
    kernel = {"name": "rbf", "bounds": {"lengths": [1.0, 1.5]}}
    fitted = KernelFlowRegressor(kernel).fit(relevant[["a", "b", "noise"]], relevant["y"])
    assert fitted.lengths_.min() >= 1.0
    assert fitted.lengths_.max() <= 1.5


def test_a_feature_that_is_constant_in_training_is_said_and_does_not_count(kfx, in_folder):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal(size=(80, 2)), columns=["a", "b"])
    frame = frame.assign(year=[2019] * 60 + [2024] * 20, y=frame["a"] + frame["b"])
    frame[:60].to_csv("t.csv", index=False)
    frame[60:].to_csv("u.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.test=u.csv", "dataset.target=y", "optimizer.iterations=30"]
    code, out, err = kfx("run", *words, *ALONE, "dataset.missing=refuse", "hydra.run.dir=r")
    assert code == 0, err
    assert "year is the same at all training points" in out + err
    run = load_run("r")
    assert run.lengths.index[-1] == "year"
    assert run.evaluation.query("kernel == 'trained' and metric == 'mse'")["value"].item() < 0.03
    assert not any(at_bound in out for at_bound in ("at its bound", "an end of its range"))


@pytest.mark.slow
def test_hundreds_of_lengths_have_a_picture_and_a_line(kfx, in_folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 300))).add_prefix("f")
    frame.assign(y=frame["f7"]).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "optimizer.iterations=3", "kernel.ard=true"]
    code, out, err = kfx("run", *words, "optimizer.fall_back=false", "hydra.run.dir=r")
    assert code == 0, err
    run = load_run("r")
    assert "lengths     f" in out
    (axes,) = plots.one(run, "lengths").axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(run.lengths.index[:40][::-1])


@pytest.mark.parametrize("x", [np.ones((20, 2)), np.tile([3.0, 5.0], (20, 1))])
def test_equal_points_and_equal_targets_are_said(x):
    with pytest.raises(DataError, match="all training points are equal"):
        KernelFlowRegressor().fit(x, np.arange(20.0))
    with pytest.raises(DataError, match="every training target is 4, so there is nothing to learn"):
        KernelFlowRegressor().fit(np.arange(40.0).reshape(20, 2), np.full(20, 4.0))
    for unit in (1e-200, 1e200):
        with pytest.raises(DataError, match="too small or too large to be squared"):
            KernelFlowRegressor().fit(np.arange(40.0).reshape(20, 2), unit * np.arange(20.0))


@pytest.mark.slow
def test_the_table_of_the_readme_is_predicted_as_it_says(kfx, in_folder):
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import RandomForestRegressor

    load_diabetes(as_frame=True).frame.to_csv("diabetes.csv", index=False)
    mse = {"trained": [], "forest": [], "initial": []}
    for seed in range(5):
        words = ["dataset=table", "dataset.path=diabetes.csv", "dataset.target=target", f"seed={seed}"]
        assert kfx("run", *words, "figures=false", f"hydra.run.dir=r{seed}")[0] == 0
        found = load_run(f"r{seed}").evaluation.query("metric == 'mse'").set_index("kernel")["value"]
        data = load(words).dataset.build(Streams(seed)["data"])
        trees = RandomForestRegressor(500, random_state=0, n_jobs=2).fit(data.x_train, data.y_train[:, 0])
        mse["forest"].append(np.mean((trees.predict(data.x_test) - data.y_test[:, 0]) ** 2))
        for kernel in ("trained", "initial"):
            mse[kernel].append(found[kernel])
    text = " ".join(README.read_text().split())
    assert np.mean(mse["trained"]) == pytest.approx(float(re.search(r"mean test mse is (\d+)", text)[1]), rel=0.005)
    said = re.findall(r"(\d+), a difference of ([−\d]+) ± (\d+)", text)
    for other, numbers in zip(("forest", "initial"), said, strict=True):
        gain = np.subtract(mse[other], mse["trained"])
        found = np.mean(mse[other]), gain.mean(), gain.std(ddof=1) / np.sqrt(5)
        assert found == pytest.approx([float(each.replace("−", "-")) for each in numbers], rel=0.005, abs=2)


def test_papers_data_keep_what_their_experiments_state():
    config = load(["dataset=diabetes"])
    assert (config.kernel.sigma, config.kernel.ard, config.kernel.initial) == (1.0, False, "explicit")
    assert (config.regularization.selection, config.regularization.value) == ("fixed", 1e-4)
    assert (config.objective.name, config.dataset.targets) == ("rho", "as_given")


def test_classes_need_points_for_the_lengths(kfx, in_folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    few, many = (KernelFlowClassifier(optimizer={"iterations": 2}).fit(x[:n], x[:n, 0] > 0) for n in (59, 60))
    assert "sigma" in few.kernel_.parameters
    assert many.lengths_.shape == (3,)
    with pytest.raises(AttributeError, match="one length for all features"):
        _ = few.lengths_


def test_a_regression_needs_points_for_the_lengths(kfx, in_folder):
    x = points(30, 4, seed=3)
    few, enough = (KernelFlowRegressor(optimizer={"iterations": 2}).fit(x[:n], x[:n, 0]) for n in (7, 8))
    assert "sigma" in few.kernel_.parameters
    assert enough.lengths_.shape == (4,)
    pd.DataFrame(x, columns=[*"abcd"]).assign(y=np.sin(x[:, 0])).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "sampler.batch_size=5"]
    asked = [[*words, f"dataset.n_train={n}", "dataset.n_test=5"] for n in (7, 8)]
    assert [load(each).kernel.name for each in asked] == ["matern", "smooth_and_rough"]
    folds = [*words, "dataset.test=0", "evaluation=k_fold", "evaluation.folds=2", "kernel.ard=null"]
    assert load([*folds, "dataset.n_train=14"]).kernel.ard is False, "each fold leaves 7 points"
    standing = load([*folds, "dataset.n_train=16"]).kernel
    assert standing == load([*folds[:-1], "dataset.n_train=16", "kernel=smooth_and_rough"]).kernel


FEW_ROWS = 3 * 16


@pytest.fixture(scope="module")
def few_rows():
    """Three points for each of 16 features, of which all matter, or one; with 200 test points."""
    x = points(FEW_ROWS + 200, 16, seed=5)
    return x, {"all": np.sin(x).sum(axis=1), "one": np.sin(2 * x[:, 3])}


@pytest.mark.parametrize("which", ["all", "one"])
def test_few_rows_choose_between_a_length_for_each_feature_and_one(few_rows, which):
    x, targets = few_rows
    n, y = FEW_ROWS, targets[which]

    def fitted(kernel="auto", **optimizer):
        settings = {"name": "adam", "iterations": 60, **optimizer}
        return KernelFlowRegressor(kernel, optimizer=settings).fit(x[:n], y[:n])

    def error(model):
        return np.mean((model.predict(x[n:]) - y[n:]) ** 2)

    chosen, each = fitted(), fitted(fall_back=False)
    assert np.ptp(each.lengths_) > 0
    if which == "one":
        assert np.ptp(chosen.lengths_) > 0
        assert error(chosen) < 1.1 * error(each)
        assert not any("one length for all" in remark for remark in chosen.remarks_)
        return
    one = fitted({"name": "matern", "nu": 2.5, "ard": False})
    assert np.ptp(chosen.lengths_) == 0
    assert error(chosen) < 1.05 * error(one)
    assert error(chosen) < 0.9 * error(each)
    assert any("larger with a length for each feature" in remark for remark in chosen.remarks_)


def test_few_noisy_rows_of_a_smooth_function_keep_the_smooth_part_alone(kfx, in_folder):
    x = np.random.default_rng(2).uniform(-1, 1, size=(190, 3))
    y = np.sin(2 * x[:, 0]) + x[:, 1] ** 2 + 0.1 * np.random.default_rng(11).normal(size=190)
    pd.DataFrame(x, columns=[*"abc"]).assign(y=y).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "device.precision_check=off"]
    code, out, err = kfx("run", *words, "dataset.test=0.2", "hydra.run.dir=r")
    assert code == 0, err
    run = load_run("r")
    counts = {"initial_kept": 0, "one_length_kept": 0, "smooth_kept": 1, "fits": 1}
    (errors,) = run.metrics["fall_back"]["errors"]
    assert run.metrics["fall_back"] == {**counts, "kept": ["smooth"], "errors": [errors]}
    assert errors.keys() == {"fitted", "initial", "one_length", "smooth"}
    assert min(errors, key=errors.get) == "smooth"
    assert "errors at points left out are larger with the rough part of the kernel" in out
    final, start = (run.metrics["parameters"][name] for name in ("final", "initial"))
    assert final["roughness"] == 1e-4
    assert final["stretch"] == start["stretch"]
    assert final["lengths"] != start["lengths"]
    assert run.kernel.parameters["roughness"] == 1e-4
    assert set(run.evaluation["kernel"]) == {"initial", "trained", "rejected"}


@pytest.mark.parametrize("name", KERNELS)
def test_as_many_lengths_as_rows_are_never_kept(name):
    x = points(12, 12, seed=6)
    optimizer = {"name": "adam", "iterations": 5}
    kernel = {"name": name} if name == "smooth_and_rough" else {"name": name, "ard": True}
    fitted = KernelFlowRegressor(kernel, optimizer=optimizer).fit(x, np.sin(x[:, 0]))
    trained = KernelFlowRegressor(kernel, optimizer={**optimizer, "fall_back": False})
    assert not np.array_equal(fitted.lengths_, trained.fit(x, np.sin(x[:, 0])).lengths_)
    assert any("fall_back" in remark for remark in fitted.remarks_)
    classes = KernelFlowClassifier(kernel, optimizer=optimizer).fit(x, x[:, 0] > 0)
    assert any("fall_back" in remark for remark in classes.remarks_)


def test_one_feature_is_not_compared_with_one_length():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1))
    y = np.sin(2 * x[:, 0]) + rng.normal(size=60)
    fitted = KernelFlowRegressor(optimizer={"name": "adam", "iterations": 5}).fit(x, y)
    assert any("larger after training" in remark for remark in fitted.remarks_)
    assert not any("a length for each feature" in remark for remark in fitted.remarks_)


def test_a_run_that_ends_with_one_length_is_recorded(kfx, few_rows):
    x, targets = few_rows
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(16)]).assign(y=targets["all"])[: 2 * FEW_ROWS]
    frame.to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "dataset.test=0", "optimizer.iterations=30"]
    code, out, err = kfx("run", *words, "evaluation=k_fold", "evaluation.folds=2", "hydra.run.dir=r")
    assert code == 0, err
    assert "errors at points left out are larger with a length for each feature in 2 of 2 folds" in out
    run = load_run("r")
    recorded = [each["lengths"] for each in run.metrics["parameters"]["folds"]]
    assert [np.ptp(lengths) for lengths in recorded] == [0, 0]
    assert run.kernel.parameters["lengths"].tolist() == recorded[-1]
    assert list(run.metrics["parameters"]["initial"]) == list(run.metrics["parameters"]["final"])


def test_images_have_no_length_for_each_pixel(kfx):
    code, _, err = kfx("run", "dataset=digits", "kernel.ard=true")
    assert code == 2
    assert "kernel.ard=true: takes a table, and the points are images" in err


def test_leave_one_out_chooses_as_leaving_out_does():
    from kfx.evaluation.cross_validation import errors_of_candidates, least
    from kfx.numerics.regularization import Regularization

    x = torch.as_tensor(points(40, 2))
    y = torch.sin(x[:, :1]) + 0.3 * torch.as_tensor(points(40, 1, seed=4))
    kernel, offered = RBF(1.0), [Regularization(10.0**k, "absolute") for k in range(-6, 2)]
    chosen, in_folds = (
        least(offered, errors_of_candidates(kernel, x, y, offered, folds, None, np.random.default_rng(0)))
        for folds in (None, 40)
    )
    assert chosen == in_folds
    assert 1e-3 < chosen.value < 10


@pytest.mark.slow
def test_all_lengths_cost_at_most_three_times_as_much_as_one():
    """N = 600 and 20 features, as asked of it; the least of alternating measurements of the processor's time."""
    import time

    x = points(600, 20)
    cotangent = points(600, 600, seed=1)
    cotangent += cotangent.T
    seconds = {"one": [], "all": []}
    for _ in range(60):
        for name, kernel in (("one", RBF(4.0)), ("all", ARD(RBF(), np.full(20, 4.0)))):
            began = time.process_time()
            kernel.pullback(x)[1](cotangent)
            seconds[name].append(time.process_time() - began)
    assert min(seconds["all"]) < 3 * min(seconds["one"])


@pytest.mark.slow
def test_a_fit_ends_with_the_initial_kernel_if_that_predicts_left_out_points_better(kfx, relevant):
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", *ALONE]
    spoil = ["optimizer.learning_rate=4", "optimizer.iterations=2"]
    code, out, err = kfx("run", *words, *spoil, "hydra.run.dir=r")
    assert code == 0, err
    assert "errors at points left out are larger" in out
    kept = load_run("r")
    before, after = (kept.metrics["parameters"][name]["lengths"] for name in ("initial", "final"))
    assert np.ptp(after) == 0 or before == after  # one length for all, or the initial kernel
    mse = kept.evaluation.query("metric == 'mse'").set_index("kernel")["value"]
    assert mse["trained"] <= 1.02 * mse["initial"]
    assert kfx("run", *words, *spoil, "optimizer.fall_back=false", "hydra.run.dir=s")[0] == 0
    trained = load_run("s")
    assert trained.metrics["parameters"]["final"]["lengths"] != before
    assert trained.evaluation.query("metric == 'mse' and kernel == 'trained'")["value"].item() > mse["initial"]
    features = relevant[["a", "noise", "b", "more noise"]]
    kernel = {"name": "matern", "nu": 2.5, "ard": True, "initial": "median_distance"}
    fitted = KernelFlowRegressor(kernel, optimizer={"name": "adam", "learning_rate": 4.0, "iterations": 2})
    fitted.fit(features, relevant["y"])
    untuned = KernelFlowRegressor(kernel, optimizer={"name": "none", "iterations": 1}).fit(features, relevant["y"])
    assert fitted.predict(features) == pytest.approx(untuned.predict(features), abs=0.2)
    assert any("fall_back" in remark for remark in fitted.remarks_)
    assert not KernelFlowRegressor().fit(features, relevant["y"]).remarks_


def test_a_flow_cannot_fall_back(kfx):
    code, _, err = kfx("run", "optimizer=flow_euler", "optimizer.fall_back=true")
    assert code == 2
    assert (
        "optimizer.fall_back=true: optimizer=flow_euler moves points; its kernels have no leave-one-out errors" in err
    )
