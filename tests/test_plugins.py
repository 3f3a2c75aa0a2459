"""Options of one's own: files named on the command line, entry points, and what a record remembers of them."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import kfx as kfx_package
from kfx import load_run
from kfx.config import registry
from kfx.config.catalogue import config_folder
from kfx.config.plugins import load_plugins
from kfx.data.dataset import Dataset, checked
from kfx.kernels import RBF, Formula
from kfx.outcomes import DataError
from tests.plugins import BLOCKS, TEXT, isolated, write_plugins

SMALL = ["sampler.batch_size=30", "optimizer.iterations=6", "figures=false", "device.precision_check=off"]


pytestmark = pytest.mark.usefixtures("own_registry")


def test_the_page_of_parts_shows_one_of_each_family():
    assert set(BLOCKS) == {"periodic", "tanh_network", "loo_absolute", "chirp", "random_search", "median_error"}
    assert len(BLOCKS["periodic"].strip().splitlines()) <= 18


@pytest.mark.slow
def test_the_files_of_the_page_run_end_to_end(kfx, in_folder):
    plugins = write_plugins(in_folder)
    chosen = ["kernel=periodic", "objective=loo_absolute", "dataset=chirp", "optimizer=random_search"]
    code, out, err = kfx("run", *plugins, *chosen, *SMALL, "hydra.run.dir=r")
    assert code == 0, err
    assert "period 1 → " in out
    run = load_run("r")
    assert len(run.trace) == 6
    assert {Path(plugin["path"]).stem for plugin in run.metrics["plugins"]} == set(BLOCKS)
    environment = json.loads((in_folder / "r/environment.json").read_text())
    assert environment["plugins"] == run.metrics["plugins"]
    assert environment["options_from"]["kernel=periodic"] == "periodic.py"
    assert type(run.kernel).__name__ == "Formula"
    for optimizer in ("adam", "flow_euler", "bayesian"):
        words = [*chosen[:3], f"optimizer={optimizer}", *SMALL, f"hydra.run.dir={optimizer}"]
        assert kfx("run", *plugins, *words)[0] == 0, optimizer
    of_network = ["kernel=tanh_network", "dataset=digits", "dataset.n_train=60", "optimizer.learning_rate=0.01"]
    assert kfx("run", *plugins, *of_network, *SMALL, "hydra.run.dir=network")[0] == 0
    assert "exp(-2 sum_k sin^2" in kfx("list", "kernel", *plugins)[1]
    assert "in units of the sine" in kfx("list", "kernel", "periodic", *plugins)[1]
    code, out, _ = kfx("rerun", "r", "--output", "again", *plugins)
    assert (code, "bit for bit" in out) == (0, True)


def test_one_file_in_the_folder_of_its_family_adds_an_option_or_a_metric(tmp_path):
    """In a copy of the package, in a process of its own."""
    shutil.copytree(Path(kfx_package.__file__).parent, tmp_path / "kfx")
    shutil.copytree(config_folder(), tmp_path / "configs", dirs_exist_ok=True)
    homes = {"periodic": "kernels", "loo_absolute": "objectives", "chirp": "data", "median_error": "evaluation"}
    for name, family in homes.items():
        (tmp_path / "kfx" / family / f"{name}.py").write_text(BLOCKS[name])
    words = ["kernel=periodic", "objective=loo_absolute", "dataset=chirp", *SMALL, "hydra.run.dir=r"]
    complete = "from kfx.commands.arguments import completions as of; print(*of('kernel='), *of('kernel.per'))"
    calls = ["-m", "kfx", "list", "--names"], ["-c", complete], ["-m", "kfx", "run", *words]
    run = partial(subprocess.run, capture_output=True, text=True, cwd=tmp_path, check=True)
    listed, completed, _ = (run([sys.executable, *call]).stdout.split() for call in calls)
    assert {"periodic", "loo_absolute", "chirp"} <= set(listed)
    assert {"kernel=periodic", "kernel.period="} <= set(completed)
    assert "median_error" in load_run(tmp_path / "r").evaluation["metric"].to_numpy()


def test_the_kernel_of_the_page_finds_the_period(kfx, in_folder):
    """Its command, run in full, against the numbers that stand below it."""
    (in_folder / "periodic.py").write_text(BLOCKS["periodic"])
    command = re.search(r"^kfx (run --plugin periodic.py .*?)   #", TEXT.replace("\\\n", ""), re.MULTILINE)
    code, out, err = kfx(*command[1].split(), "figures=false", "device.precision_check=off", "hydra.run.dir=r")
    assert (code, "is no better" in out) == (0, False), err
    period, error = map(float, re.findall(r"^(?:kernel|N_I 20) .* → ([\d.e-]+)$", TEXT, re.MULTILINE))
    assert period == pytest.approx(2 * np.pi, rel=1e-3)
    run = load_run("r")
    assert run.metrics["parameters"]["final"]["period"] == pytest.approx(period, rel=1e-3)
    table = run.evaluation.query("metric == 'mse'").set_index("kernel")["value"]
    assert table["trained"] == pytest.approx(error, rel=0.05)
    assert table["initial"] > 90 * table["trained"]


@pytest.mark.parametrize(
    "launcher", ["basic", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cores", "joblib"))]
)
def test_sweeps_honour_plugins_with_every_launcher(kfx, in_folder, launcher):
    if launcher == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    plugins = write_plugins(in_folder)
    words = ["kernel=periodic", "dataset=chirp", *SMALL, f"hydra/launcher={launcher}", "hydra.sweep.dir=s"]
    code, _, err = kfx("run", "-m", *plugins, *words, "seed=0,1")
    assert code == 0, err
    first, second = (load_run(f"s/{i}").metrics for i in (0, 1))
    assert first["plugins"] == second["plugins"]
    assert first["identity"] != second["identity"]


_IN_A_LOOP = """
from kfx.objectives import rho
from kfx.options import ObjectiveOption, option

for name in ("first", "second"):
    class Local(ObjectiveOption):
        def build(self):
            return rho
    option("objective", name, "made in a loop")(Local)
"""


@pytest.mark.slow
def test_classes_that_share_a_name_can_be_run_in_processes(kfx, in_folder):
    (in_folder / "loop.py").write_text(_IN_A_LOOP)
    words = ["-m", "objective=first,second", "hydra/launcher=cores", "hydra.sweep.dir=s", *SMALL]
    code, _, err = kfx("run", "--plugin", "loop.py", *words)
    assert code == 0, err
    assert [load_run(in_folder / f"s/{i}").config.objective.name for i in (0, 1)] == ["first", "second"]


def test_a_missing_or_changed_plugin_is_one_line(kfx, in_folder):
    (in_folder / "periodic.py").write_text(BLOCKS["periodic"])
    words = ["dataset=three_bumps", "kernel=periodic", *SMALL]
    with isolated():
        assert kfx("run", "--plugin", "periodic.py", *words, "hydra.run.dir=r")[0] == 0
    for command in (["rerun", "r"], ["resume", "r"]):
        code, _, err = kfx(*command)
        assert code == 2
        assert err == "kfx: r: was made with the plugin periodic.py; add --plugin periodic.py\n"
    (in_folder / "periodic.py").write_text(BLOCKS["periodic"] + "\n# changed\n")
    code, _, err = kfx("rerun", "r", "--plugin", "periodic.py")
    assert code == 2
    assert "was made with another periodic.py (SHA-256 " in err
    with pytest.raises(Exception, match="was made with another"):
        load_run("r").kernel  # noqa: B018


FORMULA = (
    "from kfx.options import FormulaOption, option, parameter\n@option('kernel', 'mine', 'mine')\n"
    "class K(FormulaOption):\n    sigma: float = parameter(1.0, 0.1, 10.0, 'length')\n    @staticmethod\n"
    "    def formula(x, y, sigma):\n        return (x[:, None] - y).square().sum(dim=-1) / sigma\n"
)
BROKEN = {
    "no file": (None, "expected a Python file"),
    "a slip": ("import torch\n1 / 0\n", "ZeroDivisionError: division by zero (mine.py, line 2)"),
    "no syntax": ("def f(:\n", "SyntaxError"),
    "a name that is taken": (
        "from kfx.options import KernelOption, option\n@option('kernel', 'rbf', '')\nclass K(KernelOption): ...\n",
        "kernel=rbf: is there already, from kfx; rename it",
    ),
    "a group that is none": (
        "from kfx.options import Option, option\n@option('kernels', 'mine', 'mine')\nclass K(Option): ...\n",
        "kernels=mine: unknown group; it takes dataset, kernel",
    ),
    "an end": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "a field without a meaning": (
        "from kfx.options import FormulaOption, option\n@option('kernel', 'mine', 'mine')\nclass K(FormulaOption):\n"
        "    sigma: float = 1.0\n",
        "kernel=mine: its field sigma: expected one of kfx.options' fields",
    ),
    "a function as an option": (
        "from kfx.options import option\n@option('kernel', 'mine', 'mine')\ndef k(): ...\n",
        "kernel=mine: expected a class on Option",
    ),
    "a formula without a field": (
        FORMULA.replace("(x, y, sigma)", "(x, y, sgima)"),
        "kernel=mine: its formula(x, y, sgima) does not fit its fields (missing a required argument: 'sgima'); "
        "expected formula(x, y, sigma)",
    ),
    "a formula with a field too few": (
        FORMULA.replace("(x, y, sigma)", "(x, y)"),
        "kernel=mine: its formula(x, y) does not fit its fields (got an unexpected keyword argument 'sigma')",
    ),
    "a formula that takes itself": (
        FORMULA.replace("    @staticmethod\n", "").replace("(x, y, sigma)", "(self, x, y, sigma)"),
        "kernel=mine: its formula(self, x, y, sigma) does not fit its fields",
    ),
    "no formula": (FORMULA.partition("    @static")[0], "kernel=mine: expected its methods formula"),
    "a build that fails": (
        "from kfx.options import KernelOption, option\n@option('kernel', 'mine', 'mine')\nclass K(KernelOption):\n"
        "    def make(self, image, **common):\n        return common['nothing']\n",
        "kernel=mine: KeyError: 'nothing' (mine.py, line 5)",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_plugin_that_fails_is_one_line(kfx, in_folder, case):
    text, message = BROKEN[case]
    if text is not None:
        (in_folder / "mine.py").write_text(text)
    code, out, err = kfx("run", "--plugin", "mine.py", *(["kernel=mine"] if case == "a build that fails" else []))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err
    assert not (in_folder / "runs").exists()


def test_what_fails_in_a_plugin_while_it_runs_is_a_reason_with_its_line(kfx, in_folder):
    (in_folder / "mine.py").write_text(
        "from kfx.options import FormulaOption, option, parameter\n@option('kernel', 'mine', 'mine')\n"
        "class K(FormulaOption):\n    sigma: float = parameter(1.0, 0.1, 10.0, 'length')\n    @staticmethod\n"
        "    def formula(x, y, sigma):\n        return x @ y\n"
    )
    words = ["dataset=diabetes", "kernel=mine", *SMALL, "hydra.run.dir=r"]
    code, _, err = kfx("run", "--plugin", "mine.py", *words)
    assert code == 1
    assert "Traceback" not in err
    assert "(mine.py, line 7)" in load_run("r").metrics["reason"]
    (in_folder / "data.py").write_text(BLOCKS["chirp"].replace("np.sin(x[:n] ** 2)", "np.sin(x[:n] ** 2)[:-1]"))
    code, _, err = kfx("run", "--plugin", "data.py", "dataset=chirp", *SMALL, "hydra.run.dir=d")
    assert code == 2
    assert "dataset chirp: y_train is no array (80, outputs)" in err


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "(x[:, None] - y).square().sum(dim=-1) / sigma",
            "is no kernel: the matrix of 100 points has the eigenvalue -",
        ),
        ("(x[:, None] - 2 * y).sum(dim=-1) / sigma", "is no kernel: K(x, y) and K(y, x) differ, by up to "),
        ("(x[:, None] - y).square().sum(dim=-1).log()", "gave values that are not finite"),
    ],
)
def test_a_formula_that_is_no_kernel_is_said_to_be_none(kfx, in_folder, value, said):
    (in_folder / "mine.py").write_text(FORMULA.replace("(x[:, None] - y).square().sum(dim=-1) / sigma", value))
    code, _, err = kfx("run", "--plugin", "mine.py", "dataset=diabetes", "kernel=mine", *SMALL, "hydra.run.dir=r")
    assert (code, "Traceback" in err) == (2, False)
    assert f"kernel=mine: the formula of mine {said}" in err


DATA = """
import numpy as np

from kfx.data import Dataset
from kfx.options import DatasetOption, number, option


@option("dataset", "mine", "mine")
class Mine(DatasetOption):
    has_classes = {has_classes}
    n_train: int = number(40, "whole >= 2", "number of training points")
    n_test: int = number(20, "whole >= 1", "number of test points")

    def build(self, rng):
        x = rng.random((60, 2))[::-1]
        y = {y}
        return Dataset("mine", x[:40], y[:40], x[40:], y[40:])
"""


def own_data(folder, y, has_classes=False):
    """The words of a run on a data set of one's own with these targets, given as an expression of x."""
    (folder / "mine.py").write_text(DATA.format(y=y, has_classes=has_classes))
    return ["--plugin", "mine.py", "dataset=mine", "optimizer=none", "evaluation.batches=0", "hydra.run.dir=r"]


def test_a_data_set_of_ones_own_has_the_defaults_of_own_data(kfx, in_folder):
    code, _, err = kfx("run", *own_data(in_folder, "x[:, 0]"))
    assert code == 0, err
    config = load_run("r").config
    assert (config.dataset.preprocess, config.dataset.targets) == (["normalize"], "standardized")
    assert (config.kernel.name, config.objective.name, config.kernel.initial) == ("matern", "nll", "median_distance")
    assert load_run("r").evaluation.query("metric == 'mse'")["value"].iloc[0] < 1e-3


@pytest.mark.parametrize(
    "y", ["np.where(x[:, 0] > 0.5, 'yes', 'no')", "np.where(x[:, 0] > 0.5, 7, 3)", "(x[:, 0] > 0.5)"]
)
def test_a_data_set_of_ones_own_may_give_classes_as_they_are_named(kfx, in_folder, y):
    code, _, err = kfx("run", *own_data(in_folder, y, has_classes=True))
    assert code == 0, err
    run = load_run("r")
    assert run.config.objective.name == "rho_prediction"
    assert run.evaluation.query("metric == 'accuracy'")["value"].iloc[0] > 0.8
    x = np.array([[0.05, 0.5], [0.95, 0.5]])
    low, high = run.predict(x)["prediction"]
    assert [str(low), str(high)] == {"yes": ["no", "yes"], "7": ["3", "7"], "0": ["False", "True"]}[
        "yes" if "yes" in y else "7" if "7" in y else "0"
    ]


@pytest.mark.parametrize(
    ("y", "has_classes", "said"),
    [
        ("np.where(x[:, 0] > 0.5, 'yes', 'no')", False, "y_train is no array of numbers"),
        ("np.arange(60)", True, "y_test holds the class 40, which no training point has"),
        ("x", True, "has classes; expected a class for each point"),
        ("x[1:, 0]", False, "y_test is no array (20, outputs)"),
    ],
)
def test_targets_of_ones_own_that_do_not_fit_are_one_line(kfx, in_folder, y, has_classes, said):
    code, _, err = kfx("run", *own_data(in_folder, y, has_classes))
    assert (code, "Traceback" in err) == (2, False)
    assert f"dataset mine: {said}" in err


def test_images_of_ones_own_have_the_shape_that_their_option_states():
    x, y = np.zeros((4, 8, 8, 3)), np.arange(4.0)
    with pytest.raises(DataError, match=r"image=\(8, 8, 3\) stands for \(channels, height, width\) = \(3, 8, 8\)"):
        checked(Dataset("mine", x, y, x, y), (8, 8, 3), False)
    moved = np.moveaxis(x, -1, 1)
    assert checked(Dataset("mine", moved, y, moved, y), (8, 8, 3), False).y_train.shape == (4, 1)


def test_the_code_that_runs_is_the_code_that_was_hashed(kfx, in_folder):
    import os

    (in_folder / "mine.py").write_text(BLOCKS["periodic"])
    stat = os.stat("mine.py")
    with isolated():
        assert kfx("list", "kernel", "periodic", "--plugin", "mine.py")[0] == 0
        assert not (in_folder / "__pycache__").exists()
        (in_folder / "mine.py").write_text(BLOCKS["periodic"].replace("parameter(1.0, 1e-2", "parameter(3.0, 1e-2"))
        os.utime("mine.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert "has changed since it was loaded" in kfx("list", "kernel", "--plugin", "mine.py")[2]
    assert load_plugins(["mine.py"]) is None
    assert registry.OPTIONS["kernel"]["periodic"]().sigma == 3.0


def test_a_plugin_too_many_is_named(kfx, in_folder):
    plugins = write_plugins(in_folder)
    assert kfx("run", *plugins[:2], "dataset=three_bumps", *SMALL, "hydra.run.dir=r")[0] == 0
    code, _, err = kfx("rerun", "r", *plugins)
    assert code == 2
    assert "r: was made without the plugin " in err
    assert "leave it out" in err


def test_a_variance_of_ones_own_may_be_zero():
    def shifted(x, y, offset):
        return x @ y.mT + offset

    kernel = Formula(shifted, {"offset": 0.0}, bounds={"offset": (0.0, 10.0)}, may_be_zero=["offset"])
    assert (kernel + RBF()).with_flat([0.0, 1.0]).parameters["0.offset"] == 0.0
    with pytest.raises(ValueError, match="offset takes a finite number > 0"):
        Formula(shifted, {"offset": 0.0})


def test_a_config_cannot_name_a_plugin(kfx, in_folder):
    (in_folder / "mine.py").write_text("raise AssertionError\n")
    for word in ("plugin=mine.py", "+plugin=[mine.py]", "+plugins=[mine.py]"):
        code, _, err = kfx("run", word)
        assert code == 2
        assert "unknown key" in err


def test_options_of_an_installed_package(in_folder, monkeypatch):
    (in_folder / "stranger.py").write_text(BLOCKS["periodic"].replace('"periodic"', '"strange"'))
    monkeypatch.syspath_prepend(str(in_folder))

    class Package:
        name, version = "stranger", "1.2"

    entry = importlib.metadata.EntryPoint("strange", "stranger", "kfx.options")
    object.__setattr__(entry, "dist", Package)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == "kfx.options" else [])
    registry.load.cache_clear()
    registry.load()
    assert registry.OPTIONS["kernel"]["strange"].origin == "stranger 1.2"
    registry.load.cache_clear()


def test_a_kernel_by_its_formula_has_the_gradients_of_the_one_by_hand():
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(300, 3)), rng.normal(size=(300, 300))
    g = g + g.T

    def gaussian(x, y, sigma):
        return torch.exp(-torch.cdist(x, y).square() / (2 * sigma**2))

    mine, ours = Formula(gaussian, {"sigma": 1.3}), RBF(1.3)
    np.testing.assert_allclose(mine.gram(x), ours.gram(x), rtol=1e-10)
    np.testing.assert_allclose(mine.gram(x, x[:7]), ours.gram(x, x[:7]), rtol=1e-6)
    np.testing.assert_allclose(mine.diagonal(x), np.ones(300))
    for a, b in zip(mine.pullback(x)[1](g, inputs=True), ours.pullback(x)[1](g, inputs=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="the formula of <lambda> gave"):
        Formula(lambda x, y, sigma: x[:, :1] * sigma, {"sigma": 1.0}).gram(x)


NETWORK = ["kernel=network_features", "dataset=digits", "dataset.n_train=200", "dataset.n_test=100"]
NETWORK += ["sampler.batch_size=40", "optimizer.learning_rate=0.003", "device.precision_check=off"]
NETWORK += ["evaluation.n_interpolation=[10,50]", "hydra.run.dir=r"]


@pytest.mark.slow
def test_a_module_of_ones_own_comes_in_as_a_plugin(kfx, tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from torch import nn\n"
        "from kfx.options import NetworkOption, count, option\n\n"
        '@option("kernel", "mine", "A dense network of my own")\n'
        "class Mine(NetworkOption):\n"
        '    width: int = count(20, 1, "number of units in the hidden layer")\n\n'
        "    def module(self, image):\n"
        "        return nn.Sequential(nn.Flatten(), nn.Linear(64, self.width), nn.Tanh(), nn.Linear(self.width, 5))\n"
    )
    words = ["kernel=mine", "kernel.width=12", *NETWORK[1:], "optimizer.iterations=20", "figures=false"]
    code, _, err = kfx("run", "--plugin", str(plugin), *words)
    assert code == 0, err
    assert load_run("r", plugins=[plugin]).kernel.flat.shape == (64 * 12 + 12 + 12 * 5 + 5,)
    tiny = plugin.read_text().replace('"mine"', '"tiny"').replace("nn.Linear(64, self.width), nn.Tanh(), ", "")
    (tmp_path / "tiny.py").write_text(tiny.replace("nn.Linear(self.width, 5)", "nn.Linear(64, 3)"))
    few = ["kernel=tiny", *NETWORK[1:-1], "optimizer.iterations=2", "figures=false", "hydra.run.dir=tiny"]
    code, _, err = kfx("run", "--plugin", str(tmp_path / "tiny.py"), *few)
    assert code == 0, err
    held = load_run("tiny", plugins=[tmp_path / "tiny.py"])
    assert np.shape(held.metrics["parameters"]["final"]["1.weight"]) == (3, 64), "few enough to be shown one by one"
    assert held.kernel.flat.shape == (3 * 64 + 3,)
    table = ["dataset=diabetes", "kernel=mine", "kernel.width=12", "optimizer.iterations=2", "hydra.run.dir=table"]
    code, _, err = kfx("run", "--plugin", str(plugin), *table)
    assert (code, "fails on points of shape (10,)" in err) == (2, True), err
    broken = plugin.read_text().replace("nn.Tanh()", "nn.BatchNorm1d(self.width)")
    (tmp_path / "broken.py").write_text(broken.replace('"mine"', '"broken"'))
    code, _, err = kfx("run", "--plugin", str(tmp_path / "broken.py"), "kernel=broken", *NETWORK[1:])
    assert (code, "couples the points of a batch" in err, err.count("\n")) == (2, True, 1), err
