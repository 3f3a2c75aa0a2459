"""Compare kfx with other methods, and its objectives with each other, on tables.

python scripts/compare_tables.py regression [--splits 10] [--methods kfx,forest] [--part 0/2]
python scripts/compare_tables.py classification [--methods kfx,svc]
python scripts/compare_tables.py equal_regression            every method on the same rows, at most 500
python scripts/compare_tables.py fresh_regression            likewise on tables that no setting was chosen on
python scripts/compare_tables.py fresh_classification
python scripts/compare_tables.py fresh_criteria              kfx by several criteria on the tables of fresh_regression
python scripts/compare_tables.py regression --summary        python scripts/compare_tables.py regression --page
python scripts/compare_tables.py known                       tables whose relevant features are known

Each (set, split, method) becomes a row of runs/tables/NAME.csv, NAME the comparison's; rows that are there are not
computed again. Features and targets are standardized by the training points. Of more than 5000 training points 5000
are drawn at random, the same for all methods, and of more than 5000 test points likewise. The tables are those of
scripts/table_sets.py, the methods those of scripts/table_methods.py; scripts/table_page.py writes docs/tables.md.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Callable

import numpy as np
import table_page
import table_sets
import torch
from table_methods import LARGEST, METHODS, Predicted, gaussian_process
from table_sets import COLUMNS, COMPARISONS, MOST, prepared

from kfx import KernelFlowRegressor
from kfx.data.dataset import Dataset


def measured(task: str, data: Dataset, method: Callable[[Dataset], tuple[float, Predicted]]) -> dict[str, float]:
    """The numbers of a row for one method on standardized data; seconds are of the CPU."""
    began = time.process_time()
    fit_seconds, (mean, spread) = method(data)
    predict_seconds = time.process_time() - began - fit_seconds
    seconds = {"fit_seconds": fit_seconds, "predict_seconds": predict_seconds}
    if task == "classification":
        right = {"accuracy": float(np.mean(mean == data.labels_test)), "log_loss": math.nan}
        if spread is not None:
            of_class = spread[np.arange(len(spread)), data.labels_test]
            right["log_loss"] = float(-np.log(of_class.clip(1e-15)).mean())
        return right | seconds
    error = mean - data.y_test[:, 0]
    found = {"rmse": float(np.sqrt(np.mean(error**2))), "nlpd": math.nan, "coverage": math.nan}
    if spread is not None:
        found["nlpd"] = float(np.mean(0.5 * np.log(2 * np.pi * spread**2) + 0.5 * (error / spread) ** 2))
        found["coverage"] = float(np.mean(np.abs(error) < 1.959964 * spread))
    return found | seconds


def on_known_features() -> None:
    """Print RMSE, seconds and the shortest lengths of kfx where the features that matter are known.

    Friedman: y = 10 sin(pi x0 x1) + 20 (x2 - 0.5)^2 + 10 x3 + 5 x4 + noise of deviation 1, x uniform in 20 dimensions,
    2000 training and 1000 test points (Friedman 1991), five seeds. pumadyn32nm: 2000 points of its first split, beside
    scikit-learn's GPR with a length for each feature on the same points, which takes half an hour.
    """
    torch.set_num_threads(2)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.uniform(size=(3000, 20))
        mean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
        y = mean + rng.standard_normal(3000)
        began = time.perf_counter()
        fitted = KernelFlowRegressor().fit(x[:2000], y[:2000])
        seconds = time.perf_counter() - began
        error = float(np.sqrt(np.mean((fitted.predict(x[2000:]) - y[2000:]) ** 2)))
        shortest = sorted(np.argsort(fitted.lengths_)[:5].tolist())
        print(f"Friedman seed {seed}: RMSE {error:.3f} in {seconds:.1f} s, shortest lengths: features {shortest}")
    data = prepared(COMPARISONS["regression"], "pumadyn32nm", 0)
    x, y = data.x_train[:2000], data.y_train[:2000, 0]
    for name, fitted in (("kfx", KernelFlowRegressor()), ("scikit-learn GPR", gaussian_process())):
        began = time.perf_counter()
        fitted.fit(x, y)
        error = float(np.sqrt(np.mean((fitted.predict(data.x_test) - data.y_test[:, 0]) ** 2)))
        found = np.asarray(fitted.lengths_ if name == "kfx" else fitted.kernel_.k1.k2.length_scale)
        shortest = ", ".join(f"{i}: {found[i]:.3g}" for i in np.argsort(found)[:5])
        print(
            f"pumadyn32nm {name}: RMSE {error:.4f} in {time.perf_counter() - began:.1f} s, lengths {shortest}",
            flush=True,
        )


def compare(
    comparison: str, names: list[str], methods: dict[str, Callable], splits: int, part: int = 0, parts: int = 1
) -> None:
    """Compute the rows that are missing."""
    of = COMPARISONS[comparison]
    table_sets.FOLDER.mkdir(parents=True, exist_ok=True)
    path = table_sets.FOLDER / (f"{comparison}.csv" if parts == 1 else f"{comparison}-{part}.csv")
    rows = table_sets.table(comparison)[["set", "split", "method"]]
    there = set(rows.itertuples(index=False, name=None))
    is_new = not path.exists()
    torch.set_num_threads(1)
    with path.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS[of.task])
        if is_new:
            writer.writeheader()
            stream.flush()
        for number, (split, name) in enumerate((split, name) for split in range(splits) for name in names):
            missing = [method for method in methods if (name, split, method) not in there]
            if number % parts != part or not missing:
                continue
            data = prepared(of, name, split)
            for method in missing:
                if len(data.x_train) > LARGEST.get(method, MOST):
                    continue
                try:
                    found = measured(of.task, data, methods[method])
                except Exception as error:  # a rival that fails must not end the comparison
                    print(f"{name} {split} {method}: {type(error).__name__}: {error}", flush=True)
                    continue
                n, d = data.x_train.shape
                writer.writerow({"set": name, "split": split, "method": method, "n": n, "d": d} | found)
                stream.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=[*COMPARISONS, "known"])
    parser.add_argument("--splits", type=int, default=0, help="number of splits (default: all)")
    parser.add_argument("--methods", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--sets", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n processes that share the work")
    parser.add_argument("--summary", action="store_true", help="print tables of what is there")
    parser.add_argument("--page", action="store_true", help="write docs/tables.md and its pictures from what is there")
    parsed = parser.parse_args()
    if parsed.comparison == "known":
        on_known_features()
        return
    if parsed.summary:
        table_page.show(parsed.comparison)
        return
    if parsed.page:
        table_page.write()
        return
    warnings.filterwarnings("ignore")
    methods, of = METHODS[parsed.comparison], COMPARISONS[parsed.comparison]
    chosen = [name for name in parsed.methods.split(",") if name] or list(methods)
    names = [name for name in parsed.sets.split(",") if name] or of.names()
    part, parts = map(int, parsed.part.split("/"))
    compare(parsed.comparison, names, {name: methods[name] for name in chosen}, parsed.splits or of.splits, part, parts)


if __name__ == "__main__":
    main()
