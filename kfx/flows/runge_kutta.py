"""A flow whose layers are integrated by SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kfx.flows.flow import Flow, LayerBatch, Move
from kfx.flows.layer_file import HEADER
from kfx.flows.layers import RungeKuttaLayer, at_points, norms_of
from kfx.optimizers.loss import Evaluation
from kfx.outcomes import Event, NumericalError


class RungeKuttaFlow(Flow):
    """x(0) ↦ x(1) by SciPy's solve_ivp, batch and sample the same throughout (Khalid 2022, §4.2).

    method: an explicit one, in `METHODS`. rtol, atol: its tolerances, on training points. max_evaluations: of the
    field in one layer; more, and the flow stops as too stiff.
    """

    pace = "accepted_steps"

    def __init__(self, *arguments: Any, method: str, rtol: float, atol: float, max_evaluations: int) -> None:
        super().__init__(*arguments)
        self.method, self.rtol, self.atol, self.max_evaluations = method, rtol, atol, max_evaluations

    def layer_bytes(self, x: torch.Tensor, y: torch.Tensor) -> int:
        each = x[0].numel() * x.element_size() + y[0].numel() * y.element_size()
        return (self.sampler.batch_size or len(x)) * each + 5 * HEADER

    def make_layer(self, evaluation: Evaluation, at: LayerBatch) -> Move:
        from scipy.integrate import solve_ivp

        x, evaluations = self.x, 0

        def slope(_: float, flat: np.ndarray) -> np.ndarray:
            nonlocal evaluations
            if evaluations == self.max_evaluations:
                raise NumericalError(
                    Event.OVERSHOT, f"a layer needs more than {self.max_evaluations} evaluations of the field"
                )
            positions = torch.as_tensor(flat, dtype=x.dtype, device=x.device).reshape(x.shape)
            x_f = positions[at.index]
            evaluated = evaluation  # of the start, where the integration begins
            if evaluations:
                evaluated = self.velocity.evaluate(at.kernel, x_f, at.y_f, at.batch)
            g, field = self.velocity.of(evaluated, at.kernel, x_f)
            evaluations += 1
            everywhere = at_points(field, positions)
            if not self.velocity.complete:
                everywhere[at.index] = g
            return everywhere.reshape(-1).to(torch.float64).cpu().numpy()

        start = x.reshape(-1).to(torch.float64).cpu().numpy()
        solution = solve_ivp(slope, (0.0, 1.0), start, method=self.method, rtol=self.rtol, atol=self.atol)
        self.field_evaluations += evaluations
        if not solution.success:
            raise NumericalError(
                Event.OVERSHOT, f"the integration ended at t = {solution.t[-1]:.3g}: {solution.message}"
            )
        moved = torch.as_tensor(solution.y[:, -1], dtype=x.dtype, device=x.device).reshape(x.shape)
        layer = RungeKuttaLayer(self.velocity, at.kernel, at.x_f, at.y_f, at.batch, solution.t, self.method)
        taken = {self.pace: float(len(solution.t) - 1)}
        return Move(layer, moved, float(norms_of(moved - x).max()), taken)
