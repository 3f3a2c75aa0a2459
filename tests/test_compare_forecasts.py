"""The comparison of forecasts on Gilpin's benchmark: the page follows from the rows, and each method gives a row."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

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


def test_the_page_is_what_the_rows_give(compare_forecasts):
    assert (ROOT / "docs/forecasting.md").read_text() == compare_forecasts.page()


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
    names = ("kfx", "one step: untrained", "parrot", "persistence")
    methods = {name: compare_forecasts.METHODS[name] for name in names}
    for _ in range(2):
        compare_forecasts.compare(15, methods, 0, 1)
    rows = compare_forecasts.table().set_index("method")["smape"]
    assert sorted(rows.index) == sorted([*names, "Naive"])
    assert rows["Naive"] == pytest.approx(200)
    held = 200 * np.mean(np.abs(values[149] - truth) / (abs(values[149]) + np.abs(truth)))
    assert rows["persistence"] == pytest.approx(held)
    assert rows["kfx"] < 5 < rows["persistence"]
    found = compare_forecasts.summary(15)
    assert found.loc["kfx", "mean rank"] == 1 or rows["kfx"] > rows.min()
    assert found.loc["Naive", "kfx is better on"] == 1
