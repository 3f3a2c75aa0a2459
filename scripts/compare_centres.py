"""Compare ways to choose the centres of Nyström regression, on ten tables and on images, and time large runs.

python scripts/compare_centres.py centres [--sets kin40k,protein] [--centres 250,1000] [--repeats 3]
python scripts/compare_centres.py steps [--sets kin40k]
python scripts/compare_centres.py run NAME -- WORDS

centres: the kernel of a table is fitted once; then every choice of centres serves the same kernel, with λ by the folds
of its own pass, and the error is that on the split's test rows. steps: conjugate gradients to 1e-6 on 4000 training
rows, with 500 evenly spaced columns or 500 pivots as the preconditioner. run: `kfx run WORDS` with its time and the
peak of its memory. Rows are appended to runs/scale/. Tables are read from KFX_DATA_DIR/uci_regression.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kfx.data import uci
from kfx.data.dataset import Dataset, preprocess, with_targets
from kfx.estimators import KernelFlowRegressor
from kfx.evaluation.nystrom import Approximation, passed, solved
from kfx.evaluation.on_disk import DiskStores
from kfx.evaluation.systems import products
from kfx.kernels.base import Kernel
from kfx.numerics.conjugate_gradients import LowRank, conjugate_gradients
from kfx.numerics.linear_algebra import cholesky, solve_lower
from kfx.numerics.pivoted_cholesky import randomly_pivoted
from kfx.numerics.regularization import Regularization
from kfx.store.work import in_this_process

FOLDER = Path(__file__).parent.parent / "runs" / "scale"
SETS = (
    *("bike", "elevators", "keggdirected", "keggundirected", "kin40k"),
    *("parkinsons", "pol", "protein", "pumadyn32nm", "tamielectric"),
)
CHOICES = ("uniform", "rpcholesky", "kmeans", "flow")
LAMBDAS = [Regularization(float(value)) for value in (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)]
_COLUMNS, _ROWS = 500, 4000


def prepared(name: str) -> Dataset:
    """The first published split, standardized by its training rows."""
    data = uci.regression(name, 0, None, None, np.random.default_rng(0))
    return with_targets(preprocess(data, ["normalize"]), "standardized")


def fitted(data: Dataset) -> Kernel:
    """The kernel that kfx fits to a table by default."""
    model = KernelFlowRegressor(solver="nystrom", centres=500).fit(data.x_train, data.y_train[:, 0])
    return getattr(model.kernel_, "kernel", model.kernel_)


def error(kernel: Kernel, data: Dataset, how: Approximation) -> tuple[float, float]:
    """The root of the mean squared test error, in deviations of the training targets, and seconds."""
    x, y, test = (torch.from_numpy(each) for each in (data.x_train, data.targets, data.x_test))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskStores(Path(folder), 10**10, lambda work, label: in_this_process(work, lambda task: None))
        with passed(kernel, x, y, how, disk) as found:
            errors = found.nystrom.errors(LAMBDAS)
            own = solved(found, LAMBDAS[int(np.argmin(errors))])
    mapped, compare = kernel.feature_map_and_kernel()
    prediction = torch.cat([products(compare.gram(mapped(b), own.points), own.alpha) for b in test.split(2000)])
    wrong = data.in_units(prediction.numpy()) - data.y_test
    return float(np.sqrt(np.mean((wrong / data.target_scale) ** 2))), time.perf_counter() - started


def centres(names: list[str], counts: list[int], repeats: int) -> None:
    for name in names:
        data = prepared(name)
        kernel = fitted(data)
        for count in counts:
            for how in CHOICES:
                for seed in range(repeats):
                    rmse, seconds = error(kernel, data, Approximation(count, how, Regularization(1e-2), seed))
                    row = {"set": name, "n": len(data.x_train), "centres": count, "choose": how, "seed": seed}
                    append("centres", row | {"rmse": round(rmse, 5), "seconds": round(seconds, 1)})


def steps(names: list[str]) -> None:
    for name in names:
        data = prepared(name)
        kernel, some = fitted(data), np.random.default_rng(0).permutation(len(data.x_train))[:_ROWS]
        x, y = torch.from_numpy(data.x_train[some]), torch.from_numpy(data.targets[some])
        theta = kernel.gram(x)
        even = torch.linspace(0, len(x) - 1, _COLUMNS).long()
        inner = theta[even][:, even]
        root = solve_lower(cholesky(inner, 1e-7 * float(inner.diagonal().sum())), theta[even]).mT
        for value in (1e-5, 1e-3):
            own = Regularization(value).of(theta)
            _, pivoted = randomly_pivoted(
                lambda at, theta=theta: theta[:, at],
                lambda at, theta=theta: theta[at][:, at],
                theta.diagonal(),
                _COLUMNS,
                np.random.default_rng(0),
            )
            row: dict[str, object] = {"set": name, "regularization": value}
            for label, columns in (("evenly_spaced", root), ("rpcholesky", pivoted)):
                preconditioner = LowRank(columns, theta.diagonal(), own)
                row[label] = conjugate_gradients(theta.__matmul__, y, own, preconditioner, 1e-6, 5000).iterations
            append("steps", row)


def run(name: str, words: list[str]) -> None:
    """Run `kfx run` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command = [sys.executable, "-m", "kfx", "run", *words, f"hydra.run.dir={folder}/run"]
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        rows = pd.read_csv(f"{folder}/run/evaluation.csv").query("kernel == 'trained'").set_index("metric")["value"]
        row = {"name": name, "words": " ".join(words), "seconds": round(seconds), "peak_gb": round(peak / 1e9, 2)}
        measured = {metric: rows[metric] for metric in ("accuracy", "mse", "nlpd") if metric in rows.index}
        append("runs", {**row, "accuracy": "", "mse": "", "nlpd": "", **measured})


def append(table: str, row: dict[str, object]) -> None:
    """Add a row to a table in runs/scale/, in place of an earlier one with the same name or setting."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{table}.csv"
    new = pd.DataFrame([row])
    keys = [key for key in ("name", "set", "regularization", "centres", "choose", "seed") if key in row]
    old = pd.read_csv(path) if path.exists() else new.iloc[:0]
    both = pd.concat([old, new], ignore_index=True) if len(old) else new
    both.drop_duplicates(keys, keep="last").to_csv(path, index=False)
    print(*(f"{key} {value}" for key, value in row.items()), sep="  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("centres", "steps", "run"))
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--sets", default=",".join(SETS), help="tables, separated by commas (default: ten)")
    parser.add_argument("--centres", default="500", help="numbers of centres, separated by commas (default: 500)")
    parser.add_argument("--repeats", type=int, default=3, help="seeds of each choice (default: 3)")
    parsed = parser.parse_args()
    names = parsed.sets.split(",")
    if parsed.part == "centres":
        centres(names, [int(count) for count in parsed.centres.split(",")], parsed.repeats)
    elif parsed.part == "steps":
        steps(names)
    else:
        run(parsed.name, parsed.words)


if __name__ == "__main__":
    main()
