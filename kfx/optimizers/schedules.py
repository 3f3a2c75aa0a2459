"""Schedules of the learning rate of a gradient method."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kfx.optimizers.journal import State


class Constant:
    """A constant rate, and the interface of all schedules."""

    is_constant = True

    def start(self, iterations: int, epoch: int) -> None:
        """Begin a fit. iterations: of the fit. epoch: iterations of an epoch."""

    def factor(self, iteration: int) -> float:
        """Return the factor on the learning rate in this iteration."""
        return 1.0

    def hear(self, objective: float) -> None:
        """Take the objective of the iteration that has ended."""

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Continue from a result of `state`."""


class Milestones(Constant):
    """The rate is multiplied by `decay` after each of these shares of the iterations, in (0, 1)."""

    is_constant = False

    def __init__(self, milestones: Sequence[float], decay: float) -> None:
        self.milestones, self.decay = tuple(milestones), decay

    def start(self, iterations: int, epoch: int) -> None:
        self.iterations = iterations

    def factor(self, iteration: int) -> float:
        return self.decay ** sum(iteration >= share * self.iterations for share in self.milestones)


class Exponential(Constant):
    """The rate falls from its full value to `decay` of it, as decay + (1 − decay) e^(−t / period) in iteration t."""

    is_constant = False

    def __init__(self, period: int | None, decay: float) -> None:
        self.chosen_period, self.decay = period, decay

    def start(self, iterations: int, epoch: int) -> None:
        self.period = self.chosen_period or epoch

    def factor(self, iteration: int) -> float:
        return self.decay + (1 - self.decay) * math.exp(-iteration / self.period)


class Plateau(Constant):
    """The rate is multiplied by `decay` after more than `patience` consecutive periods without improvement.

    A period improves where its mean objective is below the best so far by more than 1e-4 times the best's absolute
    value, as in torch's ReduceLROnPlateau. period: iterations; None for an epoch.
    """

    is_constant = False

    def __init__(self, period: int | None, patience: int, decay: float) -> None:
        self.chosen_period, self.patience, self.decay = period, patience, decay

    def start(self, iterations: int, epoch: int) -> None:
        self.period = self.chosen_period or epoch
        self.present, self.best, self.bad, self.heard, self.total = 1.0, float("inf"), 0, 0, 0.0

    def factor(self, iteration: int) -> float:
        return self.present

    def hear(self, objective: float) -> None:
        self.heard, self.total = self.heard + 1, self.total + objective
        if self.heard < self.period:
            return
        mean, self.heard, self.total = self.total / self.heard, 0, 0.0
        if mean < self.best - 1e-4 * abs(self.best) or self.best == float("inf"):
            self.best, self.bad = mean, 0
        else:
            self.bad += 1
        if self.bad > self.patience:
            self.present, self.bad = self.present * self.decay, 0

    def state(self) -> State:
        return {name: getattr(self, name) for name in ("present", "best", "bad", "heard", "total")}

    def restore(self, state: State) -> None:
        for name, value in state.items():
            setattr(self, name, value)
