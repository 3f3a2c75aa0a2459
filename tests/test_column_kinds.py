"""Kinds of columns, numbers, words and dates, from every kind of table: their features, gaps, and what is refused."""

from __future__ import annotations

import datetime
import importlib
import re
import warnings

import numpy as np
import pandas as pd
import pytest

from kfx import KernelFlowClassifier, KernelFlowRegressor, load_run
from kfx.data.cells import PLAIN
from kfx.data.column_kinds import Dates, Fault, kind_of
from kfx.experiment.compose import load
from kfx.outcomes import DataError

N = 60


def gappy():
    """Numbers, words and dates with gaps, few of dates, a column of names, one of a single value, and an empty one."""
    rng = np.random.default_rng(0)
    day = pd.Timestamp("2020-03-01") + pd.to_timedelta(rng.permutation(400)[:N], unit="D")
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=N).round(3),
            "city": rng.choice(["Rome", "Oslo", "Bonn"], N),
            "day": day,
            "name": [f"n{i}" for i in range(N)],
            "unit": "kg",
            "empty": np.nan,
        }
    )
    frame.loc[5:16, "size"], frame.loc[[4, 20], "city"], frame.loc[[5, 30], "day"] = np.nan, None, pd.NaT
    return frame, np.sin(np.arange(N)) + (frame["city"] == "Rome")


NAMES = (
    *("size", "size is missing", "city=Bonn", "city=Oslo", "city=Rome", "city is missing", "day.days"),
    *(f"day.{part}.{wave}" for part in ("month", "weekday", "day_of_year") for wave in ("sin", "cos")),
)


def expected(frame):
    """The features of `gappy`, by formulas of their own."""
    size, day = frame["size"], frame["day"]
    columns = [size.fillna(size.median()), size.isna()]
    columns += [*(frame["city"] == city for city in ("Bonn", "Oslo", "Rome")), frame["city"].isna()]
    columns.append((day - day.min()).dt.total_seconds() / 86400)
    parts = ((day.dt.month - 1, 12), (day.dt.day_of_week, 7), (day.dt.day_of_year - 1, 365.25))
    columns += [wave(2 * np.pi * part / period) for part, period in parts for wave in (np.sin, np.cos)]
    columns = [pd.Series(each, dtype=float) for each in columns]
    return np.stack([each.fillna(each.median()) for each in columns], axis=1)


def of_other(library):
    """A frame of another library."""

    def made(frame):
        found = importlib.import_module(library)
        return found.Table.from_pandas(frame) if library == "pyarrow" else found.from_pandas(frame)

    return made


TABLES = {
    "NumPy's types": lambda frame: frame,
    "objects": lambda frame: frame.astype(object),
    "nullable": lambda frame: frame.convert_dtypes(),
    "Arrow's types": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "a category": lambda frame: frame.astype({"city": "category"}),
    "dates of Python": lambda frame: frame.assign(day=frame["day"].dt.date),
    "texts of dates": lambda frame: frame.assign(day=frame["day"].astype(str).where(frame["day"].notna())),
    "other texts of dates": lambda frame: frame.assign(day=frame["day"].dt.strftime("%d %b %Y")),
    "days": lambda frame: frame.assign(day=frame["day"].dt.to_period("D")),
    "a time zone": lambda frame: frame.assign(day=frame["day"].dt.tz_localize("America/New_York")),
    "Arrow's time zone": lambda frame: frame.assign(day=frame["day"].dt.tz_localize("America/New_York")).convert_dtypes(
        dtype_backend="pyarrow"
    ),
    "polars": of_other("polars"),
    "an Arrow table": of_other("pyarrow"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_all_types_have_the_same_features(kind):
    frame, y = gappy()
    try:
        table = TABLES[kind](frame)
    except (ImportError, NameError) as error:  # the latter by pandas, which has not imported pyarrow
        pytest.skip(f"{error.name} is not installed")
    model = KernelFlowRegressor(optimizer="none", scale=None).fit(table, y)
    assert model._encoding.names == NAMES
    assert model.n_features_in_ == 6
    assert any("one value or none in the training rows: name, unit, empty" in said for said in model.remarks_)
    x = model._points_of(table)
    np.testing.assert_allclose(x, expected(frame), atol=1e-12)
    assert np.isfinite(model.predict(table)).all()


@pytest.mark.filterwarnings("ignore:dataset table:UserWarning", "ignore:.*hold words:UserWarning")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_and_a_frame_have_the_same_features(kfx, in_folder, suffix):
    pytest.importorskip("pyarrow") if suffix == "parquet" else None
    frame, y = gappy()
    getattr(frame.assign(y=y), f"to_{suffix}")(f"t.{suffix}", index=False)
    words = ["dataset=table", f"dataset.path=t.{suffix}", "dataset.target=y", "dataset.test=0", "evaluation=k_fold"]
    option = load([*words, "sampler.batch_size=20", "dataset.preprocess=[]"]).dataset
    data = option.preprocessed(option.load(np.random.default_rng(0)))
    assert data.features == NAMES
    model = KernelFlowRegressor(optimizer="none", scale=None).fit(frame, y)
    np.testing.assert_allclose(data.x_train, model._points_of(frame), atol=1e-12)


@pytest.mark.filterwarnings("default:dataset table:UserWarning", "ignore:.*holds? words:UserWarning")
def test_a_run_on_gaps_predicts_new_rows_of_all_kinds(kfx, in_folder):
    frame, y = gappy()
    frame = frame.rename(columns={"unit": "measure"})  # of which nothing was said before
    frame.assign(y=y).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "optimizer=none", "figures=false"]
    code, _, err = kfx("run", *words, "sampler.batch_size=20", "hydra.run.dir=r")
    assert code == 0, err
    assert "name, measure, empty" in err
    run = load_run("r")
    new = frame[["size", "city", "day"]].assign(day=frame["day"] + pd.Timedelta(days=900))
    from_frame = run.predict(new)["prediction"].to_numpy()
    assert np.isfinite(from_frame).all()
    new.to_csv("new.csv", index=False)
    code, _, err = kfx("predict", "r", "new.csv", "--output", "p.csv")
    assert (code, "new.csv: row" in err) == (0, False), err
    np.testing.assert_allclose(pd.read_csv("p.csv")["prediction"], from_frame, rtol=1e-9)
    new.assign(day="soon").to_csv("new.csv", index=False)
    assert "column day holds 'soon', which is no date as in the training rows" in kfx("predict", "r", "new.csv")[2]


def test_what_training_rows_lack_is_said_and_never_an_error():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=40), "w": rng.choice(["u", "v"], 40)})
    frame["t"] = pd.date_range("2021-01-01 08:00", periods=40, freq="7h")
    model = KernelFlowRegressor(optimizer="none", scale=None).fit(frame, frame["a"] + (frame["w"] == "u"))
    assert {"t.hour.sin", "t.days"} <= set(model._encoding.names)
    new = frame[:4].assign(t=pd.Timestamp("1987-06-05"))
    new.loc[0, "a"], new.loc[1, "w"], new.loc[2, "w"], new.loc[3, "t"] = np.nan, "z", None, pd.NaT
    with pytest.warns(UserWarning, match="which no training row has|as no training row") as said:
        assert np.isfinite(model.predict(new)).all()
    assert sorted(str(each.message) for each in said) == [
        "column a has no value, as no training row; the median counts",
        "column t has no value, as no training row; the median counts",
        "column w has no value, as no training row; it counts as none of the words",
        "column w holds 'z', which no training row has; it counts as none",
    ]
    filled = new.assign(a=new["a"].fillna(frame["a"].median()))
    np.testing.assert_allclose(model._points_of(filled[:1])[:, 0], frame["a"].median())


def test_rare_words_of_many_are_one_category():
    rng = np.random.default_rng(0)
    often = np.repeat([f"c{i:02}" for i in range(4)], 20)
    frame = pd.DataFrame({"c": [*often, *(f"rare{i}" for i in range(60))]}).sample(frac=1, random_state=0)
    frame["a"] = rng.normal(size=len(frame))
    model = KernelFlowRegressor(optimizer="none", scale=None).fit(frame, frame["a"])
    assert model._encoding.names == ("c=c00", "c=c01", "c=c02", "c=c03", "c is other", "a")
    assert any("column c holds 64 different words; 60 of them" in said for said in model.remarks_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model._points_of(frame[:1].assign(c="never seen"))[0, :5].tolist() == [0, 0, 0, 0, 1]
    many = pd.DataFrame({"c": np.repeat([f"c{i:02}" for i in range(70)], 12), "a": rng.normal(size=840)})
    assert len(KernelFlowRegressor(optimizer="none", scale=None).fit(many, many["a"]).categories_["c"]) == 50
    listed = KernelFlowRegressor(optimizer="none", scale=None).fit(frame.astype({"c": "category"}), frame["a"])
    assert len(listed.categories_["c"]) == 64, "a category has a feature for each value"


FAULTS = {
    "a slip among numbers": (["1.5"] * 59 + ["x"], "holds 'x' in row 60, which is no number"),
    "a slip among dates": (
        [str(datetime.date(2020, 1, 1) + datetime.timedelta(i)) for i in range(59)] + ["x"],
        "holds 'x' in row 60, which is no date",
    ),
    "decimal commas": (["1,5", "2,5"] * 30, "holds '1,5' in row 1, which is no number with a decimal point"),
    "exponents by D": (["1.5D+00", "2.5D+00"] * 30, "holds '1.5D+00' in row 1, which is no number"),
    "printed minus signs": (["−1.5", "−2.5"] * 30, "holds '−1.5' in row 1, which is no number"),
    "losses in brackets": (["(1.5)", "(2.5)"] * 30, "holds '(1.5)' in row 1, which is no number"),
    "two readings": (["03/04/2020", "05/06/2020"] * 30, "which may be 2020-03-04 or 2020-04-03"),
    "years of two digits": (["15/03/75", "16/04/60"] * 30, "holds '16/04/60' in row 2, which may be of 1960 or 2060"),
    "a day that is none": (["2020-02-30"] * 60, "have no reading in common"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_told_by_frames_and_files_alike(kfx, in_folder, name):
    values, said = FAULTS[name]
    frame = pd.DataFrame({"a": np.arange(60.0), "b": values})
    with pytest.raises(ValueError, match=re.escape(said)):
        KernelFlowRegressor().fit(frame, np.arange(60.0))
    frame.assign(y=np.arange(60) / 7).to_csv("t.csv", index=False)
    code, _, err = kfx("run", "dataset=table", "dataset.path=t.csv", "dataset.target=y")
    assert (code, err.count("\n")) == (2, 1)
    assert f"column b {said}" in err or said in err


def test_all_faults_are_in_one_message(kfx, in_folder):
    frame = pd.DataFrame({name: values for name, (values, _) in FAULTS.items()})
    with pytest.raises(
        ValueError, match=r"row 60.*; column .*and the like in .*two readings, years of two digits, a day that is none"
    ):
        KernelFlowRegressor().fit(frame, np.arange(60.0))
    y = pd.Series(np.arange(60) / 7).mask(np.arange(60) == 2)
    frame.assign(y=y).to_csv("t.csv", index=False)
    err = kfx("run", "dataset=table", "dataset.path=t.csv", "dataset.target=y")[2]
    for part in ("'x' in row 60, which is no number", "dataset.decimal", "1 row without a value, 3", "exclude="):
        assert part in err
    assert err.count("\n") == 1


def test_arrays_with_gaps_are_filled_and_marked():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    whole = KernelFlowRegressor(optimizer="none", scale=None).fit(x, y)
    gaps = x.copy()
    gaps[:12, 1], gaps[:5, 2] = np.nan, np.nan
    with pytest.warns(UserWarning, match="X has missing values, and the training points have none"):
        found = whole.predict(gaps)
    np.testing.assert_array_equal(found[12:], whole.predict(x)[12:])
    model = KernelFlowRegressor(optimizer="none", scale=None).fit(gaps, y)
    points = model._points_of(gaps)
    assert points.shape == (40, 4)
    np.testing.assert_array_equal(points[:, 2], np.isnan(gaps[:, 1]))
    np.testing.assert_array_equal(points[:12, 1], np.median(gaps[12:, 1]))
    np.testing.assert_array_equal(points[:5, 3], np.median(gaps[5:, 2]))
    of_none = np.where(np.isnan(gaps), None, gaps)
    np.testing.assert_array_equal(
        KernelFlowRegressor(optimizer="none", scale=None).fit(of_none, y).predict(of_none), model.predict(gaps)
    )
    with pytest.raises(ValueError, match="infinity"):
        model.predict(np.where(np.isnan(gaps), np.inf, gaps))
    labels = np.where(y > 0, "p", "q")
    assert set(KernelFlowClassifier(optimizer="none").fit(gaps, labels).predict(gaps)) <= {"p", "q"}


def test_training_rows_alone_say_what_features_are(in_folder):
    frame, y = gappy()
    frame = frame.drop(columns="name").assign(y=y, part=np.where(np.arange(N) < 40, "train", "test"))
    frame.loc[50:, "unit"] = "lb"
    frame.loc[40:, "day"] = pd.Timestamp("1999-01-01")
    frame.to_csv("t.csv", index=False)
    path = in_folder / "t.csv"  # of which nothing was said before
    words = ["dataset=table", f"dataset.path={path}", "dataset.target=y", "dataset.test=part", "sampler.batch_size=20"]
    with pytest.warns(UserWarning, match="no training row|one value or none|hold words"):
        data = load(words).dataset.load(np.random.default_rng(0))
    assert not any(name.startswith("unit") for name in data.features)
    assert data.x_train[:, data.features.index("day.days")][~np.isnan(data.x_train).any(axis=1)].min() >= 0
    assert (data.x_test[:, data.features.index("day.days")] < 0).all()


def test_a_table_without_a_varying_column_is_refused():
    with pytest.raises(DataError, match="no column is left for the features"):
        KernelFlowRegressor().fit(pd.DataFrame({"a": [1.0] * 9, "w": "u"}), np.arange(9.0))


def test_images_have_no_missing_values():
    x = np.random.default_rng(0).normal(size=(12, 16))
    x[0, 0] = np.nan
    with pytest.raises(ValueError, match="X contains NaN; images"):
        KernelFlowRegressor(image_shape=(1, 4, 4), kernel="cnngp").fit(x, np.arange(12.0))


def test_a_row_of_weight_zero_says_nothing_of_features():
    frame, y = gappy()
    frame = frame.drop(columns="name")
    weights = np.where(np.arange(N) < 50, 1.0 + np.arange(N) % 3, 0.0)
    extra = frame.assign(unit=np.where(weights > 0, "kg", "lb"), day=frame["day"].where(weights > 0, pd.Timestamp(0)))
    fits = KernelFlowRegressor(optimizer="none").fit(frame[:50], y[:50], weights[:50])
    same = KernelFlowRegressor(optimizer="none").fit(extra, y, weights)
    assert same._encoding.names == fits._encoding.names
    np.testing.assert_array_equal(same.predict(frame), fits.predict(frame))


def test_a_year_of_two_digits_in_new_rows_is_of_one_century():
    days = pd.Series(["15/03/75", "16/04/99", "17/05/04"])
    kind = kind_of(days)
    assert kind.read(days, PLAIN).astype("M8[Y]").astype(str).tolist() == ["1975", "1999", "2004"]
    assert np.isnat(kind.read(pd.Series(["15/03/60"]), PLAIN)).all()


_INSTANTS = pd.Series(pd.date_range("2023-06-01", periods=40, freq="7h", tz="UTC"))
_HERE = _INSTANTS.dt.tz_convert("Europe/Berlin")
WITH_ZONE = {
    "a zone": _HERE,
    "UTC": _INSTANTS,
    "text, +02:00": _HERE.astype(str),
    "text, Z": _INSTANTS.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "text, +0100": _INSTANTS.dt.tz_convert("Etc/GMT-1").dt.strftime("%Y-%m-%d %H:%M%z"),
    "text, -03:30": _INSTANTS.dt.tz_convert("America/St_Johns").dt.tz_convert("-03:30").astype(str),
    "objects": _HERE.astype(object),
}
WITHOUT_ZONE = {"no zone": _HERE.dt.tz_localize(None), "text": _HERE.dt.tz_localize(None).astype(str)}
HOURS = {"hours": _HERE.dt.strftime("%H:%M")}


@pytest.mark.parametrize("written", [*WITH_ZONE, *WITHOUT_ZONE, *HOURS])
def test_new_rows_mean_the_instants_of_training_rows_or_nothing(written):
    groups = WITH_ZONE, WITHOUT_ZONE, HOURS
    own = next(group for group in groups if written in group)
    kind = kind_of(own[written])
    assert isinstance(kind, Dates)
    kind = kind.fitted(own[written], PLAIN)
    expected = kind.features(own[written], PLAIN)
    assert np.isfinite(expected).all()
    for group in groups:
        for column in group.values():
            found = kind.features(column, PLAIN)
            if group is own:
                np.testing.assert_allclose(found, expected, atol=1e-12)
            else:
                assert np.isnan(found).all()


def test_dates_with_and_without_a_zone_are_refused():
    fault = kind_of(pd.Series(["2023-01-01 10:00", "2023-01-02 10:00+02:00"] * 5))
    assert isinstance(fault, Fault)
    assert "some with a time zone and some without" in fault.what


def test_several_offsets_count_in_utc():
    autumn = pd.Series(pd.date_range("2023-10-25", periods=40, freq="7h", tz="Europe/Berlin"))
    kind = kind_of(autumn.astype(str)).fitted(autumn.astype(str), PLAIN)
    in_utc = kind_of(autumn.dt.tz_convert("UTC")).fitted(autumn.dt.tz_convert("UTC"), PLAIN)
    np.testing.assert_array_equal(kind.features(autumn.astype(str), PLAIN), in_utc.features(autumn, PLAIN))
    other = autumn.dt.strftime("%d.%m.%Y %H:%M%z")
    np.testing.assert_array_equal(
        kind_of(other).fitted(other, PLAIN).features(other, PLAIN), in_utc.features(autumn, PLAIN)
    )
