"""Points and targets from a person's file: classes or values, training and test points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kfx.data.dataset import Dataset, one_hot
from kfx.data.files import warn_once
from kfx.data.splits import split, take
from kfx.data.table_columns import require_numbers
from kfx.numerics.round_off import is_constant
from kfx.outcomes import DataError

if TYPE_CHECKING:
    import pandas as pd

    from kfx.data.new_rows import Encoding

_MOST_SHOWN = 3
_MOST_CLASSES = 1000
_MOST_CLASSES_OF_NUMBERS = 20
"""A target with more distinct numbers is taken for values, unless the config says otherwise."""


@dataclass(frozen=True)
class Targets:
    """y: (n, outputs), float64, one-hot for classes. labels: (n,) class numbers, or None. classes: their names, in
    order."""

    y: np.ndarray
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Points:
    """The points of a file. x: (n, features) or (n, channels, height, width), float64; NaN for a missing value.

    is_test: (n,), True for test points; None if the file does not say. encoding: of the rows of a table, as all of them
    say, and cells: their features as read, (n, columns); else None.
    weights: (n,), > 0, or None.
    """

    x: np.ndarray
    targets: Targets
    is_test: np.ndarray | None = None
    encoding: Encoding | None = None
    cells: pd.DataFrame | None = None
    weights: np.ndarray | None = None

    def but(self, counts: np.ndarray, weights: np.ndarray | None) -> Points:
        """Those that count, with their weights. counts, weights: (n,), or None for no weights."""
        y, labels, classes = self.targets.y[counts], self.targets.labels, self.targets.classes
        targets = Targets(y, None if labels is None else labels[counts], classes)
        is_test = None if self.is_test is None else self.is_test[counts]
        cells = None if self.cells is None else self.cells[counts]
        own = None if weights is None else weights[counts]
        return Points(self.x[counts], targets, is_test, self.encoding, cells, own)

    def feature_count(self, train: np.ndarray | None) -> int:
        """The number of features that training points have. train: a mask, (n,); None for all points."""
        if self.encoding is None or self.cells is None or train is None:
            return int(self.x[0].size)
        return len(self.encoding.fitted(self.cells[train]).names)


def looks_channels_last(shape: Sequence[int]) -> bool:
    """Whether points of this shape, of three dimensions, are rather (height, width, channels) than (channels, height,
    width): few channels at the end, or squares at the beginning."""
    first, second, last = shape
    few, square = last <= 4 and last < min(first, second), first == second > 4 and last != first
    return few or square


def looks_like_classes(values: np.ndarray) -> bool:
    """Whether targets, (n,) or (n, outputs), are classes: words, true and false, or a few whole numbers that repeat."""
    if values.dtype.kind not in "iuf":
        return True
    different = np.unique(values)
    few = len(different) <= min(_MOST_CLASSES_OF_NUMBERS, max(len(values) // 2, 2))
    return bool(few and np.isfinite(different).all() and (different == np.floor(different)).all())


def as_targets(
    values: np.ndarray, task: str, where: str, levels: Callable[[], tuple[np.ndarray, Sequence[object]]] | None = None
) -> Targets:
    """Targets from a column of numbers or words, (n,), or from several columns of numbers, (n, outputs).

    task: `classification`, `regression`, or `auto`, which looks at the values. where: begins the message of an error.
    levels: returns the class of each row and the names of the classes, if the target holds classes; None: the sorted
        values.
    DataError for values that do not fit the task.
    """
    wide = values.ndim == 2 and values.shape[1] > 1
    column = values if wide else values.reshape(len(values))
    if task == "regression" or (task == "auto" and (wide or not looks_like_classes(column))):
        return _values(column.reshape(len(column), -1), where)
    if wide:
        return _from_one_hot(column, where)
    names: Sequence[object]
    if levels is None:
        names, labels = np.unique(column, return_inverse=True)  # type: ignore[assignment]
    else:
        labels, names = levels()
    if task == "auto" and len(column) >= 8 and len(names) > len(column) / 2:
        hint = "set dataset.decimal, for numbers with commas, or dataset.task=classification"
        raise DataError(f"{where}: {len(names)} different words in {len(column)} rows are no classes; {hint}")
    if task == "auto" and column.dtype.kind in "iuf" and len(names) > 2:
        said = f": {len(names)} different whole numbers are taken as classes; set dataset.task=regression, or "
        warn_once(where, said + "classification to agree")
    return _classes(labels, tuple(map(_name, names)), where)


def _values(y: np.ndarray, where: str) -> Targets:
    if y.dtype.kind not in "biuf":
        raise DataError(f"{where}: holds {_name(y.flat[0])!r}, and regression takes numbers; set dataset.task")
    y = y.astype(np.float64)
    require_numbers(y, where)
    if len(y) and is_constant(y).all():
        raise DataError(f"{where}: is {y[0, 0]:g} in every row, which leaves nothing to learn")
    return Targets(y)


def _classes(labels: np.ndarray, names: tuple[str, ...], where: str) -> Targets:
    if len(names) < 2:
        raise DataError(f"{where}: holds one class, {', '.join(names)}; a classification takes two or more")
    if len(names) > _MOST_CLASSES:
        raise DataError(
            f"{where}: {len(names)} different values are no classes ({_MOST_CLASSES} at most); set "
            "dataset.task=regression, or another target"
        )
    return Targets(one_hot(labels, len(names)), labels, names)


def _from_one_hot(y: np.ndarray, where: str) -> Targets:
    if y.dtype.kind not in "biuf" or not (np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all()):
        raise DataError(f"{where}: of several columns, classification takes rows with a single 1, and 0 elsewhere")
    return _classes(y.argmax(axis=1), tuple(map(str, range(y.shape[1]))), where)


def _name(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def counted(weights: np.ndarray, where: str) -> np.ndarray:
    """Which points have a weight that is not zero, (n,). DataError for weights, (n,), that are no finite numbers >= 0,
    and if all are zero. where: begins the message."""
    require_numbers(weights, where)
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        raise DataError(f"{where}: holds {weights[row]:g} in row {row + 1}; weights are numbers >= 0")
    if not (counts := weights > 0).any():
        raise DataError(f"{where}: every weight is 0, which leaves no point; take other weights")
    return counts


def as_dataset(
    name: str, points: Points, fraction: float, n_train: int | None, n_test: int | None, rng: np.random.Generator
) -> Dataset:
    """Split points into training and test points: as the file says, else `n_test` points or a random `fraction` for
    testing."""
    of_all = np.arange(len(points.x))
    if points.is_test is None:
        wanted = test_size(len(of_all), fraction) if n_test is None else n_test
        _, train, _, test = split(points.x, of_all, n_train, wanted, rng)
    else:
        train, test = np.flatnonzero(~points.is_test), np.flatnonzero(points.is_test)
        train = train[take("n_train", len(train), n_train, rng)]
        test = test[take("n_test", len(test), n_test, rng)]
    y, labels = points.targets.y, points.targets.labels
    if len(train) and (y[train] == y[train][0]).all():
        which = "one class" if labels is not None else "one value"
        raise DataError(f"dataset {name}: the targets of its {len(train)} training points are {which}; take others")
    data = Dataset(name, points.x[train], y[train], points.x[test], y[test])
    if (weights := points.weights) is not None:
        data = replace(data, weights_train=weights[train], weights_test=weights[test])
    if labels is not None:
        data = _with_classes(data, labels[train], labels[test], points.targets.classes)
    if points.encoding is None or points.cells is None:
        return data
    return _encoded(data, points.encoding, points.cells.iloc[train], points.cells.iloc[test])


def _with_classes(data: Dataset, train: np.ndarray, test: np.ndarray, names: Sequence[str]) -> Dataset:
    """The data with the classes that training points have.

    A test point of another class, −1, has the target 0 for each of them, so that every prediction of it is wrong; a
    line says so. train, test: (n,), numbers of all classes.
    """
    known = np.unique(train)
    codes = np.full(len(names), -1)
    codes[known] = np.arange(len(known))
    if (others := codes[test] < 0).any():
        shown = ", ".join(names[i] for i in np.unique(test[others])[:_MOST_SHOWN])
        said = f", and the predictions of {int(others.sum())} test points of other classes count as wrong ({shown})"
        warn_once(f"dataset {data.name}: {len(train)} training points have {len(known)} of {len(names)} classes", said)
    return replace(
        data,
        y_train=np.ascontiguousarray(data.y_train[:, known]),
        y_test=np.ascontiguousarray(data.y_test[:, known]),
        labels_train=codes[train],
        labels_test=codes[test],
        classes=tuple(names[i] for i in known),
    )


def _encoded(data: Dataset, encoding: Encoding, train: pd.DataFrame, test: pd.DataFrame) -> Dataset:
    """The data with the features of its training rows; lines say what is none, and which words test rows alone have."""
    encoding = encoding.fitted(train)
    for remark in encoding.remarks():
        warn_once(f"dataset {data.name}: {remark}", "")
    of_test = encoding.encode(test)
    if unknown := list(dict.fromkeys(of_test.unknown.values())):
        rows = f" (of test points, in {len(of_test.unknown)} of {len(test)})"
        warn_once(f"dataset {data.name}: {'; '.join(unknown[:_MOST_SHOWN])}", rows)
    return replace(data, x_train=encoding.encode(train).x, x_test=of_test.x, features=encoding.names, encoding=encoding)


def test_size(n: int, fraction: float) -> int:
    """The number of test points among n points."""
    return min(max(round(fraction * n), 1), n - 1) if fraction else 0
