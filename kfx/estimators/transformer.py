"""A learned flow as a transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from kfx.config.option import Option
from kfx.data.own import as_targets, looks_like_classes
from kfx.estimators.base import KernelFlow
from kfx.estimators.parameters import Chosen
from kfx.flows.flowed import FlowedKernel
from kfx.kernels.base import Kernel
from kfx.numerics.regularization import Regularization
from kfx.objectives.base import Function, Objective
from kfx.outcomes import ConfigError


class KernelFlowTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, KernelFlow):
    __doc__ = f"""A learned flow: points move along −∂ρ/∂X, layer after layer (Owhadi & Yoo 2019).

    The optimizer is a flow: `flow_euler`, `flow_rk45` or `hybrid`. Points of the fit get the positions at which it left
    them; other points go through its layers, which are kept, two arrays of a batch's size each. Features are taken as
    given.

    {KernelFlow.__doc__}
    """

    def __init__(
        self,
        kernel: Chosen | Kernel = "auto",
        *,
        objective: Chosen | Objective | Function = "auto",
        optimizer: Chosen | Option = "flow_euler",
        sampler: Chosen | Option = "fixed",
        regularization: float | Chosen | Regularization | None = None,
        flow: Mapping[str, object] | Option | None = None,
        targets: str = "auto",
        image_shape: Sequence[int] | None = None,
        device: Chosen | Option = "cpu",
        task: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            kernel,
            objective=objective,
            optimizer=optimizer,
            sampler=sampler,
            regularization=regularization,
            flow=flow,
            scale=None,  # moved points keep the units of X
            copies="each",  # each has a position
            targets=targets,
            image_shape=image_shape,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.task = task

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # type: ignore[override]  # a flow takes no weights
        """Learn the flow from points X, (n, features) or (n, channels, height, width), and targets y; errors as of
        `KernelFlowRegressor.fit`."""
        return super().fit(X, y)

    def _learn(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Learn the flow. y: (n,) classes or values, or (n, outputs); `task` says which, as for `dataset=table`."""
        X, y = self._checked(X, y, multi_output=True)
        y, task = np.asarray(y), self.task
        if task not in ("auto", "classification", "regression"):
            raise ConfigError(f"task={task!r}: expected auto, classification or regression")
        if task == "auto":
            task = "classification" if y.ndim == 1 and looks_like_classes(y) else "regression"
        targets = as_targets(y, task, "y")
        self._fit(X, targets.y, targets.labels)
        if not isinstance(self.kernel_, FlowedKernel):
            raise ValueError(f"optimizer={self.optimizer!r}: moves no points; use flow_euler, flow_rk45 or hybrid")
        self._n_features_out = int(np.prod(X.shape[1:]))

    def transform(self, X: ArrayLike) -> np.ndarray:
        """The points X moved by the flow, in X's shape, (n, …); with `image_shape` as rows, (n, features)."""
        points = self._points_of(X)
        assert isinstance(self.kernel_, FlowedKernel)
        arithmetic = self._predictor.parts[0].arithmetic
        with arithmetic.block():
            moved = self.kernel_.transform(arithmetic.tensor(points))
        found: np.ndarray = moved.cpu().numpy().astype(np.float64)
        return found if self.image_shape is None else found.reshape(len(found), -1)
