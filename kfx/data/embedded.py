"""Data sets that come with scikit-learn: no file, no network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_diabetes, load_digits

from kfx.data.dataset import Dataset, classification, of_classes, split


def digits(n_train: int | None, n_test: int, classes: Sequence[int] | None, rng: np.random.Generator) -> Dataset:
    """1797 handwritten digits of 8 × 8 pixels in [0, 1], one channel; disjoint random training and test parts."""
    bunch = load_digits()
    wanted = of_classes(bunch.target, classes)
    images, labels = bunch.images[wanted, None] / 16.0, bunch.target[wanted]
    x_train, labels_train, x_test, labels_test = split(images, labels, n_train, n_test, rng)
    return classification("digits", [(x_train, labels_train), (x_test, labels_test)], classes)


def diabetes(n_train: int | None, n_test: int, rng: np.random.Generator) -> Dataset:
    """442 patients, 10 features as scikit-learn scales them (mean 0, sum of squares 1); disease progression."""
    bunch = load_diabetes()
    return Dataset("diabetes", *split(bunch.data, bunch.target[:, None].astype(float), n_train, n_test, rng))
