"""Bayesian optimisation of the objective by scikit-optimize, asked and told one point at a time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.optimizers.loss import Loss
from kfx.optimizers.space import Space as Box
from kfx.outcomes import Event, NumericalError
from kfx.sampling import FixedSampler
from kfx.streams import Streams

_WORST_RHO = 1.0


class BayesianOptimization:
    """Expected improvement on a Gaussian-process surrogate, its acquisition maximised by L-BFGS (Khalid 2022, §3.5.4).

    iterations: points evaluated in all, the first `initial_points` of them at random.
    bounds: (low, high) for every parameter, within the kernel's own bounds; None for those alone.
    noise: variance that the surrogate assumes for the objective, or "gaussian" to have it estimated. Every point
        sees another batch, so there is some; the thesis assumed none.
    recheck, recheck_threshold: two rules keep an unstable kernel from passing for a good one. A ρ below 0, or none at
        all, is told as 1. A new minimum, the first included, is evaluated on another batch, and told as 1 if ρ changes
        (`two_sided`, as the thesis prints it) or rises (`one_sided`, as its code has it) by more than the threshold.
        For an objective that is no ratio, as a likelihood, a failure is told as the worst value so far; the rest is
        left out.

    The trace keeps what was measured; `told`, what the surrogate heard; `diagnostic.recheck`, ρ on the other batch;
    `diagnostic.incumbent`, the smallest value told so far. The kernel that comes back is the incumbent's.
    """

    def __init__(
        self,
        loss: Callable[..., Loss],
        sampler: FixedSampler,
        *,
        iterations: int,
        initial_points: int,
        bounds: tuple[float, float] | None,
        space: str,
        noise: float | str,
        recheck_threshold: float,
        recheck: str = "two_sided",
    ) -> None:
        self.loss, self.sampler, self.iterations = loss, sampler, iterations
        self.diagnostics = ("recheck", "incumbent", *sampler.diagnostics)
        self.initial_points, self.bounds, self.space = initial_points, bounds, space
        self.noise, self.recheck_threshold, self.two_sided = noise, recheck_threshold, recheck == "two_sided"

    def fit(self, kernel: Kernel, data: tuple[torch.Tensor, torch.Tensor], streams: Streams, record: Any) -> Kernel:
        loss, batches = self.loss(kernel, *data), streams["batches"]
        box = search_box(kernel.bounds, self.bounds)
        incumbent, best, first = math.inf, None, 0
        history: list[tuple[list[float], float]] = []
        cause = NumericalError(Event.DIVERGED, "no point was evaluated")
        self.sampler.start(*data)
        restored = record.restore(streams)
        # Drawn before the streams were restored it would be another fit's.
        seed = restored[1]["seed"] if restored else int(streams["optimizer"].integers(2**31))
        search = surrogate_search(box, self.space, self.noise, self.initial_points, seed)
        if restored:
            first, state = restored
            self.sampler.restore(state["sampler"])
            incumbent, best = state["incumbent"], state["best"]
            loss.kernel_evaluations, history = state["kernel_evaluations"], [(x, y) for x, y in state["history"]]
            for point, told in history:  # asking, too, moves the search on
                _quietly(search.ask)
                _quietly(search.tell, point, told)

        def checkpoint(iteration: int) -> None:
            state = {"incumbent": incumbent, "best": best, "history": list(history), "sampler": self.sampler.state()}
            own = {"seed": seed, "kernel_evaluations": loss.kernel_evaluations}
            record.checkpoint(iteration, streams, {**state, **own})

        def bad() -> float:
            """1 for a ρ; for an objective without a worst value the worst that was told."""
            return _WORST_RHO if loss.is_ratio else max((y for _, y in history), default=_WORST_RHO)

        for iteration in range(first, self.iterations):
            checkpoint(iteration)
            vector = np.array(_quietly(search.ask), dtype=np.float64)
            batch = self.sampler.draw(batches, iteration)
            evaluation = loss(vector, batch, gradient=False)
            self.sampler.observe(evaluation.rho_half)
            told, recheck = evaluation.objective, math.nan
            events: tuple[Event, ...] = ()
            if evaluation.failed:
                told, cause = bad(), NumericalError(evaluation.events[-1], evaluation.detail)
            elif loss.is_ratio and told < 0:
                told = bad()
            elif loss.is_ratio and told < incumbent:
                again = loss(vector, self.sampler.draw(batches, iteration), gradient=False)
                recheck = again.objective
                change = abs(recheck - told) if self.two_sided else recheck - told
                if again.failed or change > self.recheck_threshold:
                    told, events = bad(), (Event.MINIMUM_REJECTED,)
            if told < incumbent:
                incumbent, best = told, (vector if told == evaluation.objective else best)
            try:
                _quietly(search.tell, vector.tolist(), told)
            except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
                detail = f"the surrogate has no fit to values as far apart as {told:.3g} ({error})"
                record.row(iteration, evaluation, loss.kernel_evaluations, told=told, events=(Event.DIVERGED,))
                raise NumericalError(Event.DIVERGED, detail) from error
            history.append((vector.tolist(), told))
            record.row(
                iteration,
                evaluation,
                loss.kernel_evaluations,
                told=told,
                events=events,
                diagnostics={"recheck": recheck, "incumbent": incumbent, **self.sampler.shown(batch)},
            )
        checkpoint(self.iterations)
        if best is None:
            raise cause
        return kernel.with_flat(best)


def search_box(bounds: np.ndarray, common: tuple[float, float] | None) -> np.ndarray:
    """(n, 2): a kernel's bounds, cut to a range common to all its parameters. An entry may be empty."""
    if common is None:
        return bounds
    return np.stack([np.maximum(bounds[:, 0], common[0]), np.minimum(bounds[:, 1], common[1])], axis=1)


def surrogate_search(box: np.ndarray, space: str, noise: float | str, initial_points: int, seed: int) -> Any:
    """scikit-optimize's ask-and-tell optimizer over `box`, (n, 2): a Matérn surrogate, EI, L-BFGS."""
    from skopt import Optimizer
    from skopt.space import Real, Space
    from skopt.utils import cook_estimator, normalize_dimensions

    prior = "log-uniform" if space == "log" else "uniform"
    box = Box(space, box).bounds
    dimensions = normalize_dimensions(Space([Real(low, high, prior=prior) for low, high in box]))
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
        warnings.simplefilter("ignore")  # of the surrogate's own fit: a bound reached, a point asked for again
        return call(*arguments)
