"""Does ρ win? Features of a convolutional network learned from 500 labelled images by ρ, and by its rivals.

python scripts/where_rho_wins.py [--seeds 10] [--dataset mnist]        python scripts/where_rho_wins.py --summary

A seed draws 500 labelled images, 2000 test images, first weights and batches, and all methods have the same. Objectives
train the same network through a Gaussian kernel on its features, with the same steps, batches and rate; then kernel
ridge regression predicts from all labelled images, or from one of each class. Beside them stand the network with a
linear head trained by cross-entropy; a Gaussian process on pixels, whose length and noise maximize the likelihood or
minimize the leave-one-out error; and nearest neighbours and support vectors with settings from five-fold
cross-validation. Each way to train the network has the settings, dropout and λ, with the least error on the seeds
`TUNING`, which are not counted. Rows go to runs/criteria/where_rho_wins.csv, where a later call goes on. MNIST is read
from KFX_DATA_DIR, or fetched.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from table_page import holm, signed_rank

import kfx
from kfx.data.dataset import Dataset
from kfx.experiment.compose import load
from kfx.numerics.streams import Streams
from kfx.plots.style import COLOURS, FAINT, INITIAL, figure, save

ROOT = Path(__file__).parent.parent
TABLE, PICTURE = ROOT / "runs/criteria/where_rho_wins.csv", ROOT / "docs/_static/where_rho_wins.png"
COLUMNS = ["dataset", "labels", "seed", "method", "setting", "n_interpolation", "error"]
TUNING = (100, 101)
"""Seeds that choose settings."""
TEST = 2000
RHO = "ρ"
COMMON = ["dataset.preprocess=[unit_norm]", "figures=false", "device.precision_check=off", "device.threads=1"]
NETWORK = ["kernel=network_features", "kernel.architecture=mnist_300", "device.dtype=float32", "optimizer=adam_network"]
NETWORK += ["sampler.batch_size=100", "optimizer.iterations=800", "evaluation.balanced=true"]
PROCESS = ["kernel=rbf", "kernel.initial=median_distance", "optimizer=adam", "optimizer.iterations=100"]
PROCESS += ["sampler.batch_size=null", "regularization.selection=trained"]


LIKELIHOOD = ["objective=nll", "objective.scale=profiled"]
METHODS: dict[str, list[str]] = {
    RHO: [*NETWORK, "objective=rho"],
    "leave-one-out error": [*NETWORK, "objective=loo"],
    "likelihood": [*NETWORK, *LIKELIHOOD],
    "e₂": [*NETWORK, "objective=interpolation_error"],
    "cross-entropy, linear head": [*NETWORK, "objective=cross_entropy"],
    "Gaussian process, likelihood": [*PROCESS, *LIKELIHOOD],
    "Gaussian process, leave-one-out": [*PROCESS, "objective=loo"],
    "support vectors": [],
    "nearest neighbours": [],
}
"""What `kfx run` is told; nothing for scikit-learn's methods."""


def settings(method: str) -> list[str]:
    """The settings among which a method's is chosen, each as further words; one without words for other methods."""
    if NETWORK[0] not in METHODS[method]:
        return [""]
    if "objective=cross_entropy" in METHODS[method]:
        return [f"objective.dropout={dropout}" for dropout in (0, 0.25)]
    return [f"kernel.dropout={dropout} regularization.value={value}" for dropout in (0, 0.25) for value in (1e-4, 0.1)]


def by_kfx(words: list[str], labels: int) -> dict[int, float]:
    """Test error by number of interpolation points; of a linear head, by all labels."""
    few = [10, labels] if NETWORK[0] in words else [labels]
    words = [*words, *COMMON, f"evaluation.n_interpolation={few}".replace(" ", "")]
    with tempfile.TemporaryDirectory() as folder:
        found = kfx.run([*words, f"hydra.run.dir={folder}/run"], progress=False).evaluation
    found = found[found["kernel"] == "trained"]
    if "head_accuracy" in set(found["metric"]):
        return {labels: 1 - float(found.loc[found["metric"] == "head_accuracy", "value"].iloc[-1])}
    accuracy = found[found["metric"] == "accuracy"].groupby("n_interpolation")["value"].mean()
    return {int(count): 1 - float(value) for count, value in accuracy.items()}


def images(words: list[str]) -> Dataset:
    """The images that a run of kfx with these words draws."""
    config = load([*words, *COMMON])
    return config.dataset.preprocessed(config.dataset.load(Streams(config.seed)["data"]))


def by_scikit_learn(method: str, words: list[str], labels: int) -> dict[int, float]:
    """Test error with the best setting of five-fold cross-validation, on the same images."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    data = images(words)
    x, z = (each.reshape(len(each), -1) for each in (data.x_train, data.x_test))
    y, truth = data.labels_train, data.labels_test
    if method == "nearest neighbours":
        model, grid = KNeighborsClassifier(), {"n_neighbors": [1, 2, 3, 4, 5, 7, 9]}
    else:
        model, grid = SVC(), {"C": [1, 10, 100, 1000], "gamma": [0.1, 0.3, 1.0, 3.0, 10.0]}
    return {labels: 1 - float(GridSearchCV(model, grid, cv=5).fit(x, y).score(z, truth))}


def compute(path: Path, dataset: str, labels: int, test: int, seeds: Sequence[int], methods: Sequence[str]) -> None:
    """Append the rows that are missing: of all settings for the seeds that choose, then of the chosen ones. labels,
    test: numbers of labelled and of test images."""
    for method in methods:
        for seed, setting in itertools.product(TUNING, settings(method) if len(settings(method)) > 1 else ()):
            _measure(path, dataset, labels, test, seed, method, setting)
        for seed in seeds:
            _measure(path, dataset, labels, test, seed, method, chosen(read(path, dataset, labels), method))


def _measure(path: Path, dataset: str, labels: int, test: int, seed: int, method: str, setting: str) -> None:
    rows = read(path, dataset, labels)
    if not rows.query("seed == @seed and method == @method and setting == @setting").empty:
        return
    own = [*METHODS[method], *setting.split()]
    words = [*own, f"dataset={dataset}", f"dataset.n_train={labels}", f"dataset.n_test={test}", f"seed={seed}"]
    found = by_kfx(words, labels) if own else by_scikit_learn(method, words, labels)
    new = [(dataset, labels, seed, method, setting, *each) for each in found.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(new, columns=COLUMNS).to_csv(path, mode="a", header=not path.exists(), index=False)
    print(f"seed {seed}  {method} {setting}  " + "  ".join(f"{error:.2%}" for error in found.values()), flush=True)


def read(path: Path, dataset: str, labels: int) -> pd.DataFrame:
    """The rows of a comparison; none where there is no file yet."""
    rows = pd.read_csv(path, keep_default_na=False) if path.exists() else pd.DataFrame(columns=COLUMNS)
    return rows.query("dataset == @dataset and labels == @labels")


def chosen(rows: pd.DataFrame, method: str) -> str:
    """The setting of a method with the least mean error from all labels over the seeds that choose."""
    own = rows[(rows["method"] == method) & rows["seed"].isin(TUNING) & (rows["n_interpolation"] == rows["labels"])]
    return settings(method)[0] if own.empty else str(own.groupby("setting")["error"].mean().idxmin())


def recorded(dataset: str, labels: int) -> pd.DataFrame:
    """The recorded rows without those of the seeds that chose settings."""
    rows = read(TABLE, dataset, labels)
    return rows[~rows["seed"].isin(TUNING)]


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """For each method and N_I: mean error and deviation in %, the number of seeds, the mean difference from ρ with the
    same N_I and seeds, the seeds in which ρ is better and worse, and p of Wilcoxon's two-sided signed-rank test of the
    differences after Holm's correction."""
    errors = (100 * rows.set_index(["seed", "method", "n_interpolation"])["error"]).unstack([1, 2])
    difference = errors.apply(lambda column: column - errors[RHO, column.name[1]])
    found = pd.DataFrame({"error": errors.mean(), "deviation": errors.std(ddof=1), "seeds": errors.count()})
    found["difference"] = difference.mean()
    found["rho better"], found["rho worse"] = (difference > 0).sum(), (difference < 0).sum()
    rivals = difference.drop(columns=RHO, level=0)
    found["p"] = holm(rivals.apply(lambda column: signed_rank(column.dropna())))
    return found.sort_values("error")


def picture(rows: pd.DataFrame) -> Figure:
    """The errors from all labelled images, a row for each method and a point for each seed; the mean as a line."""
    everything = rows[rows["n_interpolation"] == rows["n_interpolation"].max()]
    order = everything.groupby("method")["error"].mean().sort_values(ascending=False).index
    drawn, (axes,) = figure(width=8.0, height=3.8)
    for place, method in enumerate(order):
        errors = 100 * everything.loc[everything["method"] == method, "error"]
        colour = COLOURS[0] if method == RHO else COLOURS[1] if METHODS[method][:1] == NETWORK[:1] else INITIAL
        axes.scatter(errors, np.full(len(errors), place), s=18, color=colour, alpha=0.6, linewidths=0)
        axes.plot([errors.mean()] * 2, [place - 0.32, place + 0.32], color=colour, linewidth=2.5)
    axes.axvline(100 * everything.loc[everything["method"] == RHO, "error"].mean(), color=FAINT, zorder=0)
    axes.set_yticks(range(len(order)), order)
    axes.grid(axis="y", visible=False)
    labels, seeds = rows["labels"].iloc[0], rows["seed"].nunique()
    axes.set(xlabel=f"test error in %, {labels} labelled images, {seeds} seeds", ylabel="")
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist", choices=["mnist", "fashion_mnist"])
    parser.add_argument("--labels", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--summary", action="store_true", help="print the table and draw the picture of what is there")
    parsed = parser.parse_args()
    if not parsed.summary:
        compute(TABLE, parsed.dataset, parsed.labels, TEST, range(parsed.seeds), parsed.methods)
    rows = recorded(parsed.dataset, parsed.labels)
    print(table(rows).to_string(float_format="{:.3g}".format))
    save(picture(rows), PICTURE)


if __name__ == "__main__":
    main()
