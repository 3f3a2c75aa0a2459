"""The comparison on UCI's tables: the page follows from the recorded rows, and each method gives a row."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from .uci_files import write_uci

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def compare_tables():
    spec = importlib.util.spec_from_file_location("compare_tables", ROOT / "scripts/compare_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_rows_give(compare_tables):
    assert (ROOT / "docs/tables.md").read_text() == compare_tables.page()


def test_ranks_and_differences_are_those_of_the_rows(compare_tables, tmp_path, monkeypatch):
    monkeypatch.setattr(compare_tables, "FOLDER", tmp_path)
    monkeypatch.setattr(compare_tables, "_ENOUGH", 0.6)
    rows = ["set,split,method,n,d,rmse,nlpd,coverage,fit_seconds,predict_seconds"]
    for name, kfx, forest in (("a", 0.5, 1.0), ("b", 0.4, 0.2)):
        rows += [f"{name},0,kfx,10,2,{kfx},,,1,1", f"{name},0,random forest,10,2,{forest},,,1,1"]
    rows.append("c,0,kfx,10,2,0.1,,,1,1")  # a set that not all methods have
    rows.append("a,0,e2,10,2,0.1,,,1,1")  # a method that is hardly measured
    (tmp_path / "regression.csv").write_text("\n".join(rows) + "\n")
    found = compare_tables.summary("regression")
    assert found.attrs["sets"] == 2
    assert found["rank"].tolist() == [1.5, 1.5]
    assert found.loc["random forest", "difference"] == pytest.approx(0, abs=1e-12)
    assert found.loc["random forest", "error"] == pytest.approx(np.log(2))
    assert compare_tables.critical_difference(5, 30) == pytest.approx(1.1137, rel=1e-3), (
        "Demsar 2006, eq. in section 3.2.2"
    )


def test_shares_of_the_best_accuracy(compare_tables, tmp_path, monkeypatch):
    monkeypatch.setattr(compare_tables, "FOLDER", tmp_path)
    rows = ["set,split,method,n,d,accuracy,log_loss,fit_seconds,predict_seconds"]
    for name, kfx, forest in (("a", 0.8, 0.7), ("b", 0.46, 0.5)):
        rows += [f"{name},0,kfx,10,2,{kfx},0.4,1,1", f"{name},0,random forest,10,2,{forest},0.5,1,1"]
    rows.append("b,0,scikit-learn GPC,10,2,0.5,0.7,1,1")
    (tmp_path / "classification.csv").write_text("\n".join(rows) + "\n")
    found = compare_tables.summary("classification")
    assert found.loc["kfx", ["P90", "P95", "PMA"]].tolist() == pytest.approx([1.0, 0.5, 0.96])
    assert found.loc["random forest", ["P90", "P95"]].tolist() == [0.5, 0.5]
    assert compare_tables.on_small_tables().loc["b"].tolist() == [0.4, 0.7]


@pytest.mark.slow
def test_a_method_gives_a_row_once(compare_tables, tmp_path, monkeypatch):
    monkeypatch.setenv("KFX_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(compare_tables, "FOLDER", tmp_path / "rows")
    write_uci(tmp_path)
    for _ in range(2):
        compare_tables.compare("regression", ["yacht"], {"kfx": compare_tables.REGRESSION["kfx"]}, 1, 0, 1)
        classifiers = {name: compare_tables.CLASSIFICATION[name] for name in ("SVC", "ntk", "ntk tuned on halves")}
        compare_tables.compare("classification", ["wine"], classifiers, 1, 0, 1)
    regression, classification = map(compare_tables.table, ("regression", "classification"))
    assert (len(regression), len(classification)) == (1, 3)
    assert regression["rmse"][0] < 0.6
    assert (classification["accuracy"] > 0.7).all()
