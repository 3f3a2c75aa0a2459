"""Options of data sets: what all share, those made by formulas, and tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfx.config.choices import STEPS, TARGETS, WARPS
from kfx.config.fields import MOST_POINTS, FieldError, Several, nested, number, ranged, rising, word, words
from kfx.config.nodes import make_option
from kfx.config.option import Option, Settings, option
from kfx.config.parts import ConfigView, DatasetPart
from kfx.config.rules import IMAGES, Rule, needs, refuses, rows
from kfx.outcomes import DataError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from kfx.data.dataset import Dataset
    from kfx.data.preparation import Preparation


def usual_targets(own: DatasetOption, _: ConfigView) -> str:
    """The `targets` of a person's own data if the config does not say."""
    return "as_given" if own.has_classes else "standardized"


def _no_weights(has: Callable[[ConfigView], bool], what: str, remedy: str) -> Rule:
    """The row for a part of a config that takes no weights: whether a config has it, its name, and what to use."""
    return refuses(lambda _, config: has(config), f"{what} takes no weights; use {remedy}", "weights")


@dataclass
class DatasetOption(Option, DatasetPart):
    """A data set. A subclass has the fields `n_train` and `n_test`, and `builds` or `build`."""

    n_train: Several = ranged(None, "a number", lambda v: True, "number of training points")
    n_test: Several = ranged(None, "a number", lambda v: True, "number of test points")
    preprocess: list[str] = words(
        [], STEPS, "preprocessing steps, applied in this order with statistics of the training points alone"
    )
    zca_epsilon: float = number(
        0.1, "> 0", "with zca: regularization added to the eigenvalues of the features' covariance matrix"
    )
    zca_unit: str = word(
        "absolute | mean_eigenvalue", "unit of zca_epsilon: 1, or the mean eigenvalue of the covariance matrix"
    )
    derivative_window: int | None = ranged(
        None,
        "an odd whole number >= 3",
        lambda v: isinstance(v, int) and v >= 3 and v % 2 == 1,
        "with derivative and second_derivative: number of features to which a parabola is fitted",
        null="a tenth of the features, from 5 to 25",
    )
    targets: str = word(
        TARGETS,
        "targets of a regression during training, by the training points; centered: minus their mean; "
        "standardized: also divided by their standard deviation; log, yeo_johnson: transformed before; errors and "
        "predictions stay in the given units",
        settle=usual_targets,
    )

    implied = {"targets": "as_given", "derivative_window": None}  # noqa: RUF012
    rules = rows(
        needs(IMAGES, "use normalize", "preprocess=normalize_channels"),
        refuses(
            lambda own, _: own.targets != "as_given" and own.has_classes,
            "of a regression; this data set has classes, set as_given",
            "targets",
        ),
        refuses(
            lambda own, config: own.targets in WARPS and not config.evaluation.judges_distributions(config),
            "the prediction is the mean of a distribution, which needs one kernel for the target itself, no series, "
            "evaluation.solver=cholesky in memory or nystrom, evaluation.train_error=false and "
            "evaluation.draws=0; set these, or standardized",
            "targets",
        ),
        _no_weights(lambda c: c.optimizer.moves_points, "optimizer={config.optimizer.name} moves points and", "adam"),
        _no_weights(lambda c: not c.objective.takes_weights, "objective={config.objective.name}", "nll, loo or rho"),
        _no_weights(lambda c: c.evaluation.solver == "nystrom", "evaluation.solver=nystrom", "cholesky, no centres"),
        _no_weights(lambda c: c.outputs.reduce != "none", "outputs.reduce={config.outputs.reduce}", "none"),
        _no_weights(lambda c: c.follow.every + c.follow.last > 0, "follow", "follow.every=0 and follow.last=0"),
        _no_weights(lambda c: c.kernel_check, "kernel_check", "kernel_check=false"),
    )

    pool: ClassVar[int | None] = None
    """Number of points from which training points are taken; None for data that are generated."""
    from_path: ClassVar[bool] = False
    """Whether it is read from a file named in the config."""

    def build(self, rng: np.random.Generator) -> Dataset:
        """Load or generate the data set. rng: picks subsets and random points."""
        settings = self.beyond(DatasetOption)
        settings.pop("transform", None)  # it says how data are prepared, not which
        return self.constructor()(self.n_train, self.n_test, rng=rng, **settings)

    def load(self, rng: np.random.Generator) -> Dataset:
        """`build`, whose result is checked if the option is not kfx's; DataError in one line."""
        from kfx.data.dataset import checked

        built = self.build(rng)
        if built.weights_train is not None and self.weights is None:
            raise DataError(f"dataset {self.name}: has weights_train; set `weights` in its option, to say that it has")
        return built if self.origin == "kfx" else checked(built, self.image, self.has_classes)

    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in the order of the outputs; empty if they are numbered from 0, and for a
        regression."""
        return tuple(map(str, sorted(getattr(self, "classes", None) or ())))

    def target_names(self) -> tuple[str, ...]:
        """The names of the targets of a regression; empty if they have none."""
        return ()

    def preparation(self) -> Preparation:
        """How the data are prepared for a kernel, as configured."""
        from kfx.data.preparation import Preparation

        return Preparation(tuple(self.preprocess), self.targets)

    def preprocessed(self, data: Dataset, how: Preparation | None = None) -> Dataset:
        """Prepare the data, or a fold of them; how: None as configured."""
        from kfx.data.dataset import preprocess, with_targets

        steps, targets = (self.preprocess, self.targets) if how is None else (how.preprocess, how.targets)
        return with_targets(preprocess(data, steps, self.zca_epsilon, self.zca_unit, self.derivative_window), targets)

    def available(self) -> int | None:
        """The largest number of training points, or an upper bound of it; None for any number."""
        return self.pool

    def size(self) -> int:
        """The number of training points that the config asks for, without reading the data; DataError if there are
        fewer.

        With some classes and n_train null it is an upper bound.
        """
        available = self.available()
        if available is None and self.n_train is None:
            what = "its option needs a field n_train, or a method `available`, for the number of training points"
            raise DataError(f"dataset={self.name}: {what}")
        if available is None:
            return int(self.n_train)
        wanted = available if self.n_train is None else self.n_train
        if available < 2 or wanted > available:
            sizes = {"n_train": self.n_train, "n_test": self.n_test}
            asked = ", ".join(f"dataset.{key}={size}" for key, size in sizes.items() if size is not None)
            most = max(available, 0)
            least = "; at least 2 are needed" if available < 2 else ""
            raise DataError(
                f"{asked or f'dataset={self.name}'}: {self.name} leaves at most {most} training points{least}"
            )
        return wanted

    def in_words(self) -> str:
        """What was chosen of its settings, for people."""
        return self.name

    def judged_steps(self, asked: int | None) -> int | None:
        """Of a series: the number of steps of forecasts by which kernels are compared."""
        return asked

    def backtest_in_words(self) -> str:
        """By which errors of forecasts it was chosen, for people; empty without forecasts."""
        return ""

    def test_size(self) -> int | None:
        """The number of test points that the config asks for; None for all."""
        return self.n_test

    def files(self) -> list[tuple[str, str]]:
        """(data set, file) for each original file that it reads from the folder of data files."""
        if self.pool is None:
            return []
        from kfx.data.files import FILES

        return [(self.name, file) for file in FILES.get(self.name, ())]

    def paths(self) -> list[Path]:
        """Paths of its files, downloaded if they are missing; DataError if they cannot be."""
        if not (files := self.files()):
            return []
        from kfx.data.files import locate

        return [locate(dataset, file) for dataset, file in files]

    def with_absolute_paths(self, node: Settings) -> Settings:
        """Its part of a config with absolute paths."""
        return node

    def without_places(self, node: Settings) -> Settings:
        """Its part of a config without the paths of files, because only their content counts."""
        return node


def _any(least: int, meaning: str, default: int) -> int:
    return number(default, f"whole >= {least} and <= {MOST_POINTS}", meaning)


# ---- synthetic


@option("dataset", "three_bumps", "f(x) = sin 2x + 3 sin 3x + 2 sin 4x on [-pi, pi]; one-dimensional regression")
class ThreeBumpsOption(DatasetOption):
    builds = "kfx.data.synthetic:three_bumps"

    n_train: int = _any(2, "number of training points", 100)
    n_test: int = _any(1, "number of test points", 200)
    points: str = word("grid | random", "training points on a uniform grid, or drawn uniformly at random")


@option("dataset", "swiss_roll", "Points on two interleaved spirals, with labels +1 and -1")
class SwissRollOption(DatasetOption):
    has_classes = True

    n_train: int = _any(2, "number of training points on both spirals together", 120)
    n_test: int = _any(1, "number of test points on both spirals together", 200)
    variant: str = word(
        "symmetric | darcy | khalid",
        "symmetric: +-(t sin t, t cos t) with t in t_range; darcy, khalid: the spirals of their code",
    )
    t_range: list[float] = rising(
        [math.pi / 2, 5 * math.pi / 2], "with variant=symmetric: range of the spirals' angle t, in radians"
    )

    def build(self, rng: np.random.Generator) -> Dataset:
        from kfx.data.synthetic import swiss_roll

        return swiss_roll(self.n_train, self.n_test, self.variant, (self.t_range[0], self.t_range[1]))


@option(
    "dataset",
    "gp_sample",
    "A draw of a Gaussian process with a known kernel, to test whether its parameters are found again",
)
class GPSampleOption(DatasetOption):
    # The eigenvalues of the training points' Gram matrix are computed.
    n_train: int = number(100, "whole >= 2 and <= 20000", "number of training points")
    n_test: int = number(100, "whole >= 1 and <= 20000", "number of test points")
    dimensions: int = number(1, "whole >= 1 and <= 10000", "number of coordinates of a point")
    width: float = number(20.0, "> 0", "side of the box, centred at 0, in which points are drawn uniformly")
    function: str = word(
        "sample | kernel", "sample: a draw of the Gaussian process; kernel: K(x, 0) instead, as in Darcy's scripts"
    )
    noise: float = number(0.0, ">= 0", "standard deviation of the noise, added to training targets alone")
    kernel: Several = nested(
        {"name": "rbf"},
        "a kernel: name and parameters",
        lambda path, value: make_option(path, "kernel", value),
        "covariance of the Gaussian process; set its parameters with a plus, +dataset.kernel.sigma=2",
    )

    def build(self, rng: np.random.Generator) -> Dataset:
        from kfx.data.synthetic import gp_sample

        gram = self.kernel.build(None).gram
        return gp_sample(self.n_train, self.n_test, self.dimensions, self.width, self.noise, gram, rng, self.function)


@dataclass
class _NoisyCurve(DatasetOption):
    n_train: int = _any(2, "number of training points", 100)
    n_test: int = _any(1, "number of test points, whose targets have no noise", 200)
    noise: float = number(0.1, ">= 0", "standard deviation of the noise, added to training targets alone")


@option("dataset", "noisy_sine", "y = sin x + noise on [0, 3 pi] (Darcy 2020, section 2.2.3 and eq. 2.5)")
class NoisySineOption(_NoisyCurve):
    builds = "kfx.data.synthetic:noisy_sine"


@option("dataset", "line", "y = x + noise on [0, 1]")
class LineOption(_NoisyCurve):
    builds = "kfx.data.synthetic:line"


@option(
    "dataset",
    "elliptic_1d",
    "Solution u of -(a u')' = f at nodes of (0, 1), with rough conductivity a (Owhadi & Yoo 2019, section 5)",
)
class Elliptic1DOption(DatasetOption):
    builds = "kfx.data.synthetic:elliptic_1d"

    n_train: int = number(128, "whole >= 2 and <= 100000", "number of nodes used as training points")
    n_test: int | None = number(
        None,
        "whole >= 1",
        "number of nodes used as test points, drawn at random; training points may be among them",
        null="all nodes",
    )
    intervals: int = number(
        256, "whole >= 3 and <= 4096", "number of finite elements on (0, 1), one more than inner nodes"
    )
    points: str = word(
        "random | dyadic",
        "order of training points; random: by seed; dyadic: from coarse to fine, the first 2^k - 1 with spacing 2^-k",
    )
    conductivity: str = word(
        "rough | one", "conductivity a; rough: log a = sum of 2^(-j/2) cos(2 pi 3^j x + j), j = 0 to 4; one: a = 1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points == "dyadic" and self.intervals & (self.intervals - 1):
            raise FieldError("points", self.points, f"random with intervals={self.intervals}, which is no power of two")

    def available(self) -> int:
        return self.intervals - 1


# ---- tables, of which training and test points are taken


@dataclass
class TableOption(DatasetOption):
    """Disjoint training and test points from the rows of one table."""

    is_table = True

    n_train: int | None = number(
        None, "whole >= 2", "number of training points, drawn at random by seed", null="all that are not test points"
    )
    n_test: int = number(
        100,
        "whole >= 0",
        "number of test points, drawn at random by seed; 0 with evaluation=k_fold, whose folds are test points",
    )

    def available(self) -> int | None:
        return None if self.pool is None else self.pool - self.n_test


@option("dataset", "diabetes", "scikit-learn's diabetes progression, 442 patients, 10 features; embedded, regression")
class DiabetesOption(TableOption):
    builds = "kfx.data.embedded:diabetes"
    pool = 442


@option("dataset", "boston", "Boston housing: 506 districts, 13 features, median price")
class BostonOption(TableOption):
    builds = "kfx.data.tabular:boston"
    pool = 506


@option("dataset", "wine_red", "Red wine: 1599 wines, 11 measurements, a grade from 1 to 10")
class WineRedOption(TableOption):
    builds = "kfx.data.tabular:wine_red"
    pool = 1599


@option("dataset", "wine_white", "White wine: 4898 wines, 11 measurements, a grade from 1 to 10")
class WineWhiteOption(TableOption):
    builds = "kfx.data.tabular:wine_white"
    pool = 4898
