"""Bayesian optimisation of the objective by scikit-optimize."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kfx.kernels.base import Kernel
from kfx.kernels.space import Space as Box
from kfx.optimizers.journal import State
from kfx.optimizers.loop import Answer, FitSetup, Optimizer, Question
from kfx.optimizers.loss import Evaluation, Loss
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch, Sampler


class BayesianOptimization(Optimizer):
    """Expected improvement on a Gaussian-process surrogate, its acquisition maximised by L-BFGS (Khalid 2022, §3.5.4).

    iterations: points evaluated in all, of which the first `initial_points` are random.
    bounds: (low, high) for every parameter, within the kernel's own bounds; None for the kernel's bounds.
    space: `raw` or `log`, see `Space`.
    noise: variance of the objective's noise that the surrogate assumes, or "gaussian" to estimate it. There is some
        noise, since every point is evaluated on another batch; the thesis assumed none.
    recheck, recheck_threshold: two rules keep unstable kernels from appearing good. First, the surrogate is told 1
        where ρ is below 0 or cannot be computed. Second, a new minimum, the first included, is evaluated again on
        another batch; the surrogate is told 1 if ρ changes (`two_sided`, as the thesis prints the rule) or rises
        (`one_sided`, as its code does) by more than the threshold. For an objective that is not a ratio, as a
        likelihood, the surrogate is told the worst value so far where the evaluation fails, and of failures before all
        values the first value, once it is there; nothing else applies.

    The trace has the measured objective; `told`, the value given to the surrogate; `diagnostic.recheck`, ρ on the other
    batch; `diagnostic.incumbent`, the smallest value told so far. The fitted kernel is the incumbent's.
    """

    diagnostics = ("recheck", "incumbent")

    def __init__(
        self,
        make_loss: Callable[..., Loss],
        sampler: Sampler,
        *,
        iterations: int,
        initial_points: int,
        bounds: Sequence[float] | None,
        space: str,
        noise: float | str,
        recheck_threshold: float,
        recheck: str = "two_sided",
    ) -> None:
        super().__init__(make_loss, sampler, iterations)
        self.initial_points, self.bounds, self.space = initial_points, bounds, space
        self.noise, self.recheck_threshold, self.two_sided = noise, recheck_threshold, recheck == "two_sided"

    def start(self, setup: FitSetup) -> None:
        self.kernel, self.objective, self.rng = setup.kernel, setup.loss.objective, setup.rng
        self.incumbent = math.inf
        self.best: np.ndarray | None = None
        self.history: list[tuple[list[float], float]] = []
        self.cause = NumericalError(Event.DIVERGED, "no point was evaluated")
        self.seed: int | None = None
        self.search: Any = None
        self.first: Evaluation | None = None

    def state(self) -> State:
        state = {"incumbent": self.incumbent, "best": self.best, "history": list(self.history)}
        return {**state, "seed": self._seed()}

    def restore(self, state: State) -> None:
        self.incumbent, self.best, self.seed = state["incumbent"], state["best"], state["seed"]
        self._repeat(state["history"])

    def _repeat(self, history: Sequence[tuple[list[float], float]]) -> None:
        """Search again from the start with other points and values."""
        self.search, self.history = None, []
        for point, told in history:  # asking also changes the state of the search
            _quietly(self._search().ask)
            self._hear(point, told)

    def _seed(self) -> int:
        if self.seed is None:  # drawn by a new fit only; a resumed fit restores it
            self.seed = int(self.rng.integers(2**31))
        return self.seed

    def _search(self) -> Any:
        if self.search is None:
            box = search_box(self.kernel.bounds, self.bounds)
            self.search = surrogate_search(box, self.space, self.noise, self.initial_points, self._seed())
        return self.search

    def _hear(self, point: list[float], told: float) -> None:
        _quietly(self._search().tell, point, 0.0 if math.isnan(told) else told)  # all alike until there is a value
        self.history.append((point, told))

    def ask(self, iteration: int, batch: Batch) -> Question:
        self.first = None
        self.vector = np.array(_quietly(self._search().ask), dtype=np.float64)
        return Question(self.vector, gradient=False)

    def tell(self, evaluation: Evaluation) -> Answer | Question:
        if self.first is not None:
            return self._rechecked(self.first, evaluation)
        told = evaluation.objective
        if evaluation.failed:
            self.cause = NumericalError(evaluation.events[-1], evaluation.detail)
            told = self._bad()
        elif self.objective.is_ratio and told < 0:
            self.cause = NumericalError(Event.RHO_OUT_OF_RANGE, "ρ was below 0")
            told = self._bad()
        elif self.objective.is_ratio and told < self.incumbent:
            self.first = evaluation
            return Question(self.vector, gradient=False)
        return self._row(evaluation, told, math.nan, ())

    def _rechecked(self, first: Evaluation, again: Evaluation) -> Answer:
        """Return the row of a new minimum, given its second evaluation, on another batch."""
        change = again.objective - first.objective
        change = abs(change) if self.two_sided else change
        if again.failed or change > self.recheck_threshold:
            found = "failed" if again.failed else f"changed by {change:.3g}"
            self.cause = NumericalError(Event.MINIMUM_REJECTED, f"ρ {found} on another batch")
            return self._row(first, self._bad(), again.objective, (Event.MINIMUM_REJECTED,))
        return self._row(first, first.objective, again.objective, ())

    def _bad(self) -> float:
        return self.objective.worst(told for _, told in self.history if not math.isnan(told))

    def _row(self, evaluation: Evaluation, told: float, recheck: float, events: tuple[Event, ...]) -> Answer:
        if told < self.incumbent:
            self.incumbent, self.best = told, (self.vector if told == evaluation.objective else self.best)
        try:
            if self.history and math.isnan(self.history[-1][1]) and not math.isnan(told):
                self._repeat([(point, told) for point, _ in self.history])
                _quietly(self._search().ask)  # for the present point
            self._hear(self.vector.tolist(), told)
        except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
            detail = f"the surrogate cannot be fitted to values as far apart as {told:.3g} ({error})"
            return Answer(told, (Event.DIVERGED,), error=NumericalError(Event.DIVERGED, detail))
        return Answer(
            told, events, {"recheck": recheck, "incumbent": math.nan if math.isinf(self.incumbent) else self.incumbent}
        )

    def result(self) -> Kernel:
        if self.best is None:
            raise self.cause
        return self.kernel.with_flat(self.best)


def search_box(bounds: np.ndarray, common: Sequence[float] | None) -> np.ndarray:
    """Return a kernel's bounds restricted to a range common to all its parameters, (n, 2); a range may become empty.

    bounds: (n, 2). common: (low, high); None for no restriction.
    """
    if common is None:
        return bounds
    return np.stack([np.maximum(bounds[:, 0], common[0]), np.minimum(bounds[:, 1], common[1])], axis=1)


def surrogate_search(box: np.ndarray, space: str, noise: float | str, initial_points: int, seed: int) -> Any:
    """Return scikit-optimize's ask-and-tell optimizer over a box: Matérn surrogate, expected improvement, L-BFGS.

    box: bounds of each parameter, (n, 2). space: `raw` or `log`. noise: see `BayesianOptimization`.
    """
    from skopt import Optimizer
    from skopt.space import Real, Space
    from skopt.utils import cook_estimator, normalize_dimensions

    moved = Box(space, box)
    priors = ["log-uniform" if logged else "uniform" for logged in moved.is_logged]
    ends = zip(moved.bounds, priors, strict=True)
    dimensions = normalize_dimensions(Space([Real(low, high, prior=prior) for (low, high), prior in ends]))
    estimator = cook_estimator("GP", space=dimensions, random_state=seed, noise=noise)
    return Optimizer(
        dimensions,
        base_estimator=estimator,
        n_initial_points=initial_points,
        acq_func="EI",
        acq_optimizer="lbfgs",
        random_state=seed,
    )


def _quietly(call: Callable[..., Any], *arguments: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the surrogate's fit warns of a bound reached or a repeated point
        return call(*arguments)
