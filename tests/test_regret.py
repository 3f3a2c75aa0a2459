"""The study of criteria: what each loses on known truths and on data, and studies of cells."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from kfx.config import registry
from kfx.criteria import regret
from kfx.criteria.regret import LAMBDAS, LENGTHS, Grid, Problem, built, lost, of_data, posed, trained
from kfx.criteria.regret_table import among_best, by_setting, fit
from kfx.criteria.truths import MODELS, TRUTHS, function
from kfx.kernels import Matern
from kfx.objectives import loo, nll
from kfx.outcomes import ConfigError
from kfx.papers import cells

CRITERIA = {"rho": {"name": "rho"}, "likelihood": {"name": "nll"}, "left out": {"name": "loo"}}
PLUGIN = """
from kfx.config.option import option
from kfx.objectives.options import ObjectiveOption
from kfx.objectives import gcv

@option("objective", "mine", "one of my own")
class Mine(ObjectiveOption):
    def build(self):
        return gcv

@option("objective", "broken", "one that fails")
class Broken(ObjectiveOption):
    def build(self):
        return broken

def broken(gram, y, sample_size, regularization=1e-4, cotangent=True):
    raise KeyError("nothing")
"""


@pytest.fixture(autouse=True)
def _loaded():
    registry.load()


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("d", [1, 4])
def test_truths_are_functions_of_unit_deviation(truth, d):
    x = np.random.default_rng(1).uniform(size=(200, d))
    values = function(truth, x, np.random.default_rng(0))
    assert (values.mean(), values.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    assert not np.allclose(values, function(truth, x, np.random.default_rng(1)))


def test_draws_are_of_their_process():
    x = np.array([[0.0], [0.2], [0.9]])
    factor = np.linalg.cholesky(MODELS["matern32"](0.4).gram(x))
    values = function("matern32", x, np.random.default_rng(5))
    expected = factor @ np.random.default_rng(5).normal(size=3)
    np.testing.assert_allclose(values, (expected - expected.mean()) / expected.std(), rtol=1e-8)


def test_a_grid_measures_errors_coverage_and_choices_as_by_hand():
    problem = posed("matern32", 2, 30, 0.1, 0)
    grid = Grid(problem, MODELS["matern52"], {name: built(each)[0] for name, each in CRITERIA.items()})
    assert grid.uses_sample == {"": False, "rho": True, "likelihood": False, "left out": False}
    kernel, value = Matern(LENGTHS[5] * problem.unit, 2.5), LAMBDAS[6]
    a = kernel.gram(problem.x) + value * np.eye(30)
    across = kernel.gram(problem.x_test, problem.x)
    mean = across @ np.linalg.solve(a, problem.y)
    assert grid.errors[5, 6] == pytest.approx(np.sqrt(np.mean((mean - problem.f_test) ** 2)))
    inverse = np.linalg.inv(a)
    scale = np.mean((inverse @ problem.y) ** 2 / np.diag(inverse)[:, None])
    deviation = np.sqrt(scale * (1 + value - np.sum(across @ inverse * across, axis=1)))
    covered = np.abs(mean - problem.y_test)[:, 0] <= norm.ppf(0.975) * deviation
    assert grid.coverage(5, 6) == pytest.approx(covered.mean(), abs=0.01)
    assert grid.values["left out"][5, 6] == pytest.approx(loo(a - value * np.eye(30), problem.y, 15, value)[0])
    i, j = grid.chosen("likelihood", "trained")
    assert grid.values["likelihood"][i, j] == grid.values["likelihood"].min()
    assert grid.chosen("rho", "tiny") == (grid.values["rho"][:, 0].argmin(), 0)
    i, j = grid.chosen("rho", "leave_one_out")
    assert j == grid.values["left out"][i].argmin()


def test_regret_is_zero_for_the_best_and_never_negative():
    rows = pd.DataFrame(lost(posed("step", 1, 24, 0.0, 1), ["matern12"], CRITERIA))
    assert set(rows["lambda"]) == {"tiny", "leave_one_out", "trained"}
    assert not ((rows["lambda"] == "trained") & (rows["criterion"] == "rho")).any()  # ρ rewards a larger λ as such
    assert (rows["regret"] >= 0).all()
    assert rows["regret"].min() < 0.2


def test_a_perfect_criterion_has_no_regret():
    problem = posed("matern12", 2, 40, 0.1, 3)

    def oracle(gram, y, sample_size, regularization=1e-4, cotangent=True):
        errors = [
            np.sqrt(
                np.mean(
                    (
                        each.gram(problem.x_test, problem.x)
                        @ np.linalg.solve(each.gram(problem.x) + regularization.value * np.eye(40), problem.y)
                        - problem.f_test
                    )
                    ** 2
                )
            )
            for each in kernels
            if np.allclose(each.gram(problem.x), gram.gram)
        ]
        return float(errors[0]), None

    kernels = [MODELS["matern12"](each * problem.unit) for each in LENGTHS]
    grid = Grid(problem, MODELS["matern12"], {"oracle": oracle})
    i, j = grid.chosen("oracle", "trained")
    assert grid.errors[i, j] == pytest.approx(grid.best("trained"), rel=1e-9)


def test_training_ends_at_the_minimum_of_the_grid():
    problem = posed("matern52", 1, 60, 0.1, 0)
    found = trained(nll.with_settings(scale="profiled"), MODELS["matern52"](problem.unit), problem.x, problem.y, 0.1)
    finer = [
        nll(Matern(each, 2.5).gram(problem.x), problem.y, 30, 0.1, False, scale="profiled")[0]
        for each in problem.unit * np.geomspace(LENGTHS[0], LENGTHS[-1], 200)
    ]
    assert found.fun <= min(finer) + 1e-3
    assert found.nfev > 1


def test_data_are_standardized_and_classes_are_indicators():
    problem = of_data({"name": "diabetes", "n_train": 80, "n_test": 40}, 50, 0)
    assert problem.x.shape == (50, 10)
    np.testing.assert_allclose(problem.x.std(axis=0), 1)
    assert (problem.y.mean(), problem.y.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    assert problem.unit > 0
    digits = of_data({"name": "digits", "n_train": 60, "n_test": 40}, 50, 0)
    assert (digits.x.shape, digits.y.shape) == ((50, 64), (50, 10))
    assert np.isfinite(digits.x_test).all()  # pixels that are constant among the training points
    same = Problem(np.repeat(np.eye(3), 20, axis=0)[:41], np.zeros((41, 1)), *[np.zeros((1, 1))] * 3)
    assert same.unit > 0


def test_what_fits_and_what_is_too_smooth():
    assert fit("matern12", "matern12") == "right"
    assert fit("step", "matern12") == fit("matern32", "matern52") == "too smooth"
    assert fit("oscillatory", "rbf") == fit("kinked", "matern12") == "too rough"
    assert fit("wine", "rbf") == ""


@pytest.mark.slow
@pytest.mark.usefixtures("own_registry")
def test_a_criterion_of_ones_own_is_scored_by_the_same_command(kfx, in_folder):
    (in_folder / "mine.py").write_text(PLUGIN)
    words = ["study", "criteria", "--smoke", "--plugin", "mine.py", "--folder", "out"]
    words += ["--set", "criteria={gcv: {name: gcv}}", "--set", "costs=null"]
    code, _, err = kfx(*words)
    assert code == 1
    assert err.count("KeyError: 'nothing'") == 2  # a cell that fails says why, and the others go on


@pytest.mark.slow
@pytest.mark.usefixtures("own_registry")
def test_a_plugin_has_a_column_of_its_own(kfx, in_folder):
    (in_folder / "mine.py").write_text(PLUGIN.partition('@option("objective", "broken"')[0])
    words = ["--set", "criteria={gcv: {name: gcv}}", "--set", "costs=null", "--folder", "out"]
    code, _, err = kfx("study", "criteria", "--smoke", "--plugin", "mine.py", *words)
    assert code == 0, err
    table = pd.read_csv(next((in_folder / "out").iterdir()) / "table.csv")
    known = table[(table["lambda"] != "trained") & ~table["part"].str.startswith(("among", "p "))]
    np.testing.assert_array_equal(known["mine"], known["gcv"])
    assert table.loc[table["lambda"] == "trained", "mine"].isna().all()  # it does not say that λ may be trained on it


@pytest.mark.usefixtures("own_registry")
def test_cells_are_kept_and_only_missing_ones_are_computed(kfx, in_folder, monkeypatch):
    words = [
        "study",
        "criteria",
        "--smoke",
        "--folder",
        "out",
        "--set",
        "criteria={gcv: {name: gcv}, rho: {name: rho}}",
    ]
    code, out, err = kfx(*words)
    assert code == 0, err
    assert "3 of 3" in err + out
    folder = next((in_folder / "out").iterdir())
    table = pd.read_csv(folder / "table.csv")
    assert {"all", "standard error", "coverage in %", "evaluations", "seconds"} <= set(table["part"])
    assert (folder / "picture.png").stat().st_size > 10_000
    kept = folder / "cells" / "step,d=2,n=20.csv"
    before = kept.read_text()
    kept.unlink()
    code, out, err = kfx(*words)
    assert (code, "1 of 1: step,d=2,n=20" in err + out) == (0, True)
    assert kept.read_text() == before
    (folder / "cells" / "cells.yaml").write_text("kfx: 0\n")
    code, _, err = kfx(*words)
    assert (code, "has cells of other settings" in err) == (2, True)
    code, _, err = kfx("study", "criteria", "--set", "draw=3", "--folder", "other")
    assert (code, "--set draw=3: expected KEY=VALUE with KEY one of draws" in err) == (2, True)
    code, _, err = kfx(
        "study", "criteria", "--set", "draws=x", "--set", "criteria={a: {name: none}}", "--folder", "third"
    )
    assert (code, "none" in err) == (2, True)


def test_what_is_among_the_best():
    rng = np.random.default_rng(0)
    common = rng.normal(size=12)
    regrets = pd.DataFrame({"good": common, "alike": common + 0.01 * rng.normal(size=12), "bad": common + 1})
    regrets.index = pd.MultiIndex.from_product([["tiny"], ["a", "b"], range(6)], names=["lambda", "truth", "draw"])
    found = among_best(regrets)
    assert found.index.names == ["lambda", "truth"]
    np.testing.assert_array_equal(found["bad"], 0)
    assert found[["good", "alike"]].to_numpy().sum() >= 2  # the best of each setting at least
    assert among_best(regrets.iloc[:2])["good"].isna().all()  # two draws are not tested


def test_every_setting_of_the_map_has_all_criteria():
    rows = []
    for draw in range(2):
        own = lost(posed("kinked", 1, 20, 0.0, draw), ["matern12", "rbf"], CRITERIA)
        rows += [{"truth": "kinked", "d": 1, "n": 20, "noise": 0.0, "draw": draw, **row} for row in own]
    frame = pd.DataFrame(rows)
    regrets = by_setting(frame)
    assert regrets.shape == (12, 3)
    table = regret.table(frame).set_index(["lambda", "part"])
    mean = regrets.xs("tiny")["rho"].groupby(level="model").mean().mean()
    assert table.loc[("tiny", "all"), "rho"] == pytest.approx(100 * mean)
    assert table.loc[("tiny", "model rbf"), "settings"] == 1
    assert np.isnan(table.loc[("trained", "all"), "rho"])
    with pytest.raises(ConfigError, match="no_such"):
        cells.Cells.of("regret", {"blocks": [], "draws": 1, "criteria": {"a": {"name": "no_such"}}}, None)
