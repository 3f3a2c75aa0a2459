"""Imports run downhill between files too, where `make lint` looks at rooms alone, and a run imports what it uses."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

SIMPLEST = ["run", "dataset=three_bumps", "kernel=rbf", "optimizer=adam", "optimizer.iterations=2", "figures=false"]
LISTED = """
import sys
from kfx.cli import main
assert main(sys.argv[1:]) == 0
print(*sorted(module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "kfx"), sep="\\n")
"""


def test_no_circle_between_files():
    graph = grimp.build_graph("kfx", cache_dir=None)  # those for types alone included
    TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()


def test_the_simplest_run_imports_only_its_own_options(tmp_path):
    words = [*SIMPLEST, "device.precision_check=off", f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run([sys.executable, "-c", LISTED, *words], capture_output=True, text=True, check=True)
    files = [Path(line) for line in done.stdout.splitlines() if line.endswith(".py")]
    imported = {"/".join(path.parts[-2:]) for path in files}
    assert {"kernels/options.py", "data/options.py", "optimizers/options.py"} <= imported
    others = {"kernels/network_options.py", "data/series_options.py", "data/image_options.py", "data/own_options.py"}
    assert not imported & others
    assert sum(len(path.read_text().splitlines()) for path in files) <= 18_300


def test_the_regressor_imports_no_more_than_scikit_learn_before_its_fit():
    """torch and what composes configs wait for the fit, so that a notebook's first cell answers at once."""
    heavy = (
        "torch",
        "jax",
        "numba",
        "omegaconf",
        "hydra",
        "matplotlib",
        "scipy.optimize",
        "kfx.kernels",
        "kfx.running",
    )
    of_base = "import sklearn.base, sys; before = set(sys.modules)\n"
    made = "from kfx import KernelFlowRegressor\nKernelFlowRegressor(random_state=1).get_params(deep=False)\n"
    code = f"{of_base}{made}print(*(name for name in {heavy} if name in set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()
