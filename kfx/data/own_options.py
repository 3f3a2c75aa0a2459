"""Options of data sets in a person's files: a table, or arrays."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kfx.config.choices import STEPS, TARGETS
from kfx.config.fields import Several, flag, number, ranged, word, words
from kfx.config.option import Settings, option
from kfx.config.parts import ConfigView
from kfx.data.options import DatasetOption, TableOption, usual_targets
from kfx.data.row_file_options import FILES_OF_ROWS, FromFile, RowFile, changes, matching, path_of
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from kfx.data.dataset import Dataset
    from kfx.data.own import Points
    from kfx.data.preparation import Preparation
    from kfx.data.table_columns import Layout


_TEST, _NULL_TEST = 0.2, "0.2, with evaluation=k_fold 0"
"""The share of test points where nothing is said."""


def _test_points(_: OwnFile, config: ConfigView) -> float:
    """The share of the rows that are test points if the config does not say; folds take all rows."""
    return 0.0 if config.evaluation.name == "k_fold" else _TEST


def _is_fraction(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1


_TASK = "kind of target; auto: classification for words, true and false, or a few different whole numbers"


def own_preprocess() -> list[str] | None:
    """The field `preprocess` of a person's own data."""
    meaning = "preprocessing steps, applied in this order with statistics of the training points alone"
    usual = "normalize, and nothing for images"
    return words(None, STEPS, meaning, null=usual, settle=lambda own, _: [] if own.image else ["normalize"])


def own_targets() -> str:
    """The field `targets` of a person's own data."""
    return word(
        ("auto", *TARGETS),
        "targets of a regression during training, by the training points; auto: standardized, for classes "
        "as_given; centered: minus their mean; standardized: also divided by their standard deviation; log, "
        "yeo_johnson: transformed before; errors and predictions stay in the given units",
        settle=usual_targets,
    )


def own_transform() -> bool | None:
    """The field `transform` of a person's own data."""
    return flag(
        None,
        "choose steps before preprocess, quantile for features with heavy tails or those of spectra, and for skewed "
        "targets log or yeo_johnson, where they predict folds of the training points better",
        null="true for a table of which nothing is said on preprocess, targets, lambda, and the kernel's length",
        settle=_can_transform,
    )


def _can_transform(own: OwnDataset | OwnRows, config: ConfigView) -> bool:
    """Whether transforms are chosen if the config does not say."""
    is_free = own.preprocess is None and own.targets == "auto" and own.image is None and not own.is_series
    plain = config.outputs.reduce == "none" and config.outputs.kernels != "separate"
    free_kernel = config.kernel.takes_length_from_points(config)
    return bool(is_free and plain and free_kernel and config.regularization.leaves_choice_to_evaluation(config))


@dataclass
class OwnDataset(DatasetOption):
    """A data set of a person's own: what is not given is chosen as for own data. A subclass has the fields `n_train`
    and `n_test`, and `builds` or `build`."""

    is_own = True

    preprocess: list[str] | None = own_preprocess()  # type: ignore[assignment]
    targets: str = own_targets()
    transform: bool | None = own_transform()

    implied = {**DatasetOption.implied, "transform": False}  # noqa: RUF012


@dataclass
class OwnRows(OwnDataset, TableOption):
    """As `OwnDataset`, with disjoint training and test points from the rows of one table."""


@dataclass
class OwnFile(FromFile, OwnDataset, abc.ABC):
    """Points in a file named in the config. A subclass reads it."""

    n_train: int | None = number(None, "whole >= 2", "number of training points, drawn at random by seed", null="all")
    n_test: int | None = number(
        None,
        "whole >= 0",
        "number of test points; 0 with evaluation=k_fold, whose folds are test points",
        null="as test says",
    )
    path: str | None = None
    task: str = "auto"
    test: Several = None
    weights: Several = ranged(  # type: ignore[misc]
        None,
        "the name of a column or an array",
        lambda v: isinstance(v, (str, int, float)) and not isinstance(v, bool),
        "column of a table, or array beside x and y, or two beside x_train and x_test with these endings, of weights "
        ">= 0: the noise of a training point is lambda over its weight, and squared errors count by weight, on test "
        "points too; 0 leaves a point out, and only ratios matter",
        null="all points alike",
    )
    copies: str = word(
        "auto | once | each",
        "training rows that are equal in features and targets; once: one of them counts, since a point whose copy "
        "stays is not left out; auto: once for tables with real-valued targets or features, where equal rows are no "
        "chance, otherwise each; with weights that differ always each",
    )
    predict: str | None = ranged(
        None,
        "the path of a file",
        lambda v: bool(v.strip()),
        "file with new rows, or points, whose predictions a completed run writes to new_predictions.csv",
        null="none",
    )

    implied = {**OwnDataset.implied, "weights": None, "copies": "each", "predict": None}  # noqa: RUF012

    @abc.abstractmethod
    def read(self) -> Points:
        """Read the file; a process reads it only once, as long as it does not change."""

    @property
    def has_classes(self) -> bool:  # type: ignore[override]  # known from the file, not from the class
        return self.read().targets.labels is not None

    @property
    def is_table(self) -> bool:  # type: ignore[override]
        return self.read().is_test is None

    @property
    def fraction(self) -> float | None:
        """The share of the points that are test points; None where `test` says which."""
        given = _TEST if self.test is None else self.test
        return float(given) if _is_fraction(given) else None

    def feature_count(self) -> int:
        points = self.read()
        return points.feature_count(None if points.is_test is None else ~points.is_test)

    def available(self) -> int:
        points = self.read()
        if points.is_test is not None:
            return int((~points.is_test).sum())
        return len(points.x) - self.test_size()

    def test_size(self) -> int:
        from kfx.data import own

        points = self.read()
        if self.n_test is not None:
            return self.n_test
        if points.is_test is not None:
            return int(points.is_test.sum())
        return own.test_size(len(points.x), self.fraction or 0.0)

    def build(self, rng: np.random.Generator) -> Dataset:
        from kfx.data.own import as_dataset

        return as_dataset(self.name, self.read(), self.fraction or 0.0, self.n_train, self.n_test, rng)

    def check(self, config: ConfigView) -> None:
        super().check(config)
        if self.predict is not None and not Path(self.predict).expanduser().is_file():
            raise ConfigError(f"dataset.predict={self.predict}: is not there; expected a file with new rows")
        if self.predict is not None and config.optimizer.moves_points and not config.flow.record_layers:
            raise ConfigError(
                f"dataset.predict={self.predict}: new rows need the layers of the flow; set flow.record_layers=true"
            )

    def with_absolute_paths(self, node: Settings) -> Settings:
        new = {} if self.predict is None else {"predict": str(Path(self.predict).expanduser().absolute())}
        return super().with_absolute_paths(node) | new

    def without_places(self, node: Settings) -> Settings:
        return super().without_places(node) | {"predict": None}


# ---- tables


Columns = Several
"""A list of columns, or one: a union that no typed config holds."""


def _names(default: Columns, meaning: str, *, null: str | None = None, one: bool = False) -> Columns:
    """A field of column names of a table: a list; with `one` also a single name, or null until one is given."""

    def test(value: object) -> bool:
        if one and isinstance(value, str | int | float | None) and not isinstance(value, bool):
            return True
        return _is_list_of_names(value) and (value != [] or default == [])

    return ranged(default, f"{'a column, or ' if one else ''}a list of columns", test, meaning, null=null)


def _is_list_of_names(value: object) -> bool:
    if not isinstance(value, list) or not all(isinstance(name, (str, int, float)) for name in value):
        return False
    return len(set(value)) == len(value)


def _test_of_table(value: object) -> bool:
    is_name = isinstance(value, str) and bool(value.strip())
    return _is_fraction(value) or is_name or (type(value) is int and value > 1)  # a column may have the name 2020


@option("dataset", "table", "Your own table: CSV, TSV or Parquet, column names in the first line, a row for each point")
class OwnTableOption(RowFile, OwnFile):
    implied = {**OwnFile.implied, **RowFile.implied_by_rows, "exclude": []}  # noqa: RUF012

    path: str | None = path_of(FILES_OF_ROWS)
    target: Columns = _names(None, "column to predict, or several, also as y*; must be given", one=True)
    features: Columns = _names(None, "columns used as features", null="all columns without another use")
    exclude: Columns = _names([], "columns to leave out, such as row numbers or names of the points")
    categorical: Several = ranged(
        "auto",
        "auto or a list of columns",
        lambda v: v == "auto" or _is_list_of_names(v),
        "features that are words or codes, each value a column of 0 and 1; auto: those that hold words, at most 50 "
        "different ones; of others with words the 50 most frequent have a column, and the rest is one category",
        settle=lambda own, _: "auto" if own.path is None else list(own._layout().categorical),
    )
    task: str = word("auto | regression | classification", _TASK)
    test: Several = ranged(
        None,
        "a fraction >= 0 and < 1, a column, or the path of a second table",
        _test_of_table,
        "source of test points: a fraction of the rows, drawn at random by seed; a column that marks them; "
        "a second table",
        null=_NULL_TEST,
        settle=_test_points,
        auto=(),  # a column may have this name
    )
    missing: str = word(
        "auto | refuse | mean | median | drop",
        "missing values of features; auto: the median of the training points, marked by a feature where 10 of them "
        "miss one, and of words a category; refuse: an error; mean, median: that of the training points; drop: their "
        "rows are left out; rows without a target are left out, but an error with auto and refuse",
    )

    def second(self) -> Path | None:
        """The second table, if `test` names one rather than a column."""
        from kfx.data.row_file import columns

        if self.fraction is not None or str(self.test) in columns(self.file(), self.form()):
            return None
        path = Path(str(self.test)).expanduser()
        if path.exists() and self.file().exists() and path.samefile(self.file()):
            raise ConfigError(f"dataset.test={self.test}: is the table itself; expected other points to test on")
        if not path.is_file():
            raise ConfigError(
                f"dataset.test={self.test}: expected a fraction, a column of {self.file()}, or the path of a second "
                "table"
            )
        return path

    def paths(self) -> list[Path]:
        second = self.second()
        return [self.file()] if second is None else [self.file(), second]

    def _layout(self) -> Layout:
        from kfx.data.row_file import columns
        from kfx.data.table_columns import Layout

        form = self.form()

        def listed(value: object) -> tuple[str, ...]:
            names = [] if value is None else value if isinstance(value, list) else [value]
            return matching(list(map(str, names)), self.file(), form) if names else ()

        layout = Layout(
            listed(self.target),
            None if self.features is None else listed(self.features),
            listed(self.exclude),
            () if self.categorical == "auto" else listed(self.categorical),
            None if self.fraction is not None else str(self.test),
            self.task,
            self.missing,
            form,
            None if self.weights is None else str(self.weights),
        )
        if self.categorical != "auto":
            return layout
        state = changes(self.file())
        is_column = layout.test is None or layout.test in columns(self.file(), form)
        return replace(layout, categorical=_of_words(state, layout if is_column else replace(layout, test=None)))

    def read(self) -> Points:
        layout, second = self._layout(), self.second()
        if second is not None:
            layout = replace(layout, test=None)
        return _table(changes(self.file()), layout, None if second is None else changes(second), self.copies)

    def target_names(self) -> tuple[str, ...]:
        return self._layout().targets

    def preprocessed(self, data: Dataset, how: Preparation | None = None) -> Dataset:
        from kfx.data.dataset import imputed

        return super().preprocessed(imputed(data, self.missing), how)

    def with_absolute_paths(self, node: Settings) -> Settings:
        second = self.second()
        return {**super().with_absolute_paths(node), **({} if second is None else {"test": str(second.absolute())})}

    def without_places(self, node: Settings) -> Settings:
        second = self.second()
        return {**super().without_places(node), **({} if second is None else {"test": second.name})}


@lru_cache(maxsize=4)
def _table(file: tuple[str, ...], layout: Layout, second: tuple[str, ...] | None, copies: str) -> Points:
    from kfx.data.copies import without
    from kfx.data.table_file import read

    return without(read(Path(file[0]), layout, None if second is None else Path(second[0])), copies, file[0])


@lru_cache(maxsize=4)
def _of_words(file: tuple[str, ...], layout: Layout) -> tuple[str, ...]:
    from kfx.data.files import warn_once
    from kfx.data.table_file import of_words

    found = of_words(Path(file[0]), layout)
    if found:
        what = f"column {found[0]} holds words" if len(found) == 1 else f"columns {', '.join(found)} hold words"
        warn_once(f"{file[0]}: {what}", ", and each word becomes a feature of 0 and 1 (dataset.categorical)")
    return found


# ---- arrays


@option("dataset", "arrays", "Your own arrays in an .npz file: x and y, or x_train, y_train, x_test and y_test")
class OwnArraysOption(OwnFile):
    path: str | None = path_of(".npz")
    task: str = word("auto | regression | classification", _TASK)
    test: Several = ranged(
        None,
        "a fraction >= 0 and < 1",
        _is_fraction,
        "fraction of the points used as test points, drawn at random by seed",
        null=_NULL_TEST,
        settle=_test_points,
    )
    channels: str = word(
        "auto | first | last",
        "images are (n, channels, height, width), first, or (n, height, width, channels), last; auto: first, "
        "and an error for a shape that looks like last",
    )

    implied = {**OwnFile.implied, "channels": "auto"}  # noqa: RUF012

    @property
    def image(self) -> tuple[int, ...] | None:  # type: ignore[override]
        from kfx.data.array_file import image

        return image(self.file(), self.channels) if self.path is not None else None

    def read(self) -> Points:
        weights = None if self.weights is None else str(self.weights)
        return _arrays(changes(self.file()), self.task, self.channels, weights, self.copies)


@lru_cache(maxsize=4)
def _arrays(file: tuple[str, ...], task: str, channels: str, weights: str | None, copies: str) -> Points:
    from kfx.data.array_file import read
    from kfx.data.copies import without

    return without(read(Path(file[0]), task, channels, weights), copies, file[0])
