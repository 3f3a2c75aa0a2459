"""Classification by kernel ridge regression on one-hot targets, with a kernel learned by Kernel Flows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from kfx.data.dataset import one_hot
from kfx.estimators.base import KernelFlow
from kfx.estimators.frames import counted


class KernelFlowClassifier(ClassifierMixin, KernelFlow):
    __doc__ = f"""Classification by kernel ridge regression on one-hot targets, with a kernel learned by Kernel Flows.

    {KernelFlow.__doc__}
    classes_ : array
        The classes, in the order of the columns of `decision_function` and `predict_proba`.
    """

    def _learn(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Learn the kernel, and solve for the coefficients. y: (n,), with at least two classes."""
        X, y, weights = counted(X, y, sample_weight)
        X, y = self._checked(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y holds one class, {self.classes_[0]}; a classification takes two or more classes")
        self._fit(X, one_hot(labels, len(self.classes_)), labels, weights)

    def decision_function(self, X: ArrayLike, return_std: bool = False) -> Any:
        """The predicted target of each class, (n, classes); for two classes the second minus the first, (n,).

        X: (n, features) or (n, channels, height, width). return_std: also return the posterior standard deviation, in
            the same shape.
        """
        points = self._points_of(X)
        mean, deviation = self._predictor(points, return_std)
        if len(self.classes_) == 2:
            # The two targets of a point add up to 1, so the deviation of their difference is the sum of both.
            mean, deviation = mean[:, 1] - mean[:, 0], None if deviation is None else deviation.sum(axis=1)
        return (mean, deviation) if return_std else mean

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """The probability of each class, (n, classes): softmax(a · predicted targets).

        The factor a fits best the classes of training points that are left out one by one, at most 2000 of them. X: (n,
        features) or (n, channels, height, width).
        """
        points = self._points_of(X)
        return self._predictor.parts[0].probabilities(self._predictor(points)[0])

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The class with the largest predicted target, (n,). X: (n, features) or (n, channels, height, width)."""
        decision = self.decision_function(X)
        classes: np.ndarray = self.classes_[
            (decision > 0).astype(int) if decision.ndim == 1 else decision.argmax(axis=1)
        ]
        return classes
