"""Regression tables from their original files, read without trusting their content."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np

from kfx.data.dataset import Dataset
from kfx.data.files import locate, warn_of_unpublished
from kfx.data.splits import split
from kfx.outcomes import DataError

_MOST_BYTES = 4 << 20


def boston(n_train: int | None, n_test: int, rng: np.random.Generator) -> Dataset:
    """506 districts of Boston, 13 features; the median price of a home in thousands of dollars.

    Column B is computed from the share of Black residents by a formula that presumes its effect on prices, which is why
    scikit-learn retired the data set. It is here to repeat published numbers, not to predict anything.
    """
    return _regression("boston", "housing.data", (506, 14), None, 0, n_train, n_test, rng)


def wine(colour: str, n_train: int | None, n_test: int, rng: np.random.Generator) -> Dataset:
    """Vinho verde, 1599 `red` or 4898 `white`, 11 measurements; a taster's grade from 3 to 9 (Cortez et al. 2009)."""
    rows = {"red": 1599, "white": 4898}[colour]
    return _regression(f"wine_{colour}", f"winequality-{colour}.csv", (rows, 12), ";", 1, n_train, n_test, rng)


wine_red, wine_white = partial(wine, "red"), partial(wine, "white")


def _regression(
    name: str,
    file: str,
    shape: tuple[int, int],
    delimiter: str | None,
    skip: int,
    n_train: int | None,
    n_test: int,
    rng: np.random.Generator,
) -> Dataset:
    table = _numbers(locate(name, file), shape, delimiter, skip)
    warn_of_unpublished(name, [file])
    return Dataset(name, *split(table[:, :-1], table[:, -1:], n_train, n_test, rng))


def _numbers(path: Path, shape: tuple[int, int], delimiter: str | None, skip: int) -> np.ndarray:
    """A table of finite numbers of this shape; DataError for anything else."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy only warns of an empty file
            table = np.loadtxt(path, delimiter=delimiter, skiprows=skip, ndmin=2)
    except (ValueError, UserWarning) as error:
        raise DataError(f"{path}: expected {shape[0]} rows of {shape[1]} numbers ({error})") from error
    if table.shape != shape or not np.all(np.isfinite(table)):
        raise DataError(
            f"{path}: expected {shape[0]} rows of {shape[1]} numbers, got {table.shape[0]} of {table.shape[1]}"
        )
    return table
