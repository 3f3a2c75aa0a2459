"""Tables of two collections of the UCI repository, with the splits of those who published them."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from kfx.data.dataset import Dataset, one_hot
from kfx.data.files import cache_folder
from kfx.data.splits import take
from kfx.outcomes import DataError

CLASSIFICATION = (
    "UCI classification tables of Fernandez-Delgado et al. 2014: the folder of a set in their archive data.tar.gz"
)
REGRESSION = "UCI regression tables of github.com/treforevans/uci_datasets: the folder of a set"
T = TypeVar("T")
_MOST_BYTES = 1 << 28


def paths(collection: str, name: str, files: tuple[str, ...]) -> list[Path]:
    """The files of a set; DataError says what to put where."""
    folder = cache_folder() / collection / name
    found = [folder / file.format(name) for file in files]
    for path in found:
        if not path.is_file():
            known = sorted(each.name for each in folder.parent.glob("*") if each.is_dir())
            sets = f"; sets that are there: {', '.join(known)}" if known else ""
            of = CLASSIFICATION if collection == "uci" else REGRESSION
            raise DataError(f"{path} is missing: put {folder.name}/{path.name} there, from {of}{sets}")
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path}: {path.stat().st_size} bytes are too many; put the original file there")
    return found


def regression(name: str, split: int, n_train: int | None, n_test: int | None, rng: np.random.Generator) -> Dataset:
    """One of the ten splits of a regression set. n_train, n_test: random subsets of its parts; None for all."""
    table, masks = _regression_files(*paths("uci_regression", name, REGRESSION_FILES))
    is_test = masks[:, split]
    x, y = table[:, :-1], table[:, -1:]
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    train, test = train[take("n_train", len(train), n_train, rng)], test[take("n_test", len(test), n_test, rng)]
    return Dataset(f"uci_regression {name}", x[train], y[train], x[test], y[test])


def classification(
    name: str, split: int | str, n_train: int | None, n_test: int | None, rng: np.random.Generator
) -> Dataset:
    """One of the four folds of a classification set, or its two halves for `tuning`."""
    table, halves, folds = _classification_files(*paths("uci", name, CLASSIFICATION_FILES))
    train, test = halves if split == "tuning" else folds[2 * int(split) : 2 * int(split) + 2]
    train, test = train[take("n_train", len(train), n_train, rng)], test[take("n_test", len(test), n_test, rng)]
    x, labels = table[:, 1:-1], table[:, -1].astype(int)
    y = one_hot(labels, int(labels.max()) + 1)
    return Dataset(f"uci {name}", x[train], y[train], x[test], y[test], labels[train], labels[test])


def regression_sizes(name: str, split: int) -> tuple[int, int, int]:
    """The numbers of training points, test points and features of a split."""
    table, masks = _regression_files(*paths("uci_regression", name, REGRESSION_FILES))
    return int((~masks[:, split]).sum()), int(masks[:, split].sum()), table.shape[1] - 1


def classification_sizes(name: str, split: int | str) -> tuple[int, int, int]:
    """The numbers of training points, test points and features of a fold, or of the halves."""
    table, halves, folds = _classification_files(*paths("uci", name, CLASSIFICATION_FILES))
    train, test = halves if split == "tuning" else folds[2 * int(split) : 2 * int(split) + 2]
    return len(train), len(test), table.shape[1] - 2


REGRESSION_FILES = ("data.csv.gz", "test_mask.csv.gz")
CLASSIFICATION_FILES = ("{}_R.dat", "conxuntos.dat", "conxuntos_kfold.dat")


def _read(path: Path, parse: Callable[[str], T]) -> T:
    """Parse a text file, compressed or not; DataError for one that cannot be."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError("it is too large")
        return parse(content.decode())
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise DataError(f"{path}: cannot be read ({error}); put the original file there") from error


@lru_cache(maxsize=8)
def _regression_files(data: Path, masks: Path) -> tuple[np.ndarray, np.ndarray]:
    table = _read(data, lambda text: np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2))
    chosen = _read(masks, lambda text: np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2).astype(bool))
    if len(chosen) != len(table) or chosen.shape[1] != 10 or not np.isfinite(table).all():
        raise DataError(f"{data}, {masks}: do not belong together; put the original files there")
    return table, chosen


@lru_cache(maxsize=8)
def _classification_files(
    data: Path, halves: Path, folds: Path
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    table = _read(data, lambda text: np.loadtxt(io.StringIO(text), delimiter="\t", skiprows=1, ndmin=2))
    numbers = [_read(path, _rows) for path in (halves, folds)]
    most = max(int(rows.max()) for lines in numbers for rows in lines)
    if [len(lines) for lines in numbers] != [2, 8] or most >= len(table) or not np.isfinite(table).all():
        raise DataError(f"{data}, {halves}, {folds}: do not belong together; put the original files there")
    return table, numbers[0], numbers[1]


def _rows(text: str) -> list[np.ndarray]:
    """The row numbers of each line."""
    return [np.array(line.split(), int) for line in text.splitlines() if line.strip()]
