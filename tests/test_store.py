"""Gram matrices on disk: tiles, their growth and their checksums, factors and solutions, against those in memory."""

from __future__ import annotations

import io
import json
import math
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from kfx import load_run
from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.on_disk import OnDisk, factored
from kfx.evaluation.systems import InMemory
from kfx.experiment.plan import Plan
from kfx.kernels import CNNGP, RBF, Conv2d, Matern, ReLU, Sequential
from kfx.lock import Lock
from kfx.numerics.conjugate_gradients import conjugate_gradients, solve
from kfx.numerics.incidents import collect
from kfx.numerics.regularization import Regularization
from kfx.outcomes import HeldError, NumericalError, StoreError
from kfx.store import products, sealed
from kfx.store.factor_store import FactorStore, FactorWork
from kfx.store.gram_store import GRAM, TEST, GramStore, tile_for
from kfx.store.gram_work import GramWork
from kfx.store.identity import Identity
from kfx.store.selection import Selection
from kfx.store.tiles import Tiles, block_of
from kfx.store.work import in_this_process
from tests.faults.harness import finish
from tests.slow import one_in, slow_after


def do(work, name=""):
    in_this_process(work, lambda task: None)


def filled(folder, kernel, points, test_points=None, tile=32):
    store = GramStore.prepare(folder, kernel, points, test_points, tile=tile)
    do(GramWork.of(store, kernel, points.device))
    return store


def whole(store, tiles=None):
    tiles = tiles or store.gram
    return block_of(tiles, slice(0, tiles.shape[0]), slice(0, tiles.shape[1]))


def dense(factor):
    """L as one array."""
    out = np.zeros((len(factor), len(factor)))
    for i, j in factor.factor.places():
        out[factor.factor.rows(i), factor.factor.columns(j)] = factor.factor.read(i, j)
    return out


def points_of(n, width=3, seed=0, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, width))).to(dtype)


class Counted(RBF):
    """Counts the pairs that it is asked for."""

    pairs = 0

    def _gram(self, x, y):
        Counted.pairs += len(x) * len(x if y is None else y)
        return super()._gram(x, y)


# ---- tiles


def test_a_tile_comes_back_as_it_went_and_the_upper_triangle_is_not_there(tmp_path):
    tiles = Tiles.create(tmp_path / "m", (70, 70), 32, "float32", triangular=True)
    block = np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32)
    tiles.write(1, 0, block)
    corner = block[:6, :6].copy()
    tiles.write(2, 2, corner)
    np.testing.assert_array_equal(tiles.read(1, 0), block)
    np.testing.assert_array_equal(Tiles(tmp_path / "m").read(2, 2), corner)
    assert list(tiles.places()) == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert tiles.done() == 2
    with pytest.raises(StoreError, match="this tile is not there yet"):
        tiles.read(0, 0)


def test_any_reader_of_zarr_can_read_it_while_it_grows(tmp_path):
    import zarr

    tiles = Tiles.create(tmp_path / "m", (64, 64), 32, "float64", triangular=True)
    array = zarr.open_array(tmp_path / "m", mode="r")
    assert np.isnan(array[:]).all()
    tiles.write(1, 0, np.ones((32, 32)))
    np.testing.assert_array_equal(array[32:, :32], np.ones((32, 32)))
    assert np.isnan(array[:32]).all()


@pytest.mark.parametrize("harm", ["bit", "short", "empty"])
def test_a_damaged_tile_is_found(tmp_path, harm):
    tiles = Tiles.create(tmp_path / "m", (32, 32), 32, "float32")
    tiles.write(0, 0, np.ones((32, 32), np.float32))
    path = tiles.path(0, 0)
    raw = bytearray(path.read_bytes())
    raw[777] ^= 0x10
    path.write_bytes({"bit": raw, "short": raw[:100], "empty": b""}[harm])
    with pytest.raises(StoreError, match=r"this tile is damaged .*; kfx gram verify"):
        tiles.read(0, 0)


def test_a_block_across_tiles_is_put_together(tmp_path):
    matrix = np.random.default_rng(0).normal(size=(90, 90))
    matrix = matrix + matrix.T
    tiles = Tiles.create(tmp_path / "m", (90, 90), 16, "float64", triangular=True)
    for i, j in tiles.places():
        tiles.write(i, j, matrix[tiles.rows(i), tiles.columns(j)])
    for rows, columns in ((slice(3, 50), slice(40, 90)), (slice(80, 90), slice(0, 7)), (slice(16, 32), slice(16, 32))):
        np.testing.assert_array_equal(block_of(tiles, rows, columns), matrix[rows, columns])


def test_about_sixteen_tiles_a_side_of_at_most_2048_rows():
    assert [tile_for(n) for n in (100, 5000, 20_000, 50_000, 10**6)] == [256, 320, 1280, 2048, 2048]


# ---- the store of a kernel


@pytest.mark.parametrize("dtype", slow_after(1, [torch.float64, torch.float32]))
def test_a_convolutional_kernel_has_the_bits_that_it_has_in_memory(tmp_path, dtype):
    kernel = CNNGP(Sequential(Conv2d(3, padding="same"), ReLU(), Conv2d(6)), 1.3, 0.2)
    x = points_of(150, 36, dtype=dtype).reshape(150, 1, 6, 6)
    store = filled(tmp_path / "s", kernel, x[:100], x[100:])
    np.testing.assert_array_equal(whole(store), kernel.gram(x[:100]).numpy())
    np.testing.assert_array_equal(whole(store, store.test), kernel.gram(x[100:], x[:100]).numpy())
    assert store.gram.dtype == np.dtype(str(dtype).removeprefix("torch."))


def test_a_store_grows_without_computing_the_old_pairs_again(tmp_path):
    kernel, x, other = Counted(1.2), points_of(100), points_of(20, seed=1)
    for n, before in ((50, 0), (70, 50), (100, 70)):
        store = GramStore.prepare(tmp_path / "s", kernel, x[:n], other, tile=32)
        Counted.pairs = 0
        do(GramWork.of(store, kernel, x.device))
        new = n - before
        of_gram = Counted.pairs - 20 * new
        assert new * (new + 1) / 2 + new * before <= of_gram <= new * new + new * before
        np.testing.assert_allclose(whole(store), RBF(1.2).gram(x[:n]).numpy(), rtol=1e-13)
        np.testing.assert_allclose(whole(store, store.test), RBF(1.2).gram(other, x[:n]).numpy(), rtol=1e-13)
    Counted.pairs = 0
    do(GramWork.of(store, kernel, x.device))
    assert Counted.pairs == 0


def test_who_asks_for_fewer_points_is_served_by_the_larger_store(tmp_path):
    x = points_of(80)
    filled(tmp_path / "s", RBF(1.0), x)
    assert len(GramStore.prepare(tmp_path / "s", RBF(1.0), x[:40])) == 80


def test_a_store_goes_on_where_it_was_stopped(tmp_path):
    kernel, x = RBF(0.8), points_of(100)
    store = GramStore.prepare(tmp_path / "s", kernel, x, tile=32)
    work = GramWork.of(store, kernel, x.device)
    for task in work.tasks()[:4]:
        work.do(task)
    (store.gram.path(0, 0).parent / "0.5f3c.partial").write_bytes(b"half a tile")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "s" / GRAM / "c").rglob("*") if path.is_file()}
    again = filled(tmp_path / "s", kernel, x)
    assert not list((tmp_path / "s").rglob("*.partial"))
    assert all(path.stat().st_mtime_ns == time for path, time in times.items() if path.suffix != ".partial")
    np.testing.assert_allclose(whole(again), kernel.gram(x).numpy(), rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("matrix", [GRAM, TEST])
def test_a_tile_of_another_place_is_said_and_then_computed_again(tmp_path, matrix, dtype):
    kernel, x, test = Matern(0.8), points_of(150, dtype=dtype), points_of(70, seed=1, dtype=dtype)
    store = GramStore.prepare(tmp_path / "s", kernel, x, test, tile=32)
    do(GramWork.of(store, kernel, x.device))
    expected, tiles = store.tiles(matrix).read(1, 0).copy(), store.tiles(matrix)
    for other in ((2, 0), (1, 1)):
        shutil.copy(tiles.path(*other), tiles.path(1, 0))
        with pytest.raises(StoreError, match=r"c/1/0: holds the tile of another place; delete the file"):
            GramStore.prepare(tmp_path / "s", kernel, x, test)
        tiles.drop(1, 0)
        again = GramStore.prepare(tmp_path / "s", kernel, x, test)
        do(GramWork.of(again, kernel, x.device))
        np.testing.assert_allclose(again.tiles(matrix).read(1, 0), expected, rtol=1e-6)
    for n in (20, 40, 150):  # also of fewer points
        GramStore.prepare(tmp_path / "s", kernel, x[:n], test)


def networks_of_equal_parameters():
    return [CNNGP(Sequential(Conv2d(k, padding="same"), ReLU(), Conv2d(6)), 1.3, 0.2) for k in (3, 5)]


def test_a_store_of_something_else_is_refused(tmp_path):
    x = points_of(60)
    filled(tmp_path / "s", RBF(1.0), x, points_of(5, seed=2))
    for kernel, points, others, why in (
        (RBF(1.5), x, None, "its kernel has sigma 1.0, not 1.5"),
        (RBF(1.0), x.float(), None, "its entries are float64, not float32"),
        (Matern(1.0), x, None, "its kernel is RBF, not Matern"),
        (RBF(1.0), x + 1, None, "its first 60 points are others"),
        (RBF(1.0), x, points_of(5, seed=3), "its test points are others"),
    ):
        with pytest.raises(StoreError, match=why):
            GramStore.prepare(tmp_path / "s", kernel, points, others)
    images = points_of(60, 36).reshape(60, 1, 6, 6)
    one, other = networks_of_equal_parameters()
    filled(tmp_path / "n", one, images)
    with pytest.raises(StoreError, match="its kernel, CNNGP, has other settings"):
        GramStore.prepare(tmp_path / "n", other, images)
    content = json.loads((tmp_path / "n" / "manifest.json").read_text())
    content["probe"][3][4] *= 1.0001
    (tmp_path / "n" / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(StoreError, match="has other values: by"):  # as of a version that computes something else
        GramStore.prepare(tmp_path / "n", one, images)


def test_a_setting_is_known_where_no_point_shows_it():
    far = 1000 * points_of(20)  # the first of them are as good as independent
    one, other = (Identity.of(Matern(1.0, nu=nu), far) for nu in (0.5, 2.5))
    assert one.differs_from(other) == "its kernel, Matern, has other settings"
    assert one.differs_from(Identity.of(Matern(1.0, nu=0.5, trainable=[], bounds={"sigma": (0.5, 2)}), far)) is None


def test_what_is_in_a_folder_already_is_nobodys_to_write_over(tmp_path, kfx):
    for name in ("points", "gram", "notes"):
        (tmp_path / "p" / name).mkdir(parents=True)
    (tmp_path / "p" / "points" / "mine.csv").write_text("x")
    code, _, err = kfx("gram", "dataset=digits", "dataset.n_train=50", "--store", str(tmp_path / "p"))
    assert code == 1
    assert "holds gram and no store; choose a new folder, or an empty one" in err
    assert (tmp_path / "p" / "points" / "mine.csv").read_text() == "x"


def test_what_was_begun_and_killed_is_begun_again(tmp_path):
    (tmp_path / "s" / "points").mkdir(parents=True)
    (tmp_path / "s" / "begun").touch()
    (tmp_path / "s" / "points" / "half").write_text("x")
    store = filled(tmp_path / "s", RBF(1.0), points_of(40))
    np.testing.assert_allclose(whole(store), RBF(1.0).gram(points_of(40)).numpy(), rtol=1e-13)
    assert not (tmp_path / "s" / "begun").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"kernel": "RBF"}', "", "{}"])
def test_a_torn_manifest_is_one_line(tmp_path, content):
    filled(tmp_path / "s", RBF(1.0), points_of(40))
    (tmp_path / "s" / "manifest.json").write_text(content)
    with pytest.raises(StoreError, match="is no Gram store"):
        GramStore(tmp_path / "s")


def changed(path, **entries):
    content = json.loads(path.read_text())
    for name, value in entries.items():
        content[name] = value
        if value is None:
            del content[name]
    path.write_text(json.dumps(content))


MANIFEST, OF_GRAM, OF_TEST, OF_POINTS = "manifest.json", "gram/zarr.json", "test/zarr.json", "points/zarr.json"
DAMAGED = {  # the file, what is written to it (None: deleted), and what is said of it
    "n of another size": (
        "manifest.json",
        {"n": 10**9},
        r"manifest.json: n is 1000000000, expected a number of the 60 p",
    ),
    "fewer n": (
        "manifest.json",
        {"n": 50},
        r"gram/zarr.json: shape is \(60, 60\), expected \(50, 50\), by the manifest",
    ),
    "n infinite": (MANIFEST, {"n": float("inf")}, "n is Infinity, expected a whole number >= 1"),
    "n NaN": (MANIFEST, {"n": float("nan")}, "n is NaN, expected a whole number >= 1"),
    "n a text": (MANIFEST, {"n": "60"}, 'n is "60", expected a whole number >= 1'),
    "n true": (MANIFEST, {"n": True}, "n is true, expected a whole number"),
    "n zero": (MANIFEST, {"n": 0}, "n is 0, expected a whole number >= 1"),
    "no n": (MANIFEST, {"n": None}, "n is missing, expected a whole number >= 1"),
    "probe empty": (MANIFEST, {"probe": []}, r"probe is \[\], expected a square matrix of at most 8 rows of"),
    "probe ragged": (MANIFEST, {"probe": [[1.0], [1.0, 2.0]]}, "expected a square matrix of at most 8 rows"),
    "probe infinite": (MANIFEST, {"probe": [[float("inf")]]}, r"probe is \[\[Infinity\]\], expected a square"),
    "no checksum": (
        "manifest.json",
        {"points_sha256": None},
        "points_sha256 is missing, expected 64 hexadecimal digits",
    ),
    "a short checksum": (
        "manifest.json",
        {"points_sha256": "ab"},
        'points_sha256 is "ab", expected 64 hexadecimal dig',
    ),
    "no checksum of the test points": (MANIFEST, {"test_points_sha256": None}, "test_points_sha256 is missing"),
    "growth that is to come": (
        "manifest.json",
        {"grown_at": [70]},
        r"grown_at is \[70\], expected numbers below n, 60",
    ),
    "growth backwards": (MANIFEST, {"grown_at": [40, 30]}, r"grown_at is \[40, 30\], expected rising whole num"),
    "another dtype": (MANIFEST, {"dtype": "int8"}, 'dtype is "int8", expected float32 or float64'),
    "the other dtype": (MANIFEST, {"dtype": "float32"}, "data_type is float64, expected float32"),
    "a parameter of no type": (MANIFEST, {"parameters": {"sigma": {}}}, "expected names and numbers"),
    "settings of no type": (MANIFEST, {"settings": 3}, "settings is 3, expected 16 hexadecimal digits"),
    "kernel of no type": (MANIFEST, {"kernel": []}, "expected the name of a kernel"),
    "a larger array": (
        "gram/zarr.json",
        {"shape": [10**9, 10**9]},
        r"gram/zarr.json: shape is \(1000000000, 1000000000",
    ),
    "an array of one dimension": (OF_GRAM, {"shape": [60]}, "gram/zarr.json: is damaged"),
    "an array of another width": (
        "test/zarr.json",
        {"shape": [5, 61]},
        r"test/zarr.json: shape is \(5, 61\), expected",
    ),
    "fewer points": (OF_POINTS, {"shape": [59, 3]}, "n is 60, expected a number of the 59 points that are"),
    "wider points": (OF_POINTS, {"shape": [60, 10**9]}, "points/zarr.json: chunk_shape is"),
    "no codecs": (
        "gram/zarr.json",
        {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
        "codecs is",
    ),
    "another dtype of an array": (OF_GRAM, {"data_type": "float32"}, "data_type is float32, expected float64"),
    "nothing triangular": (OF_GRAM, {"attributes": {}}, r"attributes is \{\}, expected triangular: true or"),
    "another format": (OF_GRAM, {"zarr_format": 7}, "gram/zarr.json: is damaged"),
}


@pytest.mark.parametrize("case", one_in(3, DAMAGED))
def test_a_damaged_manifest_or_array_is_one_line_before_anything_is_changed(tmp_path, kfx, case):
    folder, (name, entries, complaint) = tmp_path / "s", DAMAGED[case]
    x, others = points_of(60), points_of(5, seed=2)
    filled(folder, RBF(1.0), x, others)
    changed(folder / name, **entries)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match=complaint):
        GramStore.prepare(folder, RBF(1.0), x, others)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    code, out, err = kfx("gram", "verify", str(folder))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.endswith("; bring that file back from a copy, or make the store anew in another folder\n")


def test_verify_compares_the_manifests_values_with_the_first_tile(tmp_path, kfx):
    filled(tmp_path / "s", RBF(1.0), points_of(60))
    content = json.loads((tmp_path / "s" / "manifest.json").read_text())
    content["probe"][3][4] *= 1.01
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(content))
    code, out, _ = kfx("gram", "verify", str(tmp_path / "s"))
    assert code == 1
    assert "manifest.json: probe differs from the first tile by" in out


def test_points_that_are_gone_are_noticed_before_tiles_are_computed_of_zeros(tmp_path):
    store = GramStore.prepare(tmp_path / "s", RBF(1.0), points_of(60), tile=32)
    (store.folder / "points" / "c" / "1" / "0").unlink()
    with pytest.raises(StoreError, match="points: are not those of the manifest; bring that file back"):
        GramStore.prepare(tmp_path / "s", RBF(1.0), points_of(60))


@pytest.mark.parametrize("stage", ["points", "manifest", "gram"])
def test_a_store_that_was_killed_while_it_grew_is_sound_and_grows(tmp_path, kfx, stage):
    """After each of the files that a growth writes, in their order."""
    x, others = points_of(100), points_of(5, seed=2)
    filled(tmp_path / "s", RBF(1.0), x[:60], others)
    filled(tmp_path / "t", RBF(1.0), x[:60], others)
    GramStore.prepare(tmp_path / "t", RBF(1.0), x, others)
    names = ["points", "manifest.json", "gram"][: ["points", "manifest", "gram"].index(stage) + 1]
    for name in names:
        source = tmp_path / "t" / name
        if source.is_dir():
            shutil.rmtree(tmp_path / "s" / name)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / "s" / name)
    code, out, _ = kfx("gram", "verify", str(tmp_path / "s"))
    assert code == 0, out
    grown = filled(tmp_path / "s", RBF(1.0), x, others)
    np.testing.assert_allclose(whole(grown), RBF(1.0).gram(x).numpy(), rtol=1e-13)
    np.testing.assert_allclose(whole(grown, grown.test), RBF(1.0).gram(others, x).numpy(), rtol=1e-13)


def test_a_tile_that_was_cut_short_is_computed_again(tmp_path, kfx):
    words = ["gram", "dataset=digits", "dataset.n_train=100", "--tile", "32", "--store", str(tmp_path / "s")]
    assert kfx(*words)[0] == 0
    path = tmp_path / "s" / "gram" / "c" / "2" / "1"
    content = path.read_bytes()
    path.write_bytes(content[:4000])
    with pytest.raises(StoreError, match=r"is damaged \(it has 4000 bytes, not 8196\); go on with the"):
        GramStore(tmp_path / "s").gram.read(2, 1)
    code, out, _ = kfx("gram", "verify", str(tmp_path / "s"))
    assert (code, "9 of 10 tiles, 1 damaged" in out) == (1, True)
    code, _, err = kfx(*words)
    assert (code, "Gram, tiles  9/10  were there" in err) == (0, True), err
    assert path.read_bytes() == content


def test_a_factor_of_a_damaged_manifest_is_made_anew(tmp_path, store):
    selection = Selection.head(store, 150)
    for entries in ({"jitter": float("inf")}, {"ranges": [[0, float("inf")]]}, {"tile": 10**9}, {"token": "../.."}):
        factor = FactorStore.prepare(tmp_path / "f", store, selection, 1.0)
        changed(factor.folder / "manifest.json", **entries)
        with pytest.raises(StoreError, match="is no factor"):
            FactorStore(factor.folder)
        assert FactorStore.prepare(tmp_path / "f", store, selection, 1.0).token != factor.token


def test_entries_that_are_no_numbers_are_refused(tmp_path):
    x = points_of(40)
    x[17] = np.nan
    with pytest.raises(NumericalError, match="not finite"):
        filled(tmp_path / "s", RBF(1.0), x)


# ---- factors


@pytest.fixture
def store(tmp_path):
    """Of 150 points, in tiles of 32."""
    return filled(tmp_path / "store", RBF(2.0), points_of(150, 5), points_of(30, 5, seed=1))


@pytest.mark.parametrize("ranges", [((0, 150),), ((0, 45),), ((0, 20), (77, 150)), ((32, 150),)])
def test_a_factor_on_disk_is_lapacks(tmp_path, store, ranges):
    chosen, shift = np.concatenate([np.arange(*each) for each in ranges]), 0.01
    factor = FactorStore.prepare(tmp_path / "f", store, Selection(ranges, 32), shift)
    do(FactorWork.of(factor, store, 10**6))
    matrix = whole(store)[np.ix_(chosen, chosen)] + shift * np.eye(len(chosen))
    expected = np.linalg.cholesky(matrix)
    np.testing.assert_allclose(dense(factor), expected, rtol=0, atol=1e-10 * abs(expected).max())
    y = torch.from_numpy(np.random.default_rng(0).normal(size=(len(chosen), 4)))
    for size in (len(chosen), 37):  # the leading block of a factor is that of the leading points
        found = factor.solve_upper(factor.solve_lower(y[:size])).numpy()
        np.testing.assert_allclose(
            found, np.linalg.solve(matrix[:size, :size], y[:size].numpy()), rtol=1e-9, atol=1e-12
        )


def test_of_a_gram_in_float32_the_factor_is_float64(tmp_path):
    store = filled(tmp_path / "s", RBF(2.0), points_of(90, 5, dtype=torch.float32))
    factor = FactorStore.prepare(tmp_path / "f", store, Selection.head(store, 90), 0.1)
    do(FactorWork.of(factor, store, 10**6))
    expected = np.linalg.cholesky(whole(store).astype(np.float64) + 0.1 * np.eye(90))
    np.testing.assert_allclose(dense(factor), expected, atol=1e-13)


def test_a_factor_goes_on_where_it_was_stopped_and_one_of_another_regularization_is_dropped(tmp_path, store):
    selection = Selection.head(store, 150)
    factor = FactorStore.prepare(tmp_path / "f", store, selection, 0.01)
    work = FactorWork.of(factor, store, 10**6)
    for task in work.tasks()[:7]:
        work.do(task)
    again = FactorStore.prepare(tmp_path / "f", store, selection, 0.01)
    assert again.token == factor.token
    assert again.factor.done() == 7
    other = FactorStore.prepare(tmp_path / "f", store, selection, 0.02)
    assert other.factor.done() == 0


def test_little_memory_gives_the_same_bits(tmp_path, store):
    found = []
    for memory in (0, 10**7):
        factor = FactorStore.prepare(tmp_path / str(memory), store, Selection.head(store, 150), 0.01)
        do(FactorWork.of(factor, store, memory))
        found.append(dense(factor))
    np.testing.assert_array_equal(*found)


def test_a_worker_that_is_late_writes_where_nobody_reads(tmp_path, store):
    selection = Selection.head(store, 150)
    before = FactorWork.of(FactorStore.prepare(tmp_path / "f", store, selection, 1.0), store, 10**6)
    late = pickle.loads(pickle.dumps(before))
    assert late.tasks()  # it has opened the factor
    factor = FactorStore.prepare(tmp_path / "f", store, selection, 0.5)
    late.do(late.tasks()[0])
    do(FactorWork.of(factor, store, 10**6))
    np.testing.assert_allclose(dense(factor), np.linalg.cholesky(whole(store) + 0.5 * np.eye(150)), atol=1e-12)
    with pytest.raises(StoreError, match="this factor was given up meanwhile"):
        pickle.loads(pickle.dumps(before)).tasks()


def test_a_torn_factor_is_made_anew(tmp_path, store):
    factor = FactorStore.prepare(tmp_path / "f", store, Selection.head(store, 150), 1.0)
    (factor.folder / "manifest.json").write_text("{")
    again = FactorStore.prepare(tmp_path / "f", store, Selection.head(store, 150), 1.0)
    assert again.token != factor.token


def test_a_work_travels_without_what_it_has_opened(store):
    work = GramWork.of(store, RBF(2.0), torch.device("cpu"))
    size = len(pickle.dumps(work))
    work.tasks()
    assert len(pickle.dumps(work)) == size < 1000


def beyond(folder, **settings):
    return DiskStores(folder, 10**6, do, **settings)


@pytest.mark.parametrize("scale", ["absolute", "mean_diagonal", "centered"])
def test_everything_that_evaluation_asks_is_as_in_memory(tmp_path, scale):
    kernel, regularization = RBF(2.0), Regularization(1e-2, scale)
    x, y = points_of(150, 5), points_of(150, 2, seed=4)
    head, x_test = torch.arange(100), points_of(30, 5, seed=1)
    in_memory = InMemory(kernel, x[:100], x_test)
    with beyond(tmp_path / "grams").store(kernel, x[:100], x_test) as store:
        on_disk = OnDisk(store, beyond(tmp_path / "grams"), kernel, x_test, 100, "cholesky", 1e-6)
        for size in (40, 100):
            a, b = (system.interpolant(regularization, y[:size]) for system in (in_memory, on_disk))
            torch.testing.assert_close(a.alpha, b.alpha, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(a.mean(in_memory.test), a.mean(on_disk.test), rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(in_memory.fitted(a, x, head), on_disk.fitted(a, x, head), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(a.variance(in_memory.test), b.variance(on_disk.test), rtol=1e-9, atol=1e-12)
            found = [system.energies(regularization, y[:size]) for system in (in_memory, on_disk)]
            torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
            assert a.effective == pytest.approx(b.effective, rel=1e-13)


def test_a_solution_is_kept_with_its_jitter(tmp_path):
    x = points_of(60).repeat(2, 1)  # each point twice: no factor without a jitter
    y = points_of(120, 1, seed=3)
    with beyond(tmp_path / "g").store(RBF(1.0), x, points_of(4, seed=5)) as store:
        jitters = []
        for _ in range(2):
            with collect() as incidents:
                system = OnDisk(store, beyond(tmp_path / "g"), RBF(1.0), x[:4], 120, "cholesky", 1e-6)
                system.interpolant(Regularization(0.0, "absolute"), y)
            jitters.append(incidents.jitter)
            shutil.rmtree(store.folder / "factor", ignore_errors=True)
        assert not (store.folder / "factor").exists()  # the second time it was found
        with collect() as incidents:
            InMemory(RBF(1.0), x).interpolant(Regularization(0.0, "absolute"), y)
        assert jitters[0] == jitters[1] == pytest.approx(incidents.jitter, rel=1e-6)
        assert jitters[0] > 0


def test_a_torn_solution_or_another_is_computed_again(tmp_path):
    x, y = points_of(60), points_of(60, 1, seed=3)
    with beyond(tmp_path / "g").store(RBF(1.0), x, x[:1]) as store:
        system = OnDisk(store, beyond(tmp_path / "g"), RBF(1.0), x[:1], 60, "cholesky", 1e-6)
        found = system.interpolant(Regularization(0.1, "absolute"), y).alpha
        [path] = (store.folder / "solutions").iterdir()
        path.write_bytes(path.read_bytes()[:50])
        torch.testing.assert_close(system.interpolant(Regularization(0.1, "absolute"), y).alpha, found)
        own = path.read_bytes()
        system.interpolant(Regularization(0.2, "absolute"), y)
        [other] = {*path.parent.iterdir()} - {path}
        shutil.copy(other, path)  # of another λ
        torch.testing.assert_close(system.interpolant(Regularization(0.1, "absolute"), y).alpha, found)
        assert path.read_bytes() == own


def test_a_known_number_is_that_of_its_key(tmp_path):
    disk, of = beyond(tmp_path), Identity.of(RBF(2.0), points_of(20, 3))
    assert [disk.known([key], of, lambda key=key: float(key)) for key in (1, 2, math.inf)] == [1, 2, math.inf]
    first, *others = (tmp_path / "known").iterdir()
    shutil.copy(others[0], first)
    assert [disk.known([key], of, lambda key=key: float(key)) for key in (1, 2, math.inf)] == [1, 2, math.inf]
    assert disk.known([1], of, lambda: 5.0) == 1
    assert disk.known([1], replace(of, probe=of.probe + 1e-8), lambda: 5.0) == 5, "the kernel has other values now"


def test_fewer_points_have_their_own_jitter(tmp_path):
    x = torch.cat([points_of(60), points_of(60)])  # the first 60 differ; all have no factor
    y, none = points_of(120, 1, seed=3), Regularization(0.0, "absolute")
    with beyond(tmp_path / "g").store(RBF(0.3), x, x[:1]) as store:
        system, jitters = OnDisk(store, beyond(tmp_path / "g"), RBF(0.3), x[:1], 120, "cholesky", 1e-6), []
        for size in (60, 120):
            with collect() as incidents:
                alpha = system.interpolant(none, y[:size]).alpha
            jitters.append(incidents.jitter)
            if size == 60:
                torch.testing.assert_close(alpha, InMemory(RBF(0.3), x[:60]).interpolant(none, y[:60]).alpha)
    assert jitters[0] == 0
    assert jitters[1] > 0


def test_what_has_no_factor_at_all_says_so(tmp_path):
    matrix = -np.eye(64)
    store = filled(tmp_path / "s", RBF(1.0), points_of(64))
    for i, j in store.gram.places():
        store.gram.write(i, j, matrix[store.gram.rows(i), store.gram.columns(j)])
    with pytest.raises(
        NumericalError, match=r"no Cholesky factor beyond its first 0 points; raise regularization.value"
    ):
        factored(beyond(tmp_path / "s"), store, Selection.head(store, 64), 0.0)


# ---- conjugate gradients


@pytest.mark.parametrize("regularization", slow_after(1, [1e-3, 0.0]))
def test_conjugate_gradients_against_a_direct_solution(tmp_path, regularization):
    kernel = CNNGP(Sequential(Conv2d(3, padding="same"), ReLU(), Conv2d(6)), 1.3, 0.2)
    x = points_of(300, 36).reshape(300, 1, 6, 6)
    y = points_of(300, 3, seed=2)
    store = filled(tmp_path / "s", kernel, x, tile=64)
    on_disk = OnDisk(store, beyond(tmp_path / "s"), kernel, x[:1], 300, "conjugate_gradients", 1e-11)
    found = on_disk.interpolant(Regularization(regularization, "absolute"), y)
    expected = np.linalg.solve(whole(store) + regularization * np.eye(300), y.numpy())
    np.testing.assert_allclose(found.alpha.numpy(), expected, rtol=0, atol=1e-8 * abs(expected).max())
    assert found.report["residual"] < 1e-10
    assert found.report["iterations"] > 1


def test_the_preconditioner_saves_most_of_the_products():
    x = points_of(400, 2)
    theta, y = RBF(1.0).gram(x), points_of(400, 1, seed=1)
    count = [0, 0]

    def product(which):
        def times(v):
            count[which] += 1
            return theta @ v

        return times

    conjugate_gradients(product(0), y, 1e-4, None, 1e-8, 5000)
    solve(product(1), lambda rows, columns: theta[rows][:, columns], None, theta.diagonal(), y, 1e-4, 1e-8, 10**9)
    assert count[1] < count[0] / 5


def test_conjugate_gradients_that_cannot_do_it_say_how_far_they_came():
    theta = torch.diag(torch.logspace(0, 18, 60, dtype=torch.float64))
    with pytest.raises(NumericalError, match=r"reached a residual of .* in 5 steps, not 1.0e-12"):
        conjugate_gradients(theta.__matmul__, points_of(60, 1), 0.0, None, 1e-12, 5)


# ---- who writes, and where there is no room


def test_of_two_writers_one_waits(tmp_path, monkeypatch):
    folder = beyond(tmp_path / "g")._folder(RBF(1.0), points_of(20), None)
    folder.mkdir(parents=True)
    lock = Lock(folder)
    try:
        with pytest.raises(HeldError, match="is writing to it"):
            Lock(folder)
        monkeypatch.setattr("kfx.evaluation.on_disk.time.sleep", lambda seconds: lock.release())
        with (
            pytest.warns(UserWarning, match="is writing to it; waiting for it"),
            beyond(tmp_path / "g").store(RBF(1.0), points_of(20), None) as store,
        ):
            assert len(store) == 20
    finally:
        lock.release()


def test_settings_that_are_no_parameters_have_stores_of_their_own(tmp_path):
    images = points_of(20, 36).reshape(20, 1, 6, 6)
    folders = []
    for network in networks_of_equal_parameters() * 2:
        with beyond(tmp_path / "g", keep=True).store(network, images, None) as store:
            folders.append(store.folder)
            np.testing.assert_array_equal(whole(store), network.gram(images).numpy())
    assert folders[0] != folders[1]
    assert folders[:2] == folders[2:]


def test_products_with_leading_points(store):
    matrix, v = whole(store), points_of(70, 3)
    np.testing.assert_allclose(products.product(store, v).numpy(), matrix[:70, :70] @ v.numpy(), atol=1e-12)
    np.testing.assert_allclose(products.product(store, v, 110).numpy(), matrix[:110, :70] @ v.numpy(), atol=1e-12)
    assert products.total(store, 70) == pytest.approx(matrix[:70, :70].sum())
    points = np.array([0, 5, 31, 32, 40, 69])
    np.testing.assert_array_equal(products.columns(store, 70, points).numpy(), matrix[:70][:, points])
    cross = whole(store, store.test)
    np.testing.assert_allclose(products.predictions(store, v).numpy(), cross[:, :70] @ v.numpy(), atol=1e-12)


# ---- in runs

RUN = [
    "kernel=cnngp", "dataset.n_train=400", "dataset.n_test=60", "dataset=digits", "optimizer.iterations=2",
    "sampler.batch_size=40", "figures=false", "device.precision_check=off", "evaluation.batches=1",
]  # fmt: skip
LONG = ["kernel=rbf", "kernel.sigma=2"]
DEEP = ["kernel=conv_dkm", "kernel.architecture=small", "kernel.inducing=[8,8,16]", "objective=elbo"]


def evaluated(folder):
    import pandas as pd

    return pd.read_csv(folder / "evaluation.csv").set_index(["kernel", "n_interpolation", "regularization", "metric"])


@pytest.mark.parametrize(
    "words",
    slow_after(
        2,
        [
            ["evaluation.n_interpolation=null"],
            ["evaluation.n_interpolation=[100,400]", "evaluation.rho=true", "evaluation.posterior_variance=true"],
            [*LONG, "evaluation.regularization.value=[1e-4,1e-2]", "evaluation.train_error=true"],
            [*LONG, "evaluation.solver=conjugate_gradients", "evaluation.tolerance=1e-10"],
            [*LONG, "regularization.selection=validation", "regularization.points=null", "regularization.folds=2"],
            [*LONG, "evaluation=k_fold", "dataset.n_test=0", "dataset.n_train=450", "evaluation.folds=3"],
            [*LONG, "optimizer=flow_euler", "evaluation.n_interpolation=null"],
            ["kernel=network_features", "evaluation.n_interpolation=null", "evaluation.train_error=true"],
            [*DEEP, "evaluation.n_interpolation=null", "evaluation.train_error=true"],
            ["kernel.starts=2", "kernel.start_from=worst", "evaluation.random_kernels=1", "evaluation.repeats=2"],
        ],
    ),
    ids=[
        "all points",
        "heads",
        "several regularizations",
        "conjugate gradients",
        "validation",
        "folds",
        "a flow",
        "a network",
        "a deep kernel",
        "many starts",
    ],
)
def test_a_run_on_disk_has_the_numbers_of_one_in_memory(tmp_path, kfx, words):
    for name, memory in (("memory", []), ("disk", ["evaluation.memory=1MB"])):
        code, _, err = kfx("run", *RUN, *words, *memory, f"hydra.run.dir={tmp_path / name}")
        assert code == 0, err
        assert ("Gram, tiles" in err) == (name == "disk")
    assert not (tmp_path / "disk" / "grams").exists()
    a, b = evaluated(tmp_path / "memory"), evaluated(tmp_path / "disk")
    assert list(a.index) == list(b.index)
    wanted = ~a.index.get_level_values("metric").isin(["jitter", "residual", "iterations"])
    np.testing.assert_allclose(a["value"][wanted], b["value"][wanted], rtol=1e-6)


def test_a_store_that_is_kept_serves_the_next_run(tmp_path, kfx):
    words = [*RUN, "optimizer=none", "evaluation.n_interpolation=null", "evaluation.memory=1MB"]
    kept, times = f"evaluation.store={tmp_path / 'grams'}", []
    for name, more in (("a", []), ("b", ["evaluation.regularization.value=1e-2"])):
        code, _, err = kfx("run", *words, kept, *more, f"hydra.run.dir={tmp_path / name}")
        assert code == 0, err
        assert ("Gram, tiles" in err) == (name == "a")
        tiles = sorted((tmp_path / "grams").glob("*/gram/c/*/*"))
        times.append([path.stat().st_mtime_ns for path in tiles])
    assert times[0] == times[1]
    assert times[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("default:.*is the store of something else")
def test_a_store_made_beforehand_serves_a_run(tmp_path, kfx):
    data = ["kernel=cnngp", "dataset=digits", "dataset.n_train=400", "dataset.n_test=60"]
    code, _, err = kfx("gram", *data, "--test", "--store", str(tmp_path / "s"))
    assert code == 0, err
    words = [
        *RUN,
        "optimizer=none",
        "evaluation.n_interpolation=null",
        "evaluation.memory=1MB",
        "evaluation.order=file",
    ]
    code, _, err = kfx("run", *words, f"evaluation.store={tmp_path / 's'}", f"hydra.run.dir={tmp_path / 'r'}")
    assert code == 0, err
    assert "Gram, tiles" not in err
    code, _, err = kfx(
        "run", *words, "seed=1", f"evaluation.store={tmp_path / 's'}", f"hydra.run.dir={tmp_path / 'other'}"
    )
    assert code == 0
    assert "is the store of something else: its first 400 points are others; one more is made in it" in err
    assert len(list((tmp_path / "s").glob("*/manifest.json"))) == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["evaluation.solver=lstsq"], "evaluation.solver=lstsq: needs the Gram matrix of 400 points in memory, 2.8 MB"),
        (["kernel_check=true"], "kernel_check=true: needs the Gram matrix of 400 points in memory"),
        (["follow.every=1"], "follow.n_interpolation: needs the Gram matrix of 400 points in memory"),
        (["evaluation.memory=12"], "evaluation.memory=12: expected a number of bytes of at least 1MB, as 8GB"),
        (["evaluation.draws=2", "evaluation.n_interpolation=[400]", "dataset.n_train=800"], "evaluation.draws: needs"),
        (["cluster.workers=2", "cluster.dashboard=1.2.3.4:80"], "cluster.dashboard=1.2.3.4:80: is no address of this"),
        (["cluster.dashboard=127.0.0.1:99999"], "cluster.dashboard=127.0.0.1:99999: expected an address"),
        (["evaluation.store=/dev/null"], "evaluation.store=/dev/null: cannot be written to"),
        (["evaluation.memory=lots"], "evaluation.memory=lots: expected a number of bytes"),
        (["evaluation.tolerance=2"], "evaluation.tolerance=2.0: expected a number > 0 and < 1"),
        (
            ["cluster.scheduler=here"],
            "cluster.scheduler=here: expected an address as tcp://host:8786, or slurm, or null",
        ),
        (["cluster.dashboard=here"], "cluster.dashboard=here: expected an address as 127.0.0.1:8787"),
        (["evaluation.rho=true", "evaluation.solver=conjugate_gradients"], "needs evaluation.solver=cholesky"),
    ],
)
def test_what_cannot_go_on_disk_is_one_line(tmp_path, kfx, words, complaint):
    if "cluster.workers=2" in words:
        pytest.importorskip("distributed")
    asked = ["evaluation.n_interpolation=null", "evaluation.memory=1MB", *words]
    code, _, err = kfx("run", *RUN, *asked, f"hydra.run.dir={tmp_path / 'r'}")
    assert code == 2
    assert complaint in err
    assert not (tmp_path / "r").exists()


def test_a_disk_without_room_is_refused_beforehand(tmp_path, kfx, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**6))
    asked = [*RUN, "evaluation.n_interpolation=null", "evaluation.memory=1MB", f"hydra.run.dir={tmp_path / 'r'}"]
    code, _, err = kfx("run", *asked)
    assert code == 2
    assert "the tiles of 400 points need 1.5 MB of disk, and 1.0 MB are free there; set evaluation.store" in err
    code, _, err = kfx("gram", "dataset=digits", "--store", str(tmp_path / "s"))
    assert code == 1
    assert "the tiles to come need" in err
    code, _, err = kfx("gram", "dataset=digits", "dataset.n_train=500", "--output", str(tmp_path / "o"))
    assert code == 1
    assert "the files need 2.0 MB, and 1.0 MB are free there" in err
    assert not list((tmp_path / "o").iterdir())


def test_points_left_out_in_folds_give_another_run(tmp_path, kfx):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((420, 3)), columns=["a", "b", "y"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    asked = ["dataset=table", f"dataset.path={tmp_path / 't.csv'}", "dataset.target=y", "optimizer=none"]
    asked += ["evaluation.solver=cholesky", "evaluation.calibration=false", "figures=false", "dataset.transform=false"]
    found = []
    for name, memory in {"whole": "1GB", "also": "2GB", "disk": "1MB"}.items():
        code, _, err = kfx("run", *asked, f"evaluation.memory={memory}", f"hydra.run.dir={tmp_path / name}")
        assert code == 0, err
        found.append(load_run(tmp_path / name).metrics["identity"])
    assert found[0] == found[1] != found[2], "of 336 points 1 MB holds no matrix: λ is chosen in five folds"
    assert kfx("rerun", str(tmp_path / "disk"), "--output", str(tmp_path / "again"))[0] == 0
    fixed = ["regularization.value=1e-3", "regularization.selection=fixed", "evaluation.regularization.value=1e-3"]
    for kept in (True, False):
        words = [*asked[:3], "optimizer.iterations=3", *asked[4:], *fixed, f"optimizer.fall_back={str(kept).lower()}"]
        small, large = (Plan.of_words([*words, f"evaluation.memory={m}"]).identity for m in ("1MB", "1GB"))
        assert (small != large) == kept, "kernels are compared by points left out"


def test_a_store_says_who_computed_how_much_in_what_time(tmp_path, kfx):
    import pandas as pd

    words = ["kernel=cnngp", "dataset=digits", "dataset.n_test=20", "--tile", "64", "--store", str(tmp_path / "s")]
    for n in (200, 300):
        assert kfx("gram", *words, f"dataset.n_train={n}")[0] == 0
    history = pd.read_csv(tmp_path / "s" / "history.csv")
    assert list(history["work"]) == ["Gram", "Gram"]
    assert list(history["tiles"]) == [10, 9]  # of 15 in the end, 4 of the first were at the edge
    assert (history["seconds"] > 0).all()


def test_verify_says_what_is_damaged_and_drops_it(tmp_path, kfx):
    words = ["kernel=cnngp", "dataset=digits", "dataset.n_train=300", "dataset.n_test=20", "--tile", "64", "--test"]
    folder = tmp_path / "s"
    assert kfx("gram", *words, "--store", str(folder))[0] == 0
    code, out, _ = kfx("gram", "verify", str(folder))
    assert code == 0
    assert out.splitlines() == [
        "CNNGP in float64 on 300 points, tiles of 64 rows",
        "gram  300 x 300  15 of 15 tiles, 0 damaged",
        "test  20 x 300  5 of 5 tiles, 0 damaged",
    ]
    path = folder / "gram" / "c" / "2" / "1"
    raw = bytearray(path.read_bytes())
    raw[500] ^= 1
    path.write_bytes(raw)
    code, out, _ = kfx("gram", "verify", str(folder), "--drop")
    assert code == 1
    assert "gram  300 x 300  14 of 15 tiles, 1 damaged" in out
    assert f"{path}: this tile is damaged" in out
    assert kfx("gram", *words, "--store", str(folder))[0] == 0
    code, out, _ = kfx("gram", "verify", str(folder))
    assert code == 0
    assert "15 of 15" in out
    assert "--tile 32" in kfx("gram", *words, "--tile", "32", "--store", str(folder))[2]
    path = folder / "points" / "c" / "1" / "0" / "0" / "0"
    raw = bytearray(path.read_bytes())
    raw[500] ^= 1
    path.write_bytes(raw)
    code, out, _ = kfx("gram", "verify", str(folder))
    assert code == 1
    assert f"{folder / 'points'}: is damaged" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--tile", "3", "--store", "x"], "--tile 3: expected a whole number >= 16 and <= 16384"),
        (["--workers", "2"], "--workers 2: is of a store; add --store DIR"),
        (["--block", "9", "--store", "x"], "--block 9: is of gram.npy; leave it out with --store"),
        (["--store", "x", "--workers", "0"], "cluster.workers=0: expected a whole number >= 1 and <= 4096"),
        (["--drop"], "--drop: is of kfx gram verify DIR"),
        (["verify"], "kfx gram verify: expected one folder, got 0"),
        (["verify", "x", "--workers", "3"], "--workers 3: is not of kfx gram verify, which takes --drop"),
    ],
)
def test_bad_words_of_kfx_gram(kfx, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    code, _, err = kfx("gram", *words)
    assert code == 2
    assert complaint in err
    assert not (tmp_path / "x").exists()


def test_verify_of_what_is_no_store(kfx, tmp_path):
    code, _, err = kfx("gram", "verify", str(tmp_path))
    assert code == 1
    assert "is no Gram store" in err


def test_the_manifest_says_what_the_numbers_are_of(tmp_path):
    filled(tmp_path / "s", RBF(1.5), points_of(40))
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert (manifest["kernel"], manifest["parameters"], manifest["n"]) == ("RBF", {"sigma": 1.5}, 40)
    assert len(manifest["probe"]) == 8


@pytest.mark.slow
def test_memory_stays_within_what_is_allowed(tmp_path):
    words = [
        "kernel=laplace", "dataset=noisy_sine", "dataset.n_train=4000", "dataset.n_test=50", "optimizer=none",
        "optimizer.iterations=1", "sampler.batch_size=20", "evaluation.batches=1", "evaluation.n_interpolation=null",
        "figures=false", "device.precision_check=off", "evaluation.posterior_variance=true", "device.threads=1",
    ]  # fmt: skip
    more = {}
    for name, memory in (("memory", "4GB"), ("disk", "30MB")):
        command = [*words, f"evaluation.memory={memory}", f"hydra.run.dir={tmp_path / name}"]
        assert finish(tmp_path, "run", *command) == 0
        peak = json.loads((tmp_path / name / "metrics.json").read_text())["memory"]
        more[name] = peak["evaluation_bytes"] - peak["fit_bytes"]
    matrix = 8 * 4000**2
    assert more["memory"] > 2 * matrix
    assert more["disk"] < 0.75 * matrix  # and much of it is code


@pytest.mark.parametrize("change", ["scaled", "missing", "shorter", "owner"])
def test_arrays_that_have_changed_are_none(tmp_path, change):
    """Also where the file itself is whole."""
    path, arrays = tmp_path / "a.npz", {"outer": np.eye(3), "total": np.ones(3)}
    sealed.write(path, "lane 1", arrays)
    assert set(sealed.read(path, "lane 1")) == {"outer", "total"}
    with np.load(path) as held:
        content = dict(held)
    if change == "missing":
        del content["outer"]
    elif change == "owner":
        content["belongs_to"] = np.array("lane 2")
    else:
        content["outer"] = 1.5 * content["outer"] if change == "scaled" else content["outer"][:2]
    np.savez(path, **content)
    assert sealed.read(path, "lane 2" if change == "owner" else "lane 1") is None


@pytest.mark.parametrize("targets", ["auto", "log", "standardized"])
@pytest.mark.parametrize("solver", ["auto", "cholesky"])
def test_own_data_that_do_not_fit_in_memory_are_predicted_or_refused_at_once(kfx, in_folder, targets, solver):
    """They need 1.6 MB; a skewed target is transformed only where its distribution can be predicted."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(y=np.exp(1.3 * np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=400)))
    frame.to_csv("d.csv", index=False)
    words = ["dataset=table", "dataset.path=d.csv", "dataset.target=y", "evaluation.memory=1MB", "figures=false"]
    own = [] if targets == "auto" else [f"dataset.targets={targets}"]
    own += [] if solver == "auto" else [f"evaluation.solver={solver}"]
    code, _, err = kfx("run", *words, *own, "optimizer.iterations=2", "hydra.run.dir=r")
    if (targets, solver) == ("log", "cholesky"):
        assert code == 2
        assert "evaluation.solver=cholesky in memory or nystrom" in err
        assert not (in_folder / "r").exists()
        return
    assert code == 0, err
    run = load_run("r")
    assert run.config.evaluation.solver == ("nystrom" if solver == "auto" else "cholesky")
    assert run.config.evaluation.calibration == (solver == "auto")
    assert not run.evaluation["value"].isna().any(), "nothing is measured that cannot be"
    code, out, err = kfx("predict", "r", "d.csv")
    if solver == "auto":
        assert code == 0, err
        assert np.isfinite(pd.read_csv(io.StringIO(out))[["prediction", "deviation"]].to_numpy()).all()
    else:
        assert (
            "the Gram matrix of 320 points does not fit in memory; run it again with a larger evaluation.memory" in err
        )


@pytest.mark.parametrize("memory", ["1.2MB", "1.7MB", "2.2MB"])  # a fold with its test points takes 1.42 MB
@pytest.mark.parametrize("weights", [[], ["dataset.weights=w"]])
def test_folds_count_their_test_points(kfx, in_folder, memory, weights):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    y = np.exp(1.3 * np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=400))
    pd.DataFrame(x, columns=["a", "b"]).assign(w=rng.integers(1, 4, 400), y=y).to_csv("d.csv", index=False)
    words = ["dataset=table", "dataset.path=d.csv", "dataset.target=y", "dataset.test=0", "evaluation=k_fold", *weights]
    words += [f"evaluation.memory={memory}", "evaluation.folds=3", "optimizer.iterations=2", "figures=false"]
    code, _, err = kfx("run", *words, "hydra.run.dir=r")
    taken = 266**2 * 16 + 266 * 134 * 8
    fits = float(memory[:-2]) * 1e6 >= taken
    if weights and not fits:
        assert code == 2
        assert "dataset.weights=w: needs the Gram matrix of" in err
        return
    assert code == 0, err
    run = load_run("r")
    assert run.config.evaluation.solver == ("cholesky" if fits else "nystrom")
    assert run.config.evaluation.centres == (None if fits else int((float(memory[:-2]) * 1e4) ** 0.5))
    assert not run.evaluation["value"].isna().any()


def test_calibration_on_disk_is_refused(kfx, in_folder):
    pd.DataFrame(np.random.default_rng(0).normal(size=(400, 3)), columns=list("aby")).to_csv("d.csv", index=False)
    words = ["dataset=table", "dataset.path=d.csv", "dataset.target=y", "evaluation.memory=1MB"]
    code, _, err = kfx("run", *words, "evaluation.solver=cholesky", "evaluation.calibration=true", "hydra.run.dir=r")
    assert code == 2
    assert err.startswith("kfx: evaluation.calibration=true: needs the Gram matrix of 320 points in memory")
