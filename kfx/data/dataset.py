"""A data set in memory, and the steps that all data sets share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from kfx.config.choices import WARPS
from kfx.numerics.means import mean_and_deviation, weighted_mean
from kfx.numerics.round_off import is_constant
from kfx.outcomes import DataError

if TYPE_CHECKING:
    from kfx.data.new_rows import Encoding
    from kfx.data.reduction import Reduction
    from kfx.data.steps import Map
    from kfx.data.warps import Warp
    from kfx.data.windows import SeriesParts


@dataclass(frozen=True)
class Dataset:
    """Training and test points with their targets.

    x_train, x_test: (n, features) or (n, channels, height, width), float64.
    y_train, y_test: (n, outputs), float64: one-hot rows, ±1, or values.
    labels_train, labels_test: (n,) class numbers, or None for regression.
    energy: (n_test, n_test), the matrix A of a norm vᵀ A v of functions on the test points, in which errors are
        measured too.
    features: names of the features, (features,); empty if they have none.
    target_mean, target_scale: kernels are trained and interpolate on (y_train − mean) / scale, (outputs,) each; errors
        are in the units of y.
    series: where the points are windows of series, the series.
    reduction: where kernels are trained on components of the outputs, the map to components.
    classes: where a file names them, the names of the classes, in the order of the outputs; a test label of −1 is none.
    encoding: where the points are rows of a table, how rows become points.
    warp: a transform of y before that.
    inflation: the factor of standard deviations, of all or of each column of `targets`, (k,); above 1 where errors in
        refitted folds were larger than predicted.
    maps: the steps of preprocessing, which take other points to where these are.
    varying: the outputs that kernels learn, (k,); None for all. The others are constant: their mean is the prediction,
        and their scale 0.
    weights_train, weights_test: (n,), > 0, or None for all alike: the noise of a training point is λ over its weight,
        and metrics are weighted means over the test points. Their unit does not matter.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    labels_train: np.ndarray | None = None
    labels_test: np.ndarray | None = None
    energy: np.ndarray | None = None
    features: tuple[str, ...] = ()
    target_mean: np.ndarray | float = 0.0
    target_scale: np.ndarray | float = 1.0
    series: SeriesParts | None = None
    reduction: Reduction | None = None
    classes: tuple[str, ...] = ()
    encoding: Encoding | None = None
    varying: np.ndarray | None = None
    warp: Warp | None = None
    maps: tuple[Map, ...] = ()
    inflation: np.ndarray | float = 1.0
    weights_train: np.ndarray | None = None
    weights_test: np.ndarray | None = None

    def mapped(self, x: np.ndarray) -> np.ndarray:
        """Points x, (m, …), after the steps of preprocessing."""
        return reduce(lambda points, each: each(points), self.maps, x) if len(x) else x

    @property
    def weights(self) -> np.ndarray | None:
        """The training points' weights with the mean 1, (n,), so that λ keeps its unit; None for all alike."""
        return None if self.weights_train is None else self.weights_train / self.weights_train.mean()

    def mean_over_test(self, values: np.ndarray) -> float:
        """Return the mean of values at the test points, (m, …), weighted if the points are."""
        return weighted_mean(values, self.weights_test)

    @property
    def targets(self) -> np.ndarray:
        """The targets of training, (y_train − mean) / scale of the varying outputs, or their components: (n, k)."""
        return self.as_learned(self.y_train)

    def as_learned(self, y: np.ndarray) -> np.ndarray:
        """y, (m, outputs), in the units of `targets`, (m, k)."""
        y = y if self.warp is None else self.warp(y)
        scaled = self.of_varying(y - self.target_mean) / self.of_varying(self.target_scale)
        return scaled if self.reduction is None else scaled @ self.reduction.project

    def of_varying(self, values: Any) -> Any:
        """The entries of the outputs that kernels learn, (…, k). values: of all, (…, outputs), or a number for all."""
        return values if self.varying is None or np.ndim(values) == 0 else values[..., self.varying]

    def of_all(self, values: np.ndarray) -> np.ndarray:
        """The entries of all outputs, (…, outputs), 0 for constant ones. values: of the varying ones, (…, k)."""
        if self.varying is None:
            return values
        whole = np.zeros((*values.shape[:-1], self.y_train.shape[1]))
        whole[..., self.varying] = values
        return whole

    def in_units(self, prediction: np.ndarray) -> np.ndarray:
        """Return values of `targets` in the units of y, (m, outputs)."""
        if self.reduction is None:
            found = self.of_all(prediction) * self.target_scale + self.target_mean
            return found if self.warp is None else self.warp.inverse(found)
        whole: np.ndarray = prediction @ self.reduction_in_units()[0]
        whole += self.target_mean
        return whole

    def moments(self, mean: np.ndarray, deviation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the standard deviation of y, (m, outputs) each, whose `targets` are normal with this mean
        and deviation."""
        if self.warp is None:
            return self.in_units(mean), self.deviation_in_units(deviation)
        of_learned = mean * self.target_scale + self.target_mean, deviation * self.inflation * self.target_scale
        return self.warp.moments(*of_learned)

    def interval(self, mean: np.ndarray, deviation: np.ndarray, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends, (m, outputs) each, of the central interval of y whose `targets` are normal with this mean
        and deviation. coverage: its probability, in (0, 1)."""
        from scipy.special import ndtri

        far = float(ndtri((1 + coverage) / 2))
        if self.warp is not None:
            half = far * self.inflation * deviation
            return self.in_units(mean - half), self.in_units(mean + half)
        middle, half = self.in_units(mean), far * self.deviation_in_units(deviation)
        return middle - half, middle + half

    def deviation_in_units(self, deviation: np.ndarray) -> np.ndarray:
        """Return standard deviations of `targets`, (m, outputs), in the units of y.

        Components are independent, and what the reduction leaves out adds to their variances.
        """
        deviation = deviation * self.inflation
        if self.reduction is None:
            return self.of_all(deviation) * self.target_scale
        basis, left_out = self.reduction_in_units()
        variance: np.ndarray = np.square(deviation) @ np.square(basis)
        variance += left_out
        return np.sqrt(variance, out=variance)

    def reduction_in_units(self) -> tuple[np.ndarray, np.ndarray]:
        """Return B, (components, outputs), and d, (outputs,), in the units of y: with deviations s of its components,
        the outputs of a point have the covariance Bᵀ diag(s²) B + diag(d)."""
        assert self.reduction is not None
        basis, left_out = self.of_all(self.reduction.basis), self.of_all(self.reduction.left_out)
        return basis * self.target_scale, left_out * np.square(self.target_scale)

    def components(self) -> list[Dataset]:
        """A data set for each column of `targets`, whose errors are in their units."""
        train, test = self.targets, self.as_learned(self.y_test)
        plain = replace(self, target_mean=0.0, target_scale=1.0, reduction=None, varying=None)
        inflation = np.broadcast_to(self.inflation, train.shape[1]).tolist()
        return [
            replace(plain, y_train=train[:, [c]], y_test=test[:, [c]], inflation=inflation[c])
            for c in range(train.shape[1])
        ]


def reduced(data: Dataset, how: str, components: float, regularization: float) -> Dataset:
    """The data set with its outputs reduced by the training points: kernels are then trained on the components."""
    from kfx.data.reduction import canonical, principal

    mean = data.y_train.mean(axis=0)
    if data.varying is not None:
        mean = np.where(np.equal(data.target_scale, 0), data.target_mean, mean)
    data = replace(data, target_mean=mean)
    t = data.targets
    if how == "pca":
        return replace(data, reduction=principal(t, components))
    x = data.x_train.reshape(len(t), -1)
    return replace(data, reduction=canonical(t, x - x.mean(axis=0), components, regularization))


def checked(data: Dataset, image: tuple[int, ...] | None, has_classes: bool) -> Dataset:
    """Return the data set of a stranger's option if its parts fit together and are finite numbers, else DataError,
    naming the part.

    Targets (n,) become a column; with has_classes they are words or numbers of classes, and become one-hot rows. image:
    height, width and, if it is not 1, the number of channels that the option states.
    """
    data = _with_labels(data) if has_classes and data.labels_train is None else data
    names = ("x_train", "y_train", "x_test", "y_test")
    x_train, y_train, x_test, y_test = (_numbers(data.name, name, getattr(data, name)) for name in names)
    y_train, y_test = (y[:, None] if y.ndim == 1 else y for y in (y_train, y_test))
    data = replace(data, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    for name in ("train", "test"):
        x, y, labels = (getattr(data, f"{part}_{name}") for part in ("x", "y", "labels"))
        if x.ndim not in (2, 4):
            raise DataError(f"dataset {data.name}: x_{name} is no array (n, features) or (n, channels, height, width)")
        expected = None if image is None else (image[2] if len(image) > 2 else 1, *image[:2])
        if expected not in (None, x.shape[1:]):
            raise DataError(
                f"dataset {data.name}: x_{name} has points of shape {x.shape[1:]}, and its image={image} stands for "
                f"(channels, height, width) = {expected}"
            )
        if y.ndim != 2 or len(y) != len(x):
            raise DataError(
                f"dataset {data.name}: y_{name} is no array ({len(x)}, outputs) of numbers, as x_{name} has"
            )
        if labels is not None and len(labels) != len(x):
            raise DataError(f"dataset {data.name}: labels_{name} has {len(labels)} entries, x_{name} {len(x)}")
        if not np.isfinite(y.sum()) or not np.isfinite(x.sum()):
            raise DataError(f"dataset {data.name}: x_{name} or y_{name} holds what is no finite number")
        weights = getattr(data, f"weights_{name}")
        if weights is not None and not (
            np.shape(weights) == (len(x),) and np.isfinite(weights).all() and np.all(weights > 0)
        ):
            raise DataError(f"dataset {data.name}: weights_{name} is no array of {len(x)} finite numbers > 0")
    if data.x_train.shape[1:] != data.x_test.shape[1:] or data.y_train.shape[1:] != data.y_test.shape[1:]:
        raise DataError(f"dataset {data.name}: training and test points or targets have different shapes")
    return data


def _numbers(dataset: str, name: str, values: object) -> np.ndarray:
    """An array as float64, in one piece; DataError for words."""
    try:
        return np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        classes = "; for classes set has_classes = True in its option" if name.startswith("y") else ""
        raise DataError(f"dataset {dataset}: {name} is no array of numbers ({error}){classes}") from error


def _with_labels(data: Dataset) -> Dataset:
    """The data set with labels and one-hot targets of the classes of its training points, from targets (n,)."""
    train, test = np.asarray(data.y_train), np.asarray(data.y_test)
    if train.ndim != 1 or test.ndim != 1:
        raise DataError(f"dataset {data.name}: has classes; expected a class for each point, y (n,), or labels as well")
    names, labels = np.unique(train, return_inverse=True)
    if len(unseen := test[~np.isin(test, names)]):
        raise DataError(f"dataset {data.name}: y_test holds the class {unseen[0]}, which no training point has")
    of_test = np.searchsorted(names, test)
    y_train, y_test = one_hot(labels, len(names)), one_hot(of_test, len(names))
    classes = tuple(map(str, names.tolist()))
    return replace(data, y_train=y_train, y_test=y_test, labels_train=labels, labels_test=of_test, classes=classes)


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """One-hot rows, (n, classes). labels: (n,), whole numbers below `classes`."""
    return np.eye(classes)[labels]


def of_classes(labels: np.ndarray, classes: Sequence[int] | None) -> np.ndarray:
    """Indices of the points in these classes, in order; of all points if classes is None. labels: (n,)."""
    return np.arange(len(labels)) if classes is None else np.flatnonzero(np.isin(labels, classes))


def classification(
    name: str, parts: Sequence[tuple[np.ndarray, np.ndarray]], classes: Sequence[int] | None, count: int = 10
) -> Dataset:
    """A data set with one-hot targets from a training and a test part, each points (n, …) and labels (n,).

    classes: the classes to keep, renumbered from 0 in ascending order; None for all `count`.
    """
    chosen = sorted(classes) if classes is not None else list(range(count))
    (x_train, train), (x_test, test) = ((x, np.searchsorted(chosen, labels)) for x, labels in parts)
    return Dataset(name, x_train, one_hot(train, len(chosen)), x_test, one_hot(test, len(chosen)), train, test)


def predicted_labels(prediction: np.ndarray) -> np.ndarray:
    """Class numbers, (n,), from predicted targets (n, outputs): the largest output, or for one output its sign."""
    return (prediction[:, 0] > 0).astype(int) if prediction.shape[1] == 1 else prediction.argmax(axis=1)


def preprocess(
    data: Dataset,
    steps: Sequence[str],
    zca_epsilon: float = 0.1,
    zca_unit: str = "absolute",
    derivative_window: int | None = None,
) -> Dataset:
    """Apply the steps in order (`kfx.data.steps.fitted`); every statistic comes from the training points alone."""
    if not steps:
        return data
    from kfx.data.steps import StepSettings, fitted

    x_train, maps = fitted(data.x_train, steps, StepSettings(zca_epsilon, zca_unit, derivative_window))
    prepared = replace(data, x_train=x_train, maps=tuple(maps))
    return replace(prepared, x_test=prepared.mapped(data.x_test))


def with_targets(data: Dataset, how: str) -> Dataset:
    """Set the mean, and for `standardized` also the scale, of the training targets; `as_given` leaves them out; `log`
    and `yeo_johnson` transform them before they are standardized.

    A constant output among several is predicted by its constant. DataError if all targets are constant, or some too
    small or large to be squared.
    """
    if data.labels_train is not None:
        return data
    if how in WARPS:
        from kfx.data.warps import Warp

        warp = Warp.of(how, data.y_train)
        return replace(
            with_targets(replace(data, y_train=warp(data.y_train)), "standardized"), y_train=data.y_train, warp=warp
        )
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = mean_and_deviation(data.y_train, data.weights_train)
        constant = is_constant(data.y_train)
    if how == "as_given" and (constant.all() or not constant.any()):
        return data
    if constant.all():
        raise DataError(f"every training target is {mean[0]:.6g}, so there is nothing to learn; take others")
    if how != "as_given" and not (np.isfinite(deviation) & ((deviation > 0) | constant)).all():
        largest = np.abs(data.y_train).max()
        raise DataError(f"targets up to {largest:.3g} are too small or too large to be squared; give them another unit")
    mean = mean if how != "as_given" else np.zeros_like(mean)
    unit: Any = deviation if how == "standardized" else 1.0
    if not constant.any():
        return replace(data, target_mean=mean, target_scale=unit)
    return replace(
        data,
        target_mean=np.where(constant, data.y_train[0], mean),
        target_scale=np.where(constant, 0.0, unit),
        varying=np.flatnonzero(~constant),
    )


def imputed(data: Dataset, how: str) -> Dataset:
    """Replace NaN by the `mean`, or with `auto` too the `median`, of the feature over the training points; any other
    word leaves the data unchanged."""
    train, test = data.x_train, data.x_test
    if how not in ("auto", "mean", "median") or not (np.isnan(train).any() or np.isnan(test).any()):
        return data
    empty = np.isnan(train).all(axis=0)
    if empty.any() and how != "auto":
        said = f"{int(empty.sum())} features have no value in the training points; leave them out"
        raise DataError(f"dataset.missing={how}: {said}")
    filler = fillers(train, how)
    return replace(
        data, x_train=np.where(np.isnan(train), filler, train), x_test=np.where(np.isnan(test), filler, test)
    )


def fillers(x: np.ndarray, how: str) -> np.ndarray:
    """What stands for a missing value of each feature, (features,): the `mean` of x, (n, features), or else the median,
    0 where a feature has no value."""
    whole = np.where(np.isnan(x).all(axis=0), 0.0, x)
    found: np.ndarray = (np.nanmean if how == "mean" else np.nanmedian)(whole, axis=0)
    return found
