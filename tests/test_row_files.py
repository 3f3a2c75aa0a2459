"""One reader of files of rows: tables, series and new rows read the same numbers, whatever the file is written like."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from kfx.data import row_file, text_file
from kfx.data.cells import Form, numbers_of
from kfx.experiment.compose import load
from kfx.outcomes import DataError

VALUES = np.array([[1037.5, 0.142372], [-12.0, 2.5], [999.0, -1e-3], [1234567.25, 7.0], [5.0, 1.5], [0.0, 3.25]])


def written(separator=",", decimal=".", thousands="", header="a{}y", end="\n", quote=""):
    def number(value):
        text = f"{value:,.6f}".replace(",", "T").replace(".", "D")
        return quote + text.replace("T", thousands).replace("D", decimal) + quote

    lines = [header.format(separator), *(separator.join(map(number, row)) for row in VALUES)]
    return end.join([*lines, ""])


def zipped(content):
    with zipfile.ZipFile("inner.zip", "w") as archive:
        archive.writestr("t.csv", content)
    with open("inner.zip", "rb") as stream:
        return stream.read()


WAYS = {
    "commas": (written(), (), "t.csv"),
    "semicolons": (written(";"), (), "t.csv"),
    "bars": (written("|"), (), "t.txt"),
    "tabs": (written("\t"), (), "t.csv"),
    "a .tsv file": (written("\t"), (), "t.tsv"),
    "decimal commas": (written(";", ","), ('dataset.decimal=","',), "t.csv"),
    "quoted decimal commas": (written(",", ",", quote='"'), ('dataset.decimal=","',), "t.csv"),
    "thousands": (written(",", thousands=",", quote='"'), ('dataset.thousands=","',), "t.csv"),
    "thousands by points": (written(";", ",", "."), ('dataset.decimal=","', "dataset.thousands=."), "t.csv"),
    "thousands by blanks": (written(";", ",", "\u202f"), ('dataset.decimal=","', 'dataset.thousands=" "'), "t.csv"),
    "apostrophes": (written(thousands="\u2019"), ('dataset.thousands="\'"',), "t.csv"),
    "separators in quoted names": (written(";", header='"a, b, c (mm)"{}y'), (), "t.csv"),
    "separators in names": (written(";", header="a, b{}y"), (), "t.csv"),
    "latin-1": (written(header="ä{}y").encode("latin-1"), ("dataset.encoding=latin-1",), "t.csv"),
    "UTF-16": (written().encode("utf-16"), ("dataset.encoding=utf-16",), "t.csv"),
    "BOM and CRLF": (written(end="\r\n").encode("utf-8-sig"), (), "t.csv"),
    ".gz": (gzip.compress(written().encode()), (), "t.csv.gz"),
    ".bz2": (bz2.compress(written("\t").encode()), (), "t.tsv.bz2"),
    ".xz": (lzma.compress(written(";").encode()), (), "t.txt.xz"),
    ".zip": (zipped, (), "t.csv.zip"),
    "Parquet": ("parquet", (), "t.parquet"),
}


def write(path, content):
    if content == "parquet":
        pytest.importorskip("pyarrow")
        pd.DataFrame(VALUES, columns=["a", "y"]).to_parquet(path)
        return
    content = content(written()) if callable(content) else content
    with open(path, "wb") as stream:
        stream.write(content if isinstance(content, bytes) else content.encode())


def option(kind, path, *words):
    return load([f"dataset={kind}", f"dataset.path={path}", *words]).dataset


@pytest.fixture
def small(monkeypatch):
    """A series of six rows has windows."""
    return ("dataset.lags=1", "dataset.n_test=2", "kernel=rbf", "kernel.sigma=1", "sampler.batch_size=2")


@pytest.mark.parametrize("way", WAYS)
def test_tables_series_and_new_rows_hold_the_same_numbers(in_folder, way, small):
    content, words, path = WAYS[way]
    write(path, content)
    (series,), _, _ = option("series", path, *small, *words).trajectories()
    np.testing.assert_array_equal(series.values, VALUES)
    table = option("table", path, "dataset.target=y", "sampler.batch_size=2", *words)
    points = table.read()
    np.testing.assert_array_equal(np.column_stack([points.x, points.targets.y]), VALUES)
    (chunk,) = points.encoding.chunks(table.file(), 100)
    np.testing.assert_array_equal(chunk.x, points.x)


def rows(line, count=60):
    """So many rows that a series of them has windows: a reader that takes them forecasts wrong numbers."""
    return "".join(line.format(i % 7, i % 5) for i in range(count))


REFUSED = {
    "a trailing comma": ("a,y\n" + rows("{},{},\n"), (), "line 2 has 3 fields, the first line 2, separated by ','"),
    "a short row": ("a,y\n1,2\n3\n", (), "line 3 has 1 fields, the first line 2"),
    "no header": (rows("{},{}\n"), (), "its first line holds numbers"),
    "no header but dates": ("2020-01-01,2\n2020-01-02,4\n", (), "its first line holds numbers"),
    "an index": (",y\n" + "".join(f"{i},{i % 7}.5\n" for i in range(60)), (), "column 1 has no name"),
    "two names": ("y,y,a\n" + rows("{0},{1},{0}\n"), (), "names stand over several columns, as y"),
    "empty": ("", (), "is empty"),
    "a first line alone": ("a,y\n", (), "holds 0 rows"),
    "decimal commas": ("a;y\n" + rows("{};{},142372\n"), (), "type 'dataset.decimal=\",\"'"),
    "thousands": ('a,y\n1,"1,037.5"\n2,"2,000"\n', (), "type 'dataset.thousands=\",\"'"),
    "thousands or decimals": ('a,y\n1,"1,037"\n2,"2,000"\n', (), "'dataset.thousands=\",\"' if it is 1037"),
    "no thousands": ('a,y\n1,"1,5"\n2,"2,000"\n', ('dataset.thousands=","',), "holds '1,5' in row 1"),
    "two separators": ("a,b;y\n1,5;2\n3,5;4\n", (), "may be separated by ',' or ';'; set dataset.separator"),
    "latin-1": ("ä,y\n1,2\n".encode("latin-1"), (), "set dataset.encoding, say to latin-1"),
    "a damaged .gz": (gzip.compress(written().encode())[:-12], (), "is it damaged?"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["table", "series"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_by_tables_and_series_alike(kfx, in_folder, kind, name):
    content, words, said = REFUSED[name]
    path = "t.csv.gz" if ".gz" in name else "t.csv"
    write(path, content)
    own = ("dataset.target=y",) if kind == "table" else ("dataset.lags=1",)
    code, out, err = kfx("run", f"dataset={kind}", f"dataset.path={path}", *own, *words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err


@pytest.mark.parametrize("blank", ["", "  ", "\t", " \t ", "\r"])
def test_a_column_of_one_value_a_line_has_no_blank_lines(kfx, in_folder, blank):
    path = in_folder / "t.csv"
    path.write_text("v\n" + f"1.5\n2\n{blank}\n3\n" * 9)
    code, _, err = kfx("run", "dataset=series", f"dataset.path={path}", "dataset.lags=1")
    assert code == 2
    assert "line 4 is blank; write NA for a missing value" in err
    with pytest.raises(DataError, match="line 4 is blank"):
        list(text_file.chunks(path, ["v"], Form(), 3))


@pytest.mark.parametrize("content", ["a,b\n1,2\n{}\n3,4\n", "{}\na,b\n1,2\n3,4\n", "a,b\n1,2\n3,4\n{}\n{}\n"])
@pytest.mark.parametrize("blank", ["", " ", "\t", "  \t"])
def test_blank_lines_of_several_columns_and_around_all_rows_are_no_rows(in_folder, content, blank):
    path = in_folder / "t.csv"
    path.write_text(content.format(blank, blank))
    assert text_file.header(path, Form()) == (["a", "b"], ",")
    expected = [["1", "2"], ["3", "4"]]
    assert text_file.read(path, ["a", "b"], Form(), ["a", "b"], None).to_numpy().tolist() == expected
    ((frame, broken),) = text_file.chunks(path, ["a", "b"], Form(), 10)
    assert (frame.to_numpy().tolist(), dict(broken)) == (expected, {})


@pytest.mark.parametrize(
    ("encoding", "mark"), [("utf-8", True), ("UTF_8", True), ("utf8", False), ("utf-16", False), ("utf-16-le", True)]
)
def test_a_byte_order_mark_is_no_part_of_a_name(in_folder, encoding, mark):
    path = in_folder / "t.csv"
    path.write_bytes((("\ufeff" if mark else "") + '"ä, b",y\n1,2\n3,4\n').encode(encoding))
    form = Form(encoding=encoding)
    assert text_file.header(path, form) == (["ä, b", "y"], ",")
    assert text_file.read(path, ["ä, b"], form, [], None)["ä, b"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("form", "spellings"),
    [
        (Form(), ["-999", "-999.0", "-999.00", "-9.99e2", " -999 "]),
        (Form(thousands=","), ["-9999", '"-9,999"', '"-9,999.00"', "-9999.00"]),
        (Form(decimal=",", separator=";"), ["-999", "-999,00", "-9,99e2"]),
        (Form(decimal=",", separator=";", thousands="."), ["-9999", "-9.999", "-9.999,0"]),
    ],
)
@pytest.mark.parametrize("beside", ["1", "a word"])
def test_a_missing_number_counts_however_it_is_written(in_folder, form, spellings, beside):
    """To the reader of files and to that of new rows, in a column of numbers and in one of words."""
    word = "-9999" if form.thousands else "-999"
    form, path = replace(form, missing_words=(word, "NA")), in_folder / "t.csv"
    separator = form.separator or ","
    path.write_text("".join(f"{each}{separator}2\n" for each in ["v", *spellings, "NA", beside]))
    own = row_file.read(path, ["v"], form)["v"].isna().tolist()
    ((frame, _),) = row_file.chunks(path, ["v"], form, 50)
    assert own == frame["v"].isna().tolist() == [True] * (len(spellings) + 1) + [False]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_missing_words_are_missing_in_text_and_parquet_alike(in_folder, suffix):
    belts = ["None", "Front", "NA", "Rear", "", "Front"] * 4
    frame = pd.DataFrame({"a": [-999.0, 1, 2, 3, 4, 5] * 4, "belt": belts, "y": np.arange(24) / 7})
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    path = str(in_folder / f"t.{suffix}")  # of which nothing was said before
    getattr(frame, f"to_{suffix}")(path, index=False)
    words = ("dataset.target=y", "dataset.categorical=[belt]", "sampler.batch_size=2")
    with pytest.warns(UserWarning, match="column belt: the word 'None' counts as a missing value"):
        usual = option("table", path, *words, "dataset.missing=drop").read()
    assert usual.encoding.values["belt"] == ["Front", "Rear"]
    own = option("table", path, *words, "dataset.missing=drop", "dataset.missing_words=[-999]").read()
    assert own.encoding.values["belt"] == ["Front", "NA", "Rear"]
    assert len(own.x) == 24 - 4 - 4, "without -999, and without the empty cell"
    (chunk,) = own.encoding.chunks(in_folder / f"t.{suffix}", 100)
    assert sorted(chunk.problems) == [i + 1 for i in range(24) if i % 6 in (0, 4)]


def test_marks_that_are_none_make_no_number():
    form = Form(thousands=",")
    good = {"1,037": 1037, "12,345,678.5": 12345678.5, "-1,000": -1000, "1037": 1037, "12,34,567": 1234567}
    wrong = ["1,03", "10,37,5", "1,0370", ",103", "0,142", "1.5,000"]
    numbers = numbers_of(pd.Series([*good, *wrong]), form)
    assert numbers.tolist()[: len(good)] == list(good.values())
    assert numbers[len(good) :].isna().all()


def test_patterns_name_many_columns(kfx, in_folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(20, 70)), columns=[f"x{i}" for i in range(65)] + [f"y{i}" for i in range(5)])
    frame.to_csv("t.csv", index=False)
    words = ("dataset.target=y*", "dataset.exclude=[x?]", "sampler.batch_size=2")
    points = option("table", "t.csv", *words).read()
    assert points.targets.y.shape == (20, 5)
    assert points.x.shape == (20, 55)
    code, _, err = kfx("run", "dataset=table", "dataset.path=t.csv", "dataset.target=z")
    assert code == 2
    assert "x19, … (70 columns)" in err
    assert "kfx list" not in err


def test_rows_without_a_target_are_left_out_beside_imputed_features(in_folder):
    frame = pd.DataFrame({"a": np.arange(20.0), "b": np.arange(20.0) ** 2, "y": np.arange(20) / 3})
    frame.loc[3, "a"], frame.loc[5, "y"] = np.nan, np.nan
    path = str(in_folder / "t.csv")  # of which nothing was said before
    frame.to_csv(path, index=False)
    with pytest.warns(UserWarning, match="1 rows have no target, and are left out"):
        points = option("table", path, "dataset.target=y", "dataset.missing=mean", "sampler.batch_size=2").read()
    assert points.x.shape == (19, 2)
    assert np.isnan(points.x[3, 0])


def test_versions_are_no_dates(kfx, in_folder):
    rows = "".join(f"{'3.10.1' if i % 2 else '3.9.2'},{i},{i / 7}\n" for i in range(20))
    (in_folder / "t.csv").write_text("release,x,y\n" + rows)
    _, _, err = kfx("run", "dataset=table", "dataset.path=t.csv", "dataset.target=y")
    assert "column release holds '3.9.2' in row 1, which is no number" in err
    assert "type 'dataset.categorical=[release]'" in err


# ---- words that training rows do not have


def parts(rows=120):
    """Two tables whose training rows are equal; of test rows one has a class and a category of its own."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=rows), "city": rng.choice(["Rome", "Oslo"], rows)})
    frame["kind"] = np.where(frame["a"] + (frame["city"] == "Rome") > 0.5, "p", "q")
    frame["part"] = np.where(np.arange(rows) < 90, "train", "test")
    frame.to_csv("same.csv", index=False)
    frame.loc[rows - 1, ["city", "kind"]] = ["Bonn", "r"]
    frame.to_csv("other.csv", index=False)
    return frame


@pytest.mark.filterwarnings("default:dataset table")
def test_a_word_that_only_test_rows_have_does_not_change_the_fit(kfx, in_folder):
    parts()
    words = ("dataset=table", "dataset.target=kind", "dataset.test=part", "dataset.categorical=[city]")
    found = {}
    for name in ("same", "other"):
        own = (f"dataset.path={name}.csv", "optimizer.iterations=3", f"hydra.run.dir={name}")
        code, _, warned = kfx("run", *words, *own)
        assert code == 0, warned
        trace = pd.read_csv(f"{name}/trace.csv").filter(regex="^(rho|objective|parameter)")
        pd.testing.assert_frame_equal(found.setdefault("trace", trace), trace)
        known = kfx("predict", name, "same.csv")
        assert known == found.setdefault("of known words", known)
    for name in ("same", "other"):
        code, out, said = kfx("predict", name, "other.csv")
        assert code == 0, said
        assert "row 120: column city holds 'Bonn', which no training row has; it counts as none" in said
        assert out == found.setdefault("predictions", out)
    said = "column city holds 'Bonn', which no training row has; it counts as none (of test points, in 1 of 30)"
    assert f"dataset table: {said}" in warned
    assert "90 training points have 2 of 3 classes, and the predictions of 1 test points" in warned
    rows = pd.read_csv("other/predictions.csv").query("kernel == 'trained'")
    assert rows["class"].iloc[-1] == -1
    accuracy = pd.read_csv("other/evaluation.csv").query("kernel == 'trained' and metric == 'accuracy'")["value"].item()
    assert accuracy == pytest.approx((rows["class"] == rows["prediction"]).mean())
    assert "row 120: column city holds 'Bonn'" in kfx("predict", "same", "other.csv", "--strict")[2]


def test_frames_know_only_words_of_training_rows():
    from kfx.estimators.frames import as_frame, encoding_of

    class Frame:
        """A frame of another library."""

        columns, shape = ["a", "c"], (3, 2)

        def __getitem__(self, name):
            return {"a": [1.0, 2.0, 3.0], "c": ["u", "v", "u"]}[name]

    assert encoding_of(as_frame(Frame())).values == {"c": ["u", "v"]}
    assert as_frame(Frame()).dtypes["a"] == np.float64
    unused = pd.Categorical(["v", "u", "v"], categories=["w", "v", "u"])
    assert encoding_of(pd.DataFrame({"c": unused})).values == {"c": ["v", "u"]}
    assert np.isnan(as_frame(np.ma.masked_array([[1.0], [2.0]], mask=[[False], [True]]))[1, 0])


def test_a_label_without_a_probability_counts_as_wrong():
    from kfx.numerics.calibration import of_classes

    chances = np.array([[0.9, 0.1], [0.2, 0.8]])
    known, unknown = of_classes(chances, np.array([0, 1])), of_classes(chances, np.array([0, -1]))
    assert unknown["log_loss"] > known["log_loss"] + 10
    assert unknown["brier"] == pytest.approx(known["brier"] + 0.8)


def test_a_damaged_compressed_file_is_refused_by_predict_too(in_folder):
    write("t.csv", written())
    points = option("table", "t.csv", "dataset.target=y", "sampler.batch_size=2").read()
    write("new.csv.gz", gzip.compress(written().encode())[:-12])
    with pytest.raises(DataError, match="is it damaged"):
        list(points.encoding.chunks(in_folder / "new.csv.gz", 100))
