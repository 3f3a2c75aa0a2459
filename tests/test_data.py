"""Data sets, and files that are missing, broken or hostile."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import linalg
from scipy.ndimage import affine_transform

from kfx.config.registry import OPTIONS
from kfx.data import Dataset, files, images, preprocess, synthetic
from kfx.data.dataset import with_targets
from kfx.data.own import as_targets
from kfx.data.windows import Trajectory, Windows
from kfx.estimators import KernelFlowRegressor
from kfx.experiment.compose import load
from kfx.experiment.identity import data_checksums
from kfx.kernels import ARD, Matern
from kfx.kernels.starts import candidates
from kfx.numerics.round_off import is_constant
from kfx.numerics.streams import Streams
from kfx.outcomes import ConfigError, DataError


def write_idx(path, array, *, count=None, cut=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    dims = [len(array) if count is None else count, *array.shape[1:]]
    header = struct.pack(f">I{len(dims)}I", 0x0800 + len(dims), *dims)
    with gzip.open(path, "wb") as stream:
        stream.write((header + array.astype(np.uint8).tobytes())[:cut])


def small_mnist(cache, n=30):
    rng = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        write_idx(cache / f"mnist/{prefix}-images-idx3-ubyte.gz", rng.integers(0, 256, (n, 28, 28)))
        write_idx(cache / f"mnist/{prefix}-labels-idx1-ubyte.gz", rng.integers(0, 10, n))


def built(*overrides, seed=0):
    option = load([*overrides, "sampler.batch_size=null"]).dataset
    return preprocess(option.build(Streams(seed)["data"]), option.preprocess)


# ---- synthetic and embedded


def test_chosen_classes_count_from_0_in_order():
    whole, chosen = built("dataset=digits"), built("dataset=digits", "dataset.classes=[7,2]", "dataset.n_test=50")
    assert chosen.y_train.shape[1] == 2
    for label, number in ((0, 2), (1, 7)):
        of_class = chosen.x_train[chosen.labels_train == label]
        everyone = np.concatenate([whole.x_train, whole.x_test])
        labels = np.concatenate([whole.labels_train, whole.labels_test])
        theirs = {image.tobytes() for image in everyone[labels == number]}
        assert {image.tobytes() for image in of_class} <= theirs
        assert len(of_class) > 100
    np.testing.assert_array_equal(chosen.y_test.argmax(axis=1), chosen.labels_test)


@pytest.mark.parametrize("classes", ["[2]", "[2,2]", "[2,10]"])
def test_classes_that_are_none_are_refused(classes):
    with pytest.raises(ConfigError, match="expected two or more different numbers from 0 to 9, or null for all"):
        built("dataset=digits", f"dataset.classes={classes}")


@pytest.mark.filterwarnings("ignore:.*not the published file")
def test_classes_of_images_from_files(in_folder):
    cache = in_folder / "cache"
    small_mnist(cache, 60)
    data = built("dataset=mnist", "dataset.n_train=null", "dataset.n_test=null", "dataset.classes=[3,5]")
    labels = images.read_idx(cache / "mnist/train-labels-idx1-ubyte.gz", ())
    assert len(data.x_train) == np.isin(labels, (3, 5)).sum()
    np.testing.assert_array_equal(data.labels_train, labels[np.isin(labels, (3, 5))] == 5)
    with pytest.raises(DataError, match=r"dataset\.n_train=50: the data set has"):
        built("dataset=mnist", "dataset.n_train=50", "dataset.n_test=null", "dataset.classes=[3,5]")


def test_three_bumps():
    data = built("dataset=three_bumps", "dataset.n_train=5", "dataset.n_test=9")
    np.testing.assert_allclose(data.x_train[:, 0], np.linspace(-np.pi, np.pi, 5))
    x = 0.7
    assert synthetic.three_bumps(5, 9, "grid", None).y_test.shape == (9, 1)
    expected = np.sin(2 * x) + 3 * np.sin(3 * x) + 2 * np.sin(4 * x)
    found = np.interp(
        x, *(synthetic.three_bumps(2, 20001, "grid", None).__getattribute__(n)[:, 0] for n in ("x_test", "y_test"))
    )
    assert found == pytest.approx(expected, abs=1e-5)
    random = built("dataset=three_bumps", "dataset.points=random")
    assert np.ptp(np.diff(random.x_train[:, 0])) > 1e-3
    assert np.abs(random.x_train).max() <= np.pi


def test_noisy_curves():
    for name, f, high in (("noisy_sine", np.sin, 3 * np.pi), ("line", lambda x: x, 1.0)):
        data = built(f"dataset={name}", "dataset.n_train=500", "dataset.noise=0.2")
        assert data.x_train.min() >= 0
        assert data.x_train.max() <= high
        assert np.std(data.y_train - f(data.x_train)) == pytest.approx(0.2, rel=0.1)
        np.testing.assert_array_equal(data.y_test, f(data.x_test))


def write_table(path, rows, columns, delimiter, header=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = np.random.default_rng(0).normal(size=(rows, columns))
    np.savetxt(path, table, delimiter=delimiter, header=header, comments="")
    return table


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not the published file")
def test_tables_keep_the_order_of_their_file(tmp_path, monkeypatch):
    monkeypatch.setenv("KFX_DATA_DIR", str(tmp_path))
    for name, file, shape, delimiter, header in (
        ("boston", "housing.data", (506, 14), " ", ""),
        ("wine_red", "winequality-red.csv", (1599, 12), ";", "a;b"),
        ("wine_white", "winequality-white.csv", (4898, 12), ";", "a;b"),
    ):
        table = write_table(tmp_path / "tabular" / file, *shape, delimiter, header)
        data = built(f"dataset={name}", "dataset.n_test=0", "evaluation=k_fold")
        np.testing.assert_allclose(data.x_train, table[:, :-1])
        np.testing.assert_allclose(data.y_train, table[:, -1:])
        assert len(built(f"dataset={name}", "dataset.n_test=30").x_test) == 30


@pytest.mark.filterwarnings("ignore:.*not the published file")
@pytest.mark.parametrize("content", ["", "1 2 3\n", "a b\n", "nan " * 14 + "\n"])
def test_a_broken_table_is_one_error(tmp_path, monkeypatch, content):
    monkeypatch.setenv("KFX_DATA_DIR", str(tmp_path))
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular/housing.data").write_text(content * (506 if "nan" in content else 1))
    with pytest.raises(DataError, match="expected 506 rows of 14 numbers"):
        built("dataset=boston")


def test_swiss_roll_arms_mirror_each_other():
    data = built("dataset=swiss_roll", "dataset.n_train=40")
    first, second = data.x_train[:20], data.x_train[20:]
    np.testing.assert_allclose(first, -second)
    radius = np.linalg.norm(first, axis=1)
    np.testing.assert_allclose(radius, np.linspace(np.pi / 2, 5 * np.pi / 2, 20))
    np.testing.assert_array_equal(data.y_train[:, 0], np.repeat([1.0, -1.0], 20))
    np.testing.assert_array_equal(data.labels_train, np.repeat([1, 0], 20))


def test_swiss_roll_of_the_thesis():
    data = built("dataset=swiss_roll", "dataset.n_train=40", "dataset.variant=khalid")
    first, second = data.x_train[:20], data.x_train[20:]
    np.testing.assert_allclose(second, -first + 0.25)
    assert np.linalg.norm(first, axis=1)[[0, -1]] == pytest.approx([1.5 * np.pi, 3.45 * np.pi])


def test_digits_and_diabetes_split_without_overlap():
    data = built("dataset=digits", "dataset.n_train=100", "dataset.n_test=50")
    assert data.x_train.shape == (100, 1, 8, 8)
    assert data.y_train.shape == (100, 10)
    assert 0 <= data.x_train.min() <= data.x_train.max() <= 1
    np.testing.assert_array_equal(data.y_train.argmax(axis=1), data.labels_train)
    table = built("dataset=diabetes")
    assert (table.x_train.shape, table.y_test.shape) == ((342, 10), (100, 1))
    assert not {tuple(row) for row in table.x_train} & {tuple(row) for row in table.x_test}


def test_subsets_follow_the_seed():
    same, other = (built("dataset=digits", "dataset.n_train=50", seed=s) for s in (0, 1))
    np.testing.assert_array_equal(same.x_train, built("dataset=digits", "dataset.n_train=50").x_train)
    assert not np.array_equal(same.x_train, other.x_train)


def test_gp_sample_has_the_covariance_that_was_asked_for():
    """The Mahalanobis length of a draw of n points is chi-squared with n degrees of freedom."""
    kernel = load(["kernel=rbf", "kernel.sigma=0.5"]).kernel.build(None)
    lengths = []
    for seed in range(40):
        data = synthetic.gp_sample(30, 2, 2, 20.0, 0.0, kernel.gram, np.random.default_rng(seed))
        gram = kernel.gram(data.x_train)
        lengths.append(data.y_train[:, 0] @ np.linalg.solve(gram, data.y_train[:, 0]))
    assert np.mean(lengths) == pytest.approx(30, abs=4 * np.sqrt(2 * 30 / 40))


def test_preprocess_uses_training_statistics_alone():
    rng = np.random.default_rng(0)
    data = Dataset("t", rng.normal(3, 2, (50, 4)), np.zeros((50, 1)), rng.normal(9, 2, (20, 4)), np.zeros((20, 1)))
    data.x_train[:, 3] = 5.0
    normal = preprocess(data, ["normalize"])
    np.testing.assert_allclose(normal.x_train.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(normal.x_train.std(axis=0), [1, 1, 1, 0], atol=1e-12)
    np.testing.assert_allclose(
        normal.x_test[:, 0], (data.x_test[:, 0] - data.x_train[:, 0].mean()) / data.x_train[:, 0].std()
    )
    both = preprocess(data, ["center", "unit_norm"])
    np.testing.assert_allclose(np.linalg.norm(both.x_test, axis=1), 1)
    images_ = Dataset("i", np.zeros((3, 1, 2, 2)), np.zeros((3, 1)), np.zeros((1, 1, 2, 2)), np.zeros((1, 1)))
    assert np.all(preprocess(images_, ["unit_norm"]).x_train == 0), "a zero image has no direction"
    scaled = preprocess(data, ["mean_norm"])
    mean = np.linalg.norm(data.x_train.reshape(len(data.x_train), -1), axis=1).mean()
    for points in (scaled.x_train, scaled.x_test):
        np.testing.assert_allclose(np.linalg.norm(points.reshape(len(points), -1), axis=1), mean)
    with pytest.raises(ValueError, match="preprocess takes"):
        preprocess(data, ["whiten"])


def test_channels_are_normalized_as_wholes():
    rng = np.random.default_rng(0)
    x, other = rng.normal(3, 2, (50, 2, 4, 4)) * [[[1]], [[5]]], rng.normal(size=(5, 2, 4, 4))
    made = preprocess(Dataset("i", x, np.zeros((50, 1)), other, np.zeros((5, 1))), ["normalize_channels"])
    np.testing.assert_allclose(made.x_train.mean(axis=(0, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(made.x_train.std(axis=(0, 2, 3)), 1)
    np.testing.assert_allclose(made.x_test[:, 1], (other[:, 1] - x[:, 1].mean()) / x[:, 1].std())


@pytest.mark.parametrize("unit", ["absolute", "mean_eigenvalue"])
def test_zca_whitens_by_the_training_points_and_stays_near_them(unit):
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(12, 12))
    x, other = rng.normal(1, 1, (400, 12)) @ mixing, rng.normal(size=(30, 12)) @ mixing
    data = Dataset("i", x.reshape(-1, 3, 2, 2), np.zeros((400, 1)), other.reshape(-1, 3, 2, 2), np.zeros((30, 1)))
    nearly = preprocess(data, ["zca"], 1e-10, unit).x_train.reshape(400, 12)
    np.testing.assert_allclose(np.cov(nearly.T, bias=True), np.eye(12), atol=1e-6)
    made, covariance = preprocess(data, ["zca"], 0.1, unit), np.cov(x.T, bias=True)
    added = 0.1 * (np.trace(covariance) / 12 if unit == "mean_eigenvalue" else 1.0)
    expected = np.linalg.inv(linalg.sqrtm(covariance + added * np.eye(12)))
    np.testing.assert_allclose(made.x_test.reshape(30, 12), (other - x.mean(axis=0)) @ expected, atol=1e-9)
    alone = preprocess(replace(data, x_test=data.x_test[:3]), ["zca"], 0.1, unit)
    np.testing.assert_allclose(alone.x_train, made.x_train)
    same = Dataset("i", np.ones((9, 4)), np.zeros((9, 1)), np.ones((2, 4)), np.zeros((2, 1)))
    assert np.all(preprocess(same, ["zca"], 0.1, unit).x_train == 0)


# ---- files


@pytest.mark.filterwarnings("ignore:.*not the published file")
def test_idx_files_are_read(in_folder):
    small_mnist(in_folder / "cache")
    data = built("dataset=mnist", "dataset.n_train=20", "dataset.n_test=10")
    assert data.x_train.shape == (20, 1, 28, 28)
    checksums = data_checksums(load(["dataset=mnist", "dataset.n_train=20", "sampler.batch_size=10"]))
    assert set(checksums) >= {"train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"}
    assert all(len(value) == 64 for value in checksums.values())


def test_an_unknown_file_is_used_with_one_warning(in_folder):
    small_mnist(in_folder / "cache")  # a folder of which nothing was said before
    words = "dataset=mnist", "dataset.n_train=20", "dataset.n_test=10"
    with pytest.warns(UserWarning, match="ubyte.gz are not the published files") as said:
        built(*words)
    assert len(said) == 1
    built(*words)  # a second warning would be an error here


@pytest.mark.parametrize("name", ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"])
@pytest.mark.parametrize("kept", [0, 30, 0.5, 0.99])
def test_a_damaged_file_is_one_line(kfx, in_folder, name, kept):
    small_mnist(in_folder / "cache")
    path = in_folder / f"cache/mnist/{name}-ubyte.gz"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if kept < 1 else kept])
    words = "dataset=mnist", "dataset.n_train=20", "dataset.n_test=10", "sampler.batch_size=10"
    code, out, err = kfx("run", *words, "evaluation.n_interpolation=[10]")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert str(path) in err
    assert "delete it and run `kfx data fetch mnist`" in err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: write_idx(p, np.zeros((9, 28, 28)), cut=-100), "promises 7056 bytes of items, it holds 6956"),
        (lambda p: write_idx(p, np.zeros((9, 28, 28)), count=10), "promises 7840 bytes"),
        (lambda p: write_idx(p, np.zeros((9, 28, 28)), count=8), "it holds more"),
        (lambda p: write_idx(p, np.zeros((9, 28, 28)), count=2**32 - 1), "promises 4294967295 items"),
        (lambda p: write_idx(p, np.zeros((9, 27, 28))), "not an IDX file"),
        (lambda p: p.write_bytes(b"plainly not gzip"), "broken gzip file"),
        (lambda p: p.write_bytes(gzip.compress(b"x" * 500)[:-200]), "broken gzip|not an IDX"),
        (lambda p: p.write_bytes(gzip.compress(b"")), "not an IDX file"),
        (lambda p: p.write_bytes(gzip.compress(b"\0\0\x08")), "not an IDX file"),
    ],
)
def test_broken_idx_files(tmp_path, damage, message):
    path = tmp_path / "images.gz"
    damage(path)
    with pytest.raises(DataError, match=message):
        images.read_idx(path, (28, 28))


def cifar_batch(n=4, key="labels", classes=10, **changes):
    rng = np.random.default_rng(0)
    content = {"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8), key: [i % classes for i in range(n)]}
    return pickle.dumps({**content, **changes}, protocol=4)


@pytest.mark.filterwarnings("ignore:.*not the published file")
def test_cifar_100_is_read_by_its_fine_labels(in_folder):
    folder = in_folder / "cache/cifar100/cifar-100-python"
    folder.mkdir(parents=True)
    coarse = {"coarse_labels": [0] * 300}
    for name in ("train", "test"):
        (folder / name).write_bytes(cifar_batch(300, "fine_labels", 100, **coarse))
    data = built("dataset=cifar100", "dataset.n_train=250", "dataset.n_test=20", "evaluation.n_interpolation=[10]")
    assert data.x_train.shape == (250, 3, 32, 32)
    assert data.y_train.shape == (250, 100)
    assert np.abs(data.x_train).max() <= 1
    few = built("dataset=cifar100", "dataset.classes=[99,40]", "dataset.n_test=2", "evaluation.n_interpolation=[2]")
    assert few.y_train.shape == (6, 2)
    (folder / "train").write_bytes(cifar_batch(300))
    with pytest.raises(DataError, match="not a CIFAR-100 python batch"):
        built("dataset=cifar100", "dataset.n_train=251", "evaluation.n_interpolation=[10]")
    with pytest.raises(ConfigError, match="from 0 to 99"):
        built("dataset=cifar100", "dataset.classes=[1,100]")


class Hostile:
    def __reduce__(self):
        import os

        return os.system, ("touch hostile-was-here",)


class HugeArray:
    def __reduce__(self):
        return np._core.multiarray._reconstruct, (np.ndarray, (10**13,), b"b")


def test_cifar_batches_are_read(tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(cifar_batch())
    pixels, labels = images.read_cifar_batch(path)
    assert pixels.shape == (4, 3, 32, 32)
    np.testing.assert_array_equal(labels, [0, 1, 2, 3])
    np.testing.assert_array_equal(pixels[1, 2, 0], pickle.loads(cifar_batch())["data"][1, 2048 : 2048 + 32])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"data": Hostile()}, protocol=4), r"asks for posix\.system"),
        (pickle.dumps(Hostile(), protocol=2), r"asks for posix\.system"),
        (pickle.dumps({"data": HugeArray()}, protocol=4), "in a way that numpy does not"),
        (cifar_batch(data=np.array([print], dtype=object)), "array of object|asks for"),
        (cifar_batch(data=np.zeros((4, 10), np.uint8)), "expected n × 3072 bytes"),
        (cifar_batch(labels=[0, 1, 2]), "expected n × 3072 bytes and n labels"),
        (cifar_batch(labels=[0, 1, 2, 99]), "labels from 0 to 9"),
        (cifar_batch()[:-50], "not a CIFAR-10 python batch"),
        (b"junk", "not a CIFAR-10 python batch"),
        (pickle.dumps([1, 2]), "not a CIFAR-10 python batch"),
    ],
)
def test_hostile_cifar_batches(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        images.read_cifar_batch(path)
    assert not (tmp_path / "hostile-was-here").exists()


def test_a_missing_file_says_what_to_put_where(in_folder, monkeypatch):
    def refuse(self, url, output_file, pooch, check_only=False):
        raise OSError("no network")

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", refuse)
    with pytest.raises(DataError, match=r"mnist/train-images-idx3-ubyte.gz is missing.*put the original file there"):
        files.locate("mnist", "train-images-idx3-ubyte.gz")


def test_what_is_fetched_must_have_its_checksum(in_folder, monkeypatch):
    def tampered(self, url, output_file, pooch, check_only=False):
        with open(output_file, "wb") as stream:
            stream.write(b"not what was published")

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", tampered)
    with pytest.raises(DataError, match="could not be fetched"):
        files.locate("mnist", "t10k-labels-idx1-ubyte.gz")
    assert not list((in_folder / "cache").rglob("*.gz"))


def test_only_the_wanted_member_leaves_an_archive(tmp_path):
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in (("../outside", b"bad"), ("inside/file", b"good")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("inside/link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../outside"
        tar.addfile(link)
    files.extract(archive, "inside/file", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"good"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar.gz", "out"]
    for member in ("absent", "inside/link"):
        with pytest.raises(ValueError, match="no regular file"):
            files.extract(archive, member, tmp_path / "other")


@pytest.mark.filterwarnings("ignore:.*not the published file")
def test_real_mnist_and_cifar(real_data):
    mnist = built("dataset=mnist", "dataset.n_test=null")
    assert mnist.x_train.shape == (60_000, 1, 28, 28)
    assert mnist.x_train.mean() == pytest.approx(0.1307, abs=1e-4)
    cifar = built("dataset=cifar10", "dataset.batches=[1]", "dataset.n_test=200")
    assert cifar.x_train.shape == (10_000, 3, 32, 32)
    assert (cifar.x_train.min(), cifar.x_train.max()) == (-1.0, 1.0)


def test_swiss_roll_of_darcy():
    data = synthetic.swiss_roll(120, 10, "darcy", (0.0, 1.0))
    radius = np.linalg.norm(data.x_train, axis=1)
    np.testing.assert_allclose(radius[:60], 1.5 * np.linspace(0, 2 * np.pi, 60) + 2)
    np.testing.assert_allclose(data.x_train[60:], -data.x_train[:60])


def test_the_kernel_itself_in_place_of_a_draw():
    words = ["dataset=gp_sample", "dataset.function=kernel", "+dataset.kernel.sigma=2", "dataset.n_train=30"]
    data = built(*words)
    np.testing.assert_allclose(data.y_train, np.exp(-(data.x_train**2) / 8), rtol=1e-12)
    np.testing.assert_allclose(data.y_test, np.exp(-(data.x_test**2) / 8), rtol=1e-12)


@pytest.mark.filterwarnings("ignore:.*not the published file")
def test_a_range_of_the_training_images_and_the_rest(in_folder):
    cache = in_folder / "cache"
    small_mnist(cache, 30)
    stored = images.read_idx(cache / "mnist/train-images-idx3-ubyte.gz", (28, 28)) / 255.0
    words = ["dataset=mnist", "dataset.n_train=null", "dataset.n_test=null", "dataset.train_range=[5,24]"]
    data = built(*words)
    np.testing.assert_array_equal(data.x_train[:, 0], stored[5:25])
    tests = images.read_idx(cache / "mnist/t10k-images-idx3-ubyte.gz", (28, 28)) / 255.0
    np.testing.assert_array_equal(data.x_test[:, 0], tests)
    validation = built(*words, "dataset.test_on=rest")
    np.testing.assert_array_equal(validation.x_train[:, 0], stored[5:25])
    np.testing.assert_array_equal(validation.x_test[:, 0], np.concatenate([stored[:5], stored[25:]]))
    some = built("dataset=mnist", "dataset.n_train=7", "dataset.n_test=4", "dataset.train_range=[5,24]")
    whole = {image.tobytes() for image in stored[5:25]}
    assert all(image.tobytes() in whole for image in some.x_train[:, 0])


@pytest.mark.filterwarnings("ignore:.*not the published file")
def test_moved_copies_follow_the_training_images(in_folder):
    small_mnist(in_folder / "cache", 30)
    words = ["dataset=mnist", "dataset.n_train=20", "dataset.n_test=5"]
    plain, more = built(*words), built(*words, "dataset.copies=2", "dataset.shift=0", "dataset.rotation=0")
    np.testing.assert_allclose(more.x_train, np.tile(plain.x_train, (3, 1, 1, 1)), atol=1e-13)
    np.testing.assert_array_equal(more.y_train, np.tile(plain.y_train, (3, 1)))
    np.testing.assert_array_equal(more.labels_train, np.tile(plain.labels_train, 3))
    moved = built(*words, "dataset.copies=2")
    np.testing.assert_array_equal(moved.x_train[:20], plain.x_train)
    assert np.unique(moved.x_train.reshape(60, -1), axis=0).shape[0] == 60
    np.testing.assert_array_equal(moved.x_test, plain.x_test)
    assert load([*words, "dataset.copies=2", "sampler.batch_size=30"]).dataset.size() == 60


def test_moved_images_are_those_of_scipy():
    x = np.random.default_rng(1).random((4, 2, 9, 9))
    found, rng = images._moved(x, 1.5, 30.0, np.random.default_rng(0)), np.random.default_rng(0)
    angles, (right, down) = np.deg2rad(rng.uniform(-30, 30, 4)), rng.uniform(-1.5, 1.5, (2, 4))
    for i, angle in enumerate(angles):
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # of (row, column)
        offset = np.array([4, 4]) - turn @ [4, 4] + [down[i], right[i]]
        for channel in range(2):
            expected = affine_transform(x[i, channel], turn, offset, order=1, mode="nearest")
            np.testing.assert_allclose(found[i, channel], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["dataset.train_range=[5]"], r"dataset.train_range=\[5\]: expected \[first, last\]"),
        (["dataset.train_range=[9,5]"], r"dataset.train_range=\[9, 5\]: expected \[first, last\]"),
        (["dataset.train_range=[0,60000]"], "expected a last image of at most 59999"),
        (["dataset.test_on=rest"], "dataset.test_on=rest: expected a train_range that leaves some, or test"),
        (["dataset.train_range=[0,99]", "dataset.n_train=200"], "mnist leaves at most 100 training points"),
    ],
)
def test_bad_ranges_are_one_line(words, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load(["dataset=mnist", "sampler.batch_size=10", *words])


# ---- what is constant but for round-off

CONSTANTS = (14.62, 0.1, -273.15, 1e9 + 0.1, 3e-7, 100.0, 0.0)


def nearly_constant(n, noise):
    """Tables, (n, 2), of a column that is constant but for some round-off, and one that is not."""
    rng = np.random.default_rng(1)
    for value in (*CONSTANTS, *np.round(rng.uniform(0, 99, 60), 2)):
        column = value * (1 + noise * np.finfo(float).eps * rng.uniform(-1, 1, n))
        yield np.stack([column, value + rng.normal(size=n)], axis=1)


rounded = pytest.mark.parametrize("noise", [0.0, 4.0], ids=["equal", "rounded"])
of_sizes = pytest.mark.parametrize("n", [3, 30, 200])


@rounded
@of_sizes
def test_a_constant_feature_is_only_centred(n, noise):
    """Of a table, as a channel of images, and with a length of its own."""
    ard = OPTIONS["kernel"]["matern"](initial="median_distance", ard=True)
    for x in nearly_constant(n, noise):
        assert is_constant(x).tolist() == [True, False]
        data = Dataset("own", x, x, x + 0.01, x)
        done = preprocess(data, ["normalize"])
        assert np.abs(done.x_test[:, 0]).max() < 0.02
        assert done.x_train[:, 1].std() == pytest.approx(1)
        ranked = preprocess(data, ["quantile", "normalize"])
        assert np.abs(ranked.x_test[:, 0]).max() < 0.02
        tall = np.tile(x[:, :, None, None], (2, 2))
        channels = preprocess(replace(data, x_train=tall, x_test=tall + 0.01), ["normalize_channels"])
        assert np.abs(channels.x_test[:, 0]).max() < 0.02
        started = candidates(ard, ARD(Matern(1.0), np.ones(2)), [data], np.random.default_rng(0))[0][0]
        lengths = started.parameters["lengths"]
        assert lengths[0] > 10 * lengths[1]


def test_round_off_of_float32_is_no_scale():
    """Of numbers of float32, as a file may write them; whole numbers and others keep their differences."""
    rng = np.random.default_rng(0)
    s = rng.uniform(1, 9, 30).astype(np.float32)
    of_float32 = (np.float32(14.62) * s / s).astype(np.float64)
    assert np.ptp(of_float32) > 0
    for column in (of_float32, np.array([float(f"{value:.9g}") for value in of_float32])):
        assert is_constant(column)
        x = np.stack([column, rng.normal(size=30)], axis=1)
        done = preprocess(Dataset("own", x, x, x + 0.01, x), ["normalize"])
        assert np.abs(done.x_test[:, 0]).max() < 0.02
    for column in (1e7 + np.arange(30.0), 1.6e9 + rng.uniform(0, 50, 30), 0.5 + 1e-7 * rng.normal(size=30)):
        assert not is_constant(column)


@rounded
@of_sizes
@pytest.mark.parametrize(
    "scale_of",
    [
        lambda y: with_targets(Dataset("own", y, y, y, y), "standardized"),
        lambda y: as_targets(y, "regression", "y"),
        lambda y: Windows(1).fitted([Trajectory(np.arange(len(y), dtype=float), y)]),
    ],
    ids=["targets", "targets_of_a_file", "series"],
)
def test_constant_values_are_not_learned(scale_of, n, noise):
    for x in nearly_constant(n, noise):
        scale_of(x[:, 1:])
        with pytest.raises(DataError, match=r"nothing to learn|coordinate 0 of the series is constant"):
            scale_of(x[:, :1])


def test_a_feature_that_was_constant_changes_no_prediction():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.full(30, 14.62), rng.normal(size=30)])
    new = x[:5] + np.array([0.01, 0.0])
    for kernel in ("auto", "rbf"):
        model = KernelFlowRegressor(kernel, optimizer="none").fit(x, np.sin(x[:, 1]))
        np.testing.assert_allclose(model.predict(new), model.predict(x[:5]), atol=2e-3)


@pytest.mark.filterwarnings("ignore:dataset table")
def test_a_column_that_was_constant_changes_no_prediction_of_a_run(kfx, in_folder):
    x = np.random.default_rng(0).normal(size=30)
    frame = pd.DataFrame({"t": 14.62, "x": x, "y": np.sin(x)})
    frame.to_csv("t.csv", index=False)
    frame.assign(t=14.63).to_csv("new.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "optimizer=none", "hydra.run.dir=r"]
    assert kfx("run", *words)[0] == 0
    own, new = (pd.read_csv(io.StringIO(kfx("predict", "r", name)[1]))["prediction"] for name in ("t.csv", "new.csv"))
    np.testing.assert_allclose(new, own, atol=2e-3)
    assert own.std() > 0.5
