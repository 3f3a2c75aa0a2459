"""Kernel ridge regression with a kernel learned by Kernel Flows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state

from kfx.estimators.base import KernelFlow
from kfx.estimators.frames import counted


class KernelFlowRegressor(RegressorMixin, KernelFlow):
    __doc__ = f"""Kernel ridge regression with a kernel learned by Kernel Flows.

    {KernelFlow.__doc__}
    scale_ : array, (outputs,)
        The factor of the kernel with which the errors at training points that are left out one by one have the variance
        that the Gaussian process predicts for them; ρ does not see it.
    """

    def _learn(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Learn the kernel, and solve for the coefficients. y: (n,) or (n, outputs)."""
        X, y, weights = counted(X, y, sample_weight)
        X, y = self._checked(X, y, multi_output=True, y_numeric=True)
        self._is_flat = y.ndim == 1
        self._fit(X, np.array(y, dtype=np.float64, order="C").reshape(len(y), -1), None, weights)

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """The prediction at X, (n,) or (n, outputs) as y; with `return_std` also the standard deviation of a target
        observed there, noise included, in the same shape.

        X: (n, features) or (n, channels, height, width).
        """
        points = self._points_of(X)
        mean, deviation = self._predictor(points, return_std)
        if self._is_flat:
            mean, deviation = mean[:, 0], None if deviation is None else deviation[:, 0]
        return (mean, deviation) if return_std else mean

    def predict_interval(self, X: ArrayLike, coverage: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the intervals, each (n,) or (n, outputs) as y, that hold a target observed at X with probability
        `coverage`, in (0, 1).

        X: (n, features) or (n, channels, height, width). ValueError for another coverage.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage={coverage!r}: expected a number between 0 and 1")
        low, high = self._predictor.interval(self._points_of(X), coverage)
        return (low[:, 0], high[:, 0]) if self._is_flat else (low, high)

    def predict_covariance(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return s, (n, components), B, (components, outputs), and d, (outputs,): the outputs at a point of X have the
        covariance Bᵀ diag(s²) B + diag(d), noise included.

        X: as for `predict`. ValueError unless `outputs` has the estimator learn components.
        """
        points = self._points_of(X)
        own = self._predictor
        if own.units.reduction is None:
            raise ValueError("outputs: reduce=none has no components; set pca or cca")
        deviation = own.as_learned(points, True)[1]
        assert deviation is not None
        return deviation * own.units.inflation, *own.units.reduction_in_units()

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0, *, prior: bool = False) -> np.ndarray:
        """Draw functions from the Gaussian process, given the training data or, with `prior`, without them.

        X: points, (n, features) or (n, channels, height, width). Returns values without noise at X, (n, n_samples) or
        (n, outputs, n_samples) as y.
        """
        x, rng = self._points_of(X), check_random_state(random_state)
        own = self._predictor
        drawn = np.stack([own.units.in_units(each) for each in own.draws(x, n_samples, rng, prior)], axis=2)
        return np.asarray(drawn[:, 0] if self._is_flat else drawn)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
