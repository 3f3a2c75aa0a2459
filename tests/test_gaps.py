"""Missing values of series: what fills them, which windows count, and what forecasts within the series choose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.integrate import solve_ivp

from kfx import KernelFlowForecaster, load_run, plots
from kfx.data.backtest import Backtest, mean_error
from kfx.data.choice import Offered
from kfx.data.dataset import Dataset
from kfx.data.gaps import CUBIC, LEFT_OUT, LINE, filled
from kfx.data.windows import Predict, SeriesParts, Trajectory, Windows
from kfx.evaluation.rollout import Rollout
from kfx.experiment.compose import load
from kfx.outcomes import ConfigError, DataError

TIME = np.cumsum(1 + np.arange(60) % 3).astype(float)
MISSING = [0, 7, 20, 21, 22, 40, 42, 59]


def waves(count: int) -> np.ndarray:
    t = np.arange(count)
    return np.sin(t / 5) + 0.5 * np.sin(t / 3.1)


def roessler(count: int) -> np.ndarray:
    """The first coordinate of the Rössler system, about forty steps a period."""
    at = 20 + 0.15 * np.arange(count)
    return solve_ivp(
        lambda _, x: [-x[1] - x[2], x[0] + 0.2 * x[1], 0.2 + x[2] * (x[0] - 5.7)],
        (0, at[-1]),
        [1.0, 1.0, 0.0],
        t_eval=at,
        rtol=1e-9,
    ).y[0]


def with_gaps(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """A tenth of the values is missing, here and there and in runs of five."""
    found, rng = values.copy(), np.random.default_rng(seed)
    for start in rng.choice(len(values) * 3 // 4, len(values) // 100, replace=False):
        found[start : start + 5] = np.nan
    found[rng.choice(len(values) * 3 // 4, len(values) // 20, replace=False)] = np.nan
    return found


def as_series(values: np.ndarray) -> Trajectory:
    return Trajectory(np.arange(len(values), dtype=float), values.reshape(len(values), -1))


@pytest.mark.parametrize("how", [LINE, CUBIC])
def test_gaps_lie_on_a_line_or_a_cubic_and_ends_stay(how):
    curve = np.polynomial.Polynomial([2, -1] if how == LINE else [2, -1, 0.02, -1e-4])
    values = np.stack([curve(TIME), np.ones(60)], axis=1)
    values[MISSING, 0] = np.nan
    values[10, 1] = np.nan
    found = filled(values, TIME, how)[0]
    np.testing.assert_allclose(found[1:-1, 0], curve(TIME)[1:-1], rtol=1e-9)
    np.testing.assert_allclose(found[:, 1], 1.0)
    assert np.isnan(found[[0, 59], 0]).all()
    assert filled(values, TIME, LEFT_OUT)[0] is values
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(values[:, 0])), MISSING)


@pytest.mark.parametrize(("count", "is_filled"), [(20, True), (21, False)])
@pytest.mark.parametrize("how", [LINE, CUBIC])
def test_long_gaps_stay(how, count, is_filled):
    values = waves(90)[:, None]
    values[30 : 30 + count] = np.nan
    values[70] = np.nan
    found = filled(values, np.arange(90.0), how)[0]
    assert np.isfinite(found[30 : 30 + count]).all() == np.isfinite(found[30 : 30 + count]).any() == is_filled
    assert np.isfinite(found[70]).all()


@pytest.mark.parametrize("how", [LINE, CUBIC])
@pytest.mark.parametrize("is_increment", [True, False])
def test_windows_see_filled_values_but_none_that_their_target_decides(how, is_increment):
    series = Trajectory(TIME, np.random.default_rng(0).normal(size=(60, 1)))
    series.values[MISSING] = np.nan
    windows = replace(Windows(4, is_increment=is_increment).fitted([series]), missing=how)
    x, y, ends = windows.cut(series)
    whole = windows.scaled(filled(series.values, TIME, how)[0])[:, 0]
    late = {8, 23, 41, 43} if how == LINE else {8, 9, 23, 24, 41, 43, 44}  # the last values by which gaps are filled
    needs = {t for t in range(60) if {t, t - 1} & set(MISSING)} | ({t + 1 for t in late} if how == CUBIC else set())
    expected = [t for t in range(5, 59) if t not in needs - {t + 1 for t in (9, 24, 44)}]
    assert ends.tolist() == expected
    np.testing.assert_array_equal(x, [whole[[t - 1, t - 2, t - 3, t - 4]] for t in ends])
    np.testing.assert_array_equal(y[:, 0], [whole[t] - whole[t - 1] * is_increment for t in ends])
    for at in range(10, 59):  # other values from there on change no window that they are the target of
        moved = replace(series, values=series.values.copy())
        moved.values[at:] += 1.0
        again, _, places = windows.cut(moved)
        np.testing.assert_array_equal(again[places == at], x[ends == at])


@pytest.mark.parametrize("how", [LINE, CUBIC])
def test_noise_with_gaps_is_not_predicted(how):
    values = np.random.default_rng(0).normal(size=3000)
    values[2::6] = values[3::6] = np.nan
    x, y, _ = replace(Windows(3, is_increment=False).fitted([as_series(values)]), missing=how).cut(as_series(values))
    half = len(x) // 2
    weights = np.linalg.lstsq(x[:half], y[:half], rcond=None)[0]
    assert 1 - np.square(y[half:] - x[half:] @ weights).mean() / y[half:].var() < 0.05


@pytest.mark.parametrize("missing", [LEFT_OUT, LINE, CUBIC])
def test_a_block_is_forecast_from_what_was_known_before_it(missing):
    series = as_series(with_gaps(waves(300)))
    windows = Windows(6, missing=missing)
    test = Backtest.of(windows, [series], 20)
    assert np.isfinite(test.history).all()
    for block, start in enumerate(test.time[:, windows.reach].astype(int)):
        moved = replace(series, values=series.values.copy())
        moved.values[start:] = 9.0
        before = filled(moved.values[:start], moved.time[:start], missing)[0]
        np.testing.assert_array_equal(test.history[block], before[-windows.reach :])
        np.testing.assert_array_equal(test.truth[block], series.values[start : start + 20])


def test_all_ways_are_judged_by_the_same_blocks():
    fitted = KernelFlowForecaster(steps=20).fit(with_gaps(waves(200)))
    assert {each.windows.missing for each in fitted.choice_.settings} == {LEFT_OUT, CUBIC}
    assert {each.forecasts.shape for each in fitted.choice_.settings} == {(5, 20, 1)}
    assert np.isfinite(fitted.choice_.test.history).all()


def test_a_smooth_series_with_gaps_is_forecast_as_the_whole_one():
    whole = roessler(460)
    errors = {}
    for missing in ("auto", LEFT_OUT):
        fitted = KernelFlowForecaster(lags=15, missing=missing, steps=60).fit(with_gaps(whole[:400]))
        errors[missing] = np.abs(fitted.predict(60) - whole[400:]).max() / whole.std()
        if missing == "auto":
            assert fitted.windows_.missing == CUBIC
    assert errors["auto"] < min(0.05, errors[LEFT_OUT] / 2)


def test_gaps_before_a_forecast_are_filled_and_what_is_missing_last_is_forecast():
    known = waves(300)
    fitted = KernelFlowForecaster(missing=CUBIC, members=1, steps=30).fit(known)
    gapped = known.copy()
    gapped[[-9, -6]] = np.nan
    there = filled(gapped[:, None], np.arange(300.0), CUBIC)[0][:, 0]
    np.testing.assert_array_equal(fitted.predict(5, series=gapped), fitted.predict(5, series=there))
    gapped[-1] = np.nan
    there = filled(gapped[:, None], np.arange(300.0), CUBIC)[0][:, 0]
    there[-1] = fitted.predict(1, series=there[:-1])[0]
    np.testing.assert_allclose(fitted.predict(5, series=gapped), fitted.predict(5, series=there), rtol=1e-12)


@pytest.mark.parametrize("is_noisy", [False, True])
@pytest.mark.filterwarnings("ignore:.*settings of which the forecast")
def test_deviations_count_from_the_last_known_value(is_noisy):
    known = waves(300) + (0.2 * np.random.default_rng(0).normal(size=300) if is_noisy else 0)
    fitted = KernelFlowForecaster(lags=4, members=1, steps=30).fit(known)
    missing = known.copy()
    missing[-8:] = np.nan
    _, deviation = fitted.predict(5, series=missing, return_std=True)
    _, expected = fitted.predict(13, series=known[:-8], return_std=True)
    np.testing.assert_array_equal(deviation, expected[8:])
    _, *ends = fitted.predict(5, series=missing, interval=0.9)
    _, *expected = fitted.predict(13, series=known[:-8], interval=0.9)
    np.testing.assert_allclose(np.subtract(*ends), np.subtract(*expected)[8:], rtol=1e-12)


def test_intervals_of_a_run_count_from_the_last_known_value(kfx, in_folder):
    rng = np.random.default_rng(0)
    known = waves(200) + 0.2 * rng.normal(size=200)
    known[155:160] = np.nan
    pd.DataFrame({"v": known}).to_csv("s.csv", index=False)
    words = ["dataset=series", "dataset.path=s.csv", "dataset.n_test=40", "evaluation=rollout", "evaluation.horizon=20"]
    code, _, err = kfx("run", *words, "optimizer=none", "figures=false", "hydra.run.dir=r")
    assert code == 0, err
    own = pd.read_csv("r/forecasts.csv").query("kernel == 'initial' and origin == 0")
    pd.DataFrame({"v": known[:160]}).to_csv("missing.csv", index=False)
    pd.DataFrame({"v": known[:155]}).to_csv("short.csv", index=False)
    ends = []
    for name, steps in (("missing", 20), ("short", 25)):
        assert kfx("predict", "r", f"{name}.csv", "--steps", str(steps), "--output", "p.csv")[0] == 0
        ends.append(pd.read_csv("p.csv")[["low", "high"]].to_numpy()[-20:])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)
    np.testing.assert_allclose(own[["low.v", "high.v"]], ends[0], rtol=1e-6)


def test_logarithms_are_offered_of_a_positive_series_with_gaps():
    rng = np.random.default_rng(0)
    noisy = with_gaps(np.exp(waves(80) + rng.normal(size=80)))
    offered = Offered().windows([as_series(noisy)])
    assert {(each.differences.logarithm, each.missing) for each in offered} == {
        (logarithm, missing) for logarithm in (False, True) for missing in (LEFT_OUT, LINE)
    }


def test_a_series_without_gaps_has_nothing_to_choose():
    assert {each.missing for each in Offered().windows([as_series(waves(200))])} == {LEFT_OUT}
    with pytest.raises(ConfigError, match="missing='no': expected left_out, line, cubic or auto"):
        KernelFlowForecaster(missing="no").fit(waves(200))


def test_a_run_records_the_way_and_forecasts_as_the_estimator(kfx, in_folder):
    values = with_gaps(roessler(440))
    pd.DataFrame({"v": values}).to_csv("s.csv", index=False)
    words = ["dataset=series", "dataset.path=s.csv", "dataset.n_test=40", "dataset.lags=15"]
    rollout = ["evaluation=rollout", "evaluation.horizon=40", "figures=false", "hydra.run.dir=r"]
    code, _, err = kfx("run", *words, *rollout, "optimizer=none")
    assert code == 0, err
    assert yaml.safe_load(Path("r/config.yaml").read_text())["dataset"]["missing"] == CUBIC
    fitted = KernelFlowForecaster(lags=15, members=1, steps=40).fit(values[:400])
    assert fitted.windows_.missing == CUBIC
    written = pd.read_csv("r/forecasts.csv").query("kernel == 'trained'")
    np.testing.assert_allclose(written["forecast.v"], fitted.predict(40), atol=0.05)
    assert kfx("predict", "r", "s.csv", "--steps", "5", "--output", "p.csv")[0] == 0
    assert np.isfinite(pd.read_csv("p.csv")["v"]).all()


# ---- what a run says of its forecasts


def parts(values: np.ndarray, train: int) -> tuple[SeriesParts, Dataset]:
    """A series without gaps before step 8, its windows of four values, and the data set of a run on it."""
    series = as_series(values)
    windows = Windows(4, is_increment=False).fitted([series[:train]])
    whole = SeriesParts(windows, (series[:train],), (series[train:],), ("v",))
    x, y, _ = windows.cut(series)
    return whole, replace(Dataset("s", x, y * windows.scale, x, y * windows.scale), series=whole)


def recurrence(whole: SeriesParts) -> Predict:
    """What follows windows of `waves`, by least squares."""
    x, y, _ = whole.windows.cut(as_series(waves(400)))
    weights = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
    return lambda points: np.c_[points, np.ones(len(points))] @ weights * whole.windows.scale


def test_free_runs_go_on_from_forecasts_of_missing_values():
    known, gapped = waves(220), waves(220)
    gapped[149] = np.nan
    rollout = Rollout(1, 50, 0.4, attractor_steps=50)
    found = []
    for values in (known, gapped):
        whole, data = parts(values, 150)
        found.append(rollout(recurrence(whole), data)[0])
    for name in ("hausdorff", "spectral_distance", "smape"):
        assert found[1][name] == pytest.approx(found[0][name], rel=0.03, abs=1e-3), name


def test_origins_that_nothing_true_follows_are_left_out():
    values = waves(200)
    values[180:] = np.nan
    whole, data = parts(values, 150)
    origins, _ = whole.origins(5, 20)
    assert [at for _, at in origins] == [150, 157, 165, 172]
    metrics = Rollout(5, 20, 0.4)(recurrence(whole), data)[0]
    assert all(np.isfinite(value) for value in metrics.values())
    with pytest.raises(DataError, match="or none after it"):
        parts(np.where(np.arange(200) < 150, waves(200), np.nan), 150)[0].origins(5, 20)


def test_series_that_are_too_short_to_be_forecast_are_told():
    each = [as_series(waves(150)), as_series(waves(40))]
    train, test = zip(*((one[: len(one) * 4 // 5], one[len(one) * 4 // 5 :]) for one in each), strict=True)
    whole = SeriesParts(Windows(4).fitted(train), train, test, ("v",))
    with pytest.warns(UserWarning, match="1 of 2 series are not forecast"):
        origins, _ = whole.origins(4, 15)
    assert {i for i, _ in origins} == {0}


def test_the_picture_ends_the_valid_time_where_the_metric_does(kfx, in_folder):
    values = 10 * waves(240) * np.r_[np.ones(190), np.linspace(1, 0.2, 50)]
    values[200] = np.nan
    pd.DataFrame({"v": values}).to_csv("s.csv", index=False)
    words = ["dataset=series", "dataset.path=s.csv", "dataset.n_test=40", "dataset.lags=3", "evaluation=rollout"]
    code, _, err = kfx("run", *words, "evaluation.starts=1", "optimizer=none", "figures=false", "hydra.run.dir=r")
    assert code == 0, err
    run = load_run("r")
    rows = pd.read_csv("r/forecasts.csv").query("kernel == 'trained'")
    valid = run.evaluation.query("kernel == 'trained' and metric == 'valid_time'")["value"].item()
    known = values[:200]
    assert run.metrics["training_deviation"] == {"v": pytest.approx(known.std())}
    assert 0 < valid < 40
    assert plots.forecast._valid_until(run, rows) == 199 + valid, "199 is the last known row"


def test_a_trained_kernel_is_judged_by_the_same_blocks():
    series = np.zeros(160)
    for i, noise in enumerate(np.random.default_rng(2).normal(size=159)):
        series[i + 1] = 0.8 * series[i] + noise
    settings = {"lags": 4, "members": 3, "differences": (), "logarithm": False, "target": "next", "season": 1}
    fitted = KernelFlowForecaster(optimizer={"name": "adam", "iterations": 20}, **settings).fit(series)
    assert len({each.forecasts.shape for each in fitted.choice_.settings}) == 1
    own = fitted.choice_.best
    test = Backtest.of(own.windows, [as_series(series)], 32, 10, rolling=True)
    np.testing.assert_array_equal(test.truth, fitted.choice_.test.truth)
    found = test.tried(fitted.kernel_, [own.regularization])[:, 0, : fitted.choice_.steps]
    assert fitted.backtest_error_ == pytest.approx(mean_error(test.of_blocks(found), test.least), rel=1e-6)
    assert len(fitted.predict(5, return_std=True)) == 2


def test_a_file_of_an_irregular_system_goes_on_by_its_steps(kfx, in_folder):
    words = ["dataset=dynamics", "dataset.n_train=120", "dataset.n_test=40", "dataset.gaps=3", "dataset.elapsed=true"]
    few = ["dataset.lags=2", "kernel=rbf", "kernel.sigma=3", "optimizer=none", "figures=false"]
    assert kfx("run", *words, *few, "hydra.run.dir=r")[0] == 0
    series = load([*words, *few]).dataset.split()[0][0]
    pd.DataFrame(series.values, columns=list("xyz")).to_csv("s.csv", index=False)
    assert kfx("predict", "r", "s.csv", "--steps", "2", "--output", "p.csv")[0] == 0
    found, unit = pd.read_csv("p.csv"), np.diff(series.time).mean()
    np.testing.assert_allclose(found["time"], unit * np.array([120, 121]))
    assert np.abs(np.diff(found[list("xyz")], axis=0)).max() > 0.1
