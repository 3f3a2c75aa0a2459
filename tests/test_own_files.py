"""Data sets from files of one's own: what is read, what is refused in one line, and that all else works on them."""

from __future__ import annotations

import io
import os
import pickle
import shlex
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf
from sklearn.datasets import load_diabetes, load_iris
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.kernel_ridge import KernelRidge

from kfx import load_run
from kfx.config.overrides import typed
from kfx.data.array_file import PointEncoding
from kfx.experiment.compose import composed, load, without_hydra
from kfx.experiment.config import check, settled
from kfx.experiment.identity import data_checksums, identity
from kfx.files import as_written
from kfx.numerics.streams import Streams
from kfx.outcomes import ConfigError, DataError
from kfx.record.reading import typed_words
from tests.slow import one_in, slow_after

ROWS = "a,b,y\n1,2,0.5\n3,4,1.5\n5,6,2.5\n7,9,3.5\n"
FEW = ("sampler.batch_size=20", "optimizer.iterations=3", "figures=false")


def table(*words, path="t.csv", target="y"):
    return [
        f"dataset={'arrays' if path.endswith('.npz') else 'table'}",
        f"dataset.path={path}",
        *([f"dataset.target={target}"] if target and not path.endswith(".npz") else []),
        *words,
        "sampler.batch_size=null",
    ]


def built(*words, seed=0, **of):
    option = load([*table(**of), "dataset.preprocess=[]", *words]).dataset
    return option.preprocessed(option.build(Streams(seed)["data"]))


def iris(path="iris.csv"):
    bunch = load_iris(as_frame=True)
    frame = bunch.data.assign(species=bunch.target_names[bunch.target], wet=np.arange(150) % 4 == 0)
    frame.to_csv(path, index=False)
    return frame


# ---- what is read


def test_standardized_targets_train_alike_and_errors_are_in_the_units_of_the_file(kfx):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 2)), columns=["a", "b"])
    frame["y"] = np.sin(frame["a"]) + 0.3 * frame["b"]
    frame.assign(y=100 + 7 * frame["y"]).to_csv("far.csv", index=False)
    frame.to_csv("near.csv", index=False)
    asked = ["evaluation.posterior_variance=true", "evaluation.train_error=true", "dataset.preprocess=[]"]
    asked += ["kernel=rbf", "kernel.sigma=1", "objective=rho", "regularization.value=1e-4"]
    found = {}
    for name in ("near", "far"):
        words = [*table(path=f"{name}.csv"), "sampler.batch_size=30", *asked, *FEW[1:]]
        assert kfx("run", *words, "regularization.scale=absolute", f"hydra.run.dir={name}")[0] == 0
        found[name] = load_run(name)
    near, far = (found[name].evaluation.set_index(["kernel", "metric"])["value"] for name in ("near", "far"))
    np.testing.assert_allclose(found["far"].trace["rho"], found["near"].trace["rho"], rtol=1e-9)
    for metric, factor in (("mse", 49), ("train_mse", 49), ("mae", 7), ("mean_posterior_variance", 49)):
        np.testing.assert_allclose(far.loc["trained", metric], factor * near.loc["trained", metric], rtol=1e-6)
    data = built("dataset.targets=standardized", path="far.csv")
    mean, scale = data.y_train.mean(), data.y_train.std()
    kernel = sklearn_kernels.RBF(found["far"].kernel.parameters["sigma"])
    ridge = KernelRidge(alpha=1e-4, kernel="precomputed").fit(kernel(data.x_train), (data.y_train - mean) / scale)
    predicted = mean + scale * ridge.predict(kernel(data.x_test, data.x_train))
    assert np.mean((predicted - data.y_test) ** 2) == pytest.approx(far.loc["trained", "mse"], rel=1e-5)


def test_targets_of_classes_stay_as_they_are(kfx, in_folder):
    iris()
    words = table("dataset.targets=centered", "dataset.exclude=[wet]", path="iris.csv", target="species")
    assert "dataset.targets=centered: of a regression" in kfx("run", *words)[2]


@pytest.mark.slow
def test_a_table_has_its_columns_in_order_and_disjoint_random_test_points(in_folder):
    (in_folder / "t.csv").write_text("time,b,y\n" + "".join(f"{i},{i * i},{i / 2}\n" for i in range(50)))
    data = built()
    assert data.x_train.shape == (40, 2)
    assert data.x_test.shape == (10, 2)
    whole = np.concatenate([data.x_train, data.x_test])
    assert sorted(whole[:, 0]) == list(range(50))
    assert np.array_equal(whole[:, 1], whole[:, 0] ** 2)
    assert np.array_equal(data.y_train[:, 0], data.x_train[:, 0] / 2)
    assert data.labels_train is None
    assert len(built("dataset.test=0.5").x_test) == 25
    assert len(built("dataset.n_test=7", "dataset.n_train=11").x_train) == 11
    chosen = built("dataset.features=[b]")
    assert np.array_equal(chosen.x_train[:, 0], data.x_train[:, 1]), "the same points, by the same seed"
    assert not np.array_equal(built(seed=1).x_train, data.x_train)


def test_words_are_classes_and_words_among_features_are_one_hot_by_name(in_folder):
    frame = iris()
    assert frame["wet"].dtype == bool
    words = ["dataset.test=0"], {"path": "iris.csv", "target": "species"}
    data = built(*words[0], "dataset.categorical=[wet]", "evaluation=k_fold", **words[1])
    assert data.y_train.shape == (150, 3)
    assert set(data.labels_train) == {0, 1, 2}
    assert np.array_equal(data.labels_train, load_iris().target), "in alphabetical order, here that of the file"
    assert np.array_equal(data.x_train[:, 4:], np.stack([~frame["wet"], frame["wet"]], axis=1))
    plain = built(*words[0], "evaluation=k_fold", **words[1])
    assert np.array_equal(plain.x_train[:, 4], frame["wet"]), "true and false are 1 and 0"


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["yes", "no"] * 5, True),
        ([True, False] * 5, True),
        ([0, 1] * 5, True),
        ([0.0, 1.0, 2.0, 2.0] * 5, True),
        ([0.5, 1.0] * 5, False),
        (list(range(30)), False),
        (list(range(4)), False),
    ],
)
def test_auto_takes_words_and_few_whole_numbers_as_classes(in_folder, values, classes):
    path = str(in_folder / "t.csv")  # of which nothing was said before
    pd.DataFrame({"x": np.arange(len(values)), "y": values}).to_csv(path, index=False)
    if classes and len(set(values)) > 2:
        with pytest.warns(UserWarning, match="different whole numbers are taken as classes"):
            data = built(path=path)
    else:
        data = built(path=path)
    assert (data.labels_train is not None) == classes
    if not isinstance(values[0], (str, bool)):
        assert built("dataset.task=regression", path=path).labels_train is None
    assert len(load(table("dataset.task=classification", path=path)).dataset.read().targets.classes) == len(set(values))


WHOLE = ("dataset.test=0", "evaluation=k_fold", "evaluation.folds=2")
CODES = ["01234", "1234", "1e1", "10", "1", "1.0", "01", "9007199254740993", "9007199254740992"]


@pytest.mark.parametrize("missing", [False, True])
def test_codes_and_labels_are_apart_where_they_are_written_apart(in_folder, missing):
    codes = CODES * 3
    frame = pd.DataFrame({"a": np.arange(len(codes)) / 7, "code": codes, "y": np.arange(len(codes)) / 3})
    if missing:
        frame.loc[len(codes)] = [0.5, None, 0.5]
    frame.to_csv("t.csv", index=False)
    words = ("dataset.missing=drop", *WHOLE)
    hot = built("dataset.categorical=[code]", *words).x_train[:, 1:]
    order = ["1", "01", "1.0", "10", "1e1", "1234", "01234", "9007199254740992", "9007199254740993"]
    assert hot.shape[1] == len(order)
    assert [order[i] for i in hot.argmax(axis=1)] == codes, "in the order of their sizes"
    labels = built("dataset.features=[a]", "dataset.task=classification", *words, target="code").labels_train
    assert [order[i] for i in labels] == codes


@pytest.mark.parametrize(
    ("here", "there", "count"),
    [
        (("1", "2"), ("1.0", "2.0"), 2),
        (("True", "False"), ("true", "false"), 2),
        (("01234", "5678"), ("1234", "5678"), 3),
    ],
)
def test_a_second_table_may_spell_the_same_value_otherwise(in_folder, here, there, count):
    for name, values in (("t.csv", here), ("u.csv", there)):
        rows = [f"{i / 7},{value},{value}" for i, value in enumerate(values * 6)]
        (in_folder / name).write_text("\n".join(["a,code,y", *rows]))
    words = ("dataset.test=u.csv", "dataset.categorical=[code]", "dataset.task=classification")
    points = load(table(*words)).dataset.read()
    assert len(points.targets.classes) == count
    assert points.x.shape[1] == 1 + count
    if count == 2:
        data = built(*words)
        assert data.labels_train.tolist() == data.labels_test.tolist()


def test_whole_numbers_that_auto_takes_as_classes_are_named_as_they_are_written(in_folder):
    path = str(in_folder / "t.csv")  # of which nothing was said before
    (in_folder / "t.csv").write_text("a,y\n" + "0.5,1\n1.5,1.0\n2.5,01\n3.5,2\n" * 3)
    with pytest.warns(UserWarning, match="4 different whole numbers are taken as classes"):
        assert built(*WHOLE, path=path).labels_train.tolist() == [0, 2, 1, 3] * 3
    assert load(table(*WHOLE, path=path)).dataset.read().targets.classes == ("1", "01", "1.0", "2")


NAMES = [
    "glucose (mmol/l)",
    "a=b",
    "it's",
    'q"t',
    "x, y",
    "back\\",
    "größe",
    "1e1",
    "true",
    "[x]",
    "#1",
    "a b",
    "$HOME",
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
def test_what_a_message_says_to_type_works_in_a_shell(in_folder, kfx):
    (in_folder / "t.csv").write_text("a;y\n" + "".join(f"0,{i}25;{i},5\n" for i in range(10, 30)))
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, len(NAMES))), columns=NAMES)
    frame.assign(y=0.5 + np.arange(20)).to_csv("names.csv", index=False)

    def refused(*words):
        code, _, err = kfx("run", "dataset=table", *words)
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"kfx: cannot read {words[0]}; in a shell, type ")
        return err.split("type ")[1].strip()

    def shell(*words):
        run = f"{sys.executable} -m kfx run --cfg job dataset=table sampler.batch_size=null {' '.join(words)}"
        done = subprocess.run(run, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout)["dataset"]

    rest = "dataset.path=t.csv", "dataset.target=y"
    assert shell(refused("dataset.decimal=,", *rest), *rest)["decimal"] == ","
    target = refused(f"dataset.target={NAMES[0]}", "dataset.path=names.csv")
    lists = {"exclude": NAMES[1:7], "categorical": NAMES[7:]}
    words = [typed(f"dataset.{key}", names) for key, names in lists.items()]
    node = shell("dataset.path=names.csv", target, *words)
    assert node["target"] == NAMES[0]
    assert {key: node[key] for key in lists} == lists


DOLLARS = ["price ${usd}", "${usd}", "a ${", "\\${x}", "${oc.env:HOME}", "${a} ${b", "$", 'it\'s ${u} "x"']


@pytest.mark.parametrize("name", DOLLARS)
def test_a_name_with_a_dollar_and_a_brace_is_typed_as_kfx_says(in_folder, name):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(12, 3)), columns=["a", "b", name])
    frame.to_csv("t.csv", index=False)
    for key, value, column in (("dataset.target", name, name), ("dataset.exclude", [name], "b")):
        (word,) = shlex.split(typed(key, value))
        words = ["dataset=table", "dataset.path=t.csv", *([] if column == name else ["dataset.target=b"]), word]
        raw, config = settled(without_hydra(composed(words)))
        assert config.dataset.target_names() == (column,)
        again, _ = settled(OmegaConf.create(OmegaConf.to_yaml(raw)))
        assert again == raw, "what a record holds is the same config"
        if "${" not in name or "\\" in name or "'" in name:
            continue
        typed_carelessly = word.replace("\\${", "${")
        with pytest.raises(ConfigError, match="for the text itself, type ") as raised:
            load([*words[:-1], typed_carelessly])
        assert shlex.split(str(raised.value).rpartition(" type ")[2]) == [word]


@pytest.mark.filterwarnings("ignore:.*holds words:UserWarning")
def test_a_run_on_names_with_dollars_and_braces_is_like_any_other(in_folder, kfx):
    rng = np.random.default_rng(0)
    x, word = rng.random((40, 2)), np.where(np.arange(40) % 3, "u", "${v}")
    frame = pd.DataFrame({"a ${x}": x[:, 0], "b": x[:, 1], "plan ${tier}": word, "y": np.sin(5 * x[:, 0])})
    (in_folder / "d${e}").mkdir()
    frame.to_csv("d${e}/t.csv", index=False)
    words = [*(shlex.split(typed("dataset.path", "d${e}/t.csv"))), "optimizer=none", "evaluation.batches=0"]
    code, _, err = kfx("run", "dataset=table", "dataset.target=y", *words, "hydra.run.dir=r")
    assert code == 0, err
    run = load_run("r")
    assert list(run.config.dataset.categorical) == ["plan ${tier}"]
    assert run.config.dataset.path == str(in_folder / "d${e}/t.csv")
    assert typed_words(in_folder / "r")[2] == 'dataset.path="d\\${e}/t.csv"'
    code, out, _ = kfx("rerun", "r", "--output", "again")
    assert (code, "bit for bit" in out) == (0, True)
    np.testing.assert_allclose(run.predict(frame[:5])["prediction"], load_run("again").predict(frame[:5])["prediction"])


def test_columns_that_are_left_out_are_no_features(in_folder, kfx):
    frame = pd.DataFrame({"name": ["p", "q"] * 8, "a": np.arange(16) / 7, "y": np.arange(16) / 3, "id": range(16)})
    frame.to_csv("t.csv", index=False)
    assert built("dataset.exclude=[name,id]", *WHOLE).x_train.tolist() == frame[["a"]].to_numpy().tolist()
    frame.drop(columns="name").to_csv("u.csv", index=False)
    assert built("dataset.exclude=[name,id]", "dataset.test=u.csv").x_test.shape == (16, 1)


def test_a_run_is_the_same_as_before_where_no_column_is_left_out(in_folder, kfx):
    (in_folder / "t.csv").write_text(ROWS)
    words = [*table(), "optimizer=none", "sampler.batch_size=2", "figures=false"]
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    new = composed(words)
    before = without_hydra(composed(words))
    del before.dataset["exclude"]
    assert identity(new, check(new), []) == identity(before, check(before), [])
    of_b = composed([*words, "dataset.exclude=[b]"])
    assert identity(of_b, check(of_b), []) != identity(new, check(new), [])


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"id": [7, 7, 9, 4] * 4}, ["id"]),
        ({"PassengerId": np.random.default_rng(1).permutation(16)}, ["PassengerId"]),
        ({"sample id": range(100, 116), "n": range(16)}, ["sample id", "n"]),
        ({"index": np.random.default_rng(1).permutation(16)}, ["index"]),
        ({"n": range(1, 17)}, ["n"]),
        ({"acid": range(0, 32, 2), "year": range(1990, 2006), "row": [1, 2] * 8, "body mass index": [20, 21] * 8}, []),
        ({"n": np.random.default_rng(1).permutation(16), "m": np.arange(16) + 0.5}, []),
    ],
)
def test_columns_that_number_the_rows_are_warned_about(in_folder, columns, found):
    a = np.random.default_rng(0).normal(size=16)
    path = str(in_folder / "t.csv")  # of which nothing was said before
    pd.DataFrame({"a": a, **columns, "y": a**2}).to_csv(path, index=False)
    if found:
        with pytest.warns(UserWarning, match=f"{', '.join(found)} looks? like row numbers") as said:
            built(path=path)
        remedy = str(said[0].message).split("type ")[1]
        assert remedy == typed("dataset.exclude", found)
        assert built(*shlex.split(remedy), path=path).x_train.shape[1] == 1 + len(columns) - len(found)
    assert built(f"dataset.features={[*columns]}", path=path).x_train.shape[1] == len(columns), "as one asks"
    if not found:
        built(path=path)


def test_large_whole_numbers_of_parquet_are_apart_beside_a_missing_value(in_folder):
    pytest.importorskip("pyarrow")
    codes = pd.array([2**53 + 1, 2**53, 2**53 + 2, None] * 5, dtype="Int64")
    pd.DataFrame({"a": np.arange(20) / 7, "code": codes, "y": np.arange(20) / 3}).to_parquet("t.parquet")
    words = ("dataset.missing=drop", *WHOLE)
    data = built("dataset.categorical=[code]", *words, path="t.parquet")
    assert data.x_train[:3, 1:].argmax(axis=1).tolist() == [1, 0, 2]
    data = built("dataset.task=classification", *words, path="t.parquet", target="code")
    assert data.labels_train[:3].tolist() == [1, 0, 2]
    pd.DataFrame({"a": [0.5, 1.5], "code": [2**53, 2**53 + 1], "y": [0.5, 1.5]}).to_csv("u.csv", index=False)
    both = built("dataset.categorical=[code]", "dataset.missing=drop", "dataset.test=u.csv", path="t.parquet")
    assert both.x_test[:, 1:].argmax(axis=1).tolist() == [0, 1], "a code is the same in a CSV"


@pytest.mark.slow
def test_test_points_by_a_column_and_by_a_second_table(in_folder):
    frame = pd.DataFrame({"a": range(10), "y": np.arange(10) / 3, "part": ["train", "test"] * 5})
    frame.to_csv("t.csv", index=False)
    by_column = built("dataset.test=part")
    frame[frame["part"] == "train"].drop(columns="part").to_csv("one.csv", index=False)
    frame[frame["part"] == "test"].drop(columns="part")[["y", "a"]].to_csv("two.csv", index=False)
    by_file = built("dataset.test=two.csv", path="one.csv")
    for data in (by_column, by_file):
        assert data.x_train[:, 0].tolist() == [0, 2, 4, 6, 8]
        assert data.x_test[:, 0].tolist() == [1, 3, 5, 7, 9]
    assert len(built("dataset.test=two.csv", "dataset.n_test=2", path="one.csv").x_test) == 2
    files = data_checksums(load(table("dataset.test=two.csv", path="one.csv")))
    assert list(files) == ["one.csv", "two.csv"]


def test_missing_values_are_filled_by_what_training_points_say(in_folder):
    (in_folder / "t.csv").write_text("a,c,y,part\n1,x,0.1,0\n,x,0.2,0\n4,,0.3,0\n7,z,0.4,0\nNA,z,0.5,1\n100,x,0.6,1\n")
    words = ("dataset.test=part", "dataset.categorical=[c]")
    data = built(*words, "dataset.missing=mean")
    assert [data.x_train[1, 0], data.x_test[0, 0]] == [4, 4], "not moved by the test point's 100"
    assert np.allclose(data.x_train[2, 1:], [2 / 3, 1 / 3]), "the frequencies of x and z"
    assert built(*words, "dataset.missing=median").x_train[1, 0] == 4
    dropped = built(*words, "dataset.missing=drop")
    assert dropped.x_train[:, 0].tolist() == [1, 7]
    assert dropped.x_test[:, 0].tolist() == [100]


@pytest.mark.parametrize("dataset", ["table", "arrays"])
def test_folds_take_all_rows_and_a_split_a_fifth(kfx, in_folder, dataset):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(43, 2))
    np.savez("t.npz", x=x, y=np.sin(x[:, 0]))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.sin(x[:, 0])}).to_csv("t.csv", index=False)
    words = ["dataset=arrays", "dataset.path=t.npz"] if dataset == "arrays" else ["dataset=table", "dataset.path=t.csv"]
    words += [] if dataset == "arrays" else ["dataset.target=y"]
    words += ["optimizer.iterations=2", "figures=false", "device.precision_check=off"]
    tested = {}
    folds = "evaluation=k_fold"
    for name, more in {"split": (), "folds": (folds,), "given": (folds, "dataset.test=0.5")}.items():
        code, _, err = kfx("run", *words, *more, f"hydra.run.dir={name}")
        assert code == 0, err
        tested[name] = len(pd.read_csv(f"{name}/predictions.csv").query("kernel == 'trained'"))
    assert tested == {"split": 9, "folds": 43, "given": 21}
    if dataset == "table":
        pd.read_csv("t.csv").assign(auto=np.arange(43) % 3 == 0).to_csv("t.csv", index=False)
        assert kfx("run", *words, "dataset.test=auto", "hydra.run.dir=auto")[0] == 0
        assert len(pd.read_csv("auto/predictions.csv").query("kernel == 'trained'")) == 15, "a column of that name"
    _, _, err = kfx("run", *words, "dataset.test=0", "hydra.run.dir=none")
    assert err.startswith("kfx: dataset.test=0: leaves no test point")


def test_of_several_targets_each_is_an_output(in_folder):
    (in_folder / "t.csv").write_text(ROWS)
    data = built("dataset.target=[b,y]", target=None)
    assert data.y_train.shape[1] == 2
    assert data.x_train.shape[1] == 1


@pytest.mark.parametrize(
    ("content", "words", "path"),
    [
        (ROWS.encode("utf-8-sig"), (), "t.csv"),
        (ROWS.replace("\n", "\r\n").encode(), (), "t.csv"),
        (ROWS.replace(",", ";").encode(), (), "t.csv"),
        (ROWS.replace(",", "\t").encode(), (), "t.tsv"),
        (ROWS.replace(",", " , ").encode(), (), "t.csv"),
        (ROWS.replace(",", ";").replace(".", ",").encode(), ("dataset.decimal=','",), "t.csv"),
        (ROWS.replace("a", "ä").encode("latin-1"), ("dataset.encoding=latin-1",), "t.csv"),
        (ROWS.encode("utf-16"), ("dataset.encoding=utf-16",), "t.csv"),
        (ROWS.replace(",", "~").encode(), ("dataset.separator='~'",), "t.txt"),
        ((ROWS + "\n\n").encode(), (), "t.csv"),
        (ROWS.replace("a,", '"a, or\nelse",').encode(), (), "t.csv"),
    ],
    ids=[
        "BOM",
        "CRLF",
        "semicolons",
        "tabs",
        "spaces",
        "decimal commas",
        "latin-1",
        "UTF-16",
        "tildes",
        "blank lines",
        "quoted",
    ],
)
def test_texts_of_many_kinds_hold_the_same_numbers(in_folder, content, words, path):
    (in_folder / path).write_bytes(content)
    data = built(*words, "dataset.test=0", "evaluation=k_fold", "evaluation.folds=2", path=path)
    assert data.x_train.tolist() == [[1, 2], [3, 4], [5, 6], [7, 9]]
    assert data.y_train[:, 0].tolist() == [
        0.5,
        1.5,
        2.5,
        3.5,
    ]


def test_parquet_holds_what_its_table_holds(in_folder):
    pytest.importorskip("pyarrow")
    frame = iris()
    frame.to_parquet("iris.parquet")
    pair = [built("dataset.categorical=[wet]", path=path, target="species") for path in ("iris.csv", "iris.parquet")]
    assert np.array_equal(pair[0].x_train, pair[1].x_train)
    assert np.array_equal(pair[0].labels_train, pair[1].labels_train)


@pytest.mark.slow
def test_arrays_are_points_or_images_in_one_part_or_two(in_folder):
    rng = np.random.default_rng(0)
    images, labels = rng.random((30, 2, 5, 4)), np.arange(30) % 2
    np.savez("t.npz", x=images.astype(np.float32), y=labels)
    config = load(table(path="t.npz"))
    assert config.dataset.image == (5, 4, 2)
    assert config.dataset.has_classes
    assert config.dataset.is_table
    data = built(path="t.npz")
    assert data.x_train.shape == (24, 2, 5, 4)
    assert data.x_train.dtype == np.float64
    np.savez_compressed(
        "u.npz", x_train=images[:20, 0, 0], y_train=labels[:20] / 3, x_test=images[20:, 0, 0], y_test=labels[20:] / 3
    )
    two = load(table(path="u.npz"))
    assert two.dataset.image is None
    assert not two.dataset.has_classes
    assert not two.dataset.is_table
    assert np.array_equal(built(path="u.npz").x_test, images[20:, 0, 0])
    np.savez("w.npz", x=images[:, 0, 0], y=np.array(["cat", "dog"])[labels])
    assert built(path="w.npz").y_train.shape[1] == 2
    np.savez("h.npz", x=images[:, 0, 0], y=np.eye(2)[labels])
    assert set(built("dataset.task=classification", path="h.npz").labels_train) == {0, 1}


# ---- what is refused


@pytest.mark.parametrize("shape", [(8, 8, 3), (8, 8, 1), (9, 5, 4), (6, 4, 2), (16, 16, 12)])
def test_images_with_their_channels_last_are_asked_about(in_folder, shape):
    rng = np.random.default_rng(0)
    images, y = rng.random((30, *shape)), rng.random(30)
    moved = np.moveaxis(images, -1, 1)
    np.savez("t.npz", x=images, y=y)
    np.savez("u.npz", x=moved, y=y)
    with pytest.raises(
        DataError, match=r"looks like \(n, height, width, channels\); set dataset.channels=last, or first"
    ):
        load(table(path="t.npz"))
    last, expected = built("dataset.channels=last", path="t.npz"), built(path="u.npz")
    assert np.array_equal(last.x_train, expected.x_train)
    size = load(table("dataset.channels=last", path="t.npz")).dataset.image
    assert size == load(table(path="u.npz")).dataset.image
    assert built("dataset.channels=first", path="t.npz").x_train.shape[1:] == shape
    for channels, good, other in (("last", images, moved), ("first", moved, images)):
        encoding = PointEncoding(moved.shape[1:], channels)
        assert np.array_equal(encoding.rows(good).x, moved)
        with pytest.raises(DataError, match=r"expected .*as in training"):
            encoding.rows(other)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8), (16, 4, 4), (8, 3, 3), (2, 5, 4), (1, 1, 20), (4, 4, 4)])
def test_images_with_their_channels_first_are_taken(in_folder, shape):
    np.savez("t.npz", x=np.ones((9, *shape)) * np.arange(9)[:, None, None, None], y=np.arange(9) / 7)
    assert built(path="t.npz").x_train.shape[1:] == shape


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def claiming(shape, descr="<f8"):
    """An .npz whose x says that it has this shape, and holds nothing."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    body = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", body)
        archive.writestr("y.npy", body)
    return stream.getvalue()


def pickled():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", pickle.dumps(os.getcwd))
        archive.writestr("y.npy", pickle.dumps([1]))
    return stream.getvalue()


GOOD = np.arange(12.0).reshape(6, 2)
WIDE = ",".join(f"c{i}" for i in range(1_000_000))
HOSTILE = {
    "no file": ("t.csv", None, (), "t.csv: is not there", "expected a file"),
    "a folder": ("t.csv", "folder", (), "t.csv: is no regular file", "expected a file"),
    "a pipe": ("t.csv", "pipe", (), "t.csv: is no regular file", "expected a file"),
    "no path": (None, None, (), "dataset.path=null", ".csv, .tsv"),
    "another ending": ("t.xlsx", ROWS, (), "t.xlsx: expected a name that ends in", ".parquet"),
    "empty": ("t.csv", "", (), "t.csv: is empty", "column names"),
    "a first line alone": ("t.csv", "a,b,y\n", (), "holds 0 rows of points", "at least 2"),
    "one row": ("t.csv", "a,b,y\n1,2,3\n", (), "holds 1 rows of points", "at least 2"),
    "no header": ("t.csv", "1,2,3\n4,5,6\n7,8,9\n", (), "its first line holds numbers", "names of the columns"),
    "a short row": ("t.csv", ROWS + "1,2\n", (), "line 6 has 2 fields", "the first line 3"),
    "a long row": ("t.csv", ROWS + "1,2,3,4\n", (), "line 6 has 4 fields", "the first line 3"),
    "an open quotation mark": ("t.csv", ROWS + '1,"2,3\n4,5,6\n', (), "t.csv: line", "quotation mark"),
    "a zero byte in the header": ("t.csv", "a,\0,y\n1,2,3\n", (), "zero byte", "UTF-8"),
    "a zero byte": ("t.csv", ROWS + "1,\0,3\n", (), "t.csv: ", "row 5"),
    "latin-1": ("t.csv", (ROWS + "é,1,2\n").encode("latin-1"), (), "line 6 holds the byte 0xe9", "dataset.encoding"),
    "UTF-16": ("t.csv", ROWS.encode("utf-16"), (), "is UTF-16", "dataset.encoding=utf-16"),
    "an encoding that is none": (
        "t.csv",
        ROWS,
        ("dataset.encoding=runes",),
        "dataset.encoding=runes",
        "name of an encoding",
    ),
    "a codec that is none of text": ("t.csv", ROWS, ("dataset.encoding=zlib",), "dataset.encoding=zlib", "encoding"),
    "no target": ("t.csv", ROWS, ("dataset.target=null",), "dataset.target=null", "a, b, y"),
    "another target": ("t.csv", ROWS, ("dataset.target=z",), "dataset.target=z: no column", "a, b, y"),
    "another feature": ("t.csv", ROWS, ("dataset.features=[a,q]",), "dataset.features=q: no column", "a, b, y"),
    "the target among the features": ("t.csv", ROWS, ("dataset.features=[a,y]",), "dataset.features=y", "leave it out"),
    "a categorical column that is no feature": (
        "t.csv",
        ROWS,
        ("dataset.features=[a]", "dataset.categorical=[b]"),
        "dataset.categorical=b",
        "none of the features",
    ),
    "no features": ("t.csv", "y\n1\n2\n3\n", (), "no column is left for the features", "beside y"),
    "one name over two columns": ("t.csv", "a,a,y\n1,2,3\n4,5,6\n", (), "stand over several columns, as a", "rename"),
    "a column without a name": ("t.csv", ",a,y\n0,1,2.5\n1,2,3.5\n", (), "column 1 has no name", "dataset.features"),
    "decimal commas": (
        "t.csv",
        'a;y\n5,1;1\n4,9;2\n"5,0";3\n',
        (),
        "column a holds '5,1' in row 1, which is no number with a decimal point",
        "'dataset.decimal=\",\"'",
    ),
    "money": ("t.csv", "a,y\n$12,1\n$15,2\n$9,3.5\n", (), "column a holds '$12' in row 1", "dataset.exclude=[a]"),
    "days before months": (
        "t.csv",
        "a,y\n03/04/2020,1\n05/06/2020,2\n",
        (),
        "column a holds '03/04/2020' in row 1, which may be 2020-03-04 or 2020-04-03",
        "'dataset.exclude=[a]'",
    ),
    "names": (
        "t.csv",
        "a,y\n" + "".join(f"n{i},{i}\n" for i in range(60)),
        (),
        "no column is left for the features",
        "one value, or none",
    ),
    "words": ("t.csv", ROWS + "red,2,3\n", (), "column a holds 'red' in row 5", "'dataset.categorical=[a]'"),
    "columns of words": (
        "t.csv",
        "a,b (mm),c d,e,w,y\n" + "red,1,x,1,u,0.5\n3,,1,2,v,1.5\n4,z,2,3,u,2.5\n",
        ("dataset.categorical=[w]",),
        "column a holds 'red' in row 1, which is no number; column b (mm) holds 'z' in row 3",
        """type 'dataset.categorical=[w,a,"b (mm)","c d"]'""",
        """type 'dataset.exclude=[a,"b (mm)","c d"]'""",
    ),
    "another column to leave out": ("t.csv", ROWS, ("dataset.exclude=[q]",), "dataset.exclude=q: no column", "a, b, y"),
    "the target to leave out": (
        "t.csv",
        ROWS,
        ("dataset.exclude=[y]",),
        "dataset.exclude=y: is the target",
        "leave it",
    ),
    "a feature to leave out": (
        "t.csv",
        ROWS,
        ("dataset.features=[a]", "dataset.exclude=[a]"),
        "dataset.exclude=a: is one of dataset.features",
        "leave it out there",
    ),
    "a category to leave out": (
        "t.csv",
        ROWS,
        ("dataset.categorical=[a]", "dataset.exclude=[a]"),
        "dataset.categorical=a: is none of the features",
        "leave it out there",
    ),
    "all left out": ("t.csv", ROWS, ("dataset.exclude=[a,b]",), "no column is left for the features", "beside y"),
    "missing values": (
        "t.csv",
        ROWS + ",2,3\n4,NA,5\n",
        ("dataset.missing=refuse",),
        "2 rows without a value, 5, 6",
        "dataset.missing=mean, median or drop",
    ),
    "a missing target": ("t.csv", ROWS + "1,2,\n", (), "1 row without a value, 5", "dataset.missing=drop"),
    "nothing but missing values": (
        "t.csv",
        "a,b,y\n,1,2\n,3,4\n,5,7\n",
        ("dataset.missing=mean",),
        "column a is empty",
        "dataset.exclude=[a]",
    ),
    "nothing left": (
        "t.csv",
        "a,b,y\n,1,2\n,3,4\n",
        ("dataset.missing=drop",),
        "0 rows have no missing value",
        "mean or median",
    ),
    "infinity": ("t.csv", ROWS + "inf,2,3\n", (), "column a: holds inf in row 5", "no finite number"),
    "a huge value": ("t.csv", ROWS + "1,2e200,3\n", (), "column b: holds 2e+200 in row 5", "rescale"),
    "a number beyond float64": ("t.csv", ROWS + "1,2e999,3\n", (), "column b: holds inf in row 5", "no finite number"),
    "a number of 400 digits": ("t.csv", ROWS + f"1,-{'9' * 400},3\n", (), "column b: holds -inf in row 5", "no finite"),
    "a target of 400 digits": ("t.csv", ROWS + f"1,2,{'9' * 400}\n", (), "column y: holds inf in row 5", "no finite"),
    "a target of 400 digits, of numbers": (
        "t.csv",
        ROWS.replace(".5", "") + f"1,2,{'9' * 400}\n",
        ("dataset.task=regression",),
        "column y: holds inf in row 5",
        "no finite",
    ),
    "one class": ("t.csv", "a,y\n1,red\n2,red\n3,red\n", (), "holds one class, red", "two or more"),
    "a constant target": ("t.csv", "a,y\n1,2.5\n2,2.5\n3,2.5\n", (), "is 2.5 in every row", "nothing to learn"),
    "words as values": ("t.csv", "a,y\n1,red\n2,blue\n", ("dataset.task=regression",), "holds 'red'", "dataset.task"),
    "too many classes": (
        "t.csv",
        "a,y\n" + "".join(f"{i},w{i // 2}\n" for i in range(2002)),
        (),
        "1001 different values are no classes",
        "dataset.task=regression",
    ),
    "a million columns": (
        "t.csv",
        WIDE + ",y\n" + "1," * 1_000_000 + "2\n",
        (),
        "1000000 features are too many",
        "20000 at most",
    ),
    "a code for each row": (
        "t.csv",
        "a,y\n" + "".join(f"w{i},{i / 2}\n" for i in range(20_001)),
        ("dataset.categorical=[a]",),
        "column a: with it there are 20001 features",
        "leave it out",
    ),
    "a field without end": (
        "t.csv",
        "a,y\n1,2\n3," + "4" * 200_000 + "\n",
        (),
        "t.csv: line 3",
        "field larger than field limit",
    ),
    "a test column of other words": (
        "t.csv",
        "a,p,y\n1,red,2.5\n2,test,3.5\n",
        ("dataset.test=p",),
        "column p holds 'red'",
        "train",
    ),
    "test points alone": (
        "t.csv",
        "a,p,y\n1,1,2.5\n2,1,3.5\n",
        ("dataset.test=p",),
        "all rows are test points",
        "some of each",
    ),
    "no second table": ("t.csv", ROWS, ("dataset.test=other.csv",), "dataset.test=other.csv", "path of a second table"),
    "another second table": ("t.csv", ROWS, ("dataset.test=second.csv",), "second.csv: its columns", "differ in b"),
    "a fraction above 1": ("t.csv", ROWS, ("dataset.test=1.5",), "dataset.test=1.5", "a fraction"),
    "more points than there are": ("t.csv", ROWS, ("dataset.n_train=9",), "dataset.n_train=9", "at most 3"),
    "Parquet that is none": ("t.parquet", "PAR1 and then nothing", (), "no Parquet file", "t.parquet"),
    "Parquet with lists": ("t.parquet", "lists", (), "column a holds list", "numbers or words"),
    "no .npz": ("t.npz", "PK and then nothing", (), "is no .npz file", "t.npz"),
    "a pickle": ("t.npz", pickled(), (), "is no .npz file", "t.npz"),
    "objects": (
        "t.npz",
        npz(x=np.array([{}, []], dtype=object), y=np.zeros(2)),
        (),
        "x holds object",
        "objects are pickles",
    ),
    "complex numbers": ("t.npz", npz(x=GOOD + 1j, y=GOOD[:, 0]), (), "x holds complex128", "expected numbers"),
    "other arrays": ("t.npz", npz(points=GOOD, y=GOOD[:, 0]), (), "holds points, y", "expected x and y"),
    "one array too many": ("t.npz", npz(x=GOOD, y=GOOD[:, 0], z=GOOD), (), "holds x, y, z", "expected x and y"),
    "a line of points": ("t.npz", npz(x=GOOD[:, 0], y=GOOD[:, 0]), (), "x has shape (6,)", "reshape it to (n, 1)"),
    "images without channels": (
        "t.npz",
        npz(x=np.zeros((6, 3, 3)), y=GOOD[:, 0]),
        (),
        "x has shape (6, 3, 3)",
        "(n, 1, height, width)",
    ),
    "no points": ("t.npz", npz(x=np.zeros((0, 2)), y=np.zeros(0)), (), "x has shape (0, 2)", "no points"),
    "fewer targets": ("t.npz", npz(x=GOOD, y=GOOD[:4, 0]), (), "y has 4 entries", "x 6"),
    "NaN": (
        "t.npz",
        npz(x=np.where(GOOD == 5, np.nan, GOOD), y=GOOD[:, 0]),
        (),
        "x: holds nan in row 3",
        "no finite number",
    ),
    "two sizes": (
        "t.npz",
        npz(x_train=GOOD, y_train=GOOD[:, 0], x_test=GOOD[:, :1], y_test=GOOD[:, 0]),
        (),
        "different shapes",
        "t.npz",
    ),
    "a size that lies": ("t.npz", claiming((10**12, 100)), (), "x says that it has 800000000000000 bytes", "at most"),
    "a negative size": ("t.npz", claiming((-5, 2)), (), "t.npz", "x"),
    "an array cut off": ("t.npz", claiming((100, 2)), (), "x is cut off", "1600 bytes"),
    "a file cut off": ("t.npz", npz(x=GOOD, y=GOOD[:, 0])[:-200], (), "is no .npz file", "t.npz"),
    "outputs that are no classes": (
        "t.npz",
        npz(x=GOOD, y=GOOD),
        ("dataset.task=classification",),
        "a single 1",
        "t.npz",
    ),
}


@pytest.mark.parametrize("suffix", slow_after(1, ["csv", "parquet"]))
def test_columns_of_words_are_found(kfx, in_folder, suffix):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"size": rng.normal(size=60), "city": rng.choice(["Rome", "Oslo"], 60), "code": ["1", "2"] * 30}
    )
    frame["price"] = frame["size"] + 2 * (frame["city"] == "Rome") + 0.01 * rng.normal(size=60)
    pytest.importorskip("pyarrow") if suffix == "parquet" else None
    getattr(frame, f"to_{suffix}")(f"t.{suffix}", index=False)
    words = [*table(path=f"t.{suffix}", target="price"), "optimizer.iterations=3", "device.precision_check=off"]
    with pytest.warns(UserWarning, match=rf"t.{suffix}: column city holds words, and each word becomes"):
        config = load(words)
    assert list(config.dataset.categorical) == ["city"]
    assert kfx("run", *words, "figures=false", "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    assert run.metrics["features"] == ["size", "city=Oslo", "city=Rome", "code"]
    assert run.predict(frame[:3])["prediction"].shape == (3,)
    assert list(load([*words, "dataset.categorical=[city,code]"]).dataset.categorical) == ["city", "code"]


@pytest.mark.parametrize("name", one_in(3, HOSTILE))
def test_a_hostile_file_is_one_clear_line(kfx, in_folder, name):
    path, content, words, *expected = HOSTILE[name]
    if as_written(pd.__version__) and ("400 digits" in name or "float64" in name):
        expected = ["in row 5"]  # pandas before 3.1 takes such a number for a word
    (in_folder / "second.csv").write_text("a,y\n1,2\n3,4\n")
    if content == "folder":
        (in_folder / path).mkdir()
    elif content == "pipe":
        os.mkfifo(in_folder / path)
    elif content == "lists":
        pytest.importorskip("pyarrow")
        pd.DataFrame({"a": [[1], [2, 3]], "y": [0.5, 1.5]}).to_parquet(in_folder / path)
    elif content is not None:
        (in_folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
    given = [word for word in words if word.startswith("dataset.target")]
    code, out, err = kfx("run", *table(*words, path=path or "x", target=None if given else "y")[: None if path else 1])
    lines = [line for line in err.splitlines() if "warning" not in line]
    assert (code, out, len(lines)) == (2, "", 1), err
    assert lines[0].startswith("kfx: ")
    assert len(lines[0]) < 420
    for part in expected:
        assert part in lines[0]
    assert not (in_folder / "runs").exists()


def test_a_compressed_array_that_grows_is_refused_by_its_header(in_folder, kfx):
    """A megabyte of zeros, compressed, whose directory says that it is small."""
    body = npz(x=np.zeros((200_000, 5)), y=np.zeros(3))
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        x = archive.read("x.npy")
    (in_folder / "t.npz").write_bytes(body.replace(struct.pack("<I", zlib.crc32(x)), b"\0\0\0\0"))
    code, _, err = kfx("run", *table(path="t.npz"))
    assert code == 2
    assert "t.npz" in err
    assert err.count("\n") == 1


# ---- all else works on them


def test_a_run_on_a_csv_is_that_of_the_embedded_data(kfx, in_folder):
    """CSV → run: the same numbers, bit for bit, where points and order are the same."""
    load_diabetes(as_frame=True).frame.to_csv("d.csv", index=False)
    words = [*FEW, "dataset.n_test=100", "evaluation.batches=2", "kernel.sigma=1", "regularization.value=1e-4"]
    words += ["kernel=rbf", "objective=rho", "dataset.targets=as_given", "dataset.preprocess=[]"]
    assert kfx("run", "dataset=diabetes", *words, "hydra.run.dir=one")[0] == 0
    assert (
        kfx("run", "dataset=table", "dataset.path=d.csv", "dataset.target=target", *words, "hydra.run.dir=two")[0] == 0
    )
    one, two = load_run("one"), load_run("two")
    assert np.allclose(one.trace["rho"], two.trace["rho"], rtol=1e-9), "the CSV has the scaled features' digits"
    assert one.metrics["n_train"] == two.metrics["n_train"] == 342


@pytest.mark.slow
def test_a_record_finds_its_file_from_anywhere_and_knows_it_by_its_content(kfx, in_folder, monkeypatch):
    (in_folder / "data").mkdir()
    iris(in_folder / "data/iris.csv")
    words = ["dataset=table", "dataset.path=data/iris.csv", "dataset.target=species", *FEW]
    assert kfx("run", *words, "hydra.run.dir=r", "sampler.choice=stratified")[0] == 0
    run = load_run("r")
    assert run.config.dataset.path == str(in_folder / "data/iris.csv")
    assert list(run.metrics)
    assert "iris.csv" in (in_folder / "r/environment.json").read_text()
    monkeypatch.chdir(in_folder / "data")
    assert kfx("rerun", "../r")[0] == 0
    code, _, err = kfx(
        "run",
        "dataset=table",
        "dataset.path=iris.csv",
        "dataset.target=species",
        *FEW,
        "sampler.choice=stratified",
        "resume=true",
        "hydra.run.dir=../s",
    )
    assert (code, "completed already" in err) == (0, True), "the same file, wherever one stands"
    with (in_folder / "data/iris.csv").open("a") as stream:
        stream.write("1,1,1,1,setosa,False\n")
    code, _, err = kfx(
        "run",
        "dataset=table",
        "dataset.path=iris.csv",
        "dataset.target=species",
        *FEW,
        "sampler.choice=stratified",
        "resume=true",
        "hydra.run.dir=../t",
    )
    assert (code, "completed already" in err) == (0, False), "another content, another run"
    (in_folder / "data/iris.csv").unlink()
    assert load_run("../r").kernel.parameters, "the kernel of a record needs no data"


@pytest.mark.slow
def test_a_run_goes_on_where_its_file_lies_now(in_folder, monkeypatch):
    import kfx as package
    from kfx.sampling.samplers import Sampler

    iris()
    words = ["dataset=table", "dataset.target=species", *FEW, "checkpoint.iterations=1", "hydra.run.dir=r"]
    calls, usual = [], Sampler.draw

    def interrupt(*given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return usual(*given)

    monkeypatch.setattr(Sampler, "draw", interrupt)
    with pytest.raises(KeyboardInterrupt):
        package.run([*words, "dataset.path=iris.csv"], progress=False)
    (in_folder / "elsewhere").mkdir()
    (in_folder / "iris.csv").rename(in_folder / "elsewhere/moved.csv")
    with pytest.raises(package.KfxError):
        package.run([*words, "dataset.path=iris.csv", "resume=true"], progress=False)
    os.rename("elsewhere/moved.csv", "elsewhere/iris.csv")
    run = package.run([*words, "dataset.path=elsewhere/iris.csv", "resume=true"], progress=False)
    assert run.metrics["status"] == "completed"
    assert len(run.trace) == 3


@pytest.mark.slow
def test_folds_flows_and_comparison_on_own_files(kfx, in_folder):
    iris()
    base = ["dataset=table", "dataset.path=iris.csv", "dataset.target=species", *FEW]
    assert kfx("run", *base, "dataset.test=0", "evaluation=k_fold", "evaluation.folds=3", "hydra.run.dir=folds")[0] == 0
    flow = ["optimizer=flow_euler", "flow.record_layers=true", "dataset.preprocess=[normalize]", "figures=true"]
    assert kfx("run", *base, *flow, "hydra.run.dir=flow")[0] == 0
    assert load_run("flow").kernel.transform(np.zeros((2, 5))).shape == (2, 5)
    code, _, _ = kfx("run", "-m", *base, "optimizer=none,adam", "seed=0,1", "hydra.sweep.dir=sweep")
    assert code == 0
    code, out, _ = kfx("compare", "sweep", "--by", "optimizer")
    assert code == 0
    assert out.count("±") >= 2
    images = np.random.default_rng(0).random((60, 1, 6, 6))
    np.savez("i.npz", x=images, y=np.arange(60) % 3)
    words = ["dataset=arrays", "dataset.path=i.npz", "dataset.task=classification", *FEW, "kernel=cnngp"]
    assert kfx("run", *words, "optimizer=flow_euler", "figures=true", "hydra.run.dir=images")[0] == 0
    assert (in_folder / "images/figures/flow_images.png").is_file()
    os.remove("i.npz")
    assert kfx("plot", "images")[0] == 0, "pictures are drawn from the record"


if sys.platform == "win32":
    pytest.skip("pipes and permissions of POSIX", allow_module_level=True)


SLIPS = {
    "words among numbers": (
        "a,y\n" + "".join(f"{i},{i / 3}\n" for i in range(20)) + "3,x\n",
        (),
        "holds 'x' in row 21, among numbers",
        "dataset.task=classification",
    ),
    "decimal commas": (
        "a;y\n" + "".join(f"{i};0,{i}25\n" for i in range(20)),
        (),
        "column y holds '0,025' in row 1, which is no number with a decimal point",
        "to read it, type 'dataset.decimal=\",\"'",
    ),
    "one class in training": (
        "a,p,y\n1,0,u\n2,0,u\n3,1,v\n4,1,v\n",
        ("dataset.test=p",),
        "its 2 training points are one class",
        "take others",
    ),
    "itself as second table": (
        "a,y\n1,2.5\n2,3.5\n3,4.5\n",
        ("dataset.test=t.csv",),
        "dataset.test=t.csv: is the table itself",
        "test on",
    ),
    "its target as test column": (
        "a,y\n1,0\n2,1\n3,0\n",
        ("dataset.test=y",),
        "dataset.test=y: is the target",
        "test points",
    ),
    "a folder as second table": (
        "a,y\n1,2.5\n2,3.5\n3,4.5\n",
        ("dataset.test=/tmp",),
        "dataset.test=/tmp: expected",
        "second table",
    ),
    "a second table that misses a target": (
        "a,y\n1,2.5\n2,3.5\n3,4.5\n",
        ("dataset.test=other.csv",),
        "other.csv: 1 row without a value, 2",
        "dataset.missing=drop",
    ),
    "a second table of words": (
        "a,y\n1,2.5\n2,3.5\n3,4.5\n",
        ("dataset.test=words.csv",),
        "words.csv: column y holds words, and numbers in t.csv",
        "the same",
    ),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_said_and_no_numbers_come_of_it(kfx, in_folder, name):
    content, words, *expected = SLIPS[name]
    (in_folder / "t.csv").write_text(content)
    (in_folder / "other.csv").write_text("a,y\n1,2.5\n2,\n")
    (in_folder / "words.csv").write_text("a,y\n1,red\n2,blue\n")
    code, out, err = kfx("run", *table(*words))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    for part in expected:
        assert part in err


def test_tables_of_years_blank_first_lines_and_large_codes(in_folder):
    (in_folder / "t.csv").write_text("\n\n2019,2020,2021\n" + "".join(f"{i},{i / 3},{i % 2}\n" for i in range(12)))
    data = built("dataset.test=2021", target="2020")
    assert data.x_train.shape == (6, 1)
    codes = np.array([10**18, 10**18 + 1] * 6)
    pd.DataFrame({"a": range(12), "y": codes}).to_csv("t.csv", index=False)
    assert built().y_train.shape[1] == 2, "codes beyond 2^53 stay apart"


def test_parquet_of_pandas_with_an_index_and_decimals(in_folder):
    pytest.importorskip("pyarrow")
    from decimal import Decimal

    frame = pd.DataFrame({"a": range(20), "y": [Decimal(i) / 3 for i in range(20)]})
    frame[frame["a"] % 2 == 0].to_parquet("t.parquet")
    data = built("dataset.test=0", "evaluation=k_fold", "evaluation.folds=2", path="t.parquet")
    assert data.x_train[:, 0].tolist() == list(range(0, 20, 2))
    assert np.allclose(data.y_train[:, 0], np.arange(0, 20, 2) / 3)


@pytest.mark.slow
def test_runs_of_the_same_file_in_two_places_are_averaged(kfx, in_folder):
    for i, folder in enumerate(("one", "two")):
        (in_folder / folder).mkdir()
        iris(in_folder / folder / "iris.csv")
        words = ["dataset=table", f"dataset.path={folder}/iris.csv", "dataset.target=species", f"seed={i}", *FEW]
        assert kfx("run", *words, f"hydra.run.dir=s/{i}")[0] == 0
    code, out, _ = kfx("compare", "s", "--by", "kernel")
    assert code == 0
    assert "±" in out


def test_help_needs_no_file(kfx):
    code, out, _ = kfx("run", "dataset=table", "--help")
    assert code == 0
    assert "categorical" in out


@pytest.mark.parametrize("kind", ["a duration", "a date", "a date with a zone"])
@pytest.mark.parametrize("target", ["y", "[y,x]"])
def test_targets_of_parquet_that_are_times_are_refused(in_folder, kind, target):
    pytest.importorskip("pyarrow")
    days = pd.to_timedelta(np.arange(20), unit="D")
    starts = {
        "a duration": pd.Timedelta(0),
        "a date": pd.Timestamp("2020"),
        "a date with a zone": pd.Timestamp("2020-01-01", tz="UTC"),
    }
    pd.DataFrame({"a": np.arange(20.0), "x": np.arange(20.0), "y": starts[kind] + days}).to_parquet("t.parquet")
    with pytest.raises(DataError, match="column y holds"):
        built(path="t.parquet", target=target)


@pytest.mark.filterwarnings("ignore:.*(holds words|missing value)")
def test_blanks_around_words_mean_nothing_in_training_and_in_new_rows(kfx, in_folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=80), "w": rng.choice(["a", " a", "a ", "b", "b  ", "NA "], 80)})
    means = frame["w"].str.strip().map({"a": 1.0, "b": -1.0, "NA": 0.0})
    frame = frame.assign(y=frame["x"] + means, test=np.arange(80) % 4 == 0)
    frame.to_csv("t.csv", index=False)
    words = [
        *table(),
        "dataset.test=test",
        "optimizer.iterations=3",
        "figures=false",
        "evaluation.save_predictions=true",
    ]
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    assert run.metrics["features"] == ["x", "w=a", "w=b", "w is missing"]
    frame[frame["test"]].to_csv("new.csv", index=False)
    code, out, _ = kfx("predict", "r", "new.csv")
    assert code == 0
    own = pd.read_csv("r/predictions.csv").query("kernel == 'trained'").sort_values("point")["prediction"]
    np.testing.assert_allclose(pd.read_csv(io.StringIO(out))["prediction"], own, rtol=1e-9)


@pytest.mark.parametrize("side", [4, 6])
def test_new_images_have_their_channels_where_training_images_have_them(kfx, in_folder, side):
    rng = np.random.default_rng(0)
    x = rng.random((60, side, side, 4 if side == 4 else 3))
    np.savez("i.npz", x=x, y=x[:, 0, 1, 0] - x[:, 2, 3, 1])
    words = [*table(path="i.npz"), "dataset.channels=last", "kernel=rbf", "optimizer.iterations=3", "figures=false"]
    assert kfx("run", *words, "hydra.run.dir=r", "evaluation.save_predictions=true")[0] == 0
    found = load_run("r").predict(x)["prediction"].to_numpy()
    code, out, _ = kfx("predict", "r", "i.npz")
    assert code == 0
    np.testing.assert_allclose(pd.read_csv(io.StringIO(out))["prediction"], found, rtol=1e-9)
    own = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    errors = np.abs(found[:, None] - own["prediction"].to_numpy()).min(axis=0)
    assert errors.max() < 1e-9  # each test point is one of these


def test_a_new_point_that_is_no_number_is_left_out(kfx, in_folder):
    x = np.random.default_rng(0).random((40, 3))
    np.savez("p.npz", x=x, y=x[:, 0])
    assert kfx("run", *table(path="p.npz"), "optimizer.iterations=3", "figures=false", "hydra.run.dir=r")[0] == 0
    x[2, 1] = np.nan
    np.savez("new.npz", x=x[:5])
    code, out, err = kfx("predict", "r", "new.npz")
    assert (code, list(pd.read_csv(io.StringIO(out))["row"])) == (0, [1, 2, 4, 5])
    assert "row 3 is left out: holds what is no finite number" in err


def test_of_a_line_with_too_many_fields_that_is_said(kfx, in_folder):
    x = np.linspace(0, 1, 40)
    pd.DataFrame({"x": x, "y": x**2}).to_csv("t.csv", index=False)
    assert kfx("run", *table(), "optimizer.iterations=3", "figures=false", "hydra.run.dir=r")[0] == 0
    (in_folder / "new.csv").write_text("x\n0.1\n0.2,5\n0.3\n")
    code, _, err = kfx("predict", "r", "new.csv")
    assert code == 0
    assert "row 2 is left out: its line has 2 fields, the first line 1" in err


@pytest.mark.parametrize("seed", range(6))
def test_a_target_that_is_zero_in_a_fold_leaves_deviations_finite(kfx, in_folder, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    frame = frame.assign(y=frame["a"] + 0.1 * rng.normal(size=60), z=np.where(np.arange(60) < 2, 1.0, 0.0))
    frame.to_csv("t.csv", index=False)
    words = ["dataset.targets=as_given", f"seed={seed}", "optimizer.iterations=3", "figures=false", "hydra.run.dir=r"]
    code, _, err = kfx("run", *table(target="[y,z]"), *words)
    assert code == 0
    assert "divide" not in err
    metrics = load_run("r").metrics
    assert np.isfinite(metrics["inflation"]).all()
