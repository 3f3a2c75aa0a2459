"""Benchmarks of tables: files in the layouts of those who published them, and their splits."""

from __future__ import annotations

import numpy as np
import pytest

from kfx import load_run
from kfx.experiment.compose import load
from kfx.numerics.streams import Streams
from kfx.outcomes import KfxError

from .uci_files import write_uci

FEW = ("optimizer.iterations=3", "figures=false", "device.precision_check=off", "hydra.run.dir=r")


@pytest.fixture
def files(in_folder, monkeypatch):
    monkeypatch.setenv("KFX_DATA_DIR", str(in_folder))
    return write_uci(in_folder)


def built(*words):
    return load(words).dataset.build(Streams(0)["data"])


def test_splits_are_those_of_the_files(files):
    of_classes, table, folds, masks = files
    data = built("dataset=uci_regression", "dataset.split=3")
    np.testing.assert_allclose(data.x_test, table[masks[:, 3], :-1])
    np.testing.assert_allclose(data.y_train, table[~masks[:, 3], -1:])
    fold = built("dataset=uci", "dataset.split=2")
    np.testing.assert_allclose(fold.x_train, of_classes[folds[4], :-1])
    np.testing.assert_array_equal(fold.labels_test, of_classes[folds[5], -1])
    assert fold.y_train.shape == (len(folds[4]), 3)
    halves = built("dataset=uci", "dataset.split=tuning")
    assert len(halves.x_train) == len(halves.x_test) == 65
    assert len(built("dataset=uci_regression", "dataset.n_train=40", "dataset.n_test=5").x_train) == 40


@pytest.mark.parametrize("name", ["uci", "uci_regression"])
def test_a_run_takes_the_settings_of_own_data(kfx, files, name):
    code, _, err = kfx("run", f"dataset={name}", *FEW)
    assert code == 0, err
    run = load_run("r")
    assert run.config.kernel.name == ("matern" if name == "uci" else "smooth_and_rough")
    assert run.config.dataset.preprocess == ["normalize"]
    assert len(run.lengths) == 3


def test_what_is_missing_or_damaged_is_named(kfx, files, in_folder):
    _, _, err = kfx("run", "dataset=uci", "dataset.set=iris", *FEW)
    assert "uci/iris/iris_R.dat is missing: put iris/iris_R.dat there" in err
    assert "sets that are there: wine" in err
    (in_folder / "uci/wine/conxuntos.dat").write_text("1 2\n3 500\n")
    with pytest.raises(KfxError, match="do not belong together"):
        built("dataset=uci")
    (in_folder / "uci_regression/yacht/data.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(KfxError, match="cannot be read"):
        built("dataset=uci_regression")
    assert "dataset.split=7: expected a whole number from 0 to 3" in kfx("run", "dataset=uci", "dataset.split=7")[2]
    assert "dataset.set=../x: expected a folder's name" in kfx("run", "dataset=uci", "dataset.set=../x")[2]
