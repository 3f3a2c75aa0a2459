"""Gradient descent on `kernel.flat` by four rules: SGD, Nesterov momentum, Adam, AMSGrad."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch

from kfx.kernels.base import Kernel, Weighted
from kfx.kernels.space import Space
from kfx.kernels.wrapped import within
from kfx.numerics.arrays import Vector, as_kind
from kfx.optimizers.journal import State
from kfx.optimizers.loop import Answer, FitSetup, Optimizer, Question, Restarts
from kfx.optimizers.loss import Evaluation, Loss
from kfx.optimizers.schedules import Constant
from kfx.sampling.samplers import Batch, Sampler


class Rule(abc.ABC):
    """An update rule, which turns a gradient into a step. memory: names of the attributes kept between steps."""

    memory: ClassVar[tuple[str, ...]] = ()
    learning_rate: float

    def state(self) -> State:
        return {name: getattr(self, name) for name in self.memory}

    def restore(self, state: State, like: Vector) -> None:
        """Continue from a result of `state`. like: a vector (n,) that gives the kind, dtype and device."""
        for name in self.memory:
            held = state[name]
            setattr(self, name, held if isinstance(held, (int, float)) else as_kind(held, like))

    def reset(self) -> None:  # noqa: B027
        """Forget every gradient seen so far."""

    def point(self, position: Vector) -> Vector:
        """Return the point at which to evaluate the gradient, (n,). position: (n,)."""
        return position

    @abc.abstractmethod
    def step(self, position: Vector, gradient: Vector) -> Vector:
        """Return the next position, (n,). position: (n,). gradient: at `point(position)`, (n,)."""


class SGD(Rule):
    """θ ← θ − η g."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def step(self, position: Vector, gradient: Vector) -> Vector:
        return position - self.learning_rate * gradient


class Nesterov(Rule):
    """z ← β z + ∇(θ − η β z),  θ ← θ − η z  (Darcy 2020, eq. 2.4): the gradient is taken at the look-ahead point."""

    memory = ("z",)

    def __init__(self, learning_rate: float, momentum: float) -> None:
        self.learning_rate, self.momentum = learning_rate, momentum
        self.reset()

    def reset(self) -> None:
        self.z: Vector | float = 0.0

    def point(self, position: Vector) -> Vector:
        return position - self.learning_rate * self.momentum * self.z

    def step(self, position: Vector, gradient: Vector) -> Vector:
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
        self.mean: Vector | float = 0.0
        self.square: Vector | float = 0.0

    def step(self, position: Vector, gradient: Vector) -> Vector:
        self.steps += 1
        self.mean = self.beta1 * self.mean + (1 - self.beta1) * gradient
        self.square = self.beta2 * self.square + (1 - self.beta2) * gradient**2
        mean = self.mean / (1 - self.beta1**self.steps)
        square = self.square / (1 - self.beta2**self.steps)
        return position - self.learning_rate * mean / (square**0.5 + self.epsilon)


class AMSGrad(Adam):
    """AMSGrad (Reddi et al. 2018) with one second moment for all coordinates, that of the gradient's norm, and without
    bias correction, as in KernelFlows.jl."""

    memory = ("mean", "square", "largest")

    def reset(self) -> None:
        super().reset()
        self.largest = 0.0

    def step(self, position: Vector, gradient: Vector) -> Vector:
        self.mean = self.beta1 * self.mean + (1 - self.beta1) * gradient
        self.square = self.beta2 * self.square + (1 - self.beta2) * float((gradient * gradient).sum())
        self.largest = max(self.largest, float(self.square))
        return position - self.learning_rate * self.mean / (self.largest**0.5 + self.epsilon)


class GradientDescent(Optimizer):
    """Gradient descent within the kernel's bounds: in each iteration a new batch, a gradient and a step.

    Where the objective cannot be evaluated, the parameters are drawn anew, by `redraw` or else within their bounds, at
    most `max_reinitializations` times; then NumericalError is raised.
    rule: turns gradients into steps. space: `raw` or `log`, see `Space`.
    step_rule: `gradient`; or `normalized`, the gradient divided by its norm, so that the learning rate is the length of
        a step of plain gradient descent.
    sparsity: γ of the penalty γ Σ w on a kernel's weights, by its proximal step with η γ.
    schedule: changes the learning rate during the fit; None for a constant one.
    final: `last`, the parameters after the last step; or `best`, the parameters evaluated last in the window of
        `final_window` rows with the smallest mean objective.
    """

    def __init__(
        self,
        make_loss: Callable[..., Loss],
        sampler: Sampler,
        rule: Rule,
        *,
        iterations: int,
        space: str,
        step_rule: str = "gradient",
        sparsity: float = 0.0,
        final: str,
        final_window: int,
        max_reinitializations: int,
        redraw: Callable[[Kernel, np.random.Generator], Kernel] | None = None,
        schedule: Constant | None = None,
    ) -> None:
        super().__init__(make_loss, sampler, iterations)
        self.schedule, self.learning_rate = schedule or Constant(), rule.learning_rate
        self.diagnostics = () if self.schedule.is_constant else ("learning_rate",)
        self.rule, self.space_name, self.final, self.final_window = rule, space, final, final_window
        self.is_normalized, self.sparsity = step_rule == "normalized", sparsity
        anywhere = redraw or (lambda kernel, rng: kernel.drawn(rng))
        self.restarts = Restarts(max_reinitializations, anywhere, self._go_on_from)

    def start(self, setup: FitSetup) -> None:
        self.kernel = setup.kernel
        self.weighted = next((each for each in within(self.kernel) if isinstance(each, Weighted)), None)
        weights = self.weighted.weight_names if self.weighted else ()
        raw = np.array([key in weights for key in self.kernel.keys]) if weights else None
        self.space = Space(self.space_name, self.kernel.bounds, raw)
        self.position = self.space.project(self.space.to_coordinates(setup.kernel.flat))
        self.window: deque[float] = deque(maxlen=self.final_window)
        self.best_mean, self.best = float("inf"), setup.kernel.flat
        self.rule.reset()
        self.schedule.start(self.iterations, self.sampler.epoch)

    def state(self) -> State:
        return {
            "position": self.position,
            "rule": self.rule.state(),
            "schedule": self.schedule.state(),
            "window": list(self.window),
            "best_mean": self.best_mean,
            "best": self.best,
        }

    def restore(self, state: State) -> None:
        like = self.kernel.flat
        self.position, self.best = (as_kind(state[name], like) for name in ("position", "best"))
        self.best_mean = state["best_mean"]
        self.window.extend(state["window"])
        self.rule.restore(state["rule"], like)
        self.schedule.restore(state.get("schedule", {}))

    def _go_on_from(self, vector: Vector) -> None:
        self.position = self.space.to_coordinates(vector)
        self.rule.reset()
        self.window.clear()

    def positions(self) -> tuple[Kernel, torch.Tensor, torch.Tensor]:
        return self.kernel.with_flat(self.space.to_parameters(self.position)), self.setup.x, self.setup.along

    def ask(self, iteration: int, batch: Batch) -> Question:
        self.rule.learning_rate = self.learning_rate * self.schedule.factor(iteration)
        return Question(self.space.to_parameters(self.space.project(self.rule.point(self.position))))

    def tell(self, evaluation: Evaluation) -> Answer:
        assert evaluation.gradient is not None
        vector = evaluation.vector
        self.window.append(evaluation.objective)
        mean = sum(self.window) / len(self.window)
        if len(self.window) == self.final_window and mean < self.best_mean:
            self.best_mean, self.best = mean, vector
        gradient = self.space.gradient(vector, evaluation.gradient)
        if self.is_normalized and (length := float((gradient * gradient).sum() ** 0.5)) > 0:
            gradient = gradient / length
        self.position = self.space.project(self.rule.step(self.position, gradient))
        if self.weighted is not None:
            moved = self.kernel.split(self.space.to_parameters(self.position))
            shrunk = self.weighted.proximal(moved, self.rule.learning_rate * self.sparsity)
            self.position = self.space.to_coordinates(self.kernel.flatten(shrunk))
        self.schedule.hear(evaluation.objective)
        return Answer(diagnostics=dict.fromkeys(self.diagnostics, self.rule.learning_rate))

    def result(self) -> Kernel:
        is_best = self.final == "best" and np.isfinite(self.best_mean)
        return self.kernel.with_flat(self.best if is_best else self.space.to_parameters(self.position))
