"""Compare ways to choose the centres of Nyström regression with each other and with other libraries; time large runs.

python scripts/compare_centres.py centres [--sets kin40k,protein] [--centres 250,1000] [--repeats 3] [--choose uniform]
python scripts/compare_centres.py rivals [--sets kin40k,protein] [--centres 500] [--methods "kfx;GPBoost, Vecchia"]
python scripts/compare_centres.py memory [--centres 2000]
python scripts/compare_centres.py exact [--sets kin40k,protein]
python scripts/compare_centres.py steps [--sets kin40k]
python scripts/compare_centres.py run NAME -- WORDS
python scripts/compare_centres.py tables | draw

centres: the kernel of a table is fitted once; then every choice of centres serves the same kernel, with λ by the folds
of its own pass, and the error is that on the split's test rows. rivals: kfx by default; scikit-learn's Nystroem with
the length and the λ that are best on held-out rows; GPyTorch's SVGP with as many inducing points, 20 epochs; GPBoost's
Vecchia approximation with 20 neighbours. memory: the pass over 100 000 rows of Friedman's function beside least squares
with the same features in memory. exact: the same kernel without centres, by conjugate gradients on the whole Gram
matrix in memory; a factor of its lengths, and λ, by held-out rows. steps: conjugate gradients to 1e-6 on 4000 training
rows, with 500 evenly spaced columns or 500 pivots as the preconditioner. run: `kfx run WORDS` with its time and the
peak of its memory. tables: print those of docs/scale_notes.md. draw: errors against M. Rows are appended to
runs/scale/. The tables of data are read from KFX_DATA_DIR/uci_regression.
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
from scale_tables import CHOICES, FOLDER, choices, draw, everything, libraries

from kfx.data import uci
from kfx.data.dataset import Dataset, preprocess, with_targets
from kfx.data.simulators import simulate
from kfx.estimators import KernelFlowRegressor
from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.interpolants import products
from kfx.evaluation.nystrom import Approximation, passed, solved
from kfx.kernels.base import Kernel
from kfx.numerics.conjugate_gradients import LowRank, conjugate_gradients, solve
from kfx.numerics.linear_algebra import cholesky, solve_lower, solve_upper
from kfx.numerics.nystrom import Centres
from kfx.numerics.pivoted_cholesky import randomly_pivoted
from kfx.numerics.regularization import Regularization
from kfx.store.work import in_this_process

SETS = (
    *("bike", "elevators", "keggdirected", "keggundirected", "kin40k"),
    *("parkinsons", "pol", "protein", "pumadyn32nm", "tamielectric"),
)
LAMBDAS = [Regularization(float(value)) for value in (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)]
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0)
MEASURED = ("accuracy", "mse", "nlpd", "unexplained")
_COLUMNS, _ROWS = 500, 4000


def prepared(name: str) -> Dataset:
    """The first published split, standardized by its training rows."""
    data = uci.regression(name, 0, None, None, np.random.default_rng(0))
    return with_targets(preprocess(data, ["normalize"]), "standardized")


def fitted(data: Dataset) -> Kernel:
    """The kernel that kfx fits to a table by default."""
    model = KernelFlowRegressor(scale=None, solver="nystrom", centres=500).fit(data.x_train, data.y_train[:, 0])
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
    return in_deviations(data, prediction.numpy()), time.perf_counter() - started


def centres(names: list[str], counts: list[int], repeats: int, choices: list[str]) -> None:
    for name in names:
        data = prepared(name)
        kernel = fitted(data)
        for count in counts:
            for how in choices:
                for seed in range(repeats):
                    rmse, seconds = error(kernel, data, Approximation(count, how, Regularization(1e-2), seed))
                    row = {"set": name, "n": len(data.x_train), "centres": count, "choose": how, "seed": seed}
                    append("centres", row | {"rmse": round(rmse, 5), "seconds": round(seconds, 1)})


def in_deviations(data: Dataset, prediction: np.ndarray) -> float:
    """The root of the mean squared test error of predicted targets, in deviations of the training targets."""
    wrong = data.in_units(prediction.reshape(-1, 1)) - data.y_test
    return float(np.sqrt(np.mean((wrong / data.target_scale) ** 2)))


def by_kfx(data: Dataset, count: int) -> np.ndarray:
    model = KernelFlowRegressor(scale=None, solver="nystrom", centres=count)
    return model.fit(data.x_train, data.targets[:, 0]).predict(data.x_test)


def by_scikit_learn(data: Dataset, count: int) -> np.ndarray:
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, ShuffleSplit
    from sklearn.pipeline import Pipeline

    x, y = data.x_train, data.targets[:, 0]
    steps = [("features", Nystroem(n_components=count, random_state=0)), ("ridge", Ridge())]
    grid = {"features__gamma": 4.0 ** np.arange(-3, 3) / x.shape[1], "ridge__alpha": 10.0 ** np.arange(-6, 2)}
    few = np.random.default_rng(0).permutation(len(x))[:10_000]
    search = GridSearchCV(Pipeline(steps), grid, cv=ShuffleSplit(1, test_size=0.2, random_state=0), refit=False)
    best = search.fit(x[few], y[few]).best_params_
    return Pipeline(steps).set_params(**best).fit(x, y).predict(data.x_test)


def by_gpytorch(data: Dataset, count: int, epochs: int = 20) -> np.ndarray:
    import gpytorch

    class Inducing(gpytorch.models.ApproximateGP):
        def __init__(self, points: torch.Tensor) -> None:
            posterior = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, posterior))
            self.mean_module = gpytorch.means.ConstantMean()
            matern = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=points.shape[1])
            self.covar_module = gpytorch.kernels.ScaleKernel(matern)

        def forward(self, at: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(at), self.covar_module(at))

    torch.manual_seed(0)
    x, y = torch.from_numpy(data.x_train).float(), torch.from_numpy(data.targets[:, 0]).float()
    model, likelihood = Inducing(x[torch.randperm(len(x))[:count]].clone()), gpytorch.likelihoods.GaussianLikelihood()
    evidence = gpytorch.mlls.VariationalELBO(likelihood, model, len(x))
    adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(1024):
            adam.zero_grad()
            (-evidence(model(x[batch]), y[batch])).backward()
            adam.step()
    model.eval()
    with torch.no_grad():
        test = torch.from_numpy(data.x_test).float()
        return torch.cat([model(part).mean for part in test.split(2000)]).double().numpy()


def by_gpboost(data: Dataset, count: int) -> np.ndarray:
    """By Vecchia's approximation with 20 neighbours, which has no centres."""
    import gpboost

    model = gpboost.GPModel(
        gp_coords=data.x_train, cov_function="matern_ard", cov_fct_shape=2.5, gp_approx="vecchia", num_neighbors=20,
        num_parallel_threads=torch.get_num_threads(),
    )  # fmt: skip
    model.fit(y=data.targets[:, 0])
    return np.asarray(model.predict(gp_coords_pred=data.x_test, predict_var=False)["mu"])


METHODS = {
    "kfx": by_kfx,
    "scikit-learn, Nystroem": by_scikit_learn,
    "GPyTorch, SVGP": by_gpytorch,
    "GPBoost, Vecchia": by_gpboost,
}


def rivals(names: list[str], counts: list[int], methods: list[str]) -> None:
    for name in names:
        data = prepared(name)
        for count in counts:
            for method in methods:
                started = time.perf_counter()
                rmse = in_deviations(data, METHODS[method](data, count))
                row = {"set": name, "n": len(data.x_train), "centres": count, "method": method}
                append("rivals", row | {"rmse": round(rmse, 5), "seconds": round(time.perf_counter() - started, 1)})


def memory(count: int, n: int = 100_000, n_test: int = 20_000) -> None:
    """Compare the sums of a pass with least squares by a QR factorization of the features of all rows."""
    raw = simulate(n, n_test, "friedman", np.random.default_rng(0), 1.0)
    data = with_targets(preprocess(raw, ["normalize"]), "standardized")
    kernel = fitted(data)
    mapped, compare = kernel.feature_map_and_kernel()
    x, y, test = (torch.from_numpy(each) for each in (data.x_train, data.targets, data.x_test))
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskStores(Path(folder), 10**10, lambda work, label: in_this_process(work, lambda task: None))
        with passed(kernel, x, y, Approximation(count), disk) as found:
            own = solved(found, LAMBDAS[int(np.argmin(found.nystrom.errors(LAMBDAS)))])
    features = Centres.of(compare, own.points)
    phi = torch.cat([features.features(part).mT for part in mapped(x).split(4000)])
    ridge = own.effective**0.5 * torch.eye(phi.shape[1], dtype=torch.float64)
    w = torch.linalg.lstsq(torch.cat([phi, ridge]), torch.cat([y, y.new_zeros(len(ridge), 1)])).solution
    blocks = mapped(test).split(4000)
    by_pass = torch.cat([products(compare.gram(block, own.points), own.alpha) for block in blocks])
    in_memory = torch.cat([features.features(block).mT @ w for block in blocks])
    for method, prediction in (("one pass", by_pass), ("in memory", in_memory)):
        rmse = in_deviations(data, prediction.numpy())
        append("memory", {"set": "friedman", "n": n, "centres": count, "method": method, "rmse": rmse})


def exact(names: list[str]) -> None:
    """Predict through all training rows: α by conjugate gradients to 1e-5, in float32 above 45 000 rows."""
    for name in names:
        data = prepared(name)
        mapped, compare = fitted(data).feature_map_and_kernel()
        x, test = (mapped(torch.from_numpy(points)) for points in (data.x_train, data.x_test))
        y = torch.from_numpy(data.targets)
        started = time.perf_counter()
        factor, own = on_held_out_rows(compare, x, y)
        x, test, n = x / factor, test / factor, len(x)
        theta = torch.empty(n, n, dtype=torch.float64 if n <= 45_000 else torch.float32)
        for rows in torch.arange(n).split(2000):
            theta[rows] = compare.gram(x[rows], x).to(theta.dtype)
        found = solve(
            lambda v, theta=theta: (theta @ v.to(theta.dtype)).double(),
            lambda i, j, x=x, compare=compare: compare.gram(x[i], x[j]),
            None, compare.diagonal(x), y, own, 1e-5, 2 * 10**9,
        )  # fmt: skip
        prediction = torch.cat([products(compare.gram(b, x), found.alpha) for b in test.split(500)])
        row = {"set": name, "n": n, "lengths_times": factor, "noise": own, "steps": found.iterations}
        rmse = in_deviations(data, prediction.numpy())
        append("exact", row | {"rmse": round(rmse, 5), "seconds": round(time.perf_counter() - started, 1)})


def on_held_out_rows(
    kernel: Kernel, x: torch.Tensor, y: torch.Tensor, n: int = 8000, held_out: int = 4000
) -> tuple[float, float]:
    """The factor of all lengths, which were fitted to 300 rows, and the λ with which n rows predict others best.

    λ is a power of ten: the variance of noise, whatever n is.
    """
    rows, others = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: n + held_out].split(n)
    found = {}
    for factor in FACTORS:
        theta = kernel.gram(x[rows] / factor)
        between = kernel.gram(x[others] / factor, x[rows] / factor)
        for own in 10.0 ** np.arange(-6, 1):
            root = cholesky(theta, own)
            prediction = between @ solve_upper(root, solve_lower(root, y[rows]))
            found[factor, float(own)] = float((prediction - y[others]).square().mean())
    return min(found, key=lambda each: found[each])


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
        measured = {metric: rows[metric] for metric in MEASURED if metric in rows.index}
        append("runs", row | dict.fromkeys(MEASURED, "") | measured)


def append(table: str, row: dict[str, object]) -> None:
    """Add a row to a table in runs/scale/, in place of an earlier one with the same name or setting."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{table}.csv"
    new = pd.DataFrame([row])
    keys = [key for key in ("name", "set", "regularization", "centres", "choose", "method", "seed") if key in row]
    old = pd.read_csv(path) if path.exists() else new.iloc[:0]
    both = pd.concat([old, new], ignore_index=True) if len(old) else new
    both.drop_duplicates(keys, keep="last").to_csv(path, index=False)
    print(*(f"{key} {value}" for key, value in row.items()), sep="  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("centres", "rivals", "memory", "exact", "steps", "run", "tables", "draw"))
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--sets", default=",".join(SETS), help="tables, separated by commas (default: ten)")
    parser.add_argument("--centres", default="500", help="numbers of centres, separated by commas (default: 500)")
    parser.add_argument("--repeats", type=int, default=3, help="seeds of each choice (default: 3)")
    parser.add_argument("--methods", default=";".join(METHODS), help="of rivals, separated by semicolons")
    parser.add_argument("--choose", default=",".join(CHOICES), help="ways to choose them (default: all four)")
    parsed = parser.parse_args()
    names, counts = parsed.sets.split(","), [int(count) for count in parsed.centres.split(",")]
    if parsed.part == "centres":
        centres(names, counts, parsed.repeats, parsed.choose.split(","))
    elif parsed.part == "rivals":
        rivals(names, counts, parsed.methods.split(";"))
    elif parsed.part == "memory":
        memory(counts[0])
    elif parsed.part == "exact":
        exact(names)
    elif parsed.part == "tables":
        print(choices(), libraries(), everything(), sep="\n\n")
    elif parsed.part == "draw":
        draw()
    elif parsed.part == "steps":
        steps(names)
    else:
        run(parsed.name, parsed.words)


if __name__ == "__main__":
    main()
