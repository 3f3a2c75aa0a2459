"""A flow whose layers are integrated with error control."""

from __future__ import annotations

from typing import Any

import torch

from kfx.flows.flow import Flow, LayerBatch, Move
from kfx.flows.integration import integrate
from kfx.flows.layer_file import HEADER
from kfx.flows.layers import RungeKuttaLayer, at_points, norms_of
from kfx.optimizers.loss import Evaluation
from kfx.outcomes import Event, NumericalError


class RungeKuttaFlow(Flow):
    """Integrate each layer, x(0) ↦ x(1), by a Runge-Kutta method, with the same batch and sample throughout (Khalid
    2022, §4.2).

    method: an explicit one, in `METHODS`. rtol, atol: its tolerances on training points.
    max_evaluations: of the field in one layer; if more are needed, the flow ends as too stiff.
    """

    pace = "accepted_steps"

    def __init__(self, *arguments: Any, method: str, rtol: float, atol: float, max_evaluations: int) -> None:
        super().__init__(*arguments)
        self.method, self.rtol, self.atol, self.max_evaluations = method, rtol, atol, max_evaluations

    def layer_bytes(self, x: torch.Tensor, y: torch.Tensor) -> int:
        each = x[0].numel() * x.element_size() + y[0].numel() * y.element_size()
        return (self.sampler.batch_size or len(x)) * each + 5 * HEADER

    def make_layer(self, evaluation: Evaluation, at: LayerBatch) -> Move:
        x, evaluations = self.x, 0

        def slope(state: torch.Tensor) -> torch.Tensor:
            nonlocal evaluations
            if evaluations == self.max_evaluations:
                raise NumericalError(
                    Event.OVERSHOT, f"a layer needs more than {self.max_evaluations} evaluations of the field"
                )
            positions = state.to(x.dtype)
            x_f = positions[at.index]
            evaluated = evaluation  # the gradient at t = 0
            if evaluations:
                evaluated = self.velocity.evaluate(at.kernel, x_f, at.y_f, at.batch)
            g, field = self.velocity.of(evaluated, at.kernel, x_f)
            evaluations += 1
            everywhere = at_points(field, positions)
            if not self.velocity.complete:
                everywhere[at.index] = g
            return everywhere.to(torch.float64)

        end, times = integrate(slope, x.to(torch.float64), self.method, self.rtol, self.atol)
        self.field_evaluations += evaluations
        moved = end.to(x.dtype)
        layer = RungeKuttaLayer(self.velocity, at.kernel, at.x_f, at.y_f, at.batch, times, self.method)
        taken = {self.pace: float(len(times) - 1)}
        return Move(layer, moved, float(norms_of(moved - x).max()), taken)
