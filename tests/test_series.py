"""Windows of series, backtests, forecasts that run free, and the data sets and the estimator made of them."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
import time
import types
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import solve_ivp
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import r2_score

from kfx import KernelFlowForecaster, load_run
from kfx.data import dynamics
from kfx.data.backtest import Backtest, Predictor
from kfx.data.choice import Asked, choose
from kfx.data.differences import Differences
from kfx.data.windows import Trajectory, Windows, smape
from kfx.evaluation.rollout import explained
from kfx.experiment.compose import load
from kfx.kernels import ARD, NNGP, RBF, Laplace, Linear, Matern, RationalQuadratic
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.optimizers.backtest_gradient import error_and_gradient
from kfx.outcomes import ConfigError, DataError
from tests.slow import slow_after

FEW = ("optimizer.iterations=3", "figures=false", "device.precision_check=off", "hydra.run.dir=r")
SMALL = ("dataset=dynamics", "dataset.n_train=150", "dataset.n_test=60", "evaluation=rollout", "evaluation.horizon=20")


def waves(n=300, seed=0):
    """Two coordinates with two incommensurable periods."""
    t = np.arange(n) * 0.2
    values = np.stack([np.sin(t) + 0.5 * np.sin(np.sqrt(2) * t), np.cos(t)], axis=1)
    return Trajectory(t, values * [2.0, 10.0] + [0.0, 100.0])


def as_file(path, trajectory, **columns):
    frame = pd.DataFrame({"t": trajectory.time, "x": trajectory.values[:, 0], "y": trajectory.values[:, 1], **columns})
    frame.to_csv(path, index=False)
    return frame


# ---- windows


@pytest.mark.parametrize("is_increment", [True, False])
def test_a_window_holds_values_of_the_past_and_its_target_the_horizons(is_increment):
    series = waves(40)
    windows = Windows(3, stride=2, horizon=5, is_increment=is_increment).fitted([series])
    x, y, places = windows.cut(series)
    z = (series.values - series.values.mean(axis=0)) / series.values.std(axis=0)
    assert len(x) == 40 - windows.reach == 40 - 9
    for row, target, place in zip(x, y, places, strict=True):
        end = place - 5
        np.testing.assert_allclose(row, np.concatenate([z[end], z[end - 2], z[end - 4]]))
        np.testing.assert_allclose(target, z[place] - z[end] if is_increment else z[place])
    assert windows.names(("x", "y")) == ("x(t)", "y(t)", "x(t-2)", "y(t-2)", "x(t-4)", "y(t-4)")


def test_windows_with_a_missing_value_are_left_out():
    series = waves(40)
    series.values[20, 0] = np.nan
    windows = Windows(3).fitted([series])
    x, _, places = windows.cut(series)
    assert len(x) == 40 - 3 - 4
    assert np.isfinite(x).all()
    assert not set(places) & {20, 21, 22, 23}


def test_elapsed_times_are_features_in_units_of_the_mean_step():
    time = np.cumsum([1.0, 2.0, 1.0, 4.0, 1.0, 1.0])
    series = Trajectory(time, np.arange(6.0)[:, None] ** 2)
    windows = Windows(2, elapsed=True).fitted([series])
    x, _, _ = windows.cut(series)
    unit = np.diff(time).mean()
    np.testing.assert_allclose(x[0, 2:] * unit, [time[2] - time[1], time[2] - time[0]])
    assert windows.names(("v",)) == ("v(t)", "v(t-1)", "elapsed(t)", "elapsed(t-1)")


@pytest.mark.parametrize(
    "windows",
    [Windows(4), Windows(4, stride=2), Windows(3, horizon=3), Windows(3, is_increment=False), Windows(3, elapsed=True)],
    ids=str,
)
def test_a_forecast_is_the_steps_of_scikit_learns_ridge_regression_one_after_the_other(windows):
    series = waves(120)
    train, after = series[:100], 15
    windows = windows.fitted([train])
    x, y, _ = windows.cut(train)
    ridge = KernelRidge(alpha=1e-6, kernel="rbf", gamma=0.5 / 3.0**2).fit(x, y)
    known = list(windows.scaled(train.values))
    for i in range(after):
        end = len(known) - windows.horizon
        lags = [known[end - k * windows.stride] for k in range(windows.lags)]
        row = np.concatenate(lags)
        if windows.elapsed:
            now = series.time[100 + i]
            since = [now - series.time[end - k * windows.stride] for k in range(windows.lags)]
            row = np.concatenate([row, np.array(since) / windows.unit])
        step = ridge.predict(row[None])[0]
        known.append(step + known[end] if windows.is_increment else step)
    expected = np.array(known[100:]) * windows.scale + windows.mean
    reach = windows.reach
    found = windows.forecast(ridge.predict, train.values[None, -reach:], series.time[None, 100 - reach : 115], after)
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)


@pytest.mark.parametrize(
    "kernel", [RBF(2.0), Matern(1.5, nu=2.5), RationalQuadratic(beta=2.0), Laplace(3.0), Linear(), NNGP(3)]
)
def test_rows_against_fixed_points_are_those_of_the_gram_matrix(kernel):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 6)) + 30, rng.normal(size=(50, 6)) + 30
    np.testing.assert_allclose(Predictor(kernel, y, np.eye(50))(x), kernel.gram(x, y), rtol=1e-11, atol=1e-12)


def test_smape_is_the_benchmarks():
    a, b = np.array([[[1.0], [-2.0], [0.0]]]), np.array([[[2.0], [2.0], [0.0]]])
    assert smape(a, b)[0] == pytest.approx(200 * (1 / 3 + 1 + 0) / 3)
    assert smape(np.full((1, 3, 1), np.nan), b)[0] == 200


# ---- backtests


def test_backtest_errors_are_those_of_separate_fits_and_forecasts():
    series = waves(200)
    test = Backtest.of(Windows(4), [series], steps=20)
    windows = Windows(4).fitted([series])
    x, y, ends = windows.cut(series)
    lambdas = [1e-6, 1e-3, 1.0]
    errors = test.errors(RBF(2.0), [Regularization(value, "absolute") for value in lambdas])
    starts = [30, 67, 105, 142, 180]
    for shift, error in zip(lambdas, errors, strict=True):
        each = []
        for at in starts:
            # a window lasts from its first value, 4 steps before its target, to the target
            outside = np.array([not {*range(end - 4, end + 1)} & {*range(at, at + 20)} for end in ends])
            ridge = KernelRidge(alpha=shift, kernel="rbf", gamma=1 / 8).fit(x[outside], y[outside])
            history, time = series.values[None, at - 4 : at], series.time[None, at - 4 : at + 20]
            errors = np.abs(windows.forecast(ridge.predict, history, time, 20)[0] - series.values[at : at + 20])
            each += [(errors / series.values.std(axis=0))[:h].mean() for h in range(1, 21)]
        assert error == pytest.approx(np.exp(np.mean(np.log(np.array(each) + 1e-3))) - 1e-3, rel=1e-4)


@pytest.mark.parametrize(
    "windows",
    [
        *(Windows(3), Windows(2, 2, 3, is_increment=False), Windows(2, elapsed=True)),
        Windows(2, differences=Differences(True, (3, 1))),
        Windows(2, periods=(0.7,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", slow_after(1, ["centered", "absolute"]))
def test_gradients_of_a_backtest_agree_with_differences(windows, scale):
    series = dynamics.trajectory("lorenz", 160, None, np.random.default_rng(0))
    series = replace(series, values=series.values + 60 * windows.differences.logarithm)
    test = Backtest.of(windows, [series], 25)
    kernel = ARD(RationalQuadratic(0.8), np.linspace(2.0, 4.0, test.x.shape[1]))
    shift = Regularization(1e-4, scale)
    error, gradient = error_and_gradient(test, kernel, shift)
    assert error == pytest.approx(float(test.errors(kernel, [shift])[0]), rel=1e-7)
    steps = 1e-5 * np.eye(len(kernel.flat))
    ends = [
        [test.errors(kernel.with_flat(kernel.flat + sign * step), [shift])[0] for sign in (1, -1)] for step in steps
    ]
    differences = (np.array(ends) @ [1, -1]) / 2e-5
    np.testing.assert_allclose(gradient, differences, rtol=2e-3, atol=2e-3 * np.abs(differences).max())


def test_the_choice_is_the_smallest_error_of_all():
    series, seen = waves(200), {}

    def kernel_of(length):
        return RBF(length)

    candidates = [Regularization(10.0**k, "absolute") for k in (-8, -4, -1)]
    found = choose([series], Asked([Windows(4), Windows(8)], kernel_of, True, candidates, 20)).best
    for lags in (4, 8):
        test = Backtest.of(Windows(lags), [series], 20, alike=[Windows(8)])
        seen[lags] = min(test.errors(RBF(found.length), [found.regularization]))
    assert seen[found.windows.lags] == pytest.approx(found.error)
    assert found.error == pytest.approx(min(seen.values()), rel=1e-6)


# ---- systems


@pytest.mark.parametrize("system", dynamics.FLOWS)
def test_trajectories_follow_their_equations(system):
    flow = dynamics.FLOWS[system]
    found = dynamics.trajectory(system, 30, None, np.random.default_rng(1))
    again = solve_ivp(flow.field, (0, found.time[-1]), found.values[0], "LSODA", found.time, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.values, again.y.T, rtol=1e-5, atol=1e-5)
    assert np.isfinite(dynamics.trajectory(system, 3000, None, np.random.default_rng(0)).values).all()


def test_energy_of_the_double_pendulum_is_kept():
    a, b, u, v = dynamics.trajectory("double_pendulum", 500, None, np.random.default_rng(0)).values.T
    energy = u**2 + v**2 / 2 + u * v * np.cos(a - b) - 9.81 * (2 * np.cos(a) + np.cos(b))
    assert np.ptp(energy) < 1e-6


def test_maps_are_their_formulas():
    x = dynamics.trajectory("logistic", 50, None, np.random.default_rng(0)).values[:, 0]
    np.testing.assert_allclose(x[1:], 4 * x[:-1] * (1 - x[:-1]))
    x, y = dynamics.trajectory("henon", 50, None, np.random.default_rng(0)).values.T
    np.testing.assert_allclose(x[1:], 1 - 1.4 * x[:-1] ** 2 + y[:-1])
    x, y = dynamics.trajectory("ikeda", 50, None, np.random.default_rng(0)).values.T
    turn = 0.4 - 6 / (1 + x[:-1] ** 2 + y[:-1] ** 2)
    np.testing.assert_allclose(x[1:], 1 + 0.9 * (x[:-1] * np.cos(turn) - y[:-1] * np.sin(turn)))
    np.testing.assert_allclose(y[1:], 0.9 * (x[:-1] * np.sin(turn) + y[:-1] * np.cos(turn)))
    x = dynamics.trajectory("bernoulli", 500, None, np.random.default_rng(0)).values[:, 0]
    np.testing.assert_allclose(x[1:], 2 * x[:-1] % 1, atol=1e-12)
    assert x[-50:].std() > 0.1, "it does not end at 0, as in floating point"


@pytest.mark.parametrize("system", ["henon", "ikeda"])
def test_near_points_of_a_map_part_at_its_exponent(system):
    of = dynamics.MAPS[system]
    points = dynamics.trajectory(system, 4000, None, np.random.default_rng(0)).values.T
    apart, growth = 1e-7 * np.stack([np.ones(4000), np.zeros(4000)]), 0.0
    for step in range(60):
        after = np.array(of.step(points))
        apart = np.array(of.step(points + apart)) - after
        lengths = np.linalg.norm(apart, axis=0) / 1e-7
        growth += np.log(lengths).mean() / 50 if step >= 10 else 0.0
        points, apart = after, apart / lengths
    assert growth == pytest.approx(of.exponent, rel=0.03)


def test_mackey_glass_follows_its_delay_equation():
    found = dynamics.trajectory("mackey_glass", 4000, 0.1, np.random.default_rng(0)).values[:, 0]
    now, late = found[171:-1], found[1:-171]
    slope = (found[172:] - found[170:-2]) / 0.2
    np.testing.assert_allclose(slope, 0.2 * late / (1 + late**10) - 0.1 * now, atol=2e-3)
    assert 0.2 < found[1000:].std() < 0.3


class Spiral:
    """A system as the package dysts has them."""

    dimension, period, maximum_lyapunov_estimated, ic = 2, 2.0, 0.5, [1.0, 0.0]

    def make_trajectory(self, n, pts_per_period=None, resample=False):
        assert resample
        t = np.arange(n) * 2 * np.pi / pts_per_period
        return np.stack([np.cos(t), np.sin(t)], axis=1) * np.linalg.norm(self.ic)


@pytest.mark.slow
def test_a_system_of_dysts_is_sampled_by_its_period(kfx, monkeypatch):
    package = types.ModuleType("dysts")
    package.flows, package.maps = types.SimpleNamespace(Spiral=Spiral), types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "dysts", package)
    words = ("dataset=dynamics", "dataset.system=Spiral", "dataset.points_per_period=20", "dataset.n_train=90")
    code, _, err = kfx("run", *words, "dataset.n_test=40", "dataset.lags=4", *FEW)
    assert code == 0, err
    series = load([*words, "dataset.n_test=40", "dataset.lags=4"]).dataset.build(Streams(0)["data"]).series
    assert series.exponent == 0.5
    assert series.coordinates == ("x", "y")
    assert np.diff(series.train[0].time) == pytest.approx(0.1)
    assert "valid_lyapunov_times" in set(load_run("r").evaluation["metric"])
    code, _, err = kfx("run", "dataset=dynamics", "dataset.system=Nowhere", *FEW)
    assert code == 2
    assert "dataset.system=Nowhere: expected one of lorenz" in err


def test_without_dysts_its_systems_are_refused(kfx, monkeypatch):
    monkeypatch.setitem(sys.modules, "dysts", None)
    code, _, err = kfx("run", "dataset=dynamics", "dataset.system=Aizawa")
    assert code == 2
    assert "with pip install 'kernel-flows[dysts]' also a system of the package dysts" in err


# ---- runs


@pytest.mark.slow
def test_a_run_chooses_windows_and_its_forecasts_have_the_recorded_errors(kfx):
    code, out, err = kfx("run", *SMALL, *FEW)
    assert code == 0, err
    run = load_run("r")
    node = run.config.dataset
    assert node.lags in (1, 2, 4, 8, 15, 30)
    assert run.config.evaluation.name == "rollout"
    assert run.config.evaluation.regularization.value == "backtest"
    assert f"windows     {node.lags} lag" in out
    rows = pd.read_csv("r/forecasts.csv")
    series = load(SMALL).dataset.build(Streams(0)["data"]).series
    scale = np.concatenate([each.values for each in series.train]).std(axis=0)
    for kernel in ("initial", "trained"):
        own = rows[rows["kernel"] == kernel]
        truth, forecast = (np.stack([own[f"{k}.{c}"] for c in "xyz"], axis=1) for k in ("truth", "forecast"))
        recorded = run.evaluation.query("kernel == @kernel").set_index("metric")["value"]
        assert recorded["smape"] == pytest.approx(smape(forecast, truth))
        error = np.sqrt(np.mean(((forecast - truth) / scale) ** 2, axis=1)).reshape(-1, 20)
        assert recorded["nrmse"] == pytest.approx(np.sqrt((error**2).mean(axis=1)).mean())
        assert recorded["valid_lyapunov_times"] == pytest.approx(0.9056 * recorded["valid_time"])
    of_forecasts = next(line for line in run.summary() if line.startswith("forecast "))
    summary = "\n".join(run.summary())
    assert "R² " in of_forecasts
    assert summary.count("R² ") == 1, "that beside the rmse of one step would be of other values"
    first = rows[(rows["kernel"] == "trained") & (rows["origin"] == 0)]
    np.testing.assert_allclose(first["truth.x"], series.test[0].values[:20, 0])
    assert first["time"].iloc[0] == pytest.approx(series.train[0].time[-1] + 0.025)


def test_training_that_makes_forecasts_worse_is_not_kept(kfx):
    spoil = ("optimizer.learning_rate=3", "optimizer.iterations=2")
    code, out, err = kfx("run", *SMALL, *FEW, *spoil)
    assert code == 0, err
    assert "backtest errors are larger after training" in out
    parameters = load_run("r").metrics["parameters"]
    assert parameters["initial"] == parameters["final"]


def test_what_is_given_is_not_chosen(kfx):
    given = ("dataset.lags=5", "dataset.stride=2", "dataset.target=next", "kernel=matern", "kernel.sigma=3")
    code, _, err = kfx("run", *SMALL, *FEW, *given, "regularization.value=1e-6", "dataset.noise=0.01")
    assert code == 0, err
    run = load_run("r")
    assert (run.config.dataset.lags, run.config.dataset.target, run.config.kernel.sigma) == (5, "next", 3)
    assert run.trace["parameter.sigma"][0] == pytest.approx(3)
    assert set(run.evaluation["regularization"]) == {1e-6}


@pytest.mark.slow
def test_pictures_of_forecasts(kfx):
    assert kfx("run", *SMALL, "optimizer=none", "hydra.run.dir=r", "figures=true")[0] == 0
    from kfx import plots

    run = load_run("r")
    assert len(plots.one(run, "forecast").axes) == 3
    (axes,) = plots.one(run, "forecast_error").axes
    assert axes.get_yscale() == "log"
    assert len(plots.one(run, "attractor").axes) == 2


def test_own_series_several_in_one_table(kfx, in_folder):
    one, two = waves(120), waves(90)
    frame = pd.concat([as_file("a.csv", one, name="a"), as_file("b.csv", two, name="b")])
    frame.to_csv("s.csv", index=False)
    words = ("dataset=series", "dataset.path=s.csv", "dataset.columns=[y]", "dataset.time=t", "dataset.series=name")
    code, _, err = kfx("run", *words, *FEW, "dataset.lags=6")
    assert code == 0, err
    data = load([*words, "dataset.lags=6"]).dataset.build(Streams(0)["data"])
    assert len(data.x_train) == (96 - 6) + (72 - 6)
    assert len(data.x_test) == (24 - 6) + (18 - 6)
    assert data.features[:2] == ("y(t)", "y(t-1)")
    assert load_run("r").evaluation.query("metric == 'smape'")["value"].max() < 5


ONE = ["dataset.lags=4", "kernel.sigma=3"]
OTHER = (
    "dataset.others=[{{lags:{},target:next,differences:{},logarithm:false,length:{},regularization:1,scale:centered}}]"
)


@pytest.mark.parametrize(
    ("change", "words", "expected"),
    [
        (lambda f: f.assign(t=f["t"].where(f.index != 30, 0.0)), [], "row 31 is not later than the row before"),
        (lambda f: f[f.index != 30], [], "dataset.time: steps from 0.2 to 0.4; set dataset.elapsed=true"),
        (lambda f: f.assign(x=1.0), [], "coordinate 0 of the series is constant"),
        (lambda f: f[:1], [], "a series has 1 steps in all"),
        (lambda f: f[:8], ["dataset.lags=6", "dataset.target=next"], "too few for windows"),
        (lambda f: f.assign(x=f["x"].astype(object).where(f.index != 3, "high")), [], "column x holds 'high' in row 4"),
        (lambda f: f.assign(x=f["x"].where(f.index != 3, np.inf)), [], "holds a value that is infinite"),
        (lambda f: f, ["dataset.columns=[z]"], "dataset.columns=z: no column of s.csv; it has t, x, y"),
        (lambda f: f, ["dataset.n_train=110", "dataset.n_test=20"], "a series has 120 steps in all; ask for fewer"),
        (lambda f: f, ["dataset.n_test=5", "dataset.lags=8"], "the test series of 5 steps hold no window of 8"),
        (lambda f: f, ["evaluation=rollout", "evaluation.horizon=60"], "evaluation.horizon=60: only 24 steps follow"),
        (lambda f: f, ["device.dtype=float32"], "device.dtype=float32: forecasts of dataset=series need float64"),
        (lambda f: f, ["evaluation=rollout", "dataset.lags=99"], "training series of 96 steps hold no window of 99"),
        (lambda f: f, [*ONE, "dataset.members=2"], "dataset.members=2: nothing is chosen where dataset.lags and the"),
        (lambda f: f, [*ONE, OTHER.format("six", "[]", 1)], "dataset.others: 1: lags=six: expected a whole number"),
        (lambda f: f, [*ONE, OTHER.format(95, "[]", 1)], "dataset.others: 1: the training series hold no two windows"),
        (lambda f: f, [*ONE, OTHER.format(4, "[]", -1)], "expected a list of settings with lags, target"),
        (lambda f: f, [*ONE, "dataset.elapsed=true", OTHER.format(4, "[1]", 1)], "1: windows of an irregular series"),
        (lambda f: f.assign(x=np.nan), [], "coordinate 0 of the series holds no value"),
        (lambda f: f.assign(n=["a"] * 60 + [None] * 60), ["dataset.series=n"], "names the series, is empty in row 61"),
        (lambda f: f, ["dataset.preprocess=[normalize]"], "dataset.preprocess=['normalize']: expected an empty list"),
    ],
)  # fmt: skip
def test_bad_series_are_one_line(kfx, in_folder, change, words, expected):
    change(as_file("s.csv", waves(120))).to_csv("s.csv", index=False)
    code, out, err = kfx("run", "dataset=series", "dataset.path=s.csv", "dataset.time=t", *FEW, *words)
    said = [line for line in (out + err).splitlines() if expected in line]
    assert code in (1, 2), (code, err)
    assert said, err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*series are not forecast")
def test_missing_values_and_short_series_leave_the_rest(kfx, in_folder):
    holed, short = waves(200), waves(9)
    holed.values[[50, 120, 175], 0] = np.nan
    frame = pd.concat([as_file("a.csv", holed, name="a"), as_file("b.csv", short, name="b")])
    frame.to_csv("s.csv", index=False)
    words = ("dataset=series", "dataset.path=s.csv", "dataset.columns=[x,y]", "dataset.time=t", "dataset.series=name")
    code, _, err = kfx("run", *words, *FEW, "figures=true", "evaluation=rollout", "evaluation.starts=4")
    assert code == 0, err
    assert load_run("r").evaluation.query("metric == 'smape'")["value"].max() < 5, "the missing truth does not count"
    fitted = KernelFlowForecaster(lags=4).fit([holed.values, short.values, short.values[:2]])
    assert np.isfinite(fitted.predict(5, series=holed.values)).all()


@pytest.mark.slow
def test_a_forecast_that_leaves_the_range_is_recorded_and_drawn(kfx):
    words = ("dataset.target=next", "kernel=linear", "dataset.lags=4", "dataset.n_test=200")
    code, _, err = kfx(
        "run", *SMALL, *words, *FEW, "figures=true", "evaluation.horizon=90", "regularization.value=1e-9"
    )
    assert code == 0, err
    rows = pd.read_csv("r/forecasts.csv")
    left = load_run("r").evaluation.query("metric == 'left_range' and kernel == 'initial'")["value"].item()
    gone = rows[rows["kernel"] == "initial"].groupby("origin")["forecast.x"].apply(lambda own: own.isna().any())
    assert left == gone.mean()
    assert (load_run("r").directory / "figures" / "forecast.png").is_file()


def test_forecasts_are_those_of_the_largest_n_i_and_the_first_lambda(kfx):
    several = ("dataset.lags=2", "kernel.sigma=3", "evaluation.n_interpolation=[140,20]")
    assert kfx("run", *SMALL, *FEW, *several, "evaluation.regularization.value=[1e-8,1.0]")[0] == 0
    rows = pd.read_csv("r/forecasts.csv").query("kernel == 'trained'")
    truth, forecast = (np.stack([rows[f"{k}.{c}"] for c in "xyz"], axis=1) for k in ("truth", "forecast"))
    found = load_run("r").evaluation.query("kernel == 'trained' and metric == 'smape' and n_interpolation == 140")
    assert found.set_index("regularization")["value"][1e-8] == pytest.approx(smape(forecast, truth))


def test_a_flow_of_windows_forecasts_through_its_layers(kfx):
    words = ("optimizer=flow_euler", "dataset.lags=2", "kernel.sigma=3", "sampler.batch_size=30")
    code, _, err = kfx("run", *SMALL, *FEW, *words)
    assert code == 0, err
    assert np.isfinite(load_run("r").evaluation.query("metric == 'smape'")["value"]).all()


@pytest.mark.slow
def test_a_run_goes_on_from_the_last_rows_of_a_file(kfx, in_folder):
    whole = waves(200)
    as_file("s.csv", whole[:150])
    words = ("dataset=series", "dataset.path=s.csv", "dataset.time=t", "dataset.lags=4", "kernel.sigma=3")
    assert kfx("run", *words, *FEW)[0] == 0
    as_file("now.csv", whole[:160])
    code, out, err = kfx("predict", "r", "now.csv", "--steps", "40", "--output", "f.csv")
    assert (code, out.strip()) == (0, "f.csv"), err
    found = pd.read_csv("f.csv")
    assert list(found.columns) == ["series", "step", "time", "x", "y"]
    np.testing.assert_allclose(found["time"], whole.time[160:])
    errors = np.abs(found[["x", "y"]] - whole.values[160:]) / whole.values.std(axis=0)
    assert errors.to_numpy().max() < 0.1
    as_file("training.csv", whole[:120])
    assert kfx("predict", "r", "training.csv", "--steps", "15", "--output", "g.csv")[0] == 0
    recorded = pd.read_csv("r/forecasts.csv").query("kernel == 'trained' and origin == 0").filter(like="forecast.")
    np.testing.assert_allclose(pd.read_csv("g.csv")[["x", "y"]], recorded[:15], rtol=1e-6)
    as_file("short.csv", whole[:3])
    code, _, err = kfx("predict", "r", "short.csv")
    assert code != 0
    assert "short.csv: a forecast goes on from 4 values; got 3" in err
    code, _, err = kfx("predict", "r", "now.csv", "--steps", "0")
    assert code == 2
    assert "--steps 0: expected a whole number >= 1" in err


def test_irregular_times_are_features(kfx, in_folder):
    frame = as_file("s.csv", waves(150))
    frame[~frame.index.isin([20, 50, 51, 100])].to_csv("s.csv", index=False)
    words = ("dataset=series", "dataset.path=s.csv", "dataset.time=t", "dataset.elapsed=true", "dataset.lags=5")
    code, _, err = kfx("run", *words, *FEW)
    assert code == 0, err
    assert load_run("r").evaluation.query("metric == 'smape' and kernel == 'initial'")["value"].item() < 20


@pytest.mark.slow
def test_a_system_is_sampled_at_random_times(kfx):
    words = ("dataset=dynamics", "dataset.n_train=150", "dataset.n_test=60", "dataset.gaps=4", "dataset.dt=0.01")
    errors = {}
    for elapsed in ("true", "false"):
        code, _, err = kfx(
            "run", *words, *FEW, f"dataset.elapsed={elapsed}", "dataset.lags=2", f"hydra.run.dir=elapsed-{elapsed}"
        )
        assert code == 0, err
        run = load_run(f"elapsed-{elapsed}")
        errors[elapsed] = run.evaluation.query("metric == 'mse' and kernel == 'initial'")["value"].item()
    times = load([*words]).dataset.trajectories()[0][0].time
    assert set(np.round(np.diff(times) / 0.01).astype(int)) == {1, 2, 3, 4}
    assert errors["true"] < errors["false"] / 4, "the next value depends on the time until then"


def test_explained_variance_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(3, 40, 2)) * [1.0, 5.0]
    forecast = truth + 0.1 * rng.normal(size=truth.shape)
    expected = r2_score(
        truth.reshape(-1, 2) / [1, 5], forecast.reshape(-1, 2) / [1, 5], multioutput="variance_weighted"
    )
    assert explained(forecast, truth, np.array([1.0, 5.0])) == pytest.approx(expected)


@pytest.mark.slow
def test_a_kernel_for_each_coordinate_forecasts_as_one_for_all_until_they_differ(kfx):
    """Until they are trained all kernels are equal; afterwards the coordinates have parameters of their own."""
    given = ("dataset.lags=4", "kernel.sigma=3", "regularization.value=1e-6", "optimizer.fall_back=false")
    found = {}
    for kernels in ("shared", "separate"):
        words = (*given, f"outputs.kernels={kernels}", f"hydra.run.dir={kernels}", "optimizer=adam")
        code, _, err = kfx("run", *SMALL, *FEW[:-1], *words)
        assert code == 0, err
        forecasts = pd.read_csv(f"{kernels}/forecasts.csv")
        found[kernels] = {name: own.filter(like="forecast.").to_numpy() for name, own in forecasts.groupby("kernel")}
    np.testing.assert_allclose(found["separate"]["initial"], found["shared"]["initial"], rtol=1e-4)
    assert len({own.parameters["sigma"] for own in load_run("separate").kernels}) == 3
    code, _, err = kfx("run", *SMALL, *FEW, "outputs.kernels=separate", "objective=backtest", "optimizer=adam")
    assert code == 2
    assert "outputs.kernels=separate: does not go with objective=backtest" in err


def test_a_backtest_of_a_kernel_for_each_coordinate_is_that_of_one_where_they_are_equal():
    test = Backtest.of(Windows(3), [waves()], 20)
    kernel, candidates = RBF(3.0), [Regularization(value, "centered") for value in (1e-6, 1e-3)]
    shared = test.errors(kernel, candidates)
    np.testing.assert_allclose(test.errors([kernel, kernel], candidates), shared, rtol=1e-6)
    assert (test.errors([kernel, RBF(0.1)], candidates) > shared).all()


def test_forecasting_needs_series(kfx):
    code, _, err = kfx("run", "evaluation=rollout")
    assert code == 2
    assert "evaluation=rollout: forecasts series, and dataset diabetes has none" in err
    code, _, err = kfx("run", "regularization.selection=backtest")
    assert code == 2
    assert "regularization.selection=backtest: forecasts series, and dataset diabetes has none" in err


@pytest.mark.slow
def test_gilpins_files_are_read(kfx, in_folder, monkeypatch):
    code, _, err = kfx("run", "dataset=gilpin")
    assert code in (1, 2)
    assert "put test_univariate__pts_per_period_100__periods_12.json.gz there" in err
    folder = in_folder / "cache" / "dysts"
    folder.mkdir(parents=True)
    series = {"Waves": {"dt": 0.2, "values": waves(300).values[:, 0].tolist()}}
    with gzip.open(folder / "test_univariate__pts_per_period_15__periods_12.json.gz", "wt") as stream:
        json.dump(series, stream)
    words = ("dataset=gilpin", "dataset.points_per_period=15", "dataset.n_train=200", "dataset.n_test=60")
    code, _, err = kfx("run", *words, *FEW)
    assert code != 0
    assert "dataset.system=Lorenz: expected one of the 1 systems" in err
    code, _, err = kfx("run", *words, *FEW, "dataset.system=Waves", "dataset.lags=15")
    assert code == 0, err
    assert load_run("r").evaluation.query("metric == 'smape' and kernel == 'trained'")["value"].item() < 5


# ---- the estimator


def test_the_forecaster_forecasts():
    series = waves(400).values
    fitted = KernelFlowForecaster(lags=8).fit(series[:300])
    forecast, deviation = fitted.predict(50, return_std=True)
    assert forecast.shape == deviation.shape == (50, 2)
    assert smape(forecast, series[300:350]) < 1
    assert fitted.score(series[300:350]) == -smape(forecast, series[300:350])
    np.testing.assert_allclose(fitted.predict(10, series=series[:320]), series[320:330], rtol=0.02)
    flat = KernelFlowForecaster(lags=8).fit(series[:300, 0])
    assert flat.predict(5).shape == (5,)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(7), fitted.predict(7))
    assert clone(fitted).get_params()["lags"] == 8
    several = KernelFlowForecaster(lags=8).fit([series[:200], series[250:400]])
    assert several.predict(3).shape == (3, 2)
    with pytest.raises(ValueError, match="holds 2 series; expected one"):
        several.predict(3, series=[series, series])
    with pytest.raises(ValueError, match="steps=0: expected a whole number"):
        several.predict(0)
    with pytest.raises(DataError, match="no 8 values after one another are there"):
        several.predict(3, series=np.full((20, 2), np.nan))
    with pytest.raises(DataError, match="no value to compare with"):
        several.score(np.full((20, 2), np.nan))


@pytest.mark.slow
def test_a_forecast_takes_at_most_twice_as_long_as_in_plain_numpy():
    series = dynamics.trajectory("mackey_glass", 1060, 1.0, np.random.default_rng(0)).values[:, 0]
    fitted = KernelFlowForecaster(RBF(7.0), lags=60, regularization=1e-9).fit(series)
    windows, sigma = fitted.windows_, 7.0
    x, y, _ = windows.cut(Trajectory(np.arange(1060.0), series[:, None]))
    gram = RBF(sigma).gram(x)
    alpha = np.linalg.solve(gram + 1e-9 * (1 - gram.mean()) * np.eye(len(x)), y)[:, 0]

    def plain(steps):
        z = list((series[-60:] - windows.mean[0]) / windows.scale[0])
        for _ in range(steps):
            row = np.array(z[:-61:-1])
            z.append(z[-1] + np.exp(-((x - row) ** 2).sum(axis=1) / (2 * sigma**2)) @ alpha)
        return np.array(z[60:]) * windows.scale[0] + windows.mean[0]

    np.testing.assert_allclose(fitted.predict(50), plain(50), rtol=1e-4)
    pairs = [(clocked(fitted.predict), clocked(plain)) for _ in range(7)]
    ours, numpys = (min(seconds) for seconds in zip(*pairs, strict=True))
    assert ours < 2 * numpys, (ours, numpys)


def clocked(forecast):
    began = time.perf_counter()
    forecast(200)
    return time.perf_counter() - began


def test_deviations_are_those_of_forecasts_within_the_series():
    rng = np.random.default_rng(0)
    series = waves(600).values[:, 0] + 0.3 * rng.standard_normal(600)
    fitted = KernelFlowForecaster(lags=15, regularization=1.0).fit(series[:500])
    _, deviation = fitted.predict(60, return_std=True)
    errors = [fitted.predict(60, series=series[:at]) - series[at : at + 60] for at in range(500, 540)]
    assert 0.6 < np.sqrt(np.mean(np.square(errors))) / deviation.mean() < 1.6


@pytest.mark.slow
def test_a_kernel_of_the_forecaster_can_be_given_or_trained():
    series = waves(300).values[:, 0]
    given = KernelFlowForecaster(RBF(3.0), lags=6, regularization=1e-6).fit(series)
    assert given.kernel_.parameters["sigma"] == 3.0
    far = KernelFlowForecaster(RBF(0.3), lags=6).fit(series)
    train = {"name": "adam", "iterations": 60, "learning_rate": 0.1}
    trained = KernelFlowForecaster(RBF(0.3), lags=6, objective="nll", optimizer=train).fit(series)
    assert trained.kernel_.parameters["sigma"] > 0.6
    assert trained.backtest_error_ < far.backtest_error_
    train |= {"learning_rate": 4.0, "iterations": 2}
    spoilt = KernelFlowForecaster(RBF(3.0), lags=6, optimizer=train).fit(series)
    assert spoilt.kernel_.parameters["sigma"] == 3.0, "the trained kernel forecasts worse"


@pytest.mark.parametrize(
    ("settings", "series", "error", "expected"),
    [
        ({"lags": 0}, waves(50).values, ConfigError, "lags=0: expected auto, or a whole number"),
        ({"stride": 0}, waves(50).values, ConfigError, "stride=0: expected a whole number >= 1"),
        ({"horizon": 2.5}, waves(50).values, ConfigError, "horizon=2.5: expected a whole number >= 1"),
        ({"steps": -4}, waves(50).values, ConfigError, "steps=-4: expected None, or a whole number >= 1"),
        ({"regularization": [1]}, waves(50).values, ConfigError, "expected None, or a number >= 0"),
        ({}, ["a", "b", "c"], ValueError, "holds what is no number"),
        ({"target": "then"}, waves(50).values, ConfigError, "target='then': expected increment, next or auto"),
        ({"kernel": "rfb"}, waves(50).values, ConfigError, "kernel.name=rfb: unknown; it takes auto, rbf"),
        ({}, np.zeros(50), DataError, "constant"),
        ({}, 1e200 * waves(50).values, DataError, "has numbers up to 3e[+]200; give it in other units"),
        ({}, 1e-200 * waves(50).values, DataError, "give it in other units"),
        ({"lags": 60}, waves(50).values, DataError, "too few for windows of 60"),
        ({}, np.zeros((3, 3, 3)), ValueError, "expected (T,) or (T, coordinates)"),
        ({}, [1.0, np.inf, 2.0], ValueError, "infinite"),
    ],
)
def test_wrong_settings_and_series_of_the_forecaster(settings, series, error, expected):
    with pytest.raises(error, match=expected.replace("(", r"\(").replace(")", r"\)")):
        KernelFlowForecaster(**settings).fit(series)


def test_a_forecaster_reads_frames_of_arrow_as_those_of_pandas():
    pa = pytest.importorskip("pyarrow")
    t = np.arange(100)
    table = pa.table({"time": t, "y": np.sin(t / 5)})
    arrow, pandas = KernelFlowForecaster(lags=4).fit(table), KernelFlowForecaster(lags=4).fit(table.to_pandas())
    assert arrow.n_features_in_ == 1
    np.testing.assert_array_equal(arrow.predict(3), pandas.predict(3))
    part = table.slice(0, 80)
    np.testing.assert_array_equal(arrow.predict(3, series=part), pandas.predict(3, series=part.to_pandas()))
    assert arrow.predict(3).shape == pandas.predict(3).shape


def test_forecasts_are_held_against_the_last_value(kfx):
    """Of a random walk the last value is the best forecast."""
    walk = np.random.default_rng(3).standard_normal(160).cumsum()
    pd.DataFrame({"value": walk}).to_csv("walk.csv", index=False)
    words = [
        "dataset=series",
        "dataset.path=walk.csv",
        "dataset.lags=2",
        "dataset.differences=[]",
        "dataset.target=next",
    ]
    code, out, err = kfx("run", *words, "kernel.sigma=0.05", "regularization.value=1e-6", *FEW)
    assert code == 0, err
    rows = pd.read_csv("r/forecasts.csv").query("kernel == 'trained'").groupby("origin")
    last = np.array([walk[int(own["time"].iloc[0]) - 1] for _, own in rows])
    truth = np.stack([own["truth.value"] for _, own in rows])
    spread = load_run("r").metrics["training_deviation"]["value"]
    expected = np.sqrt(((truth - last[:, None]) ** 2).mean(axis=1)).mean() / spread
    found = load_run("r").evaluation.query("kernel == 'trained'").set_index("metric")["value"]
    assert found["persistence_nrmse"] == pytest.approx(expected)
    assert found["nrmse"] > expected
    assert "no better than that of the last known value" in out
    assert "last value  nrmse" in out
