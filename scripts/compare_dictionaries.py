"""Compare one Gaussian kernel, a dictionary of kernels and a sparse one on one-step predictions of chaotic series.

python scripts/compare_dictionaries.py [--every 3]            python scripts/compare_dictionaries.py --summary

The question of Yang et al. 2023 (part V of "Learning dynamical systems from data"): windows of 5 values, N_f = 100 with
half of it sampled, λ = 0.05 absolute, three folds of overlapping windows, shuffled as there and contiguous. A series is
divided by its deviation. Each kernel is evaluated at the paper's λ; at the λ that gives it the Gaussian's ratio of λ to
the mean variance of its functions, `matched`; and at the λ with the least leave-one-out error, `chosen`. The series are
those of Gilpin's benchmark in KFX_DATA_DIR/dysts: the paper's own are not public. Rows go to
runs/forecasts/dictionaries.csv.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import KFold

from kfx import KernelFlowRegressor
from kfx.data.series import gilpin, gilpin_systems
from kfx.data.windows import Windows
from kfx.kernels import Kernel
from kfx.numerics.regularization import Regularization

PATH = Path(__file__).parent.parent / "runs" / "forecasts" / "dictionaries.csv"
COLUMNS = ("system", "folds", "kernel", "lambda", "mse", "value", "members")
LAGS, PUBLISHED = 5, Regularization(0.05, "absolute")
GAUSSIAN = {"name": "rbf", "ard": False, "sigma": 1.2}
SGD = {"optimizer": {"name": "adam", "iterations": 300, "learning_rate": 0.02, "fall_back": False}}
SPARSE = {"optimizer": {**SGD["optimizer"], "sparsity": 0.5}}
METHODS = {
    "Gaussian, untrained": (GAUSSIAN, {"optimizer": {"name": "none", "iterations": 1}}),
    "Gaussian": (GAUSSIAN, SGD),
    "dictionary": ({"name": "dictionary"}, SGD),
    "sparse dictionary": ({"name": "dictionary"}, SPARSE),
}
CHOICES = [Regularization(10.0**k) for k in range(-10, 1)]


def windows_of(system: str) -> tuple[np.ndarray, np.ndarray]:
    """Windows of 5 values, (n, 5), and the next value, (n,), of a series divided by its deviation."""
    values = gilpin(system, 100).values
    windows = Windows(LAGS, is_increment=False, mean=np.zeros(1), scale=values.std(axis=0))
    x, y, _ = windows.cut(type(gilpin(system, 100))(np.arange(len(values), dtype=float), values))
    return x, y[:, 0]


def trained(method: str, x: np.ndarray, y: np.ndarray) -> Kernel:
    kernel, settings = METHODS[method]
    model = KernelFlowRegressor(
        kernel,
        objective="rho",
        scale=None,
        sampler={"batch_size": 100, "sample_proportion": 0.5},
        regularization={"value": PUBLISHED.value, "scale": PUBLISHED.scale, "selection": "fixed"},
        targets="as_given",
        device={"name": "cpu", "threads": 1},
        **settings,
    ).fit(x, y)
    found: Kernel = model.kernel_
    return found


def errors(
    kernel: Kernel, reference: Kernel, x: np.ndarray, y: np.ndarray, at: np.ndarray, truth: np.ndarray
) -> Iterator:
    """(name of λ, mean squared error, λ in units of the mean variance) at each of three λ."""
    gram, cross = kernel.gram(x), kernel.gram(at, x)
    own = PUBLISHED.value / Regularization(1.0).of(gram)
    matched = PUBLISHED.value / Regularization(1.0).of(reference.gram(x))
    values, vectors = np.linalg.eigh(gram)
    rotated, unit = vectors.T @ y, Regularization(1.0).of(gram)

    def left_out(value: float) -> float:
        inverse = 1 / (values.clip(0) + value * unit)
        return float(np.mean((vectors @ (rotated * inverse) / ((vectors**2) @ inverse)) ** 2))

    chosen = min((each.value for each in CHOICES), key=left_out)
    for name, value in (("published", own), ("matched", matched), ("chosen", chosen)):
        found = cross @ (vectors @ (rotated / (values.clip(0) + value * unit)))
        yield name, float(np.mean((found - truth) ** 2)), value


def compare(every: int) -> None:
    """Compute the rows that are missing."""
    there = set() if not PATH.exists() else set(pd.read_csv(PATH)["system"])
    with PATH.open("a", newline="") as stream:
        rows = csv.writer(stream)
        if not there:
            rows.writerow(COLUMNS)
        torch.set_num_threads(1)
        for system in gilpin_systems(100)[::every]:
            if system in there:
                continue
            x, y = windows_of(system)
            found = []
            for name, folds in (("shuffled", KFold(3, shuffle=True, random_state=42)), ("contiguous", KFold(3))):
                for train, test in folds.split(x):
                    kernels = {method: trained(method, x[train], y[train]) for method in METHODS}
                    for method, kernel in kernels.items():
                        count = int((np.asarray(kernel.parameters.get("weight", [1.0])) > 0).sum())
                        each = errors(kernel, kernels["Gaussian"], x[train], y[train], x[test], y[test])
                        found += [(name, method, which, mse, value, count) for which, mse, value in each]
            frame = (
                pd.DataFrame(found, columns=COLUMNS[1:]).groupby(list(COLUMNS[1:4]), sort=False).mean().reset_index()
            )
            rows.writerows([system, *row] for row in frame.itertuples(index=False))
            stream.flush()
            print(system, flush=True)


def summary() -> pd.DataFrame:
    """Median mean squared errors of one step by kernel, folds and λ, the median λ, and the number of kernels left."""
    frame = pd.read_csv(PATH)
    table = frame.pivot_table(index="kernel", columns=["folds", "lambda"], values="mse", aggfunc="median", sort=False)
    table.columns = [f"{folds}, λ {which}" for folds, which in table.columns]
    own = frame.query("`lambda` == 'published'").groupby("kernel")
    return table.assign(**{"published λ / variance": own["value"].median(), "kernels": own["members"].median()})


def as_markdown() -> str:
    """The table, and what it says of sparsity."""
    frame, found = pd.read_csv(PATH), summary()
    systems = frame["system"].nunique()
    lines = [
        f"Median squared error of one step over {systems} systems of Gilpin's benchmark, windows of {LAGS} values, "
        "three folds (`python scripts/compare_dictionaries.py`). λ is the published 0.05; *matched*, so that its ratio "
        "to the variance of the kernel's functions is the Gaussian's; or *chosen* by leave-one-out errors.",
        "",
        "| kernel | " + " | ".join(found.columns) + " |",
        "|---|" + "---:|" * len(found.columns),
    ]
    for name, row in found.iterrows():
        cells = [f"{value:.1e}" for value in row.iloc[:-1]]
        lines.append(f"| {name} | " + " | ".join([*cells, f"{row.iloc[-1]:.1f}"]) + " |")
    each = frame.pivot_table(index="system", columns=["kernel", "folds", "lambda"], values="mse")

    def wins(which: str) -> int:
        sparse, dense = (each[kernel, "shuffled", which] for kernel in ("sparse dictionary", "dictionary"))
        return int((sparse < dense).sum())

    gaussian = each["Gaussian", "shuffled", "chosen"] < each["sparse dictionary", "shuffled", "chosen"]
    lines += [
        "",
        f"At the published λ the sparse dictionary is better than the dense one on {wins('published')} of {systems} "
        f"systems, at the matched λ on {wins('matched')}, and at the chosen λ on {wins('chosen')}; with λ chosen for "
        f"each kernel, one Gaussian is better than the sparse dictionary on {int(gaussian.sum())}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take each n-th system (default: all)")
    parser.add_argument("--summary", action="store_true", help="print a table of what is there")
    parsed = parser.parse_args()
    if parsed.summary:
        print(summary().to_string(float_format="{:.2e}".format))
        return
    compare(parsed.every)


if __name__ == "__main__":
    main()
