"""Sweeps: the values that they stand for, and jobs that fail beside others."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import kfx
from kfx import load_run
from kfx.experiment import hydra_node
from kfx.experiment.compose import composed
from kfx.experiment.plan import Plan
from kfx.experiment.sweeps import as_lists, combinations

CASES = {
    "range(3)": [0, 1, 2],
    "range(5,0,-2)": [5, 3, 1],
    "range(0.1,0.4,0.1)": [0.1, 0.2, 0.3],
    "range(0,1,0.1)": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    "range(0.4,0.1,-0.1)": [0.4, 0.3, 0.2],
    "range(1e-3,4e-3,1e-3)": [0.001, 0.002, 0.003],
    "sort(range(10,0,-3))": [1, 4, 7, 10],
    "sort(range(0,10,3),reverse=true)": [9, 6, 3, 0],
    "sort(sweep=range(1.3,0,-0.5))": [0.3, 0.8, 1.3],
    "float(sort(range(4,0,-2)))": [2.0, 4.0],
    "sort(int(range(4.0,0.0,-2.0)))": [2, 4],
    "sort(tag(t,range(4,0,-2)))": [2, 4],
    "sort(shuffle(range(3)))": [0, 1, 2],
    "sort(3,1,2)": [1, 2, 3],
    "str(1,2)": ["1", "2"],
    'choice("7","true",x)': ["7", "true", "x"],
    'sort("10","9")': ["10", "9"],
    "1,a,null": [1, "a", None],
}


def values_of(words):
    """What Hydra makes of the words of each job: a value and its type."""
    found = [OverridesParser.create().parse_override(word).value() for (word,) in words]
    return [(value, type(value)) for value in found]


@pytest.mark.parametrize("case", CASES)
def test_a_sweep_runs_the_values_that_it_names(case):
    expected = [(value, type(value)) for value in CASES[case]]
    assert values_of(combinations([f"a.b={case}"], True)) == expected
    (written,) = as_lists([f"a.b={case}"])  # what Hydra's own sweeper is given
    assert "range" not in written
    again = OverridesParser.create().parse_override(written)
    assert values_of([[f"a.b={value}"] for value in again.sweep_string_iterator()]) == expected


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [("seed", "sort(range(10,0,-3))", [1, 4, 7, 10]), ("kernel.sigma", "range(0.1,0.4,0.1)", [0.1, 0.2, 0.3])],
)
def test_a_sweep_has_a_run_for_each_value(kfx, in_folder, key, values, expected):
    words = ["dataset=three_bumps", "dataset.n_train=20", "sampler.batch_size=10", "optimizer=none"]
    assert kfx("run", "-m", *words, "evaluation.batches=0", f"{key}={values}", "hydra.sweep.dir=s")[0] == 0
    table = pd.read_csv("s/sweep.csv")
    assert table["overrides"].str.extract(rf"\b{key}=(\S+)")[0].astype(float).tolist() == expected


@pytest.mark.parametrize("step", [0.1, -0.1, 0.25, -0.3, 3, -3])
@pytest.mark.parametrize("ends", [(0, 2), (0.1, 1.1), (-1.3, 0.2), (2, 12)])
def test_ranges_are_those_of_exact_arithmetic(step, ends):
    start, stop = ends if step > 0 else ends[::-1]
    hundredths = [round(100 * each) for each in (start, stop, step)]
    expected = [each / 100 for each in range(*hundredths)]
    for written, values in (
        (f"range({start},{stop},{step})", expected),
        (f"sort(range({start},{stop},{step}))", sorted(expected)),
    ):
        assert [value for value, _ in values_of(combinations([f"a={written}"], True))] == values


@pytest.mark.parametrize(
    "wrong", ["range(0,1,0)", "range(0.0,1,0)", "range(0,inf)", "range(0,nan,0.5)", "sort(range(3,0))"]
)
def test_a_range_of_nothing_or_without_end_is_refused(wrong):
    with pytest.raises(kfx.ConfigError, match=r"write a=a,b,c$"):
        list(combinations([f"a={wrong}"], True))


def test_a_sweeper_draws_from_no_range():
    node = composed([]).hydra.copy()
    node.sweeper = {
        "_target_": "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper",
        "params": {"kernel.sigma": "range(1,4)"},
    }
    with pytest.raises(kfx.ConfigError, match=r"kernel.sigma=range\(1,4\): may draw beyond .* write choice"):
        hydra_node.check(node, composed([]).hydra)


FORMULA = """
import torch
from kfx.options import FormulaOption, option, parameter

@option("kernel", "mine", "a Gaussian kernel that fails for some lengths")
class Mine(FormulaOption):
    sigma: float = parameter(1.0, 1e-2, 1e2, "length")

    @staticmethod
    def formula(x, y, sigma):
        if sigma == 2:
            return "no tensor"
        if sigma == 3:
            raise TypeError("scripted")
        return torch.exp(-(x[:, None] - y).square().sum(-1) / sigma**2)

    def check(self, config):
        super().check(config)
        1 / (self.sigma - 4)
"""


@pytest.mark.usefixtures("own_registry")
def test_an_error_in_one_job_stops_no_other(kfx, in_folder):
    (in_folder / "mine.py").write_text(FORMULA)
    words = ["-m", "--plugin", "mine.py", "kernel=mine", "dataset=three_bumps", "dataset.n_train=20", "optimizer=none"]
    words += ["sampler.batch_size=10", "evaluation.batches=0"]
    code, _, err = kfx("run", *words, "kernel.sigma=2,3,1", "hydra.sweep.dir=s")
    assert code == 2
    assert "Traceback" not in err
    table = pd.read_csv("s/sweep.csv")
    assert table["status"].tolist() == ["failed", "failed", "completed"]
    assert table["reason"][0].startswith("kernel=mine: the formula of mine gave str; expected a tensor")
    assert table["reason"][1] == "TypeError: scripted (mine.py, line 14)"
    code, _, err = kfx("run", *words, "kernel.sigma=4,1", "hydra.sweep.dir=t")
    assert (code, err) == (2, "kfx: kernel=mine: ZeroDivisionError: float division by zero (mine.py, line 19)\n")


def test_a_job_whose_folder_holds_results_of_other_data_says_so(kfx, in_folder):
    Path("t.csv").write_text("a,y\n" + "".join(f"{number},{number % 7 / 2}\n" for number in range(30)))
    words = ["-m", "dataset=table", "dataset.path=t.csv", "dataset.target=y", "optimizer=none", "figures=false"]
    words += ["seed=0,1", "hydra.sweep.dir=s", "resume=true"]
    assert kfx("run", *words)[0] == 0
    Path("t.csv").write_text(Path("t.csv").read_text() + "30,9\n")
    code, _, err = kfx("run", *words)
    table = pd.read_csv("s/sweep.csv")
    assert code == 2
    assert table["status"].tolist() == ["missing", "missing"]
    reason = "s/0: holds a run of another config, data or version of kfx; choose another folder"
    assert table["reason"][0] == reason
    assert reason in " ".join(err.split())


def test_a_job_that_an_earlier_run_answers_has_its_value(kfx, in_folder):
    from kfx.jobs import sweep
    from kfx.jobs.job import Job
    from kfx.jobs.plans import search_roots

    words = ["dataset=three_bumps", "optimizer=none", "dataset.n_train=20", "sampler.batch_size=10", "figures=false"]
    assert kfx("run", *words, "hydra.run.dir=s/first")[0] == 0
    plan = Plan.of_words([*words, "resume=true"])
    measured = load_run("s/first").evaluation.query("kernel == 'trained' and metric == 'mse'")
    for directory in (Path("s/first"), Path("s/second")):  # the second has no folder
        job = Job(plan, directory, search_roots(Path("s")))
        assert sweep.loss(job) == pytest.approx(measured["value"].item())
    alone = Job(Plan.of_words(words), Path("s/second"), search_roots(Path("s")))
    assert sweep.loss(alone) is None, "without resume=true no earlier run counts"
    other = Job(Plan.of_words([*words, "resume=true", "kernel.sigma=9"]), Path("s/first"), search_roots(Path("s")))
    assert sweep.loss(other) is None, "its folder holds a run of another config"


def test_a_defect_in_one_job_stops_no_other(kfx, in_folder, monkeypatch):
    from kfx.running import story

    usual = story.story
    monkeypatch.setattr(story, "story", lambda config, record: usual(config, record) if config.seed else math.sqrt(-1))
    words = [
        "dataset=three_bumps",
        "optimizer=none",
        "evaluation.batches=0",
        "dataset.n_train=20",
        "sampler.batch_size=10",
    ]
    code, _, err = kfx("run", "-m", *words, "seed=0,1", "hydra.sweep.dir=s")
    assert code == 1
    assert "Traceback" in err
    table = pd.read_csv("s/sweep.csv")
    assert table["status"].tolist() == ["failed", "completed"]
    assert table["reason"][0].startswith("ValueError")
