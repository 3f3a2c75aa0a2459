"""Compare kfx with other methods, and its objectives with each other, on UCI's tables.

python scripts/compare_tables.py regression [--splits 10] [--methods kfx,forest] [--part 0/2]
python scripts/compare_tables.py classification [--methods kfx,svc]
python scripts/compare_tables.py regression --summary       python scripts/compare_tables.py regression --page
python scripts/compare_tables.py known                      tables whose relevant features are known

Each (set, split, method) becomes a row of runs/tables/regression.csv or classification.csv; rows that are there are not
computed again. Features and targets are standardized by the training points. Of more than 5000 training points 5000
are drawn at random, the same for all methods, and of more than 5000 test points likewise. The data are read from
KFX_DATA_DIR (uci_regression/ and uci/).
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kfx import KernelFlowClassifier, KernelFlowRegressor
from kfx.data.dataset import Dataset, preprocess
from kfx.data.files import cache_folder
from kfx.data.uci import classification, regression
from kfx.kernels import NTK
from kfx.numerics.regularization import Regularization

MOST = 5000
FOLDER = Path(__file__).parent.parent / "runs" / "tables"
COLUMNS = {
    "regression": ("set", "split", "method", "n", "d", "rmse", "nlpd", "coverage", "fit_seconds", "predict_seconds"),
    "classification": ("set", "split", "method", "n", "d", "accuracy", "log_loss", "fit_seconds", "predict_seconds"),
}
Predicted = tuple[np.ndarray, np.ndarray | None]
"""Mean and standard deviation at the test points, or classes and their probabilities; None where there are none."""
ONE_THREAD = {"name": "cpu", "threads": 1}
_ENOUGH = 0.9
"""The share of the tables that a method must have to be compared."""
MATERN, MEDIAN = {"name": "matern", "nu": 2.5}, {"initial": "median_distance"}
NONE = {"name": "none", "iterations": 1}
UNTRAINED = {"optimizer": NONE, "device": ONE_THREAD}
TRAINED = {"optimizer": {"name": "adam", "fall_back": False}}
"""The trained kernel even where the initial one predicts better, to compare objectives."""
HELD_OUT_ERROR = {"name": "rho_prediction", "form": "held_out"}


def kfx(**settings: object) -> Callable[[Dataset], tuple[float, Predicted]]:
    """Fit a KernelFlowRegressor with these settings."""

    def run(data: Dataset) -> tuple[float, Predicted]:
        began = time.perf_counter()
        fitted = KernelFlowRegressor(**settings, device=ONE_THREAD).fit(data.x_train, data.y_train[:, 0])
        return time.perf_counter() - began, fitted.predict(data.x_test, return_std=True)

    return run


def scikit_learn(make: Callable[[], object], most: int = MOST, std: bool = False) -> Callable:
    """Fit a regressor of scikit-learn to at most `most` of the training points."""

    def run(data: Dataset) -> tuple[float, Predicted]:
        x, y = data.x_train[:most], data.y_train[:most, 0]
        began = time.perf_counter()
        fitted = make().fit(x, y)  # type: ignore[attr-defined]
        seconds = time.perf_counter() - began
        return seconds, fitted.predict(data.x_test, return_std=True) if std else (fitted.predict(data.x_test), None)

    return run


def gaussian_process() -> object:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    class OfAnyWidth(GaussianProcessRegressor):
        def fit(self, x, y):
            lengths = np.full(x.shape[1], math.sqrt(x.shape[1]))
            self.kernel = ConstantKernel() * RBF(lengths, (1e-3, 1e5)) + WhiteKernel(0.1)
            return super().fit(x, y)

    return OfAnyWidth(random_state=0)


def forest() -> object:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(500, random_state=0)


def boosting() -> object:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(random_state=0)


def gpytorch(data: Dataset, most: int = 1000) -> tuple[float, Predicted]:
    """An exact Gaussian process of GPyTorch: RBF with a length for each feature, 100 steps of Adam at 0.1."""
    import gpytorch as gpy

    x, y, at = (torch.as_tensor(each, dtype=torch.float64) for each in (data.x_train, data.y_train[:, 0], data.x_test))
    x, y = x[:most], y[:most]

    class Model(gpy.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpy.means.ConstantMean()
            inner = gpy.kernels.RBFKernel(ard_num_dims=x.shape[1])
            inner.lengthscale = math.sqrt(x.shape[1])
            self.covar_module = gpy.kernels.ScaleKernel(inner)

        def forward(self, points):
            return gpy.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))

    began = time.perf_counter()
    likelihood = gpy.likelihoods.GaussianLikelihood()
    model = Model(likelihood).double()
    likelihood.double()
    marginal = gpy.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with gpy.settings.fast_computations(False, False, False):
        for _ in range(100):
            optimizer.zero_grad()
            loss = -marginal(model(x), y)
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - began
        model.eval(), likelihood.eval()
        with torch.no_grad():
            found = likelihood(model(at))
    return seconds, (found.mean.numpy(), found.stddev.numpy())


def xrfm(data: Dataset) -> tuple[float, Predicted]:
    """A recursive feature machine (xRFM, 2025) with its defaults; a fifth of the training points validates."""
    from xrfm import xRFM

    x, y, at = (torch.as_tensor(each, dtype=torch.float32) for each in (data.x_train, data.y_train, data.x_test))
    held = max(len(x) // 5, 1)
    began = time.perf_counter()
    model = xRFM(device=torch.device("cpu"), tuning_metric="mse", verbose=False)
    model.fit(x[held:], y[held:], x[:held], y[:held])
    return time.perf_counter() - began, (np.asarray(model.predict(at)).reshape(-1), None)


REGRESSION: dict[str, Callable[[Dataset], tuple[float, Predicted]]] = {
    "kfx": kfx(),
    "untuned": kfx(optimizer=NONE, kernel=MATERN | MEDIAN | {"ard": True}),
    "untuned one length": kfx(optimizer=NONE, kernel=MATERN | MEDIAN),
    "held-out likelihood": kfx(**TRAINED),
    "one length": kfx(kernel=MATERN | {"ard": False}, **TRAINED),
    "rho": kfx(objective="rho", **TRAINED),
    "rho one length": kfx(objective="rho", kernel=MATERN | {"ard": False}, **TRAINED),
    "held-out error": kfx(objective=HELD_OUT_ERROR, **TRAINED),
    "e2": kfx(objective="interpolation_error", **TRAINED),
    "loo": kfx(objective="loo", **TRAINED),
    "gcv": kfx(objective="gcv", **TRAINED),
    "nll": kfx(objective="nll", **TRAINED),
    "rbf": kfx(kernel="rbf", **TRAINED),
    "scikit-learn GPR (500 rows)": scikit_learn(gaussian_process, most=500, std=True),
    "GPyTorch (1000 rows)": gpytorch,
    "random forest": scikit_learn(forest),
    "gradient boosting": scikit_learn(boosting),
    "xRFM": xrfm,
}


OTHERS = list(REGRESSION)[-5:]
"""The methods of other programs."""


def kfx_classes(**settings: object) -> Callable:
    def run(data: Dataset) -> tuple[float, Predicted]:
        began = time.perf_counter()
        fitted = KernelFlowClassifier(**settings, device=ONE_THREAD).fit(data.x_train, data.labels_train)
        return time.perf_counter() - began, classified(fitted, data)

    return run


NTKS = [NTK(int(depth), "relu", 1.0, 0.0, fixed_layers=int(f)) for depth, f in zip(*np.tril_indices(5), strict=True)]
"""The kernels of Arora et al. 2020: 0 to 4 activations, and how many of the first layers are fixed."""


def ntk(data: Dataset) -> tuple[float, Predicted]:
    """The NTK without training; leaving out points of the training fold, at most 1000, chooses the kernel and λ."""
    began = time.perf_counter()
    some = np.random.default_rng(0).permutation(len(data.x_train))[:1000]

    def error(kernel: NTK) -> float:
        fitted = KernelFlowClassifier(kernel, **UNTRAINED).fit(data.x_train[some], data.labels_train[some])
        targets, left_out = fitted._predictor.interpolant.left_out()
        return float(np.mean((targets - left_out) ** 2))

    fitted = KernelFlowClassifier(min(NTKS, key=error), **UNTRAINED).fit(data.x_train, data.labels_train)
    return time.perf_counter() - began, classified(fitted, data)


def ntk_as_published(data: Dataset) -> tuple[float, Predicted]:
    """The NTK with the kernel and the λ that classify best one half of the table from the other.

    This is the protocol of Arora et al. 2020, with kernel ridge regression in place of their support vector machine.
    The halves hold rows that the folds test, so that these rows choose settings.
    """
    began = time.perf_counter()
    kernel, value = tuned_on_halves(data.name.split()[1])
    chosen = {"value": value, "selection": "fixed"}
    fitted = KernelFlowClassifier(kernel, regularization=chosen, **UNTRAINED).fit(data.x_train, data.labels_train)
    return time.perf_counter() - began, classified(fitted, data)


@lru_cache(maxsize=2)
def tuned_on_halves(name: str) -> tuple[NTK, float]:
    """The kernel of `NTKS` and the λ with the largest accuracy on the second half of a table."""
    data, best = prepared("classification", name, "tuning"), (-1.0, NTKS[0], 1.0)
    for kernel in NTKS:
        values, vectors = np.linalg.eigh(gram := kernel.gram(data.x_train))
        rotated, cross = vectors.T @ data.y_train, kernel.gram(data.x_test, data.x_train) @ vectors
        for value in 10.0 ** np.arange(-6, 3):
            shift = Regularization(float(value), "centered").of(torch.as_tensor(gram))
            scores = cross @ (rotated / (values.clip(0) + shift)[:, None])
            accuracy = float(np.mean(scores.argmax(axis=1) == data.labels_test))
            best = max(best, (accuracy, kernel, float(value)), key=lambda each: each[0])
    return best[1:]


def classified(fitted: KernelFlowClassifier, data: Dataset) -> Predicted:
    """The classes and their probabilities at the test points."""
    chances = np.zeros((len(data.x_test), data.y_train.shape[1]))
    chances[:, fitted.classes_] = fitted.predict_proba(data.x_test)
    return fitted.predict(data.x_test), chances


def scikit_learn_classes(make: Callable[[], object], probabilities: bool = True, most: int = MOST) -> Callable:
    def run(data: Dataset) -> tuple[float, Predicted]:
        began = time.perf_counter()
        fitted = make().fit(data.x_train[:most], data.labels_train[:most])  # type: ignore[attr-defined]
        seconds = time.perf_counter() - began
        chances = np.zeros((len(data.x_test), data.y_train.shape[1]))
        if probabilities:
            chances[:, fitted.classes_] = fitted.predict_proba(data.x_test)
        return seconds, (fitted.predict(data.x_test), chances if probabilities else None)

    return run


def svc() -> object:
    from sklearn.svm import SVC

    return SVC()


def forest_of_classes() -> object:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(500, random_state=0)


def gaussian_process_of_classes() -> object:
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    return GaussianProcessClassifier(ConstantKernel() * RBF(), random_state=0)


CLASSIFICATION: dict[str, Callable[[Dataset], tuple[float, Predicted]]] = {
    "kfx": kfx_classes(),
    "held-out error": kfx_classes(**TRAINED),
    "one length": kfx_classes(kernel=MATERN | {"ard": False}, **TRAINED),
    "untuned one length": kfx_classes(optimizer=NONE, kernel=MATERN | MEDIAN),
    "a length each": kfx_classes(kernel=MATERN | {"ard": True, "initial": "median_distance"}, **TRAINED),
    "nll": kfx_classes(objective="nll", **TRAINED),
    "rho": kfx_classes(objective="rho", **TRAINED),
    "ntk": ntk,
    "ntk tuned on halves": ntk_as_published,
    "SVC": scikit_learn_classes(svc, probabilities=False),
    "random forest": scikit_learn_classes(forest_of_classes),
    "scikit-learn GPC": scikit_learn_classes(gaussian_process_of_classes),
}
LARGEST = {"scikit-learn GPC": 500}
"""Methods that are too slow for more training points than these."""


def measured(kind: str, data: Dataset, method: Callable[[Dataset], tuple[float, Predicted]]) -> dict[str, float]:
    """The numbers of a row for one method on standardized data."""
    began = time.perf_counter()
    fit_seconds, (mean, spread) = method(data)
    predict_seconds = time.perf_counter() - began - fit_seconds
    seconds = {"fit_seconds": fit_seconds, "predict_seconds": predict_seconds}
    if kind == "classification":
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


def prepared(kind: str, name: str, split: int | str) -> Dataset:
    """A split with standardized features and targets, and at most `MOST` training and test points."""
    read, seed = regression if kind == "regression" else classification, 0 if split == "tuning" else split
    whole = read(name, split, None, None, np.random.default_rng(seed))
    sizes = [min(len(x), MOST) for x in (whole.x_train, whole.x_test)]
    data = preprocess(read(name, split, *sizes, np.random.default_rng(seed)), ["normalize"])
    if kind == "regression":
        mean, scale = data.y_train.mean(), data.y_train.std() or 1.0
        return Dataset(
            data.name, data.x_train, (data.y_train - mean) / scale, data.x_test, (data.y_test - mean) / scale
        )
    return data


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
    data = prepared("regression", "pumadyn32nm", 0)
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


def compare(kind: str, names: list[str], methods: dict[str, Callable], splits: int, part: int, parts: int) -> None:
    """Compute the rows that are missing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / (f"{kind}.csv" if parts == 1 else f"{kind}-{part}.csv")
    there = {tuple(row) for row in table(kind)[["set", "split", "method"]].itertuples(index=False, name=None)}
    is_new = not path.exists()
    torch.set_num_threads(1)
    with path.open("a", newline="") as stream:
        rows = csv.DictWriter(stream, COLUMNS[kind])
        if is_new:
            rows.writeheader()
            stream.flush()
        for number, (split, name) in enumerate((split, name) for split in range(splits) for name in names):
            missing = [method for method in methods if (name, split, method) not in there]
            if number % parts != part or not missing:
                continue
            data = prepared(kind, name, split)
            for method in missing:
                if len(data.x_train) > LARGEST.get(method, MOST):
                    continue
                try:
                    found = measured(kind, data, methods[method])
                except Exception as error:  # a rival that fails must not end the comparison
                    print(f"{name} {split} {method}: {type(error).__name__}: {error}", flush=True)
                    continue
                n, d = data.x_train.shape
                rows.writerow({"set": name, "split": split, "method": method, "n": n, "d": d} | found)
                stream.flush()


def table(kind: str) -> pd.DataFrame:
    """All rows of the files of a comparison."""
    found = [pd.read_csv(path) for path in sorted(FOLDER.glob(f"{kind}*.csv"))]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=COLUMNS[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=[*COLUMNS, "known"])
    parser.add_argument("--splits", type=int, default=0, help="number of splits (default: all)")
    parser.add_argument("--methods", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--sets", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n processes that share the work")
    parser.add_argument("--summary", action="store_true", help="print tables of what is there")
    parser.add_argument("--page", action="store_true", help="write docs/tables.md and its pictures from what is there")
    parsed = parser.parse_args()
    if parsed.kind == "known":
        on_known_features()
        return
    if parsed.summary:
        found = summary(parsed.kind)
        print(f"{found.attrs['sets']} sets, {found.attrs['splits']:.3g} splits each\n{found.round(3).to_string()}")
        return
    if parsed.page:
        (FOLDER.parent.parent / "docs" / "tables.md").write_text(page())
        for kind in COLUMNS:
            draw(kind)
        return
    warnings.filterwarnings("ignore")
    all_methods = REGRESSION if parsed.kind == "regression" else CLASSIFICATION
    chosen = [name for name in parsed.methods.split(",") if name] or list(all_methods)
    folder = cache_folder() / ("uci_regression" if parsed.kind == "regression" else "uci")
    names = [name for name in parsed.sets.split(",") if name] or sorted(path.name for path in folder.iterdir())
    part, parts = map(int, parsed.part.split("/"))
    splits = parsed.splits or (10 if parsed.kind == "regression" else 4)
    compare(parsed.kind, names, {name: all_methods[name] for name in chosen}, splits, part, parts)


def summary(kind: str) -> pd.DataFrame:
    """For each method means over the sets and splits that all methods have: error or accuracy, rank, the paired
    difference from kfx with its standard error over sets, and the other columns. Methods with few sets are left out."""
    rows, metric = table(kind), COLUMNS[kind][5]
    counts = rows.groupby("method")["set"].nunique()
    rows = rows[rows["method"].isin(counts.index[counts >= _ENOUGH * counts.max()])]
    common = rows.groupby(["set", "split"])["method"].nunique()
    rows = rows.set_index(["set", "split"]).loc[common[common == common.max()].index].reset_index()
    means = rows.groupby(["set", "method"])[metric].mean().unstack()
    of_error = kind == "regression"
    difference = np.log(means.div(means["kfx"], axis=0)) if of_error else means.sub(means["kfx"], axis=0)
    found = pd.DataFrame({metric: means.mean(), "rank": means.rank(axis=1, ascending=of_error).mean()})
    if not of_error:  # of the best accuracy on each table; Fernandez-Delgado et al. 2014
        share = means.div(means.max(axis=1), axis=0)
        found["P90"], found["P95"], found["PMA"] = (share >= 0.9).mean(), (share >= 0.95).mean(), share.mean()
    found["difference"], found["error"] = difference.mean(), difference.std(ddof=1) / math.sqrt(len(means))
    for name in COLUMNS[kind][6:]:
        of_sets = rows.groupby(["method", "set"])[name].mean().groupby("method")
        found["median nlpd" if name == "nlpd" else name] = of_sets.median() if name == "nlpd" else of_sets.mean()
    found.attrs = {"sets": len(means), "splits": len(rows.groupby(["set", "split"])) / len(means)}
    return found.sort_values("rank")


def on_small_tables(method: str = "scikit-learn GPC") -> pd.DataFrame:
    """Log losses of kfx and of a method that is measured on small tables alone, for each of these tables."""
    rows = table("classification").pivot_table(index=["set", "split"], columns="method", values="log_loss")
    return rows[["kfx", method]].dropna().groupby("set").mean() if method in rows else pd.DataFrame()


def beside_untuned() -> str:
    """Say on how many regression tables training makes the predictions of kfx worse, by paired differences over
    splits."""
    rows = table("regression").pivot_table(index=["set", "split"], columns="method", values="rmse")
    pairs = rows[["kfx", "untuned"]].dropna()
    differences = (pairs["kfx"] - pairs["untuned"]).groupby("set")
    counts = differences.size()
    errors = differences.std() / counts**0.5
    worse = [name for name in counts.index[counts > 2] if differences.mean()[name] > errors[name]]
    names = f" ({', '.join(worse)})" if worse else ""
    return (
        f"Over {counts.mean():.3g} splits a table, kfx has a larger RMSE than the untuned kernel, by more than the "
        f"standard error of the difference, on {len(worse)} of {len(counts)} tables{names}."
    )


def critical_difference(methods: int, sets: int) -> float:
    """The difference of mean ranks that is more than chance at 5 % (Nemenyi; Demsar 2006)."""
    from scipy.stats import studentized_range

    q = studentized_range.ppf(0.95, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * sets)))


def page() -> str:
    """The page docs/tables.md, from the recorded rows alone."""
    template = (FOLDER / "page.md").read_text()
    for kind in COLUMNS:
        found = summary(kind)
        lines = ["| method | " + " | ".join(map(str.replace, found.columns, ["_"] * 99, [" "] * 99)) + " |"]
        lines.append("|---|" + "---:|" * len(found.columns))
        for method, row in found.iterrows():
            cells = ("-" if math.isnan(value) else f"{value:.3f}" for value in row)
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        for key, value in found.attrs.items():
            template = template.replace(f"{{{kind} {key}}}", f"{value:.3g}")
        template = template.replace(f"{{{kind}}}", "\n".join(lines))
    rows = table("regression").pivot_table(index=["set", "split"], columns="method", values="rmse")
    others = rows[[name for name in ("kfx", *OTHERS) if name in rows]].dropna().groupby("set").mean()
    ranks = others.rank(axis=1).mean().sort_values()
    shown = ", ".join(f"{name} {rank:.2f}" for name, rank in ranks.items())
    template = template.replace("{others}", f"Among kfx and other programs alone the mean ranks are: {shown}.")
    template = template.replace("{untuned}", beside_untuned())
    covered = table("regression").query("method == 'kfx'").groupby("set")["coverage"].mean()
    template = template.replace(
        "{coverage}",
        f"Intervals of 95 % by kfx hold {100 * covered.mean():.1f} % of the test targets on the mean, and between 90 "
        f"and 99 % on {covered.between(0.9, 0.99).sum()} of {len(covered)} tables.",
    )
    own = table("classification").query("method == 'kfx'").groupby("set")["accuracy"]
    template = template.replace(
        "{folds}",
        f"Over {own.size().mean():.3g} folds of {own.ngroups} tables *kfx* has a mean accuracy of "
        f"{100 * own.mean().mean():.2f} %.",
    )
    small = on_small_tables()
    if len(small):
        own, other = small["kfx"], small["scikit-learn GPC"]
        error = (own - other).std(ddof=1) / math.sqrt(len(small))
        found = (
            f"On the {len(small)} tables with at most {LARGEST['scikit-learn GPC']} training points scikit-learn's "
            f"GaussianProcessClassifier\nhas a mean log loss of {other.mean():.3f} and kfx of {own.mean():.3f} "
            f"(difference {(own - other).mean():.3f} ± {error:.3f})."
        )
        template = template.replace("{small tables}", found)
    return template


def draw(kind: str) -> None:
    """Draw the mean ranks with the critical difference into runs/tables/."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = summary(kind)[::-1]
    picture = Figure(figsize=(6.4, 0.28 * len(found) + 1.3), dpi=130, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    rows = np.arange(len(found))
    far = critical_difference(len(found), found.attrs["sets"])
    own = found.loc["kfx", "rank"]
    axes.axvspan(own - far, own + far, color="#eef0f4", label="not different from kfx at 5 % (Nemenyi)")
    axes.scatter(found["rank"], rows, color=["#d55e00" if name == "kfx" else "#0072b2" for name in found.index])
    axes.set_yticks(rows, found.index)
    ranks = found["rank"]
    axes.set(
        xlabel=f"mean rank over {found.attrs['sets']} tables (1 is best)", xlim=(ranks.min() - 0.5, ranks.max() + 0.5)
    )
    axes.grid(axis="x", color="#d5d9e0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(frameon=False, loc="outside lower center", fontsize=8)
    picture.savefig(FOLDER / f"{kind}.png")


if __name__ == "__main__":
    main()
