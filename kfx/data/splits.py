"""Training and test points of a data set: some at random, disjoint parts, and folds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kfx.data.dataset import Dataset
from kfx.numerics.round_off import is_constant
from kfx.outcomes import DataError


def take(name: str, n: int, wanted: int | None, rng: np.random.Generator) -> np.ndarray:
    """Indices of `wanted` of `n` points at random, (wanted,); of all in order if `wanted` is None. DataError if n is
    too small."""
    order = rng.permutation(n)  # always drawn, so that the size of one part does not reshuffle the other
    if wanted is None:
        return np.arange(n)
    if wanted > n:
        raise DataError(f"dataset.{name}={wanted}: the data set has {n} such points; take at most {n}")
    return order[:wanted]


def some_rows(data: Dataset, most: int, rng: np.random.Generator) -> Dataset:
    """The data set with at most so many training points, drawn at random, and without test points."""
    some, nothing = np.sort(rng.permutation(len(data.x_train))[:most]), slice(0)
    labels, weights = data.labels_train, data.weights_train
    return replace(
        data,
        x_train=data.x_train[some],
        y_train=data.y_train[some],
        x_test=data.x_test[nothing],
        y_test=data.y_test[nothing],
        labels_train=None if labels is None else labels[some],
        labels_test=None if labels is None else labels[nothing],
        weights_train=None if weights is None else weights[some],
        weights_test=None if weights is None else weights[nothing],
    )


def split(
    x: np.ndarray, y: np.ndarray, n_train: int | None, n_test: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Split one table into disjoint random parts: x_train, y_train, x_test, y_test. x: (n, …). y: (n, …).

    Without test points, and with n_train None, all points keep the order of their file. DataError if n is too small.
    """
    if n_test + (n_train or 1) > len(x):
        raise DataError(
            f"dataset.n_train={'null' if n_train is None else n_train}, dataset.n_test={n_test}: the data set, or the "
            f"chosen classes of it, has {len(x)} points in all; ask for fewer"
        )
    order = rng.permutation(len(x))
    if n_test == 0 and n_train is None:
        order = np.arange(len(x))
    test, train = order[:n_test], order[n_test:]
    train = train if n_train is None else train[:n_train]
    return x[train], y[train], x[test], y[test]


def folds(data: Dataset, count: int, shuffle: bool, rng: np.random.Generator) -> list[Dataset]:
    """Split the training points into `count` folds, each once as test points: in their order, or shuffled, where every
    fold has its share of each class, to within one point.

    DataError if the targets that a fold leaves for training are all the same.
    """
    numbers, x, y, labels = np.arange(len(data.x_train)), data.x_train, data.y_train, data.labels_train

    def part(held: np.ndarray) -> Dataset:
        rest = np.setdiff1d(numbers, held)
        if is_constant(y[rest]).all():
            which = "one value" if labels is None else "one class"
            how = "take more folds, or points with other targets" if shuffle else "set evaluation.shuffle=true"
            raise DataError(
                f"evaluation.folds={count}: one of them leaves {len(rest)} training points of {which}; {how}"
            )
        points = replace(data, x_train=x[rest], y_train=y[rest], x_test=x[held], y_test=y[held])
        if (weights := data.weights_train) is not None:
            points = replace(points, weights_train=weights[rest], weights_test=weights[held])
        return points if labels is None else replace(points, labels_train=labels[rest], labels_test=labels[held])

    if shuffle and labels is not None:
        order = rng.permutation(len(numbers))
        order = order[np.argsort(labels[order], kind="stable")]  # class by class, dealt out to the folds in turn
        return [part(np.sort(order[k::count])) for k in range(count)]
    from sklearn.model_selection import KFold

    seed = int(rng.integers(2**31)) if shuffle else None
    return [part(held) for _, held in KFold(count, shuffle=shuffle, random_state=seed).split(x)]
