"""Options of data sets that are benchmarks of methods for tables."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kfx.config.fields import Several, number, ranged
from kfx.config.option import option
from kfx.data.options import DatasetOption
from kfx.data.own_options import own_preprocess, own_targets

if TYPE_CHECKING:
    import numpy as np

    from kfx.data.dataset import Dataset


@dataclass
class _Collection(DatasetOption, abc.ABC):
    """A set out of a collection of tables, with the splits of those who published it."""

    is_own = True
    from_path = True

    n_train: int | None = number(None, "whole >= 2", "number of training points, drawn at random by seed", null="all")
    n_test: int | None = number(None, "whole >= 1", "number of test points, drawn at random by seed", null="all")
    preprocess: list[str] | None = own_preprocess()  # type: ignore[assignment]
    targets: str = own_targets()
    set: str = ""
    split: Several = 0

    @abc.abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of training points, test points and features; DataError if the split's files are missing."""

    def available(self) -> int:
        return self.sizes()[0]

    def test_size(self) -> int:
        return self.sizes()[1] if self.n_test is None else self.n_test

    def feature_count(self) -> int:
        return self.sizes()[2]


def _set(default: str, example: str) -> str:
    return ranged(default, "a folder's name", lambda v: v != "" and Path(v).name == v, f"name of the set, as {example}")


@option("dataset", "uci_regression", "A regression table of the UCI repository, with one of ten published splits")
class UCIRegressionOption(_Collection):
    set: str = _set("yacht", "concrete or pumadyn32nm")
    split: int = number(0, "whole >= 0 and <= 9", "number of the split")

    def sizes(self) -> tuple[int, int, int]:
        from kfx.data.uci import regression_sizes

        return regression_sizes(self.set, self.split)

    def paths(self) -> list[Path]:
        from kfx.data.uci import REGRESSION_FILES, paths

        return paths("uci_regression", self.set, REGRESSION_FILES)

    def build(self, rng: np.random.Generator) -> Dataset:
        from kfx.data.uci import regression

        return regression(self.set, self.split, self.n_train, self.n_test, rng)


@option("dataset", "uci", "A classification table of the UCI repository, with one of four published folds")
class UCIOption(_Collection):
    has_classes = True

    set: str = _set("wine", "wine or abalone")
    split: Several = ranged(
        0,
        "a whole number from 0 to 3, or tuning",
        lambda v: v == "tuning" or (type(v) is int and 0 <= v <= 3),
        "number of the fold; tuning: settings are fitted on one half and chosen by the other",
    )

    def sizes(self) -> tuple[int, int, int]:
        from kfx.data.uci import classification_sizes

        return classification_sizes(self.set, self.split)

    def paths(self) -> list[Path]:
        from kfx.data.uci import CLASSIFICATION_FILES, paths

        return paths("uci", self.set, CLASSIFICATION_FILES)

    def build(self, rng: np.random.Generator) -> Dataset:
        from kfx.data.uci import classification

        return classification(self.set, self.split, self.n_train, self.n_test, rng)
