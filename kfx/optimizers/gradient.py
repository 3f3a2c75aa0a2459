"""Gradient descent on `kernel.flat`: three rules, one loop."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.optimizers.loss import Loss
from kfx.optimizers.space import Space, random_within
from kfx.outcomes import Event
from kfx.sampling import FixedSampler
from kfx.streams import Streams


class Rule(abc.ABC):
    """How a gradient becomes a step. `memory` names the attributes that it keeps from step to step."""

    memory: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.memory}

    def restore(self, state: dict[str, Any]) -> None:
        for name in self.memory:
            setattr(self, name, state[name])

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget every gradient seen so far."""

    @abc.abstractmethod
    def point(self, position: np.ndarray) -> np.ndarray:
        """Where the gradient is wanted."""

    @abc.abstractmethod
    def step(self, position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """The next position."""


class SGD(Rule):
    """θ ← θ − η g."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def reset(self) -> None:
        pass

    def point(self, position: np.ndarray) -> np.ndarray:
        return position

    def step(self, position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return position - self.learning_rate * gradient


class Nesterov(Rule):
    """z ← β z + ∇(θ − η β z),  θ ← θ − η z  (Darcy 2020, eq. 2.4): the gradient is taken at the look-ahead point."""

    memory = ("z",)

    def __init__(self, learning_rate: float, momentum: float) -> None:
        self.learning_rate, self.momentum = learning_rate, momentum
        self.reset()

    def reset(self) -> None:
        self.z: np.ndarray | float = 0.0

    def point(self, position: np.ndarray) -> np.ndarray:
        return position - self.learning_rate * self.momentum * self.z

    def step(self, position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        self.z = self.momentum * self.z + gradient
        return position - self.learning_rate * self.z


class Adam(Rule):
    """Adam with bias correction (Kingma & Ba 2015)."""

    memory = ("steps", "mean", "square")

    def __init__(self, learning_rate: float, beta1: float, beta2: float, epsilon: float) -> None:
        self.learning_rate, self.beta1, self.beta2, self.epsilon = learning_rate, beta1, beta2, epsilon
        self.reset()

    def reset(self) -> None:
        self.steps = 0
        self.mean: np.ndarray | float = 0.0
        self.square: np.ndarray | float = 0.0

    def point(self, position: np.ndarray) -> np.ndarray:
        return position

    def step(self, position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        self.steps += 1
        self.mean = self.beta1 * self.mean + (1 - self.beta1) * gradient
        self.square = self.beta2 * self.square + (1 - self.beta2) * gradient**2
        mean = self.mean / (1 - self.beta1**self.steps)
        square = self.square / (1 - self.beta2**self.steps)
        return position - self.learning_rate * mean / (np.sqrt(square) + self.epsilon)


class GradientDescent:
    """A fresh batch, a gradient, a step, `iterations` times, within the kernel's bounds.

    Where the objective cannot be evaluated the parameters are drawn anew, by `redraw`, or within their bounds, at most
    `max_reinitializations` times; then `NumericalError`.
    final: `last`, where the last step led; `best`, the evaluated point at the end of the `final_window` rows
    with the smallest mean objective.
    """

    def __init__(
        self,
        loss: Callable[..., Loss],
        sampler: FixedSampler,
        rule: Rule,
        *,
        iterations: int,
        space: str,
        final: str,
        final_window: int,
        max_reinitializations: int,
        redraw: Callable[[Kernel, np.random.Generator], Kernel] | None = None,
    ) -> None:
        self.loss, self.sampler, self.rule, self.iterations = loss, sampler, rule, iterations
        self.diagnostics = sampler.diagnostics
        self.space, self.final, self.final_window = space, final, final_window
        self.max_reinitializations = max_reinitializations
        self.redraw = redraw or (lambda kernel, rng: kernel.with_flat(random_within(kernel.bounds, rng)))

    def fit(self, kernel: Kernel, data: tuple[torch.Tensor, torch.Tensor], streams: Streams, record: Any) -> Kernel:
        loss = self.loss(kernel, *data)
        space = Space(self.space, kernel.bounds)
        position = space.project(space.to_coordinates(kernel.flat))
        window: deque[float] = deque(maxlen=self.final_window)
        best_mean, best = float("inf"), kernel.flat
        reinitializations, first = 0, 0
        self.rule.reset()
        self.sampler.start(*data)
        if restored := record.restore(streams):
            first, state = restored
            position, best_mean, best = state["position"], state["best_mean"], state["best"]
            reinitializations, loss.kernel_evaluations = state["reinitializations"], state["kernel_evaluations"]
            window.extend(state["window"])
            self.rule.restore(state["rule"])
            self.sampler.restore(state["sampler"])

        def checkpoint(iteration: int) -> None:
            state = {
                "position": position,
                "rule": self.rule.state(),
                "sampler": self.sampler.state(),
                "window": list(window),
                "best_mean": best_mean,
                "best": best,
                "reinitializations": reinitializations,
                "kernel_evaluations": loss.kernel_evaluations,
            }
            record.checkpoint(iteration, streams, state)

        for iteration in range(first, self.iterations):
            checkpoint(iteration)
            batch = self.sampler.draw(streams["batches"], iteration)
            shown = self.sampler.shown(batch)
            vector = space.to_parameters(space.project(self.rule.point(position)))
            evaluation = loss(vector, batch)
            if evaluation.gradient is None:
                reinitializations += 1
                give_up = reinitializations > self.max_reinitializations
                then = () if give_up else (Event.REINITIALIZED,)
                record.row(iteration, evaluation, loss.kernel_evaluations, events=then, diagnostics=shown)
                if give_up:
                    evaluation.require()
                position = space.to_coordinates(self.redraw(kernel, streams["optimizer"]).flat)
                self.rule.reset()
                window.clear()
                continue
            record.row(iteration, evaluation, loss.kernel_evaluations, diagnostics=shown)
            self.sampler.observe(evaluation.rho_half)
            window.append(evaluation.objective)
            mean = sum(window) / len(window)
            if len(window) == self.final_window and mean < best_mean:
                best_mean, best = mean, vector
            position = space.project(self.rule.step(position, space.gradient(vector, evaluation.gradient)))
        checkpoint(self.iterations)
        chosen = best if self.final == "best" and np.isfinite(best_mean) else space.to_parameters(position)
        return kernel.with_flat(chosen)
