"""The options `objective=backtest` and `objective=hausdorff`: how forecasts within the training series differ from
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kfx.config.option import option
from kfx.config.parts import ConfigView
from kfx.config.rules import SERIES, needs, refuses, rows
from kfx.objectives.options import ObjectiveOption

if TYPE_CHECKING:
    from kfx.objectives import Objective
    from kfx.optimizers.backtest_scores import Score
    from kfx.optimizers.loss import Evaluation, Loss


@option("objective", "backtest", "Error of forecasts within the training series, at each kernel's best lambda")
class BacktestOption(ObjectiveOption):
    quick = ("dataset=dynamics", "dataset.n_train=100", "dataset.n_test=60", "dataset.preprocess=[]", "dataset.lags=4",
             "optimizer=grid", "optimizer.points=2", "evaluation.n_interpolation=null")  # fmt: skip
    rules = rows(
        needs(SERIES, "use nll or rho"),
        refuses(
            lambda _, c: (
                c.optimizer.moves_points or c.optimizer.builds_objective or not c.optimizer.minimizes_objective
            ),
            "is no function of a batch, as optimizer={config.optimizer.name} needs; use adam, sgd, nesterov, grid, "
            "bayesian or none",
        ),
        refuses(
            lambda _, c: c.optimizer.follows_gradients and not c.kernel.input_gradients,
            "its gradient needs that of the points, and kernel={config.kernel.name} has none; use optimizer=grid, "
            "bayesian or none",
        ),
    )

    def build(self) -> Objective:
        raise TypeError(f"objective={self.name} is not a function of a Gram matrix: see own_loss")

    def own_loss(self, config: ConfigView) -> Callable[..., Loss]:
        return partial(_loss, config, self.score())

    def score(self) -> Score:
        """What forecasts are judged by."""
        from kfx.optimizers.backtest_scores import ERROR

        return ERROR


@option(
    "objective",
    "hausdorff",
    "Modified Hausdorff distance of forecasts within the training series from it (Jahagirdar et al. 2025, eq. 5), at "
    "each kernel's best lambda",
)
class HausdorffOption(BacktestOption):
    def score(self) -> Score:
        from kfx.optimizers.backtest_scores import HAUSDORFF

        return HAUSDORFF


def _loss(config: ConfigView, score: Score, *arguments: object) -> Loss:
    """A loss whose value is the score of a backtest with the best λ, whatever the batch; ρ is that of the batch."""
    from kfx.data.choice import backtest_of
    from kfx.data.series_options import SeriesData
    from kfx.kernels.regularized import bare
    from kfx.numerics.arrays import Vector
    from kfx.numerics.streams import Streams
    from kfx.objectives import rho
    from kfx.optimizers.backtest_gradient import error_and_gradient
    from kfx.optimizers.loss import Loss
    from kfx.outcomes import NumericalError
    from kfx.sampling.samplers import Batch

    assert isinstance(config.dataset, SeriesData)
    steps = config.dataset.judged_steps(config.evaluation.forecast_steps())
    test = backtest_of(config.dataset.windows(), config.dataset.split(Streams(config.seed)["data"])[0], steps)
    choices, known = config.regularization.left_out(config).values, dict[object, np.ndarray]()

    class BacktestLoss(Loss):
        def __call__(self, vector: Vector, batch: Batch, gradient: bool = True) -> Evaluation:
            found = super().__call__(vector, batch, gradient=False)
            kernel = self.kernel.with_flat(vector)
            inner = bare(kernel)
            key = tuple((name, np.asarray(value).tobytes()) for name, value in sorted(inner.parameters.items()))
            if key not in known:
                known[key] = test.errors(inner, choices, score.errors)
            best = int(known[key].argmin())
            found = replace(found, objective=float(known[key][best]))
            if not gradient or found.failed:
                return found
            try:  # the best λ is a minimum, so that its own dependence on the parameters drops out
                return replace(found, gradient=error_and_gradient(test, inner, choices[best], score)[1])
            except NumericalError as error:
                return replace(found, events=(*found.events, error.event), detail=f"{kernel!r}: {error.detail}")

    return BacktestLoss(rho, config.regularization.build(), *arguments)  # type: ignore[arg-type]
