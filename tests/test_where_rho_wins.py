"""The comparison of ρ with its rivals: all methods see the same images, rows are kept, and differences are paired."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kfx

ROOT = Path(__file__).parent.parent
SMALL = ["optimizer.iterations=3", "sampler.batch_size=20", "kernel.architecture=small"]


@pytest.fixture
def wins(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import where_rho_wins

    for name, words in where_rho_wins.METHODS.items():
        small = SMALL if "kernel=network_features" in words else SMALL[:1]
        monkeypatch.setitem(where_rho_wins.METHODS, name, [*words, *small] if words else [])
    monkeypatch.setattr(where_rho_wins, "TUNING", (100,))
    return where_rho_wins


@pytest.mark.slow
def test_each_method_gives_rows_and_a_killed_call_goes_on(wins, tmp_path):
    path, size = tmp_path / "rows.csv", ("digits", 100, 40)
    wins.compute(path, *size, [0], list(wins.METHODS))
    rows = wins.read(path, "digits", 100)
    tried = rows[(rows["seed"] == 100) & (rows["n_interpolation"] == 100)]
    assert tried.groupby("method").size().to_dict() == {
        name: len(wins.settings(name)) for name in wins.METHODS if len(wins.settings(name)) > 1
    }
    least = tried[tried["method"] == wins.RHO].set_index("setting")["error"].idxmin()
    rows = rows[rows["seed"] == 0]
    assert set(rows.loc[rows["method"] == wins.RHO, "setting"]) == {least}
    assert set(rows["method"]) == set(wins.METHODS)
    assert rows["error"].between(0, 1).all()
    assert rows.groupby("method")["n_interpolation"].apply(set)[wins.RHO] == {10, 100}
    whole = pd.read_csv(path)
    killed = whole[(whole["method"] != wins.RHO) | (whole["seed"] == 100)]
    killed.to_csv(path, index=False)
    wins.compute(path, *size, [0], list(wins.METHODS))
    again = pd.read_csv(path)
    pd.testing.assert_frame_equal(again[: len(killed)], killed.reset_index(drop=True))
    own = rows.loc[rows["method"] == wins.RHO, "error"]
    assert again.iloc[len(killed) :]["error"].tolist() == own.tolist(), "the same seed, the same errors"


def test_rivals_see_the_images_of_the_run(wins, tmp_path):
    words = ["dataset=digits", "dataset.n_train=50", "dataset.n_test=30", "seed=3", "sampler.batch_size=20"]
    kfx.run([*words, *wins.COMMON, "optimizer=none", f"hydra.run.dir={tmp_path}/run"], progress=False)
    recorded = pd.read_csv(tmp_path / "run/predictions.csv").query("kernel == 'initial'").sort_values("point")
    assert wins.images(words).labels_test.tolist() == recorded["class"].tolist()


def test_differences_are_paired_and_corrected(wins):
    rng = np.random.default_rng(0)
    luck = rng.normal(size=10)  # of a seed, shared by all methods and much larger than what separates them
    rows = []
    for method, more in ((wins.RHO, 0.0), ("likelihood", 0.01), ("support vectors", -0.01)):
        for count in (10, 500) if method != "support vectors" else (500,):
            rows += [(seed, method, count, luck[seed] + (more + 0.001 * seed) * (count == 500)) for seed in range(10)]
    rows = pd.DataFrame(rows, columns=["seed", "method", "n_interpolation", "error"])
    rows.loc[rows["method"] == wins.RHO, "error"] += -0.0005 * rows["seed"] * (rows["n_interpolation"] == 500)
    found = wins.table(rows)
    likelihood, few = found.loc[("likelihood", 500)], found.loc[("likelihood", 10)]
    assert likelihood[["rho better", "rho worse"]].tolist() == [10, 0]
    assert likelihood["difference"] == pytest.approx(100 * (0.01 + 0.0005 * 4.5))
    assert likelihood["p"] == pytest.approx(3 * 2 / 2**10), "exact, by ten signs, and the smallest of three"
    assert (few["difference"], few["p"]) == (0, 1)
    assert found.loc[("support vectors", 500), "rho worse"] == 10


def test_recorded_rows_are_of_each_seed_and_method_once(wins):
    rows = pd.read_csv(wins.TABLE)
    assert list(rows.columns) == wins.COLUMNS
    assert set(rows["method"]) <= set(wins.METHODS)
    assert not rows.duplicated(wins.COLUMNS[:-1]).any()
