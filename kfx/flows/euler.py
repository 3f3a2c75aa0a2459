"""Flows by Euler steps, of the points alone or of points and parameters together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from kfx.flows.flow import Flow, LayerBatch, Move
from kfx.flows.layers import EulerLayer, Norms, StepRule, at_points, moved_by, norms_of
from kfx.flows.vector_field import Field
from kfx.kernels.base import Kernel
from kfx.kernels.space import Space
from kfx.numerics.arrays import as_tensor, in_numpy, numpy_if_small
from kfx.optimizers.gradient import Rule
from kfx.optimizers.journal import State
from kfx.optimizers.loop import FitSetup
from kfx.optimizers.loss import Evaluation
from kfx.outcomes import Event, NumericalError


class EulerFlow(Flow):
    """Move the points by Euler steps, x ← x + ε v(x) (Owhadi & Yoo 2019, eq. 6.7).

    rule: chooses ε. over: the points that bound ε, `batch` or `all`.
    test_step: ε of test points: `train`, as training points; `test`, by the same rule from the test points; `min` of
        both (Darcy 2020, §3.2).
    """

    def __init__(self, *arguments: Any, rule: StepRule, over: str = "batch", test_step: str = "train") -> None:
        super().__init__(*arguments)
        self.rule, self.over, self.test_step = rule, over, test_step
        self.needs_together = test_step != "train"

    def make_layer(self, evaluation: Evaluation, at: LayerBatch) -> Move:
        g, field = self.velocity.of(evaluation, at.kernel, at.x_f)
        self.field_evaluations += 1
        x, index, number = self.x, at.index, at.number
        own = self.velocity.of_batch(field, at.x_f, g)
        own_speeds = norms_of(own)
        if len(index) == len(x):
            step = self._bounded(at.x_f, own_speeds, number)
            moved, speeds = torch.empty_like(x), own_speeds
            target, start, velocity = map(numpy_if_small, (moved, at.x_f, own))
            target[in_numpy(index) if isinstance(target, np.ndarray) else index] = start + step * velocity
        elif self.over == "all":
            everywhere = at_points(field, x)
            everywhere[index] = own
            speeds = norms_of(everywhere)
            step = self._bounded(x, speeds, number)
            moved = everywhere.mul_(step).add_(x)
        else:
            step = self._bounded(at.x_f, own_speeds, number)
            moved, speeds = moved_by(field, x, step)
            moved[index], speeds[index] = at.x_f + step * own, as_tensor(own_speeds)
        return Move(self.layer(field, step, number), moved, step * float(speeds.max()), {self.pace: step})

    def _bounded(self, x: torch.Tensor, speeds: Norms, number: int) -> float:
        step = self.rule.step(x, speeds, number)
        if math.isinf(step) and not bool(((speeds > 0) & (norms_of(x) > 0)).any()):
            raise NumericalError(Event.FIELD_VANISHED, "no point that bounds the step would move")
        if not step <= torch.finfo(x.dtype).max:
            raise NumericalError(Event.OVERSHOT, "the step is not a finite number")
        return step

    def layer(self, field: Field, step: float, number: int) -> EulerLayer:
        """A layer that moves further points with this flow's rule for test points."""
        rule = None if self.test_step == "train" else self.rule
        return EulerLayer(field, step, number, rule, self.test_step == "min")


class HybridFlow(EulerFlow):
    """Move points and parameters in each iteration, from one pullback (Darcy 2020, §3.4.1, step 5: θ ← θ − δ∇L).

    parameters: the rule that moves the kernel's parameters. space: `raw` or `log`.
    A rule that looks ahead, such as Nesterov's, makes the layer at the parameters ahead: one evaluation serves points
    and parameters.
    """

    def __init__(self, *arguments: Any, parameters: Rule, space: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parameters, self.space = parameters, space

    def start(self, setup: FitSetup) -> None:
        super().start(setup)
        self.parameters.reset()

    def state(self) -> State:
        return {**super().state(), "rule": self.parameters.state()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.parameters.restore(state["rule"], self.kernel.flat)

    def look_ahead(self, kernel: Kernel) -> Kernel:
        space = Space(self.space, kernel.bounds)
        ahead = space.project(self.parameters.point(space.to_coordinates(kernel.flat)))
        return kernel.with_flat(space.to_parameters(ahead))

    def next_kernel(self, kernel: Kernel, evaluation: Evaluation) -> Kernel:
        space = Space(self.space, kernel.bounds)
        assert evaluation.gradient is not None
        slope = space.gradient(evaluation.vector, evaluation.gradient)
        coordinates = self.parameters.step(space.to_coordinates(kernel.flat), slope)
        return kernel.with_flat(space.to_parameters(space.project(coordinates)))
