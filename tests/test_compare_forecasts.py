"""The comparison of forecasts on Gilpin's benchmark: the page follows from the rows, and each method gives a row."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from kfx.data.backtest import Backtest
from kfx.data.windows import Windows
from tests.page_parts import assert_same_page

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def compare_forecasts():
    sys.path.insert(0, str(ROOT / "scripts"))  # it imports compare_tables
    try:
        spec = importlib.util.spec_from_file_location("compare_forecasts", ROOT / "scripts/compare_forecasts.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@pytest.fixture(scope="module")
def rivals(compare_forecasts):
    return sys.modules["forecast_rivals"]


def waves(count):
    t = np.arange(count)
    return 2 + np.sin(t / 3) + 0.5 * np.sin(t / 7)


def test_the_choice_sees_kfx_s_blocks_and_nothing_of_a_block(rivals):
    seen = []

    def line(setting, penalties, stretches):
        seen.append([(each[0], each[-1]) for each in stretches if len(each)])
        return lambda history, steps: (
            history[-1] + np.outer([setting[0] * p for p in penalties], np.arange(1, steps + 1))
        )

    run = rivals.by_backtest(line, [(1.0,), (2.0,), (60.0,)], (0.25, 0.5), lambda setting: int(setting[0]))
    forecast, reach = run(np.arange(200.0), 30)
    np.testing.assert_allclose(forecast, 200 + np.arange(30.0))  # by steps of 2.0 · 0.5
    assert reach == 2
    blocks = Backtest.of(Windows(1), [rivals.series(np.arange(200.0))], 30).time[:, 1].tolist()
    outside = [[(0, at - 1), (at + 30, 199)] if at < 170 else [(0, at - 1)] for at in blocks]
    assert seen == [*outside, *outside, [(0, 199)]]  # windows of 60 are too long


def test_rivals_are_what_their_libraries_compute(rivals):
    nodes = pytest.importorskip("reservoirpy.nodes")
    from reservoirpy.mat_gen import uniform
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    values = waves(120)
    node = nodes.Reservoir(rivals.UNITS, lr=0.3, sr=0.9, input_scaling=0.5, bias=uniform, seed=0)
    found = rivals.states((0.9, 0.3, 0.5), values[:, None], np.zeros((rivals.UNITS, 1)))[..., 0]
    np.testing.assert_allclose(found, node.run(values[:, None]), atol=1e-12)

    z = (values - values.mean()) / values.std()
    phi = np.c_[np.ones(120), nodes.NVAR(delay=2, order=2, strides=3).run(z[:, None])][3:]
    weights = np.linalg.solve(phi[:-1].T @ phi[:-1] + 1e-3 * np.eye(6), phi[:-1].T @ np.diff(z)[3:])
    (ng_rc,) = rivals.next_generation_reservoir((2, 3, 2), [1e-3], [values])(values, 1)
    np.testing.assert_allclose(ng_rc, values[-1] + phi[-1] @ weights * values.std())

    windows = np.lib.stride_tricks.sliding_window_view(z, 4)
    length = 2 * np.median(pdist(windows[:-1]))
    process = GaussianProcessRegressor(RBF(length), alpha=1e-5, optimizer=None).fit(windows[:-1], np.diff(z)[3:])
    (own,) = rivals.gaussian_process((4, 2.0), [1e-5], [values])(values, 1)
    np.testing.assert_allclose(own, values[-1] + process.predict(windows[-1:]) * values.std(), rtol=1e-9)


def test_the_page_is_what_the_rows_give(compare_forecasts):
    assert_same_page((ROOT / "docs/forecasting.md").read_text(), compare_forecasts.page())


def test_methods_and_stored_forecasts_give_rows_once(compare_forecasts, in_folder, monkeypatch):
    folder = in_folder / "cache" / "dysts"
    folder.mkdir(parents=True)
    values = np.sin(np.arange(180) / 3) + 0.5 * np.sin(np.arange(180) / 7)
    truth = values[150:-1]
    results = {"values": truth.tolist(), "Naive": {"prediction": np.zeros(30).tolist()}}
    for kind, content in (
        ("test", {"Waves": {"dt": 1.0, "values": values.tolist()}}),
        ("results_test", {"Waves": results}),
    ):
        with gzip.open(folder / f"{kind}_univariate__pts_per_period_15__periods_12.json.gz", "wt") as stream:
            json.dump(content, stream)
    monkeypatch.setattr(compare_forecasts, "FOLDER", in_folder)
    names = ("kfx", "one step: untrained", "Gaussian process", "NG-RC", "parrot", "persistence")
    methods = {name: compare_forecasts.METHODS[name] for name in names}
    for _ in range(2):
        compare_forecasts.compare(15, methods, 0, 1)
    rows = compare_forecasts.table().set_index("method")["smape"]
    assert sorted(rows.index) == sorted([*names, "Naive"])
    assert rows["Naive"] == pytest.approx(200)
    held = 200 * np.mean(np.abs(values[149] - truth) / (abs(values[149]) + np.abs(truth)))
    assert rows["persistence"] == pytest.approx(held)
    assert rows[["kfx", "Gaussian process", "NG-RC"]].max() < 5 < rows["persistence"]
    found = compare_forecasts.summary(15)
    assert found.loc["kfx", "mean rank"] == 1 or rows["kfx"] > rows.min()
    assert found.loc["Naive", "kfx is better on"] == 1
