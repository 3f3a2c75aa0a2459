"""How the learning rate of a gradient method falls in the course of a fit."""

from __future__ import annotations

from collections.abc import Sequence

from kfx.optimizers.journal import State


class Constant:
    """The same rate throughout."""

    is_constant = True

    def start(self, iterations: int, epoch: int) -> None:
        """Begin a fit of so many iterations, and so many in an epoch."""

    def factor(self, iteration: int) -> float:
        """What the rate is multiplied by in this iteration."""
        return 1.0

    def hear(self, objective: float) -> None:
        """Hear the objective of an iteration."""

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Go on from there."""


class Milestones(Constant):
    """The rate falls to `decay` of itself at each of these shares of the iterations."""

    is_constant = False

    def __init__(self, milestones: Sequence[float], decay: float) -> None:
        self.milestones, self.decay = tuple(milestones), decay

    def start(self, iterations: int, epoch: int) -> None:
        self.iterations = iterations

    def factor(self, iteration: int) -> float:
        return self.decay ** sum(iteration >= share * self.iterations for share in self.milestones)


class Plateau(Constant):
    """The rate falls to `decay` of itself where the mean objective of a period, an epoch say, has not been below the
    best so far, by a share of 1e-4 of it, for more than `patience` periods, as torch's ReduceLROnPlateau has it.
    period: iterations; None for an epoch."""

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
        self.bad = 0 if mean < self.best - 1e-4 * abs(self.best) or self.best == float("inf") else self.bad + 1
        self.best = min(self.best, mean)
        if self.bad > self.patience:
            self.present, self.bad = self.present * self.decay, 0

    def state(self) -> State:
        return {name: getattr(self, name) for name in ("present", "best", "bad", "heard", "total")}

    def restore(self, state: State) -> None:
        for name, value in state.items():
            setattr(self, name, value)
