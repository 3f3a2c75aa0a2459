"""Flows: the points move along −∂ρ/∂X, layer after layer, until the kernel fits them (Owhadi & Yoo 2019, §6)."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.kernels.flowed import FlowedKernel, digests
from kfx.layer_file import HEADER, LayerFile, read_layers
from kfx.notices import watch
from kfx.optimizers.gradient import Rule
from kfx.optimizers.loss import Evaluation, Loss
from kfx.optimizers.space import Space
from kfx.outcomes import Event, NumericalError
from kfx.sampling import Batch, FixedSampler
from kfx.streams import Streams
from kfx.vector_field import (
    EulerLayer,
    Field,
    Interpolation,
    RungeKuttaLayer,
    StepRule,
    Velocity,
    at,
    checked,
    crossings,
    moved_by,
    norms_of,
)

Layer = EulerLayer | RungeKuttaLayer


@dataclass(frozen=True)
class Drawn:
    """What a layer is made from: all training points where they are now, and the batch x[index] among them."""

    x: torch.Tensor
    y: torch.Tensor
    index: torch.Tensor
    batch: Batch
    number: int


@dataclass(frozen=True)
class Made:
    """A layer, the evaluation at its start, where the training points go, the longest way among them, and what the
    trace shows of the layer."""

    layer: Layer
    evaluation: Evaluation
    moved: torch.Tensor
    displacement: float
    shown: dict[str, float]


@dataclass(frozen=True)
class FlowSettings:
    """What the flows have in common.

    complete: see `Velocity`. remove_merged: of two points with the same target that come closer than this one is no
    longer drawn into batches, though it flows on (Owhadi & Yoo 2019, §7.1); 0 never. record_layers: keep on disk what
    moves points that do not flow along.
    """

    interpolation: Interpolation
    complete: bool = False
    remove_merged: float = 0.0
    record_layers: bool = False


class Flow(abc.ABC):
    """Draws a batch, makes a layer of it, moves all points by it, `iterations` times.

    `fit` takes (x, y, along): the points of `along` flow along and are not learned from. It returns the kernel
    composed with the flow. Where the arithmetic fails, all points merge or the field vanishes, the flow stops with the
    event in the trace, at the last good positions.
    """

    moves_points = True
    needs_together = False
    pace = "step"
    """What `Made.shown` says of a layer: its ε, or how many steps it took."""

    def __init__(
        self, loss: Callable[..., Loss], sampler: FixedSampler, iterations: int, settings: FlowSettings
    ) -> None:
        self.loss, self.sampler, self.iterations, self.settings = loss, sampler, iterations, settings
        common = ("displacement", "field_evaluations", "field_jitter", "crossings")
        self.diagnostics = (self.pace, *common, *sampler.diagnostics)
        self.field_evaluations = 0

    @abc.abstractmethod
    def make_layer(self, velocity: Velocity, kernel: Kernel, drawn: Drawn) -> Made:
        """The layer of a batch. NumericalError where it cannot be had."""

    def layer_bytes(self, x: torch.Tensor, y: torch.Tensor) -> int:
        """About what a recorded layer takes on disk: two arrays like the batch's points."""
        return 2 * (self.sampler.batch_size or len(x)) * x[0].numel() * x.element_size() + 4 * HEADER

    def next_kernel(self, kernel: Kernel, evaluation: Evaluation) -> Kernel:
        """The kernel of the next layer."""
        return kernel

    def start(self, kernel: Kernel) -> None:  # noqa: B027
        """Forget what belongs to another fit."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from there."""

    def fit(
        self, kernel: Kernel, data: tuple[torch.Tensor, torch.Tensor, torch.Tensor], streams: Streams, record: Any
    ) -> FlowedKernel:
        x, y, along = data
        names = digests(torch.cat([x, along]))
        loss = self.loss(kernel, x, y)
        velocity = Velocity(loss, self.settings.interpolation, self.settings.complete)
        candidates = torch.arange(len(x), device=x.device)
        self.sampler.start(x, y)
        self.start(kernel)
        self.field_evaluations, first, kept, stopped = 0, 0, 0, False
        if restored := record.restore(streams):
            first, state = restored
            x, along = (
                torch.as_tensor(state[name], device=x.device).reshape(-1, *x.shape[1:]) for name in ("x", "along")
            )
            kernel = kernel.with_flat(state["kernel"])
            candidates = torch.as_tensor(state["candidates"], device=x.device)
            self.sampler.start(x[candidates], y[candidates])
            self.sampler.restore(state["sampler"])
            self.restore(state["own"])
            loss.kernel_evaluations, self.field_evaluations = state["kernel_evaluations"], state["field_evaluations"]
            kept, stopped = state["layers"], state["stopped"]
        file = LayerFile(record.layer_path, kept) if self.settings.record_layers else None

        def checkpoint(layer: int) -> None:
            state = {
                "x": x,
                "along": along,
                "kernel": kernel.flat,
                "candidates": candidates,
                "sampler": self.sampler.state(),
                "own": self.state(),
                "kernel_evaluations": loss.kernel_evaluations,
                "field_evaluations": self.field_evaluations,
                "layers": 0 if file is None else file.size,
                "stopped": stopped,
            }
            record.checkpoint(layer, streams, state)

        last = first if stopped else self.iterations
        for number in range(first, last):
            checkpoint(number)
            record.moved(number, kernel, x, along)
            try:
                if self.settings.remove_merged:
                    candidates = self._candidates(x, y, candidates)
                batch = self.sampler.draw(streams["batches"], number)
                index = candidates[torch.as_tensor(batch.indices, device=x.device)]
                with watch() as notices:
                    made = self.make_layer(velocity, kernel, Drawn(x, y, index, batch, number))
                    there = checked(made.layer.move(along), kernel)
                checked(made.moved, kernel)
                layer, evaluation = made.layer, made.evaluation
                if file is not None:
                    file.append(layer)
            except NumericalError as error:
                failed = Evaluation(kernel.flat, math.nan, math.nan, None, math.nan, 0.0, (error.event,), error.detail)
                record.row(number, failed, loss.kernel_evaluations, events=(Event.FLOW_STOPPED,))
                record.stopped(number, str(error))
                last, stopped = number, True
                break
            shown = {
                **made.shown,
                "displacement": made.displacement,
                "field_jitter": notices.jitter,
                "field_evaluations": self.field_evaluations,
                "crossings": crossings(data[0], made.moved),
                **self.sampler.shown(batch),
            }
            record.row(number, evaluation, loss.kernel_evaluations, diagnostics=shown)
            self.sampler.observe(evaluation.rho_half)
            x, along, kernel = made.moved, there, self.next_kernel(kernel, evaluation)
        checkpoint(last)
        record.moved(last, kernel, x, along, final=True)
        if file is not None:
            file.close()
        layers = partial(self.recorded, record.layer_path, kernel, loss) if file is not None else None
        return FlowedKernel(kernel, (names, torch.cat([x, along])), layers, self.needs_together)

    def recorded(self, path: Path, kernel: Kernel, loss: Loss) -> Iterator[Layer]:
        """The layers in a file, over a kernel of the kind that made them."""
        return read_layers(path, kernel, Velocity(loss, self.settings.interpolation, self.settings.complete), self)

    def _candidates(self, x: torch.Tensor, y: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """The candidates for batches without those that merged with another of the same target."""
        points = x[candidates].reshape(len(candidates), -1)
        targets = torch.unique(y[candidates], dim=0, return_inverse=True)[1]
        # By differences: a matrix product cannot tell points this near apart.
        distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        near = (targets[:, None] == targets[None, :]) & (distances < self.settings.remove_merged)
        merged = torch.triu(near, diagonal=1).any(dim=0)
        if not bool(merged.any()):
            return candidates
        left = candidates[~merged]
        if len(left) < (self.sampler.batch_size or 2):
            raise NumericalError(Event.COLLAPSED, f"points of one target have merged, and {len(left)} are left")
        state = self.sampler.state()
        self.sampler.start(x[left], y[left])
        self.sampler.restore(state)
        return left


class EulerFlow(Flow):
    """x ← x + ε v(x) (Owhadi & Yoo 2019, eq. 6.7).

    rule: ε's. over: the points that bound it, `batch` or `all`. test_step: ε of other points, `train`, `test` (by the
    same rule, from them) or `min` of both (Darcy 2020, §3.2).
    """

    def __init__(self, *arguments: Any, rule: StepRule, over: str = "batch", test_step: str = "train") -> None:
        super().__init__(*arguments)
        self.rule, self.over, self.test_step = rule, over, test_step
        self.needs_together = test_step != "train"

    def make_layer(self, velocity: Velocity, kernel: Kernel, drawn: Drawn) -> Made:
        x, index, number = drawn.x, drawn.index, drawn.number
        x_f = x[index]
        evaluation, g, field = velocity.at(kernel, x_f, drawn.y[index], drawn.batch)
        self.field_evaluations += 1
        own = velocity.of_batch(field, x_f, g)
        own_speeds = norms_of(own)
        if len(index) == len(x):
            step = self._bounded(x_f, own_speeds, number)
            moved, speeds = torch.empty_like(x), own_speeds
            moved[index] = x_f + step * own
        elif self.over == "all":
            everywhere = at(field, x)
            everywhere[index] = own
            speeds = norms_of(everywhere)
            step = self._bounded(x, speeds, number)
            moved = everywhere.mul_(step).add_(x)
        else:
            step = self._bounded(x_f, own_speeds, number)
            moved, speeds = moved_by(field, x, step)
            moved[index], speeds[index] = x_f + step * own, own_speeds
        return Made(self.layer(field, step, number), evaluation, moved, step * float(speeds.max()), {"step": step})

    def _bounded(self, x: torch.Tensor, speeds: torch.Tensor, number: int) -> float:
        step = self.rule.step(x, speeds, number)
        if math.isinf(step) and not bool(((speeds > 0) & (norms_of(x) > 0)).any()):
            raise NumericalError(Event.FIELD_VANISHED, "no point that bounds the step would move")
        if not step <= torch.finfo(x.dtype).max:
            raise NumericalError(Event.OVERSHOT, "the step is not a finite number")
        return step

    def layer(self, field: Field, step: float, number: int) -> EulerLayer:
        """A layer whose step for points that come later is this flow's."""
        rule = None if self.test_step == "train" else self.rule
        return EulerLayer(field, step, number, rule, self.test_step == "min")


class HybridFlow(EulerFlow):
    """Points and parameters in one iteration, from one pullback (Darcy 2020, §3.4.1, step 5: θ ← θ − δ∇L).

    parameters: the rule that moves the kernel's parameters. space: `raw` or `log`. A rule that takes its gradient
    ahead, as Nesterov's, has the layer made there: one evaluation serves points and parameters.
    """

    def __init__(self, *arguments: Any, parameters: Rule, space: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parameters, self.space = parameters, space

    def start(self, kernel: Kernel) -> None:
        self.parameters.reset()

    def state(self) -> dict[str, Any]:
        return self.parameters.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.parameters.restore(state)

    def make_layer(self, velocity: Velocity, kernel: Kernel, drawn: Drawn) -> Made:
        space = Space(self.space, kernel.bounds)
        ahead = space.project(self.parameters.point(space.to_coordinates(kernel.flat)))
        return super().make_layer(velocity, kernel.with_flat(space.to_parameters(ahead)), drawn)

    def next_kernel(self, kernel: Kernel, evaluation: Evaluation) -> Kernel:
        space = Space(self.space, kernel.bounds)
        assert evaluation.gradient is not None
        slope = space.gradient(evaluation.vector, evaluation.gradient)
        coordinates = self.parameters.step(space.to_coordinates(kernel.flat), slope)
        return kernel.with_flat(space.to_parameters(space.project(coordinates)))


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

    def make_layer(self, velocity: Velocity, kernel: Kernel, drawn: Drawn) -> Made:
        from scipy.integrate import solve_ivp

        x, index = drawn.x, drawn.index
        y_f, batch = drawn.y[index], drawn.batch
        evaluations: list[Evaluation] = []

        def slope(_: float, flat: np.ndarray) -> np.ndarray:
            if len(evaluations) == self.max_evaluations:
                raise NumericalError(
                    Event.OVERSHOT, f"a layer needs more than {self.max_evaluations} evaluations of the field"
                )
            positions = torch.as_tensor(flat, dtype=x.dtype, device=x.device).reshape(x.shape)
            x_f = positions[index]
            evaluation, g, field = velocity.at(kernel, x_f, y_f, batch)
            evaluations.append(evaluation)
            everywhere = at(field, positions)
            if not velocity.complete:
                everywhere[index] = g
            return everywhere.reshape(-1).to(torch.float64).cpu().numpy()

        start = x.reshape(-1).to(torch.float64).cpu().numpy()
        solution = solve_ivp(slope, (0.0, 1.0), start, method=self.method, rtol=self.rtol, atol=self.atol)
        self.field_evaluations += len(evaluations)
        if not solution.success:
            raise NumericalError(
                Event.OVERSHOT, f"the integration ended at t = {solution.t[-1]:.3g}: {solution.message}"
            )
        moved = torch.as_tensor(solution.y[:, -1], dtype=x.dtype, device=x.device).reshape(x.shape)
        layer = RungeKuttaLayer(velocity, kernel, x[index], y_f, batch, solution.t, self.method)
        taken = {self.pace: float(len(solution.t) - 1)}
        return Made(layer, evaluations[0], moved, float(norms_of(moved - x).max()), taken)
