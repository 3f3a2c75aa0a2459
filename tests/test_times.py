"""Times of series: dates by one reading of the whole column, calendar steps, and what comes back."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest

from kfx import KernelFlowForecaster, load_run
from kfx.data import times
from kfx.data.calendar_steps import step_of
from kfx.data.cells import PLAIN
from kfx.data.series_file import Rows, read
from kfx.experiment.compose import load
from kfx.outcomes import ConfigError, DataError

N = 40


def dates(freq, start="2000-01-01", n=N):
    return pd.date_range(start, periods=n, freq=freq)


def read_column(values, date_format=None, groups=None):
    column = pd.Series(list(values))
    return times.read(column, PLAIN, date_format, np.zeros(len(column), int) if groups is None else groups)


WRITTEN = {
    "months day first": (dates("MS"), "%d.%m.%Y", "1 month"),
    "days day first": (dates("D"), "%d/%m/%Y", "1 day"),
    "days month first": (dates("D"), "%m/%d/%Y", "1 day"),
    "days of two digits": (dates("D"), "%d-%m-%y", "1 day"),
    "months": (dates("MS"), "%Y-%m", "1 month"),
    "months in words": (dates("MS"), "%Y %b", "1 month"),
    "long months": (dates("MS"), "%B %Y", "1 month"),
    "days in words": (dates("D"), "%b %d, %Y", "1 day"),
    "month ends": (dates("ME"), "%Y-%m-%d", "1 month"),
    "month ends on business days": (dates("BME"), "%Y/%m/%d", "1 month"),
    "quarter ends": (dates("QE"), "%Y-%m-%d", "3 months"),
    "years": (dates("YS"), "%Y-%m-%d", "12 months"),
    "leap days": (dates("YE-FEB"), "%Y-%m-%d", "12 months"),
    "business days": (dates("B"), "%Y-%m-%d", "1 business day"),
    "weeks": (dates("W"), "%d.%m.%Y", "7 days"),
    "hours": (dates("h"), "%d.%m.%Y %H:%M", "0.0416667 days"),
    "half hours of UTC": (dates("30min"), "%Y-%m-%d %H:%M:%S+00:00", "0.0208333 days"),
    "Zulu": (dates("6h"), "%Y-%m-%dT%H:%M:%SZ", "0.25 days"),
    "twelve hours": (dates("6h"), "%m/%d/%Y %I:%M %p", "0.25 days"),
    "digits": (dates("D"), "%Y%m%d", "1 day"),
    "digits of months": (dates("MS"), "%Y%m", "1 month"),
    "quarters": (dates("QS"), "%YQ%q", "3 months"),
    "quarters first": (dates("QS"), "Q%q %Y", "3 months"),
    "weeks of a year": (dates("W-MON"), "%G-W%V", "7 days"),
    "days of a week": (dates("D"), "%G-W%V-%u", "1 day"),
}


@pytest.mark.parametrize("how", ["%K", "%Y-W%V", "%Q", "%", "%q", "%Y-%q-%q"])
def test_a_format_that_is_none_is_refused_in_one_line(how):
    with pytest.raises(ConfigError, match=r"dataset\.date_format=.*expected codes of strftime"):
        read_column(["2001-W02", "2001-W03"], how)


@pytest.mark.parametrize(
    ("how", "freq"),
    [
        ("{d.month}/{d.day}/{d.year}", "D"),
        ("{d:%b} {d.day}, {d.year}", "D"),
        ("{d.day}.{d.month}.{d.year} {d.hour}:00", "6h"),
    ],
)
def test_dates_come_back_without_zeros_where_they_have_none(how, freq):
    at = dates(freq)
    found = read_column(how.format(d=each) for each in at)
    assert found.written() == [how.format(d=each) for each in at]
    assert read_column([how.format(d=each) for each in at], found.format).written() == found.written()


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("is_named", [False, True])
def test_dates_are_read_and_go_on_as_they_are_written(name, is_named):
    at, how, step = WRITTEN[name]
    expected, ahead = at[: N - 5], at[N - 5 :]
    found = read_column(times.Dates(expected.to_numpy(), how).written(), how if is_named else None)
    np.testing.assert_array_equal(found.at, expected.to_numpy())
    assert found.format == how
    assert str(step_of([found.at])) == step
    onwards = step_of([found.at]).onwards(found.at, 5)
    np.testing.assert_array_equal(onwards, ahead.to_numpy())
    assert times.Dates(onwards, how).written() == times.Dates(ahead.to_numpy(), how).written()
    holed = np.delete(found.at, 7)
    assert step_of([holed]) is None, "a gap is no step"


@pytest.mark.parametrize("months", [1, 2, 3, 6, 12])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_short_histories_of_month_ends_go_on_to_month_ends(months, count):
    for first in pd.date_range("2021-01-31", periods=12, freq="ME"):
        at = pd.date_range(first, periods=count + 6, freq=pd.offsets.MonthEnd(months)).to_numpy().astype("M8[us]")
        if str(step_of([at[:count]])) == f"{months} month" + "s" * (months > 1):  # two may be days apart
            np.testing.assert_array_equal(step_of([at[:count]]).onwards(at[:count], 6), at[count:])


def test_dates_of_parquet_are_those_of_text():
    local = pd.date_range("2021-03-20", periods=20, tz="Europe/Berlin")
    for values in (local, [str(each) for each in local]):
        found = read_column(values)
        np.testing.assert_array_equal(found.at, local.tz_localize(None).to_numpy())
    assert read_column([each.date() for each in local]).written()[0] == "2021-03-20"
    hours = pd.date_range("2021-03-27", periods=60, freq="h", tz="Europe/Berlin")
    assert str(step_of([read_column([str(each) for each in hours]).at])) == "0.0416667 days"


@pytest.mark.parametrize(
    ("values", "date_format", "said"),
    [
        (dates("D", n=12).strftime("%d.%m.%Y"), None, "in 2 ways; type 'dataset.date_format=\"%d.%m.%Y\"' if"),
        (["01/02/03", "02/02/03", "03/02/03"], None, "may be read in 3 ways"),
        (["2020-01-01", "x"], None, "holds 'x' in row 2, which is no time; say how dates are written"),
        (["2020-13-01", "2020-14-01"], None, "dataset.date_format"),
        (["2020-01-01", None], None, "row 2 holds no value"),
        (["2020-01-01"], "%d.%m.%Y", "holds '2020-01-01' in row 1, which is no time as dataset.date_format=%d.%m.%Y"),
        ([20200129, 20200130, 20200131, 20200132], None, ""),
        ([20200101, 20200102, 20200230, 20200301], None, "holds '20200230' in row 3, which is no date"),
    ],
)  # fmt: skip
def test_what_has_no_reading_or_several_is_said(values, date_format, said):
    if not said:  # numbers in equal steps
        return np.testing.assert_array_equal(read_column(values, date_format), values)
    with pytest.raises(DataError) as caught:
        read_column(values, date_format)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "values", [[1990, 1991, 1992], [1577836800, 1577840400], [200013, 200014], [0.5, 1.5], ["1", "2"]]
)
def test_other_numbers_stay_numbers(values):
    assert read_column(values).tolist() == [float(value) for value in values]


def test_rounded_numbers_have_one_step():
    for values in ((1958 + np.arange(60) / 12).round(3), np.arange(60) * 0.1, (np.arange(40) * 86.4).round()):
        assert step_of([values]) is not None
        assert step_of([np.delete(values, 7)]) is None
    assert step_of([np.cumsum([31.0, 28, 31, 30, 31, 30])]) is None


def series(path, at, **more):
    x = np.sin(np.arange(len(at)) / 3) + 0.01 * np.random.default_rng(0).normal(size=len(at))
    frame = pd.DataFrame({"t": at, "x": x, **more})
    frame.to_csv(path, index=False)
    return frame


@pytest.mark.parametrize("name", [each for each in WRITTEN if "%q" not in WRITTEN[each][1]])
def test_a_file_of_dates_without_gaps_has_one_step(in_folder, name):
    at, how, _ = WRITTEN[name]
    series("s.csv", at.strftime(how))
    train, test = load(["dataset=series", "dataset.path=s.csv", "dataset.time=t", "dataset.lags=1"]).dataset.split()
    found = np.concatenate([part.time for part in (*train, *test)])
    np.testing.assert_allclose(np.diff(found), np.diff(at) / np.timedelta64(1, "D"), rtol=1e-9)


def test_columns_of_year_and_quarter_are_the_time(in_folder):
    at = dates("QS")
    series("s.csv", at, year=at.year, Quarter=at.quarter)
    (found,), names = read(("s.csv",), Rows(("x",), ("year", "Quarter")))
    assert (names, found.written()[:2]) == (("x",), ["2000Q1", "2000Q2"])
    series("s.csv", at, year=at.year, month=at.month)
    (found,), _ = read(("s.csv", "2"), Rows(("x",), ("year", "month")))
    assert found.written()[:2] == [
        "2000-1".replace("-", "-0"),
        "2000-04",
    ]
    with pytest.raises(ConfigError, match="expected columns called year and quarter"):
        read(("s.csv", "3"), Rows(("x",), ("month", "year")))


def test_columns_that_grow_evenly_are_warned_about(in_folder):
    path = str(in_folder / "s.csv")  # of which nothing was said before
    series(path, np.arange(40) / 4)
    with pytest.warns(UserWarning, match=r"column t looks like row numbers or times, .* type 'dataset.columns=\[x\]'"):
        assert read((path,), Rows())[1] == ("t", "x")


HOURS = pd.date_range("2024-05-01", periods=100, freq="h", tz="UTC")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns"])
@pytest.mark.parametrize("how", ["%Y-%m-%dT%H:%M%z", "%Y-%m-%d %H:%M:%S.%f%z", "%d.%m.%Y %H:%M %z"])
def test_dates_of_a_run_are_read_by_its_clock(zone, how):
    first = pd.Series(HOURS.tz_convert("Asia/Tokyo").strftime(how))
    of_run = times.read(first, PLAIN, None, np.zeros(100, dtype=int))
    again = pd.Series(HOURS.tz_convert(zone).strftime(how))
    found = times.read(again, PLAIN, of_run.format, np.zeros(100, dtype=int))
    np.testing.assert_array_equal(found.at, of_run.at)
    assert found.written() == of_run.written()
    for written in (of_run.format, times.IN_UTC):
        with pytest.raises(DataError, match="without its offset from UTC"):
            times.read(first.str.replace(r" ?[+]\d{4}$", "", regex=True), PLAIN, written, np.zeros(100, dtype=int))


def test_months_before_their_year_are_no_offsets():
    column = pd.Series([f"{month:02d}-{year}" for year in (2020, 2021) for month in range(1, 13)])
    assert times.read(column, PLAIN, None, np.zeros(24, dtype=int)).format == "%m-%Y"


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "UTC"])
def test_frames_are_read_by_the_clock_of_the_fit(zone):
    at = pd.date_range("2023-06-01", periods=300, tz=zone)
    values = 10 + np.sin(2 * np.pi * np.arange(300) / 7)
    found = []
    for time in (at, at.tz_localize(None)):
        frame = pd.DataFrame({"time": time, "v": values})
        fitted = KernelFlowForecaster(lags=7, members=1, calendar=["week"], regularization=1e-3).fit(frame[:250])
        part = frame[200:250].reset_index(drop=True)
        found += [fitted.predict(3, series=part), fitted.score(frame[250:270].reset_index(drop=True))]
    np.testing.assert_array_equal(found[0], found[2])
    assert found[1] == found[3]


@pytest.mark.parametrize("how", ["%Y-%m-%d %H:%M%z", "%d.%m.%Y %H:%M %z"])
def test_forecasts_over_the_change_to_summer_time_go_on_after_the_last_row(kfx, in_folder, how):
    at = pd.date_range("2024-03-29", periods=72, freq="h", tz="Europe/Berlin")
    series("s.csv", at.strftime(how))
    words = ("dataset=series", "dataset.path=s.csv", "dataset.time=t", "dataset.lags=4", "optimizer=none")
    assert kfx("run", *words, "kernel=rbf", "kernel.sigma=3", "figures=false", "hydra.run.dir=r")[0] == 0
    code, out, _ = kfx("predict", "r", "s.csv", "--steps", "2")
    assert code == 0
    forecast = pd.to_datetime(pd.read_csv(io.StringIO(out))["time"])
    assert forecast.tolist() == [at[-1] + pd.Timedelta(hours=hours) for hours in (1, 2)]


def test_series_come_back_by_their_names_and_dates_and_other_steps_are_refused(kfx, in_folder):
    at = dates("MS", n=60).strftime("%d.%m.%Y")
    whole = pd.concat([series("s.csv", at, name=name) for name in ("east", "west")])
    whole.to_csv("s.csv", index=False)
    words = ("dataset=series", "dataset.path=s.csv", "dataset.time=t", "dataset.series=name", "dataset.lags=4")
    code, _, err = kfx(
        "run", *words, "kernel=rbf", "kernel.sigma=3", "optimizer=none", "hydra.run.dir=r", "figures=true"
    )
    assert code == 0, err
    assert load_run("r").config.dataset.date_format == "%d.%m.%Y"
    rows = pd.read_csv("r/forecasts.csv")
    assert set(rows["series"]) == {"east", "west"}
    assert rows["time"].iloc[0] == "01.01.2004"
    assert (in_folder / "r/figures/forecast.png").is_file()

    def predicted(frame, said=None):
        frame.to_csv("new.csv", index=False)
        code, out, err = kfx("predict", "r", "new.csv", "--steps", "2")
        if said is not None:
            assert (code, out, err.count("\n")) == (2, "", 1), err
            assert said in err
            return None
        assert code == 0, err
        return pd.read_csv(io.StringIO(out))

    found = predicted(whole)
    assert found["series"].tolist() == ["east"] * 2 + ["west"] * 2
    assert found["time"].tolist() == ["01.01.2005", "01.02.2005"] * 2
    east = whole[whole["name"] == "east"]
    assert predicted(east[-6:])["time"].tolist() == ["01.01.2005", "01.02.2005"], "with the run's reading of dates"
    predicted(east[-12::2], "have steps from 61 to 62 days; expected those of the run, 1 month")
    gapped = east[-8:].drop(index=east.index[-3])
    predicted(gapped, "have steps from 30 to 61 days; expected those of the run, 1 month")
    filled = predicted(east.assign(x=east["x"].where(east.index != east.index[-2])))
    np.testing.assert_allclose(filled["x"], found["x"][:2], atol=0.2)
    no_window = east.assign(x=east["x"].where(np.arange(len(east)) % 3 > 0))
    predicted(no_window, "no 4 values after one another are there, which a forecast goes on from")
    predicted(east.assign(t=np.arange(len(east))), "dataset.date_format=%d.%m.%Y")


@pytest.mark.filterwarnings("default:.*settings of which the forecast is the median are left out:UserWarning")
def test_a_forecast_goes_on_from_the_rows_after_a_gap_alone(kfx, in_folder):
    frame = series("s.csv", dates("MS", n=60))
    words = ("dataset=series", "dataset.path=s.csv", "dataset.time=t", "dataset.lags=4", "kernel=rbf", "kernel.sigma=3")
    other = "lags:12,target:next,differences:[],logarithm:false,length:3.0,regularization:0.1,scale:centered"
    code, _, err = kfx("run", *words, f"dataset.others=[{{{other}}}]", "optimizer=none", "hydra.run.dir=r")
    assert code == 0, err

    def predicted(rows, is_short=False):
        rows.to_csv("new.csv", index=False)
        code, out, err = kfx("predict", "r", "new.csv", "--steps", "2")
        assert code == 0, err
        assert ("1 of the 2 settings of which the forecast is the median are left out" in err) == is_short
        return out

    whole = predicted(frame)
    after_gap = predicted(frame.drop(index=frame.index[-9]), is_short=True)
    assert predicted(frame[-8:], is_short=True) == after_gap != whole
    assert predicted(frame.drop(index=frame.index[-13])) == whole


def test_months_of_local_time_stay_months():
    found = read_column(dates("MS").tz_localize("Europe/Berlin"))
    ahead = step_of([found.at]).onwards(found.at, 2)
    assert ahead.astype("M8[h]").astype(str).tolist() == ["2003-05-01T00", "2003-06-01T00"]


def test_numbers_of_another_step_are_refused_by_predict(kfx, in_folder):
    frame = series("s.csv", np.arange(60) * 0.5)
    words = ("dataset=series", "dataset.path=s.csv", "dataset.time=t", "dataset.lags=4", "kernel=rbf", "kernel.sigma=3")
    assert kfx("run", *words, "optimizer=none", "hydra.run.dir=r")[0] == 0
    frame.assign(t=np.arange(60)).to_csv("new.csv", index=False)
    code, _, err = kfx("predict", "r", "new.csv")
    assert code == 2
    assert "its last 4 rows have steps from 1 to 1; expected those of the run, 0.5" in err
    code, out, _ = kfx("predict", "r", "s.csv", "--steps", "2")
    assert pd.read_csv(io.StringIO(out))["time"].tolist() == [30.0, 30.5]


def test_windows_that_no_test_series_holds_are_not_chosen(kfx, in_folder):
    frame = series("s.csv", np.arange(60.0))
    frame.assign(x=frame["x"].where((frame.index < 42) | (frame.index % 4 > 0))).to_csv("s.csv", index=False)
    words = ("dataset=series", "dataset.path=s.csv", "dataset.time=t", "optimizer=none", "hydra.run.dir=r")
    words = (*words, "dataset.missing=left_out")
    code, _, err = kfx("run", *words, "dataset.lags=4")
    assert (code, err.count("\n")) == (2, 1), err
    assert "dataset.lags=4: the test series of 12 steps hold no window of 4 steps" in err
    frame.assign(x=frame["x"].where((frame.index < 42) | (frame.index % 2 > 0))).to_csv("gone.csv", index=False)
    code, _, err = kfx("run", *words, "dataset.path=gone.csv")
    assert "the test series of 12 steps hold no window of 2 steps" in err
    assert not (in_folder / "r").exists()
    code, _, err = kfx("run", *words)
    assert code == 0, err
    assert load_run("r").config.dataset.lags == 2, "windows of 8 hold a gap"


def test_the_forecaster_copies_and_masks_what_it_is_given_and_fills_its_last_window():
    x = np.sin(np.arange(120) / 5)
    given = x.copy()
    fitted = KernelFlowForecaster(lags=8, regularization=1e-6).fit(given)
    before, deviation = fitted.predict(3, return_std=True)
    given *= 2
    np.testing.assert_array_equal(fitted.predict(3), before)
    np.testing.assert_array_equal(fitted.predict(3, return_std=True)[1], deviation)
    masked = np.ma.masked_array(np.where(np.arange(120) == 60, 1e6, x), mask=np.arange(120) == 60)
    assert fitted.fit(masked).windows_.scale[0] < 1
    holed = np.where(np.arange(120) == 110, np.nan, x)
    for known, lags, ahead in ((np.append(x, np.nan), "auto", 121), (holed, 12, 120)):
        found = KernelFlowForecaster(lags=lags).fit(known).predict(3)
        np.testing.assert_allclose(found, np.sin(np.arange(ahead, ahead + 3) / 5), atol=0.01)


@pytest.mark.parametrize("kernel", ["rbf", "laplace"])
def test_a_series_of_mostly_equal_values_has_a_length(kernel):
    rng = np.random.default_rng(0)
    demand = np.where(rng.random(150) < 0.1, rng.integers(1, 9, 150), 0).astype(float)
    assert np.isfinite(KernelFlowForecaster(kernel).fit(demand).predict(3)).all()
