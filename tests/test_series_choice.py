"""What forecasts within a series choose: differences, logarithms, seasons; several settings, intervals and gaps."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.kernel_ridge import KernelRidge

from kfx import KernelFlowForecaster, load_run
from kfx.data import choice, dynamics
from kfx.data.backtest import Backtest
from kfx.data.choice import Asked, Offered, choose
from kfx.data.deviations import Deviations
from kfx.data.differences import Differences
from kfx.data.noise import has_noise
from kfx.data.seasons import period_of, season_of
from kfx.data.times import Dates
from kfx.data.windows import Trajectory, Windows
from kfx.kernels import RBF
from kfx.numerics import threads
from kfx.numerics.regularization import Regularization
from kfx.outcomes import ConfigError, DataError


def as_series(values: np.ndarray) -> Trajectory:
    values = values[:, None] if values.ndim == 1 else values
    return Trajectory(np.arange(len(values), dtype=float), values)


def sales(count: int = 120, seed: int = 0) -> np.ndarray:
    """A growing series with a season of 12 steps in proportion to its level, and noise."""
    t, rng = np.arange(count), np.random.default_rng(seed)
    return 10 * np.exp(0.015 * t + 0.3 * np.sin(2 * np.pi * t / 12) + 0.03 * rng.standard_normal(count))


def autoregressive(count: int, seed: int) -> np.ndarray:
    """AR(2) noise of deviation about 3.6."""
    rng = np.random.default_rng(seed)
    x = np.zeros(count + 100)
    for t in range(2, len(x)):
        x[t] = 1.2 * x[t - 1] - 0.5 * x[t - 2] + 1.8 * rng.standard_normal()
    return x[100:]


FORMS = [Differences(logarithm, steps) for logarithm in (False, True) for steps in ((), (1,), (4,), (4, 1), (1, 1))]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_differences_are_undone(form):
    values = np.exp(np.random.default_rng(0).normal(size=(3, 30, 2)))
    found = form.of(values)
    assert found.shape == (3, 30 - form.lost, 2)
    np.testing.assert_allclose(form.undone(found[:, 8 - form.lost :], values[:, :8]), values[:, 8:], rtol=1e-12)

    rng = np.random.default_rng(1)
    ahead, weights, step = rng.normal(size=(3, 5, 2)), rng.normal(size=(3, 5, 2)), 1e-6 * rng.normal(size=(3, 5, 2))
    high, low = (form.undone(ahead + sign * step, values) for sign in (1, -1))
    pulled = form.pulled(weights, form.undone(ahead, values))
    assert (pulled * step).sum() == pytest.approx((weights * (high - low)).sum() / 2, rel=1e-6)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("is_increment", [True, False])
def test_forecasts_of_differences_go_on_from_the_values(form, is_increment):
    series = as_series(sales(60))
    windows = Windows(3, is_increment=is_increment, differences=form).fitted([series])
    x, y, ends = windows.cut(series)
    truth = dict(zip(map(bytes, x), y, strict=True))  # what follows each window
    reach = windows.reach
    history, time = series.values[None, :reach], series.time[None]
    found = windows.forecast(lambda z: np.stack([truth[bytes(row)] for row in z]), history, time, 1)
    np.testing.assert_allclose(found[0, 0], series.values[reach], rtol=1e-12)
    assert ends[0] == reach


def test_errors_from_rolling_origins_are_those_of_separate_fits():
    series, steps = as_series(autoregressive(90, 0)), 6
    windows = Windows(3, differences=Differences(steps=(1,)))
    test = Backtest.of(windows, [series], steps, 4, rolling=True)
    fitted = windows.fitted([series])
    x, y, ends = fitted.cut(series)
    lambdas = [1e-3, 1.0]
    errors = test.errors(RBF(2.0), [Regularization(value, "absolute") for value in lambdas])
    least = np.abs(np.diff(series.values[:, 0])).mean() / series.values.std()
    for shift, error in zip(lambdas, errors, strict=True):
        each = []
        for at in test.time[:, fitted.reach].astype(int):
            assert at >= 45
            ridge = KernelRidge(alpha=shift, kernel="rbf", gamma=1 / 8).fit(x[ends < at], y[ends < at])
            history = series.values[None, at - fitted.reach : at]
            time = series.time[None, at - fitted.reach : at + steps]
            forecast = fitted.forecast(ridge.predict, history, time, steps)[0]
            wrong = np.minimum(np.abs(forecast - series.values[at : at + steps]) / series.values.std(), 2.5)
            each += [wrong[:h].mean() for h in range(1, steps + 1)]
        assert error == pytest.approx(np.exp(np.mean(np.log(np.array(each) + least))) - least, rel=1e-6)


@pytest.mark.parametrize(
    ("start", "unit", "expected"),
    [("2001-01", "M", 12), ("2001-01-01", "D", 7), ("2001-01-01T00", "h", 24), ("2001", "Y", 9)],
)
def test_the_season_is_that_of_the_calendar(start, unit, expected):
    at = np.arange(np.datetime64(start, unit), np.datetime64(start, unit) + 60).astype("M8[us]")
    values = np.sin(2 * np.pi * np.arange(60) / 9)[:, None]  # what the autocorrelation sees where there are years
    dates = Dates(at, "%Y-%m-%d")
    assert season_of(Trajectory(dates.days(), values, dates=dates)) == expected


@pytest.mark.parametrize("season", [4, 7, 12])
def test_the_season_is_that_of_the_autocorrelation(season):
    rng, t = np.random.default_rng(0), np.arange(12 * season)
    shape = rng.standard_normal(season)
    values = 0.1 * t + np.resize(shape, len(t)) + 0.3 * rng.standard_normal(len(t))
    assert season_of(as_series(values)) == season
    assert season_of(as_series(rng.standard_normal(150))) == 1
    assert season_of(as_series(rng.standard_normal(150).cumsum())) == 1


@pytest.mark.parametrize("system", ["lorenz", "henon", "logistic", "mackey_glass"])
def test_noise_is_told_from_chaos(system):
    series = dynamics.trajectory(system, 600, None, np.random.default_rng(0))
    assert not has_noise([series])
    noise = 0.05 * series.values.std(axis=0) * np.random.default_rng(1).standard_normal(series.values.shape)
    assert has_noise([replace(series, values=series.values + noise)])


def test_a_trend_with_a_season_is_followed():
    series = sales(140)
    known, truth = series[:116], series[116:]
    fitted = KernelFlowForecaster(steps=24).fit(known)
    best = fitted.windows_.differences
    assert best.logarithm
    assert best.steps
    naive = np.abs(np.resize(known[-12:], 24) - truth).mean()
    assert np.abs(fitted.predict(24) - truth).mean() < 0.3 * naive
    as_it_is = KernelFlowForecaster(steps=24, differences=[], logarithm=False).fit(known)
    assert fitted.backtest_error_ < as_it_is.backtest_error_
    assert fitted.choice_.error_of_values == pytest.approx(as_it_is.backtest_error_)


def test_what_is_given_is_not_chosen():
    fitted = KernelFlowForecaster(lags=5, differences=[12, 1], logarithm=True, target="next", steps=12).fit(sales())
    for setting in fitted.choice_.settings:
        assert setting.windows.lags == 5
        assert setting.windows.differences == Differences(True, (12, 1))
        assert not setting.windows.is_increment
    with pytest.raises(DataError, match="not positive, which has no logarithm"):
        KernelFlowForecaster(logarithm=True).fit(sales() - 12)
    with pytest.raises(ConfigError, match="season=0: expected auto, or a whole number >= 1"):
        KernelFlowForecaster(season=0).fit(sales())


def test_a_series_that_comes_to_rest_stays_there():
    series = np.append(np.random.default_rng(0).standard_normal(20), np.ones(80))
    np.testing.assert_allclose(KernelFlowForecaster().fit(series).predict(3), 1, atol=0.01)


def test_differences_of_a_series_without_noise_are_not_changed_again():
    series = np.sin(np.arange(103) / 5)
    fitted = KernelFlowForecaster(lags=6, differences=[1], members=1).fit(series[:100])
    assert not fitted.windows_.is_increment
    assert np.abs(fitted.predict(3) - series[100:]).max() < 1e-3


def test_forecasts_are_the_median_of_the_best_settings():
    known, at = sales(), np.arange(140.0)
    fitted = KernelFlowForecaster(steps=12, members=3).fit(known)
    each = []
    for setting in fitted.choice_.settings[:3]:
        windows = setting.windows
        x, y, _ = windows.cut(as_series(known))
        gram = RBF(setting.length).gram(x)
        solved = np.linalg.solve(gram + setting.regularization.of(gram) * np.eye(len(x)), y)
        predict = lambda z, x=x, solved=solved, length=setting.length: RBF(length).gram(z, x) @ solved  # noqa: E731
        history, first = known[None, -windows.reach :, None], len(known) - windows.reach
        each.append(windows.forecast(predict, history, at[None, first : len(known) + 12], 12)[0, :, 0])
    np.testing.assert_allclose(fitted.predict(12), np.median(each, axis=0), rtol=1e-7)
    errors = [setting.error for setting in fitted.choice_.settings]
    assert errors == sorted(errors)


def test_settings_that_leave_the_range_are_refused():
    series = [as_series(autoregressive(120, 1))]
    asked = Asked(Offered().windows(series), RBF, True, steps=20)
    choice = choose(series, asked)
    middle, half = (choice.test.high + choice.test.low) / 2, (choice.test.high - choice.test.low) / 2
    assert all((np.abs(each.forecasts - middle) <= 2 * half).all() for each in choice.settings)


def test_intervals_hold():
    inside, widths = [], []
    for seed in range(12):
        series = autoregressive(140, seed)
        fitted = KernelFlowForecaster(lags=4, steps=20).fit(series[:120])
        forecast, deviation, low, high = fitted.predict(20, return_std=True, interval=0.95)
        inside.append((series[120:] >= low) & (series[120:] <= high))
        widths.append(high - low)
        np.testing.assert_allclose(high - forecast, forecast - low)
        assert (np.diff(deviation) >= 0).all()
    assert 0.88 < np.mean(inside) < 0.995
    assert np.max(widths) < 10 * 3.6


def chosen(residuals, every, is_rolling=True):
    """What `Deviations.of` needs of a choice. residuals: (blocks, steps, 1). every: steps between two blocks."""
    windows = SimpleNamespace(unit=1.0, differences=SimpleNamespace(logarithm=False))
    begins = every * np.arange(len(residuals))
    test = SimpleNamespace(begins=begins, windows=windows, truth=residuals, is_rolling=is_rolling, spread=np.ones(1))
    return SimpleNamespace(
        best=SimpleNamespace(windows=windows), test=test, residuals=lambda of_logarithms, count: residuals
    )


def test_deviations_are_of_their_step():
    growing = np.sqrt(np.arange(1.0, 21))[None, :, None] * np.array([1, -1] * 5)[:, None, None]  # a random walk's
    found = Deviations.of(chosen(growing, every=4), 1)
    np.testing.assert_allclose(found.values[:, 0] ** 2, found.steps, rtol=0.13)
    assert found.blocks[0] == 10, "forecasts of one step do not overlap"
    assert found.blocks[-1] == 5


def test_deviations_of_a_series_without_growth_are_their_mean():
    rng = np.random.default_rng(0)
    found = [Deviations.of(chosen(rng.standard_normal((10, 20, 1)), every=20), 1).values for _ in range(200)]
    assert np.mean(found) == pytest.approx(1.0, abs=0.05)  # a running maximum has 1.29


def test_deviations_of_older_records_are_read():
    found = {"steps": [1, 2], "values": [[1.0], [2.0]], "relative": False, "blocks": 6, "most": None}
    assert Deviations.recorded(found).blocks == (6, 6)


def test_deviations_of_logarithms_grow_with_the_level():
    fitted = KernelFlowForecaster(steps=12).fit(sales())
    deviations = Deviations.of(fitted.choice_, 10)
    assert deviations.is_relative
    low, high = deviations.interval(np.array([[1.0], [10.0]]))
    assert (low > 0).all()
    assert high[1, 0] > 10 * high[0, 0] * 0.99
    again = Deviations.recorded(deviations.as_record())
    np.testing.assert_allclose(again.around(np.ones((30, 1))), deviations.around(np.ones((30, 1))), rtol=1e-4)


def test_deviations_of_chaos_grow_to_the_size_of_the_attractor():
    series = dynamics.trajectory("lorenz", 1400, None, np.random.default_rng(0)).values
    fitted = KernelFlowForecaster(lags=4, members=1).fit(series[:500])
    _, deviation, low, high = fitted.predict(900, return_std=True, interval=0.95)
    spread = np.sqrt(2) * series[:500].std(axis=0)
    np.testing.assert_allclose(deviation[-1], spread)
    assert (deviation[20] < 1e-2 * spread).all()
    inside = (series[500:] >= low) & (series[500:] <= high)
    assert 0.9 < inside.mean() <= 1


def test_missing_values_before_a_forecast_are_forecast_first():
    known = sales()
    fitted = KernelFlowForecaster(lags=4, differences=[], members=1, steps=12).fit(known)
    gapped = known.copy()
    gapped[[-3, -1]] = np.nan
    filled = gapped.copy()
    filled[-3] = fitted.predict(1, series=gapped[:-3])[0]
    filled[-1] = fitted.predict(1, series=filled[:-1])[0]
    np.testing.assert_allclose(fitted.predict(6, series=gapped), fitted.predict(6, series=filled), rtol=1e-12)
    with_gaps = KernelFlowForecaster(steps=12).fit(gapped)
    assert np.abs(with_gaps.predict(12) / KernelFlowForecaster(steps=12).fit(known).predict(12) - 1).max() < 0.2


def test_gaps_in_the_known_part_leave_intervals():
    series = sales(60)
    series[30:38] = np.nan
    fitted = KernelFlowForecaster().fit(series)
    assert len(fitted.choice_.test.kept) >= 5
    forecast, low, high = fitted.predict(14, interval=0.95)
    assert (high - low > 0.02 * forecast).all()


@pytest.mark.filterwarnings("ignore:.*values that are not positive")
@pytest.mark.parametrize("at", [-1, -2, -3])
def test_a_value_without_a_logarithm_is_forecast_first(at):
    series = sales(90)
    fitted = KernelFlowForecaster(logarithm=True, steps=6).fit(series)
    wrong, missing = series.copy(), series.copy()
    wrong[at], missing[at] = 0.0, np.nan
    np.testing.assert_array_equal(fitted.predict(4, series=wrong), fitted.predict(4, series=missing))


def test_the_judged_series_of_several_is_learned_from():
    rng = np.random.default_rng(0)
    several = [as_series(10 * k + rng.standard_normal(900).cumsum()) for k in (0, 5)]
    counts = Backtest.of(Windows(2), several, rolling=True).kept.sum(axis=1)
    assert (np.diff(counts) > 0).all()
    frame = pd.DataFrame({"a": sales(), "b": sales(seed=1)})
    with pytest.raises(ValueError, match="different columns: "):
        KernelFlowForecaster().fit([frame, frame[["b", "a"]]])


@pytest.mark.parametrize("rolling", [True, False])
def test_a_block_is_forecast_without_other_series_of_its_time(rolling):
    own = as_series(np.random.default_rng(0).standard_normal(300).cumsum())
    alone = Backtest.of(Windows(2), [own], rolling=rolling).kept.sum(axis=1)
    copied = Backtest.of(Windows(2), [own[:299], own], rolling=rolling).kept.sum(axis=1)
    later = Backtest.of(Windows(2), [replace(own, time=own.time + 999)[:299], own], rolling=rolling).kept.sum(axis=1)
    assert (np.abs(copied - 2 * alone) <= 1).all()
    np.testing.assert_array_equal(later, alone + (0 if rolling else 297))


def test_frames_have_times_and_panels_their_own_kernels():
    months = pd.date_range("2001-01-01", periods=120, freq="MS")
    frame = pd.DataFrame({"time": months, "sold": sales()})
    fitted = KernelFlowForecaster(lags=4, steps=12).fit(frame)
    assert fitted.n_features_in_ == 1
    indexed = KernelFlowForecaster(lags=4, steps=12).fit(frame.set_index("time"))
    np.testing.assert_array_equal(fitted.predict(5), indexed.predict(5))
    with_place = KernelFlowForecaster(lags=4, steps=12, calendar=["year"], differences=[]).fit(frame)
    assert with_place.windows_.periods == (365.2425,)
    with pytest.raises(DataError, match="has no dates"):
        KernelFlowForecaster(calendar=["year"]).fit(sales())
    with pytest.raises(DataError, match="do not rise"):
        KernelFlowForecaster().fit(frame.iloc[::-1])

    both = [sales(seed=1), 100 * sales(seed=2)]
    own = KernelFlowForecaster(lags=4, steps=12, panel="own").fit(both).predict(3)
    for series, found in zip(both, own, strict=True):
        np.testing.assert_array_equal(found, KernelFlowForecaster(lags=4, steps=12).fit(series).predict(3))


SHAPE = np.array([0.0, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])


def noisy_season(count: int, seed: int = 0) -> np.ndarray:
    """A season of 12 steps without a trend, which a few values do not tell for their noise."""
    return np.resize(SHAPE, count) + np.random.default_rng(seed).standard_normal(count)


def test_the_place_in_the_season_is_seen_where_the_backtest_is_better_for_it():
    known = noisy_season(96)
    months = pd.date_range("2001-01-01", periods=96, freq="MS")
    frame = pd.DataFrame({"month": known}, index=months)
    fitted, without = (KernelFlowForecaster(steps=24, **more).fit(frame) for more in ({}, {"calendar": []}))
    assert fitted.windows_.periods == pytest.approx((365.25,), rel=1e-3)
    assert fitted.backtest_error_ < without.backtest_error_
    assert {own.windows.lags for own in fitted.choice_.settings if own.windows.periods} == {1, 2, 4}
    assert all(not own.windows.periods for own in without.choice_.settings)


def test_a_series_without_times_does_not_know_its_place():
    known = noisy_season(96)
    frame = pd.DataFrame({"time": pd.date_range("2001-01-01", periods=96, freq="MS"), "sold": known})
    fitted, without = (KernelFlowForecaster(steps=12, **more).fit(frame) for more in ({}, {"calendar": []}))
    assert fitted.windows_.periods
    later = frame[17:65].reset_index(drop=True)
    for with_spread in ({}, {"return_std": True, "interval": 0.9}):
        found, expected = (each.predict(12, series=later["sold"], **with_spread) for each in (fitted, without))
        np.testing.assert_array_equal(found, expected)
    with_times = fitted.predict(12, series=later)
    np.testing.assert_allclose(with_times[:, 0], np.roll(SHAPE, -5), atol=1.5)

    found_season = KernelFlowForecaster(steps=12).fit(known)
    assert not any(own.windows.periods for own in found_season.choice_.settings), "an autocorrelation may drift"
    of_rows = KernelFlowForecaster(steps=12, season=12).fit(known)
    np.testing.assert_allclose(of_rows.predict(12), fitted.predict(12)[:, 0], atol=0.05)
    np.testing.assert_array_equal(of_rows.predict(12, series=later), of_rows.predict(12, series=later["sold"]))
    given = KernelFlowForecaster(lags=2, calendar=[12.0], steps=12).fit(known)
    with pytest.raises(DataError, match=r"calendar=\[12.0\]: the series does not say where in it it is; give a frame"):
        given.predict(2, series=known)
    several = KernelFlowForecaster(steps=12, season=12).fit([known, known[3:]])
    assert not any(own.windows.periods for own in several.choice_.settings), "each may begin at any place"
    for wrong in ("year", ["month"], [0], [True], [float("inf")]):
        with pytest.raises(ConfigError, match="expected auto, or a list out of year, week, day and numbers > 0"):
            KernelFlowForecaster(calendar=wrong).fit(known)


def test_uneven_and_other_times_of_frames_are_refused():
    months = pd.date_range("2001-01-01", periods=120, freq="MS")
    frame = pd.DataFrame({"time": months, "sold": sales()})
    fitted = KernelFlowForecaster(lags=4, members=1).fit(frame[:100])
    assert fitted.score(frame[100:]) == fitted.score(frame["sold"][100:])
    with pytest.raises(DataError, match="begins at 2001-01-01; expected the step after 2009-04-01"):
        fitted.score(frame[:20])
    daily = frame.assign(time=pd.date_range("2001-01-01", periods=120))
    with pytest.raises(DataError, match="the series has steps of 1 days; expected those of the fit, 1 month"):
        fitted.predict(2, series=daily)
    with pytest.raises(DataError, match="from 28 to 61 days; fill the gaps, such as after 2003-06-01, with rows"):
        fitted.fit(frame.drop(index=30))
    with pytest.raises(NotFittedError):
        fitted.predict(2)
    with pytest.raises(ValueError, match="holds dates or durations; call the column of times time"):
        fitted.fit(months.to_numpy())
    zone = frame.assign(time=pd.date_range("2001-01-01", periods=120, tz="Europe/Berlin"))
    assert np.isfinite(fitted.fit(zone).predict(2)).all(), "days of local time, one of 23 hours"


def test_what_is_fitted_stays_when_settings_change():
    both = [sales(60, 1), sales(60, 2)]
    fitted = KernelFlowForecaster(lags=4, members=1, differences=np.array([12])).fit(both)
    before = fitted.predict(3)
    np.testing.assert_array_equal(fitted.set_params(panel="own").predict(3), before)
    assert not hasattr(fitted.fit(both), "choice_")
    assert len(fitted.set_params(panel="shared").predict(3)) == 2


@pytest.mark.filterwarnings("ignore:.*errors of one step")
def test_a_run_forecasts_by_several_settings_with_intervals(kfx, tmp_path):
    months = pd.date_range("2001-01-01", periods=120, freq="MS").strftime("%Y-%m")
    pd.DataFrame({"month": months, "sold": sales()}).to_csv("sales.csv", index=False)
    words = ("run", "dataset=series", "dataset.path=sales.csv", "dataset.time=month", "dataset.calendar=[year]")
    code, out, err = kfx(*words, "optimizer.iterations=3", "hydra.run.dir=r")
    assert code == 0, err
    assert "the forecast is the median with 9 other settings" in out
    assert "standard deviations; of values as they are" in out
    run = load_run("r")
    assert len(run.config.dataset.others) == 9
    rows = pd.read_csv("r/forecasts.csv")
    inside = (rows["truth.sold"] >= rows["low.sold"]) & (rows["truth.sold"] <= rows["high.sold"])
    of_trained = run.evaluation.query("kernel == 'trained' and metric == 'forecast_coverage_95'")["value"]
    assert of_trained.iloc[0] == pytest.approx(inside[rows["kernel"] == "trained"].mean())
    code, out, err = kfx("predict", "r", "sales.csv", "--steps", "3")
    assert code == 0, err
    lines = [line.split(",") for line in out.strip().splitlines()]
    assert lines[0] == ["series", "step", "time", "sold", "low", "high"]
    assert lines[1][2] == "2011-01"
    assert all(float(low) < float(value) < float(high) for *_, value, low, high in lines[1:])
    code, _, err = kfx(
        "run", "dataset=series", "dataset.path=sales.csv", "dataset.columns=[sold]", "dataset.calendar=[day]"
    )
    assert code == 2
    assert "dataset.calendar=[day]: needs dates" in err
    for words in (("dataset=series", "dataset.path=sales.csv", "dataset.columns=[sold]"), ("dataset=dynamics",)):
        code, _, err = kfx("run", *words, "dataset.calendar=[12]")
        assert code == 2
        assert "dataset.calendar=[12]: other values of the series may begin at any place" in err


@pytest.mark.filterwarnings("ignore:.*errors of one step")
def test_a_run_sees_the_place_in_the_season_and_goes_on_from_any_place(kfx):
    months = pd.date_range("2001-01-01", periods=96, freq="MS").strftime("%Y-%m")
    table = pd.DataFrame({"month": months, "sold": noisy_season(96)})
    table.to_csv("sales.csv", index=False)
    table[17:65].to_csv("later.csv", index=False)
    code, out, err = kfx(
        *("run", "dataset=series", "dataset.path=sales.csv", "dataset.time=month", "dataset.n_test=24"),
        *("optimizer=none", "hydra.run.dir=r"),
    )
    assert code == 0, err
    assert "with the place in the season" in out
    config = load_run("r").config
    assert config.dataset.calendar == pytest.approx([365.25], rel=1e-3)
    code, out, err = kfx("predict", "r", "later.csv", "--steps", "12")
    assert code == 0, err
    found = pd.read_csv(io.StringIO(out))
    np.testing.assert_allclose(found["sold"], np.roll(SHAPE, -5), atol=2)
    assert found["time"].iloc[0] == "2006-06"


WEEKS = pd.date_range("2004-01-04", periods=261, freq="W")


def weekly(dates: pd.DatetimeIndex) -> np.ndarray:
    """A peak at the same day of each year, and noise."""
    noise = np.random.default_rng(len(dates)).standard_normal(len(dates))
    return 10 + 8 * np.exp(-(((dates.day_of_year.to_numpy() - 180) / 20.0) ** 2)) + 0.5 * noise


def test_fifty_two_weeks_are_a_year():
    frame = pd.DataFrame({"time": WEEKS, "sold": weekly(WEEKS)})
    settings = {"lags": 1, "differences": (), "logarithm": False, "target": "next", "members": 1, "steps": 12}
    fitted = KernelFlowForecaster(**settings).fit(frame)
    assert fitted.windows_.periods == (365.2425,)
    later = pd.date_range("2022-04-03", periods=30, freq="W")
    known = pd.DataFrame({"time": later[:10], "sold": weekly(later)[:10]})
    errors = fitted.predict(20, series=known)[:, 0] - weekly(later)[10:]
    assert np.abs(errors).mean() < 1, "fifty-two weeks would be off by three"


@pytest.mark.parametrize(
    ("step", "expected"), [(1 / 12, 1.0), (1 / 4, 1.0), (7 / 365.25, 1.0)], ids=["months", "quarters", "weeks"]
)
def test_the_place_in_years_that_are_numbers(kfx, step, expected):
    season = round(1 / step)
    time = (1950 + step * np.arange(10 * season)).round(4)
    values = (
        3 * np.sin(2 * np.pi * time) + 3 * np.cos(4 * np.pi * time) + np.random.default_rng(0).normal(size=len(time))
    )
    trajectory = Trajectory(time, values[:, None])
    assert period_of(trajectory, season) == expected
    pd.DataFrame({"year": time, "sold": values}).to_csv("sales.csv", index=False)
    words = ("run", "dataset=series", "dataset.path=sales.csv", "dataset.time=year", "dataset.n_test=8")
    more = ("dataset.lags=1", "dataset.target=next", "dataset.differences=[]", "dataset.logarithm=false")
    code, out, err = kfx(*words, *more, "optimizer=none", "figures=false", "hydra.run.dir=r")
    assert code == 0, err
    assert "with the place in the season" in out
    assert load_run("r").config.dataset.calendar == [expected]


@pytest.mark.filterwarnings("ignore:.*errors of one step")
def test_months_of_another_place_do_not_shift_the_season(kfx):
    starts, ends = (pd.date_range("2001-01-01", periods=96, freq=freq) for freq in ("MS", "ME"))
    values = noisy_season(96)
    settings = {"lags": 1, "differences": (), "target": "next", "steps": 12}
    fitted = KernelFlowForecaster(**settings).fit(pd.DataFrame({"time": starts, "sold": values}))
    assert fitted.windows_.periods
    of_end = fitted.predict(12, series=pd.DataFrame({"time": ends[:40], "sold": values[:40]}))
    np.testing.assert_array_equal(of_end, fitted.predict(12, series=values[:40, None]))

    for name, dates in (("sales.csv", starts), ("ends.csv", ends)):
        pd.DataFrame({"month": dates.strftime("%Y-%m-%d"), "low": values}).to_csv(name, index=False)
    words = ("run", "dataset=series", "dataset.path=sales.csv", "dataset.time=month", "dataset.calendar=[year]")
    more = ("optimizer=none", "figures=false", "dataset.lags=1", "dataset.members=1")
    code, _, err = kfx(*words, *more, "hydra.run.dir=r")
    assert code == 0, err
    assert load_run("r").config.dataset.calendar == ["year"]
    code, _, err = kfx("predict", "r", "ends.csv", "--steps", "3")
    assert code == 2
    assert "has 2001-01-31, where the run has 2001-01-01; windows of the run see the place in the season" in err
    code, out, err = kfx("predict", "r", "sales.csv", "--steps", "3")
    assert code == 0, err
    found = pd.read_csv(io.StringIO(out))
    assert list(found) == ["series", "step", "time", "forecast.low", "low.low", "high.low"]
    assert (found["low.low"] < found["forecast.low"]).all()
    assert (found["forecast.low"] < found["high.low"]).all()


def of_hours(count: int, zone: str = "America/New_York") -> pd.DataFrame:
    """A peak at noon of a place, and noise."""
    hours = pd.date_range("2021-01-10", periods=count, freq="h", tz=zone)
    noise = 0.3 * np.random.default_rng(0).standard_normal(count)
    return pd.DataFrame({"time": hours, "y": 50 + 10 * np.exp(-((hours.hour.to_numpy() - 12.0) ** 2) / 2) + noise})


def spelt(frame: pd.DataFrame, how: str) -> pd.DataFrame:
    """The same instants in another spelling, or, as `naive`, without their zone."""
    utc = frame["time"].dt.tz_convert("UTC")
    ways = {
        "aware": frame["time"],
        "aware UTC": utc,
        "text": frame["time"].astype(str),
        "text Z": utc.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "naive": frame["time"].dt.tz_localize(None),
        "naive UTC": utc.dt.tz_localize(None),
    }
    return frame.assign(time=ways[how])


ZONED = ("aware", "aware UTC", "text", "text Z")


@pytest.mark.parametrize("of_fit", [*ZONED, "naive"])
def test_the_same_instants_have_the_same_place_in_the_day(of_fit):
    frame = of_hours(240)
    settings = {"lags": 2, "differences": (), "logarithm": False, "target": "next", "members": 1, "steps": 24}
    fitted = KernelFlowForecaster(**settings).fit(spelt(frame[:200], of_fit))
    assert fitted.windows_.periods == (1.0,)
    own = spelt(frame[100:200], of_fit)
    expected, without = fitted.predict(24, series=own), fitted.predict(24, series=own["y"].to_numpy()[:, None])
    assert np.abs(expected[:, 0] - frame["y"][200:224]).max() < 2
    assert np.abs(without[:, 0] - frame["y"][200:224]).max() > 4
    for how in (*ZONED, "naive UTC"):
        found = fitted.predict(24, series=spelt(frame[100:200], how))
        goes_with_it = (of_fit in ZONED) == (how in ZONED)
        if how == "naive UTC" and of_fit == "naive":  # the same clock, as far as anyone can tell
            continue
        np.testing.assert_allclose(found, expected if goes_with_it else without, rtol=1e-9)


def test_a_run_on_text_with_offsets_reads_the_instants_of_parquet(kfx):
    frame = of_hours(240)
    words = ("run", "dataset=series", "dataset.time=time", "dataset.lags=2", "dataset.differences=[]")
    more = ("optimizer=none", "figures=false", "dataset.logarithm=false", "dataset.members=1")
    for name in ("text", "text Z"):
        spelt(frame, name).to_csv("t.csv", index=False)
        code, _, err = kfx(*words, *more, "dataset.path=t.csv", f"hydra.run.dir=r/{name[-1]}")
        assert code == 0, err
        outs = []
        for way in ("aware", "aware UTC"):
            spelt(frame, way).to_parquet("t.parquet")
            code, out, err = kfx("predict", f"r/{name[-1]}", "t.parquet", "--steps", "24")
            assert code == 0, err
            outs.append(out)
        code, out, err = kfx("predict", f"r/{name[-1]}", "t.csv", "--steps", "24")
        assert outs == [out, out]
        assert pd.to_datetime(pd.read_csv(io.StringIO(out))["time"].iloc[0]) == frame["time"].iloc[-1] + pd.Timedelta(
            "1h"
        )


def test_a_counter_does_not_say_where_in_the_season_it_is(kfx):
    frame = pd.DataFrame({"time": np.arange(1.0, 97), "y": noisy_season(96)})
    fitted = KernelFlowForecaster(season=12, steps=12).fit(frame)
    assert fitted.windows_.periods == (12.0,), "the fit's own series goes on"
    anew = frame.assign(time=frame["time"] + 5)
    np.testing.assert_array_equal(
        fitted.predict(3, series=anew), fitted.predict(3, series=frame["y"].to_numpy()[:, None])
    )
    frame.to_csv("t.csv", index=False)
    words = ("run", "dataset=series", "dataset.path=t.csv", "dataset.time=time", "dataset.season=12", "optimizer=none")
    code, _, err = kfx(*words, "figures=false", "hydra.run.dir=r")
    assert code == 0, err
    config = load_run("r").config
    assert [config.dataset.calendar, *(each["calendar"] for each in config.dataset.others)] == [[]] * 10


def test_a_place_of_others_needs_times(kfx):
    pd.DataFrame({"sold": sales()}).to_csv("sales.csv", index=False)
    other = (
        "{lags: 1, target: next, differences: [], logarithm: false, calendar: [year], length: 1.0, "
        "regularization: 1e-3, scale: centered}"
    )
    words = (
        "run",
        "dataset=series",
        "dataset.path=sales.csv",
        "dataset.lags=2",
        "kernel.sigma=1",
        f"dataset.others=[{other}]",
    )
    code, _, err = kfx(*words)
    assert code == 2
    assert "dataset.calendar=[year]: needs dates" in err


def test_seeds_of_a_series_with_noise_are_compared_though_their_backtests_differ(kfx):
    small = ("dataset=dynamics", "dataset.noise=0.1", "dataset.n_train=120", "dataset.n_test=40", "optimizer=none")
    code, _, err = kfx("run", "-m", *small, "seed=0,1", "figures=false", "hydra.sweep.dir=s")
    assert code == 0, err
    assert len({load_run(f"s/{i}").config.dataset.deviations["error"] for i in range(2)}) == 2
    code, _, err = kfx("compare", "s", "--csv", "t.csv")
    assert code == 0, err
    assert pd.read_csv("t.csv")["n"].tolist() == [2]
    code, _, err = kfx("run", *small, "seed=2", "dataset.lags=4", "figures=false", "hydra.run.dir=s/2")
    assert code == 0, err
    code, _, err = kfx("compare", "s")
    assert code == 2
    assert "its runs differ in dataset.lags" in err, "which was given in one of them"


def test_the_choice_of_a_run_has_one_thread_of_lapack(kfx, monkeypatch):
    seen = []
    chosen = choice.choose
    monkeypatch.setattr(choice, "choose", lambda *given: (seen.append(threads.of_blas()), chosen(*given))[1])
    small = ("dataset=dynamics", "dataset.start=7", "dataset.n_train=120", "dataset.n_test=40", "optimizer=none")
    code, _, err = kfx("run", *small, "figures=false", "hydra.run.dir=r")
    assert code == 0, err
    assert {count for counts in seen for count in counts} == {1}
