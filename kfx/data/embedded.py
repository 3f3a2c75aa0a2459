"""Data sets that come with scikit-learn and need neither a file nor a network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from kfx.data.dataset import Dataset, classification, of_classes
from kfx.data.splits import split


def digits(n_train: int | None, n_test: int, classes: Sequence[int] | None, rng: np.random.Generator) -> Dataset:
    """1797 handwritten digits of 8 × 8 pixels in [0, 1], one channel; disjoint random training and test parts."""
    table = _shipped("digits.csv.gz", delimiter=",")
    if table is None:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        table = np.column_stack([bunch.data, bunch.target])
    pixels, target = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(int)
    wanted = of_classes(target, classes)
    images, labels = pixels[wanted, None] / 16.0, target[wanted]
    x_train, labels_train, x_test, labels_test = split(images, labels, n_train, n_test, rng)
    return classification("digits", [(x_train, labels_train), (x_test, labels_test)], classes)


def diabetes(n_train: int | None, n_test: int, rng: np.random.Generator) -> Dataset:
    """442 patients, 10 features as scikit-learn scales them (mean 0, sum of squares 1); disease progression."""
    x, y = _shipped("diabetes_data_raw.csv.gz"), _shipped("diabetes_target.csv.gz")
    if x is None or y is None:
        from sklearn.datasets import load_diabetes

        x, y = load_diabetes(return_X_y=True)
    else:
        deviation = x.std(axis=0)
        x = (x - x.mean(axis=0)) / deviation / len(x) ** 0.5
    return Dataset("diabetes", *split(x, y.reshape(-1, 1).astype(float), n_train, n_test, rng))


def _shipped(name: str, delimiter: str | None = None) -> np.ndarray | None:
    """A table among scikit-learn's files, read without the second that importing scikit-learn takes; None if it is
    missing."""
    spec = find_spec("sklearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "datasets" / "data" / name
        if path.is_file():
            return np.loadtxt(path, delimiter=delimiter)
    return None
