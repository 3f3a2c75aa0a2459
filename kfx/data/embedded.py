"""Data sets that come with scikit-learn: no file, no network."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_diabetes, load_digits

from kfx.data.dataset import Dataset, one_hot, split


def digits(n_train: int | None, n_test: int, rng: np.random.Generator) -> Dataset:
    """1797 handwritten digits of 8 × 8 pixels in [0, 1], one channel; disjoint random training and test parts."""
    bunch = load_digits()
    images = bunch.images[:, None] / 16.0
    x_train, labels_train, x_test, labels_test = split(images, bunch.target, n_train, n_test, rng)
    return Dataset(
        "digits", x_train, one_hot(labels_train, 10), x_test, one_hot(labels_test, 10), labels_train, labels_test
    )


def diabetes(n_train: int | None, n_test: int, rng: np.random.Generator) -> Dataset:
    """442 patients, 10 features as scikit-learn scales them (mean 0, sum of squares 1); disease progression."""
    bunch = load_diabetes()
    return Dataset("diabetes", *split(bunch.data, bunch.target[:, None].astype(float), n_train, n_test, rng))
