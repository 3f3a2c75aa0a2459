"""The base class of the estimators: parameters, the fit of a kernel, and ridge regression with it."""

from __future__ import annotations

import abc
import copy
import numbers
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from kfx.config.plugins import Portable
from kfx.data.dataset import Dataset, fillers
from kfx.data.new_rows import Encoding
from kfx.data.table_columns import require_numbers
from kfx.estimators.frames import as_frame, encoded, encoding_of, folded, is_table, require_targets, with_columns_of
from kfx.estimators.parameters import EVALUATION, GROUPS, NESTED, Chosen
from kfx.outcomes import ConfigError

if TYPE_CHECKING:  # torch is imported by the first fit, so that `import kfx` in a notebook costs what scikit-learn does
    from kfx.config.option import Option
    from kfx.evaluation.predictor import Predictor, Separate
    from kfx.kernels.base import Kernel
    from kfx.numerics.regularization import Regularization
    from kfx.numerics.streams import Streams
    from kfx.objectives import base as objectives

_ACCEPTED: dict[str, Any] = {"allow_nd": True, "dtype": np.float64, "ensure_all_finite": "allow-nan", "order": "C"}


class KernelFlow(Portable, BaseEstimator, abc.ABC):
    """The kernel is fitted as `kfx run` fits it with the same settings and training points, to the same bits.

    Settings can be set as `kernel__sigma`, `optimizer__iterations`, `sampler__batch_size`. ConfigError for wrong
    settings, NumericalError if the arithmetic fails.

    Parameters
    ----------
    kernel : str, mapping or Kernel
        A name as in `kernel=rbf`, settings as in configs, {"name": "matern", "nu": 2.5}, or a kernel,
        RBF(2.0) + Matern(1.0). auto: for a table smooth_and_rough, for classes matern with nu=2.5 and a length for each
        feature; with fewer than 2 points for each feature, for classes 20, matern with one length for all.
    objective, optimizer, sampler : str, mapping or object
        As `kernel`. An objective may be a function (gram, y, sample_size, regularization, cotangent) → value, G. By
        default the objective is `nll`, for classes `rho_prediction`, with form=held_out.
    regularization : float, str, mapping or Regularization
        λ in units of its scale; "validation", "leave_one_out" or "trained" as `regularization.selection`; or settings
        of the section `regularization`. None: trained with the kernel where the objective allows it; λ of predictions
        is chosen by leaving points out.
    scale : str, sequence of str or None
        How features are scaled, by the training points alone. "auto": as by `kfx run`, which normalizes a table and
        transforms it where that predicts folds better, `dataset.transform`; nothing for images, and for a kernel given
        as an object, whose lengths have the units of X. Or a list of steps as `dataset.preprocess`; None: as given.
    targets : str
        As `dataset.targets`: "standardized", "centered" or "as_given"; "auto": standardized, for classes as given.
        Predictions have the units of y.
    copies : str
        As `dataset.copies`: whether rows that are equal in features and targets count "once" or "each"; "auto": once
        where equal rows are no chance. With weights that differ each counts.
    flow : mapping
        Settings of the section `flow`, for optimizers that move points.
    outputs : mapping
        Settings of the section `outputs` for several targets: {"reduce": "pca", "components": 0.999} learns their
        principal components; {"kernels": "separate"} learns a kernel for each.
    solver : str
        "cholesky"; or "nystrom", for many points: through centres, from one pass over all points. "auto": cholesky, and
        nystrom for more than 30000 points, or that do not fit in memory, or where centres or choose is given.
    centres : int
        With nystrom: the number of centres; None: 2000, or as many as there are points, or as fit in memory.
    choose : str
        With nystrom: how centres are chosen, as `evaluation.choose`; None: "rpcholesky".
    n_interpolation : int
        The number of training points, drawn at random, from which to predict; None for all.
    image_shape : tuple
        (channels, height, width) into which the rows of X are folded, for kernels of images. X may have four
        dimensions itself, (n, channels, height, width).
    device : str or mapping
        As in configs: "cpu", "cuda", {"name": "cpu", "dtype": "float32", "threads": 1}.
    random_state : int, RandomState or None
        An int is the `seed` of a run.
    verbose : bool
        Whether to show progress.

    Attributes
    ----------
    kernel_ : Kernel
        The fitted kernel, with the λ of its training if that was chosen or trained.
    regularization_ : Regularization
        The λ of the interpolation; with "validation" the best for the fitted kernel.
    categories_ : dict
        Of a DataFrame: columns of words, or of dtype category, and their values. Each value is a feature of 0 and 1,
        which `kernel_.names` names; `feature_names_in_` and `n_features_in_` are of the columns as given. As in
        scikit-learn, `predict` takes a frame with the same columns in the same order. Dates become the days since the
        first, with sine and cosine of month, weekday, day of the year and hour; a missing number the median, with a
        feature that marks it if 10 rows miss one; a missing word a category. Columns with one value are left out.
    lengths_ : array
        With a length for each feature, these, (features,), in the units of the scaled features; of a kernel with two
        lengths for each, the shorter ones.
    components_ : list of estimators
        With a kernel for each output or component, an estimator of each, with the attributes above and `trace_`,
        `remarks_`; `kernel_` is then the last one's.
    trace_ : DataFrame
        The rows of `trace.csv`, one for each iteration.
    remarks_ : list of str
        Notes on problems of the fit.
    """

    def __init__(
        self,
        kernel: Chosen | Kernel = "auto",
        *,
        objective: Chosen | objectives.Objective | objectives.Function = "auto",
        optimizer: Chosen | Option = "adam",
        sampler: Chosen | Option = "fixed",
        regularization: float | Chosen | Regularization | None = None,
        flow: Mapping[str, object] | Option | None = None,
        scale: str | Sequence[str] | None = "auto",
        targets: str = "auto",
        copies: str = "auto",
        outputs: Mapping[str, object] | Option | None = None,
        solver: str = "auto",
        centres: int | None = None,
        choose: str | None = None,
        n_interpolation: int | None = None,
        image_shape: Sequence[int] | None = None,
        device: Chosen | Option = "cpu",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.kernel = kernel
        self.objective = objective
        self.optimizer = optimizer
        self.sampler = sampler
        self.regularization = regularization
        self.flow = flow
        self.scale = scale
        self.targets = targets
        self.copies = copies
        self.outputs = outputs
        self.solver = solver
        self.centres = centres
        self.choose = choose
        self.n_interpolation = n_interpolation
        self.image_shape = image_shape
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # ---- parameters, also those of settings and kernels

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params: dict[str, Any] = super().get_params(deep=False)
        if deep:
            from kfx.estimators.settings import settings_of

            for name in self._nested():
                params |= {f"{name}__{key}": value for key, value in settings_of(name, self._named(name)).items()}
        return params

    def set_params(self, **params: Any) -> Self:
        nested: dict[str, dict[str, Any]] = defaultdict(dict)
        plain = {}
        for key, value in params.items():
            name, within, setting = key.partition("__")
            if within and name in self._nested():
                nested[name][setting] = value
            else:
                plain[key] = value
        super().set_params(**plain)
        if not nested:
            return self
        from kfx.estimators.settings import with_settings

        for name, changes in nested.items():
            setattr(self, name, with_settings(name, self._named(name), changes))
        return self

    @classmethod
    def _nested(cls) -> list[str]:
        """The parameters that have settings; a flow has no `outputs`."""
        return [name for name in NESTED if name in signature(cls).parameters]

    def _named(self, name: str) -> Any:
        """A parameter; settings without a name are those of its default option."""
        value = getattr(self, name)
        if name in GROUPS and isinstance(value, Mapping) and "name" not in value:
            return {"name": signature(type(self)).parameters[name].default, **value}
        return value

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        shown = super().__repr__(N_CHAR_MAX)
        if self.components_:
            return f"{shown}: {len(self.components_)} kernels, in components_"
        return f"{shown}: {self.kernel_!r}" if hasattr(self, "kernel_") else shown

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = False
        tags.input_tags.allow_nan = self.image_shape is None
        return tags

    def _modules(self) -> set[Any]:
        from kfx.estimators.settings import modules_of

        return super()._modules() | {module for name in GROUPS for module in modules_of(name, getattr(self, name))}

    @property
    def lengths_(self) -> np.ndarray:
        """The length of each feature, (features,); AttributeError if the kernel has one for all."""
        check_is_fitted(self, "kernel_")
        from kfx.kernels.names import lengths_of

        if (lengths := lengths_of(self.kernel_.parameters)) is None:
            raise AttributeError("lengths_: the kernel has one length for all features; ard=True gives each one")
        return lengths

    # ---- the fit

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from points X, (n, features) or (n, channels, height, width), and targets y.

        sample_weight: w ≥ 0, (n,); the noise of a point is λ / w, w over the mean, and its squared error counts
        w times. 0 leaves a point out. None: all alike.

        An error or an interruption leaves the estimator as it was: one that was fitted before still predicts.
            ValueError for arrays that do not fit, DataError if all points or all targets are equal, ConfigError for
            wrong settings, NumericalError if the arithmetic fails.
        """
        aside = copy.copy(self)
        aside._learn(X, y, sample_weight)
        self.__dict__ = aside.__dict__
        return self

    @abc.abstractmethod
    def _learn(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Fit to X and y."""

    def _checked(self, X: ArrayLike, y: ArrayLike, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """X, as images if it holds images, and y as valid arrays."""
        require_targets(y, numbers=options.get("y_numeric", False))
        X = as_frame(X)
        self._encoding = encoding_of(X) if is_table(X) and self.image_shape is None else None
        x = X if self._encoding is None else encoded(X, self._encoding)
        points, targets = validate_data(self, x, y, ensure_min_samples=2, **_ACCEPTED, **options)
        has_features = points.ndim == 2 and self.image_shape is None
        self._columns = list(getattr(X, "columns", ()))
        if self._encoding is not None:  # scikit-learn's attributes say what the person gave
            validate_data(self, X, skip_check_array=True)
        elif has_features and np.isnan(points).any():
            self._encoding = encoding_of(points)
            points = encoded(points, self._encoding)
        self.categories_ = {} if self._encoding is None else self._encoding.values
        self._features = self._encoding.names if self._encoding else tuple(getattr(self, "feature_names_in_", ()))
        self._fillers = fillers(points, "median") if has_features else None
        require_numbers(points, "X", missing=True)
        if self._fillers is None:
            self._filled(points)  # raises
        return folded(points, self.image_shape), targets

    def _filled(self, x: np.ndarray) -> np.ndarray:
        """Points (n, features) with the medians of training points for missing values, which images do not have."""
        if not (absent := np.isnan(x)).any():
            return x
        if self._fillers is None:
            raise ValueError("X contains NaN; images, and the points of a recorded run, take no missing values")
        return np.where(absent, self._fillers, x)

    def _fit(self, x: np.ndarray, y: np.ndarray, labels: np.ndarray | None, weights: np.ndarray | None = None) -> None:
        """Fit the kernel to points (n, …) and targets (n, outputs), and solve for the coefficients. labels: (n,), or
        None. weights: > 0, (n,), or None."""
        from kfx.data.copies import counting
        from kfx.estimators.fit import fit
        from kfx.estimators.settings import as_config, sizes_of, steps_of
        from kfx.evaluation.predictor import Predictor, Separate, without_points
        from kfx.evaluation.scoring import interpolation_order
        from kfx.numerics.streams import Streams

        for name in ("trace_", "remarks_", "regularization_", "kernel_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        self.components_ = []
        image = None if x.ndim == 2 else (*x.shape[2:], x.shape[1])[: 2 if x.shape[1] == 1 else 3]
        settings = {name: self._named(name) for name in NESTED}
        self._seed_ = self._seed()
        if self.copies not in ("auto", "once", "each"):
            raise ConfigError(f"copies={self.copies!r}: expected auto, once or each")
        if not (counts := counting(self.copies, x, y, weights, "", "copies='each'")).all():
            x, y, labels = x[counts], y[counts], None if labels is None else labels[counts]
        settings |= {name: getattr(self, name) for name in EVALUATION}
        settings |= {"n_interpolation": sizes_of(self.n_interpolation, len(x))}
        given = (
            settings,
            x.shape,
            image,
            labels is not None,
            self.targets,
            steps_of(self.scale, self.kernel),
            self._seed_,
        )
        config = as_config(*given, has_weights=weights is not None)
        streams, self._streams = self._streams or Streams(self._seed_), None
        nothing, of_none = x[:0], None if labels is None else labels[:0]
        data = Dataset("given", x, y, nothing, y[:0], labels, of_none, features=self._features, weights_train=weights)
        if config.outputs.is_separate:
            data = config.outputs.applied(config.dataset.preprocessed(data))
            alone = self._of_one_output(config.outputs.of_components, streams)
            self.components_ = [copy.copy(alone).fit(data.x_train, own, weights) for own in data.targets.T]
            self.kernel_: Kernel = self.components_[-1].kernel_
            parts = [part for each in self.components_ for part in each._predictor.parts]
            self._predictor: Predictor | Separate = Separate(parts, without_points(data))
            return
        fitted = fit(config, data, streams, bool(self.verbose))
        self.kernel_, self.trace_, data = fitted.kernel, fitted.trace, fitted.data
        self.remarks_ = [*(self._encoding.remarks() if self._encoding else []), *fitted.remarks]
        self.regularization_ = fitted.regularization
        units = without_points(data)
        if fitted.interpolant is not None:
            self._predictor = Predictor(fitted.kernel, fitted.interpolant, units, fitted.arithmetic)
            return
        order = interpolation_order(data, False, Streams(self._seed_)["evaluation"])[: self.n_interpolation]
        points, targets = data.x_train[order], data.targets[order]
        used = None if data.weights is None else data.weights[order]
        self._predictor = Predictor.solved(
            fitted.kernel, points, targets, fitted.regularization, units, fitted.arithmetic, used
        )

    def holding(self, predictor: Predictor | Separate) -> Self:
        """The estimator as one that has been fitted, with the kernel and the solution of a run."""
        from kfx.evaluation.predictor import Separate
        from kfx.numerics.regularization import Regularization

        last = predictor.parts[-1]
        self._predictor, self.kernel_ = predictor, last.kernel
        self.regularization_ = Regularization(last.interpolant.effective, "absolute")
        shape, targets = predictor.units.x_train.shape, predictor.units.y_train
        self.n_features_in_, self._names, self._is_flat = shape[1], predictor.units.features, targets.shape[1] == 1
        if isinstance(predictor, Separate):
            alone = self._of_one_output(predictor.units.reduction is not None)
            self.components_ = [copy.copy(alone).holding(part) for part in predictor.parts]
        return self

    def _of_one_output(self, is_component: bool, streams: Streams | None = None) -> Self:
        """An estimator of one output or component. streams: of the fit of all."""
        from kfx.data.outputs_option import OneComponent

        outputs = OneComponent() if is_component else None
        alone: Self = clone(self).set_params(outputs=outputs, scale=None, targets="as_given", copies="each")
        alone._streams = streams
        return alone

    def _seed(self) -> int:
        if isinstance(self.random_state, numbers.Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    categories_: Mapping[str, Sequence[object]] = {}  # a recorded run encodes its rows itself
    _encoding: Encoding | None = None
    _fillers: np.ndarray | None = None
    components_: list[Self] = []  # noqa: RUF012
    _streams: Streams | None = None  # while the outputs of one fit are fitted one by one
    _names: Sequence[str] = ()  # of the features of a recorded run

    @property
    def scale_(self) -> np.ndarray:
        """The factor of the kernel, (outputs,), with which leave-one-out errors have the predicted variance; of
        components, (components,), in their units."""
        check_is_fitted(self, "kernel_")
        scales, units = np.concatenate([part.scale for part in self._predictor.parts]), self._predictor.units
        return scales if units.reduction else np.square(units.target_scale) * units.of_all(scales)

    def _points_of(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self, "kernel_")
        X = as_frame(X)
        known = self._names or getattr(self, "_columns", ())
        are_texts = all(isinstance(name, str) for name in known)  # which scikit-learn compares itself
        if hasattr(X, "columns") and known and not (are_texts and not self._names):
            X = with_columns_of(X, known)
        if self._encoding is not None and self._columns:
            validate_data(self, X, reset=False, skip_check_array=True)
            x = encoded(with_columns_of(X, self._columns), self._encoding)
        else:
            x = validate_data(self, X, reset=False, **_ACCEPTED)
            if self._encoding is not None:
                x = encoded(x, self._encoding)
            elif self._fillers is not None and np.isnan(x).any():
                warnings.warn("X has missing values, and the training points have none; medians count", stacklevel=3)
        require_numbers(x, "X", missing=True)
        x = folded(self._filled(x), self.image_shape)
        if x.shape[1:] != (expected := self._predictor.units.x_train.shape[1:]):
            raise ValueError(f"X has points of shape {x.shape[1:]}; the fit had {expected}")
        return self._predictor.units.mapped(x)
