"""The methods that compare_tables.py compares: kfx with several settings, and other programs.

A method takes a Dataset and gives the seconds of its fit, and what it predicts at the test points. Other programs than
scikit-learn are asked for when they are used: pip install gpytorch xrfm catboost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from table_sets import COMPARISONS, MOST, prepared

from kfx import KernelFlowClassifier, KernelFlowRegressor
from kfx.data.dataset import Dataset
from kfx.kernels import NTK
from kfx.numerics.regularization import Regularization

Predicted = tuple[np.ndarray, np.ndarray | None]
"""Mean and standard deviation at the test points, or classes and their probabilities; None where there are none."""
ONE_THREAD = {"name": "cpu", "threads": 1}
MATERN, MEDIAN = {"name": "matern", "nu": 2.5}, {"initial": "median_distance"}
"""The kernel of the rows that compare objectives."""
NONE = {"name": "none", "iterations": 1}
UNTRAINED = {"optimizer": NONE, "device": ONE_THREAD}
TRAINED = {"optimizer": {"name": "adam", "fall_back": False}}
"""The trained kernel even where the initial one predicts better, to compare objectives."""
HELD_OUT_ERROR = {"name": "rho_prediction", "form": "held_out"}


def kfx(**settings: object) -> Callable[[Dataset], tuple[float, Predicted]]:
    """Fit a KernelFlowRegressor with these settings."""

    def run(data: Dataset) -> tuple[float, Predicted]:
        began = time.process_time()
        fitted = KernelFlowRegressor(**settings, device=ONE_THREAD).fit(data.x_train, data.y_train[:, 0])
        return time.process_time() - began, fitted.predict(data.x_test, return_std=True)

    return run


def scikit_learn(make: Callable[[], object], most: int = MOST, std: bool = False) -> Callable:
    """Fit a regressor of scikit-learn to at most `most` of the training points."""

    def run(data: Dataset) -> tuple[float, Predicted]:
        x, y = data.x_train[:most], data.y_train[:most, 0]
        began = time.process_time()
        fitted = make().fit(x, y)  # type: ignore[attr-defined]
        seconds = time.process_time() - began
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


def tuned(make: Callable[[], object], grid: dict | list[dict]) -> Callable[[], object]:
    """The setting of a grid that predicts best in five folds of the training points."""

    def search() -> object:
        from sklearn.model_selection import GridSearchCV

        return GridSearchCV(make(), grid, cv=5)

    return search


WIDTHS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
SUPPORT_VECTORS = {"C": [0.1, 1, 10, 100], "gamma": WIDTHS}
RIDGE = {"kernel": ["rbf", "laplacian"], "alpha": [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10], "gamma": WIDTHS}


def svr() -> object:
    from sklearn.svm import SVR

    return SVR()


def kernel_ridge() -> object:
    from sklearn.kernel_ridge import KernelRidge

    return KernelRidge()


def catboost(data: Dataset) -> tuple[float, Predicted]:
    """CatBoost with the best of six settings in three folds, each with early stopping; all training points then give
    as many trees as the folds did on the mean."""
    from catboost import CatBoostClassifier, CatBoostRegressor
    from sklearn.model_selection import KFold, StratifiedKFold

    of_classes = data.labels_train is not None
    x, y = data.x_train, data.labels_train if of_classes else data.y_train[:, 0]
    settings = {"thread_count": 1, "verbose": False, "allow_writing_files": False, "random_seed": 0}
    if of_classes and (classes := data.y_train.shape[1]) > 2:
        settings |= {"loss_function": "MultiClass", "classes_count": classes}
    make = CatBoostClassifier if of_classes else CatBoostRegressor
    folds = list((StratifiedKFold if of_classes else KFold)(3).split(x, y))

    def tried(setting: dict[str, float]) -> tuple[float, int, dict[str, float]]:
        losses, trees = [], []
        for some, others in folds:
            model = make(iterations=1000, early_stopping_rounds=50, **setting, **settings)
            model.fit(x[some], y[some], eval_set=(x[others], y[others]))
            losses.append(next(iter(model.get_best_score()["validation"].values())))
            trees.append(model.tree_count_)
        return float(np.mean(losses)), round(np.mean(trees)), setting

    began = time.process_time()
    grid = [{"depth": deep, "l2_leaf_reg": l2, "learning_rate": 0.1} for deep in (3, 5, 7) for l2 in (1, 5)]
    _, trees, setting = min(map(tried, grid), key=lambda each: each[0])
    fitted = make(iterations=max(trees, 1), **setting, **settings).fit(x, y)
    seconds = time.process_time() - began
    if of_classes:
        return seconds, classified(fitted, data)
    return seconds, (fitted.predict(data.x_test), None)


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

    began = time.process_time()
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
        seconds = time.process_time() - began
        model.eval(), likelihood.eval()
        with torch.no_grad():
            found = likelihood(model(at))
    return seconds, (found.mean.numpy(), found.stddev.numpy())


def xrfm(data: Dataset) -> tuple[float, Predicted]:
    """A recursive feature machine (xRFM, 2025) with its defaults; a fifth of the training points validates."""
    from xrfm import xRFM

    x, y, at = (torch.as_tensor(each, dtype=torch.float32) for each in (data.x_train, data.y_train, data.x_test))
    held = max(len(x) // 5, 1)
    began = time.process_time()
    model = xRFM(device=torch.device("cpu"), tuning_metric="mse", verbose=False)
    model.fit(x[held:], y[held:], x[:held], y[:held])
    return time.process_time() - began, (np.asarray(model.predict(at)).reshape(-1), None)


REGRESSION: dict[str, Callable[[Dataset], tuple[float, Predicted]]] = {
    "kfx": kfx(),
    "untuned": kfx(optimizer=NONE, kernel=MATERN | MEDIAN | {"ard": True}),
    "untuned one length": kfx(optimizer=NONE, kernel=MATERN | MEDIAN),
    "held-out likelihood": kfx(kernel=MATERN, **TRAINED),
    "one length": kfx(kernel=MATERN | {"ard": False}, **TRAINED),
    "rho": kfx(kernel=MATERN, objective="rho", **TRAINED),
    "rho one length": kfx(objective="rho", kernel=MATERN | {"ard": False}, **TRAINED),
    "held-out error": kfx(kernel=MATERN, objective=HELD_OUT_ERROR, **TRAINED),
    "e2": kfx(kernel=MATERN, objective="interpolation_error", **TRAINED),
    "loo": kfx(kernel=MATERN, objective="loo", **TRAINED),
    "gcv": kfx(kernel=MATERN, objective="gcv", **TRAINED),
    "nll": kfx(kernel=MATERN, objective="nll", **TRAINED),
    "rbf": kfx(kernel="rbf", **TRAINED),
    "scikit-learn GPR (500 rows)": scikit_learn(gaussian_process, most=500, std=True),
    "GPyTorch (1000 rows)": gpytorch,
    "random forest": scikit_learn(forest),
    "gradient boosting": scikit_learn(boosting),
    "xRFM": xrfm,
}


OTHERS = list(REGRESSION)[-5:]
"""The methods of other programs."""
EQUAL_REGRESSION = {
    "kfx": REGRESSION["kfx"],
    "untuned": REGRESSION["untuned"],
    "scikit-learn GPR": REGRESSION["scikit-learn GPR (500 rows)"],
    "GPyTorch": REGRESSION["GPyTorch (1000 rows)"],
    "tuned kernel ridge": scikit_learn(tuned(kernel_ridge, RIDGE)),
    "tuned SVR": scikit_learn(tuned(svr, SUPPORT_VECTORS)),
    "tuned CatBoost": catboost,
    "gradient boosting": REGRESSION["gradient boosting"],
    "random forest": REGRESSION["random forest"],
    "xRFM": xrfm,
}
"""Methods that all take as many rows as there are, of at most `table_sets.EQUAL`."""


def kfx_classes(**settings: object) -> Callable:
    def run(data: Dataset) -> tuple[float, Predicted]:
        began = time.process_time()
        fitted = KernelFlowClassifier(**settings, device=ONE_THREAD).fit(data.x_train, data.labels_train)
        return time.process_time() - began, classified(fitted, data)

    return run


NTKS = [NTK(int(depth), "relu", 1.0, 0.0, fixed_layers=int(f)) for depth, f in zip(*np.tril_indices(5), strict=True)]
"""The kernels of Arora et al. 2020: 0 to 4 activations, and how many of the first layers are fixed."""


def ntk(data: Dataset) -> tuple[float, Predicted]:
    """The NTK without training; leaving out points of the training fold, at most 1000, chooses the kernel and λ."""
    began = time.process_time()
    some = np.random.default_rng(0).permutation(len(data.x_train))[:1000]

    def error(kernel: NTK) -> float:
        fitted = KernelFlowClassifier(kernel, **UNTRAINED).fit(data.x_train[some], data.labels_train[some])
        targets, left_out, _ = fitted._predictor.interpolant.left_out()
        return float(np.mean((targets - left_out) ** 2))

    fitted = KernelFlowClassifier(min(NTKS, key=error), **UNTRAINED).fit(data.x_train, data.labels_train)
    return time.process_time() - began, classified(fitted, data)


def ntk_as_published(data: Dataset) -> tuple[float, Predicted]:
    """The NTK with the kernel and the λ that classify best one half of the table from the other.

    This is the protocol of Arora et al. 2020, with kernel ridge regression in place of their support vector machine.
    The halves hold rows that the folds test, so that these rows choose settings.
    """
    began = time.process_time()
    kernel, value = tuned_on_halves(data.name.split()[1])
    chosen = {"value": value, "selection": "fixed"}
    fitted = KernelFlowClassifier(kernel, regularization=chosen, **UNTRAINED).fit(data.x_train, data.labels_train)
    return time.process_time() - began, classified(fitted, data)


@lru_cache(maxsize=2)
def tuned_on_halves(name: str) -> tuple[NTK, float]:
    """The kernel of `NTKS` and the λ with the largest accuracy on the second half of a table."""
    data, best = prepared(COMPARISONS["classification"], name, "tuning"), (-1.0, NTKS[0], 1.0)
    for kernel in NTKS:
        values, vectors = np.linalg.eigh(gram := kernel.gram(data.x_train))
        rotated, cross = vectors.T @ data.y_train, kernel.gram(data.x_test, data.x_train) @ vectors
        for value in 10.0 ** np.arange(-6, 3):
            shift = Regularization(float(value), "centered").of(torch.as_tensor(gram))
            scores = cross @ (rotated / (values.clip(0) + shift)[:, None])
            accuracy = float(np.mean(scores.argmax(axis=1) == data.labels_test))
            best = max(best, (accuracy, kernel, float(value)), key=lambda each: each[0])
    return best[1:]


def classified(fitted: object, data: Dataset, probabilities: bool = True) -> Predicted:
    """The classes and their probabilities at the test points."""
    classes = np.ravel(fitted.predict(data.x_test))  # type: ignore[attr-defined]
    if not probabilities:
        return classes, None
    chances = np.zeros((len(data.x_test), data.y_train.shape[1]))
    chances[:, fitted.classes_] = fitted.predict_proba(data.x_test)  # type: ignore[attr-defined]
    return classes, chances


def scikit_learn_classes(make: Callable[[], object], probabilities: bool = True, most: int = MOST) -> Callable:
    def run(data: Dataset) -> tuple[float, Predicted]:
        began = time.process_time()
        fitted = make().fit(data.x_train[:most], data.labels_train[:most])  # type: ignore[attr-defined]
        return time.process_time() - began, classified(fitted, data, probabilities)

    return run


def svc() -> object:
    from sklearn.svm import SVC

    return SVC()


def forest_of_classes() -> object:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(500, random_state=0)


def boosting_of_classes() -> object:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=0)


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
EQUAL_CLASSIFICATION = {
    "kfx": CLASSIFICATION["kfx"],
    "untuned one length": CLASSIFICATION["untuned one length"],
    "scikit-learn GPC": CLASSIFICATION["scikit-learn GPC"],
    "tuned SVC": scikit_learn_classes(tuned(svc, SUPPORT_VECTORS), probabilities=False),
    "tuned CatBoost": catboost,
    "gradient boosting": scikit_learn_classes(boosting_of_classes),
    "random forest": CLASSIFICATION["random forest"],
}
LARGEST = {"scikit-learn GPC": 500}
"""Methods that are too slow for more training points than these."""
CRITERIA = {
    "kfx": kfx(),
    "likelihood": kfx(objective="nll"),
    "crps": kfx(objective="crps"),
    "rho": kfx(objective="rho"),
    "untuned": REGRESSION["untuned"],
}
"""What docs/criteria.md advises, beside kfx's own choice, ρ and no training."""
METHODS = {
    "regression": REGRESSION,
    "equal_regression": EQUAL_REGRESSION,
    "fresh_regression": EQUAL_REGRESSION,
    "fresh_criteria": CRITERIA,
    "classification": CLASSIFICATION,
    "fresh_classification": EQUAL_CLASSIFICATION,
}
"""The methods of each of `table_sets.COMPARISONS`."""
