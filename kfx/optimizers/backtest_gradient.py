"""The gradient of a backtest's error, through the forecasts and the fits of its blocks."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import torch

from kfx.data.backtest import Backtest, Predictor
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import Vector
from kfx.numerics.regularization import Regularization
from kfx.optimizers.backtest_scores import ERROR, Score
from kfx.outcomes import Event, NumericalError


def error_and_gradient(
    test: Backtest, kernel: Kernel, regularization: Regularization, score: Score = ERROR
) -> tuple[float, Vector]:
    """The error of a backtest, as `Backtest.errors` has it, and its gradient with respect to `kernel.flat`, (p,).

    A forecast is p(x_t) = Σ_j k(x_t, x_j) α_j with α = (Θ + λI)⁻¹Y of its block, and x_t holds earlier forecasts. The
    slopes ∂p/∂x at all x_t come from one pullback for each coordinate. With them errors are carried backwards through
    the steps to each p(x_t), and one pullback of the kernel between all x_t and x_j gives the gradient.
    Raises NumericalError where Θ + λI is not positive definite, or a forecast leaves the range of float64.
    """
    n, blocks, steps = len(test.x), len(test.kept), test.truth.shape[1]
    lambda_ = regularization.of(gram := kernel.gram(test.x))
    alpha, factors = np.zeros((blocks, *test.y.shape)), []
    for block, own in enumerate(test.kept):
        try:
            factors.append(scipy.linalg.cho_factor(gram[np.ix_(own, own)] + lambda_ * np.eye(int(own.sum()))))
        except np.linalg.LinAlgError as failure:
            raise NumericalError(Event.NOT_POSITIVE_DEFINITE, f"Θ + λI of block {block} has no factor") from failure
        alpha[block, own] = scipy.linalg.cho_solve(factors[-1], test.y[own])
    points: list[np.ndarray] = []
    predict = Predictor(kernel, test.x, alpha)

    def recorded(x: np.ndarray) -> np.ndarray:
        points.append(x)
        return predict(x)

    forecasts = test.windows.forecast(recorded, test.history, test.time, steps)
    if not np.isfinite(forecasts).all():
        raise NumericalError(Event.DIVERGED, "a forecast of the backtest is not finite")
    visited = np.stack(points, axis=1).reshape(blocks * steps, -1)  # a row for each block and step
    everywhere = np.concatenate([visited, test.x])
    _, pull = kernel.pullback(everywhere)

    def pulled(cross: np.ndarray, own: np.ndarray | None = None, *, inputs: bool) -> Vector | np.ndarray:
        """The derivative of Σ cross · K(visited, x) + Σ own · K(x, x), to parameters or to the visited points."""
        cotangent = np.zeros((len(everywhere),) * 2)
        cotangent[: len(visited), len(visited) :] = cross / 2
        cotangent[len(visited) :, : len(visited)] = cross.T / 2
        if own is not None:
            cotangent[len(visited) :, len(visited) :] = own
        return pull(cotangent, inputs=True)[1][: len(visited)] if inputs else pull(cotangent)

    each = np.repeat(alpha, steps, axis=0)  # (blocks · steps, n, coordinates): the coefficients at each visited point
    slopes = np.stack([pulled(each[:, :, c], inputs=True) for c in range(test.y.shape[1])], axis=1)
    error, to_forecasts = score.slope(forecasts, test)
    shape = blocks, steps, *slopes.shape[1:]
    to_predictions = test.windows.backwards(to_forecasts, forecasts, slopes.reshape(shape)).reshape(len(visited), -1)
    cross = np.einsum("mc,mnc->mn", to_predictions, each)
    between, own = kernel.gram(visited, test.x), np.zeros((n, n))
    for block, factor in enumerate(factors):
        rows, kept = slice(block * steps, (block + 1) * steps), np.flatnonzero(test.kept[block])
        to_alpha = between[rows][:, kept].T @ to_predictions[rows]
        own[np.ix_(kept, kept)] -= scipy.linalg.cho_solve(factor, to_alpha) @ alpha[block, kept].T
    to_gram = regularization.pull(torch.from_numpy((own + own.T) / 2)).numpy()
    return error, pulled(cross, to_gram, inputs=False)
