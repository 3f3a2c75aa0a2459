"""Flows: the points move along −∂ρ/∂X, layer after layer, until the kernel fits them (Owhadi & Yoo 2019, §6)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from kfx.flows.flowed import FlowedKernel
from kfx.flows.layer_file import HEADER, LayerFile, read_layers
from kfx.flows.layers import Layer, checked, crossings
from kfx.flows.vector_field import Interpolation, Velocity
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import digests, rows_of
from kfx.numerics.incidents import collect
from kfx.optimizers.journal import State
from kfx.optimizers.loop import Answer, FitSetup, Optimizer, Question
from kfx.optimizers.loss import Evaluation, Loss
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch, Sampler


@dataclass(frozen=True)
class LayerBatch:
    """What a layer is computed from: the batch's present points x_f = x[index], (N_f, …), their targets, and the
    kernel."""

    number: int
    batch: Batch
    index: torch.Tensor
    x_f: torch.Tensor
    y_f: torch.Tensor
    kernel: Kernel


@dataclass(frozen=True)
class Move:
    """A layer, the new positions of the training points (n, …), their largest displacement, and its columns of the
    trace."""

    layer: Layer
    x: torch.Tensor
    displacement: float
    shown: dict[str, float]


@dataclass(frozen=True)
class FlowSettings:
    """Settings that all flows share.

    complete: see `Velocity`.
    remove_merged: of two points with the same target and a smaller distance, one is no longer drawn into batches,
        though it still flows (Owhadi & Yoo 2019, §7.1); 0: never.
    record_layers: keep the layers on disk, so that they can move other points.
    """

    interpolation: Interpolation
    complete: bool = False
    remove_merged: float = 0.0
    record_layers: bool = False


class Flow(Optimizer):
    """Repeat `iterations` times: draw a batch, compute a layer from it, move all points by the layer.

    `fit` takes (x, y, along): points of `along` flow along but are not learned from. It returns the kernel composed
    with the flow. If the arithmetic fails, all points merge or the field vanishes, the flow ends at its last valid
    positions, with the event in the trace.
    """

    stops_where_it_stands = True
    needs_together = False
    """Whether new points must go through the layers together, because a step depends on all of them."""
    pace: ClassVar[str] = "step"
    """The layer's column in the trace: its ε, or the number of its steps."""

    def __init__(
        self, make_loss: Callable[..., Loss], sampler: Sampler, iterations: int, settings: FlowSettings
    ) -> None:
        super().__init__(make_loss, sampler, iterations)
        self.settings = settings
        self.diagnostics = (self.pace, "displacement", "field_evaluations", "field_jitter", "crossings")
        self.field_evaluations = 0

    # ---- what a subclass defines

    @abc.abstractmethod
    def make_layer(self, evaluation: Evaluation, at: LayerBatch) -> Move:
        """Compute a layer from the objective and its gradient at the batch's points; NumericalError if that fails."""

    def look_ahead(self, kernel: Kernel) -> Kernel:
        """The kernel with which a layer is computed."""
        return kernel

    def next_kernel(self, kernel: Kernel, evaluation: Evaluation) -> Kernel:
        """The kernel of the next layer."""
        return kernel

    def layer_bytes(self, x: torch.Tensor, y: torch.Tensor) -> int:
        """Approximate bytes of a recorded layer: two arrays of the shape of the batch's points. x: (n, …). y: (n,
        outputs)."""
        return 2 * (self.sampler.batch_size or len(x)) * x[0].numel() * x.element_size() + 4 * HEADER

    # ---- a fit

    def start(self, setup: FitSetup) -> None:
        self.kernel, self.x, self.along = setup.kernel, setup.x, setup.along
        self.names = digests(torch.cat([setup.x, setup.along]))
        self.velocity = Velocity(setup.loss, self.settings.interpolation, self.settings.complete)
        self.pool, self.pool_changed = torch.arange(len(setup.x), device=setup.x.device), False
        self.field_evaluations, self.layer_file_size = 0, 0
        self.layer_file: LayerFile | None = None

    def state(self) -> State:
        if self.layer_file is not None:
            self.layer_file_size = self.layer_file.size
        return {
            "x": self.x,
            "along": self.along,
            "kernel": self.kernel.flat,
            "candidates": self.pool,
            "field_evaluations": self.field_evaluations,
            "layer_bytes": self.layer_file_size,
        }

    def restore(self, state: State) -> None:
        x = self.setup.x
        self.x, self.along = (
            torch.as_tensor(state[name], device=x.device).reshape(-1, *x.shape[1:]) for name in ("x", "along")
        )
        self.kernel = self.kernel.with_flat(state["kernel"])
        self.pool, self.pool_changed = torch.as_tensor(state["candidates"], device=x.device), True
        self.field_evaluations, self.layer_file_size = state["field_evaluations"], state["layer_bytes"]

    def positions(self) -> tuple[Kernel, torch.Tensor, torch.Tensor]:
        return self.kernel, self.x, self.along

    def candidates(self) -> torch.Tensor | None:
        if self.pool_changed:  # after a restore
            self.pool_changed = False
            return self.pool
        if not self.settings.remove_merged:
            return None
        left = self._without_merged()
        if len(left) == len(self.pool):
            return None
        self.pool = left
        return left

    def ask(self, iteration: int, batch: Batch) -> Question:
        index = rows_of(self.pool, batch.indices)
        x_f, y_f, kernel = rows_of(self.x, index), rows_of(self.setup.y, index), self.look_ahead(self.kernel)
        self.at = LayerBatch(iteration, batch, index, x_f, y_f, kernel)
        return Question(kernel.flat, kernel=kernel, points=x_f, targets=y_f)

    def tell(self, evaluation: Evaluation) -> Answer:
        with collect() as incidents, np.errstate(all="ignore"):  # `checked` finds overflows
            move = self.make_layer(evaluation, self.at)
            along = checked(move.layer.move(self.along), self.kernel) if len(self.along) else self.along
        checked(move.x, self.kernel)
        if self.settings.record_layers:
            self._layer_file().append(move.layer)
        self.x, self.along, self.kernel = move.x, along, self.next_kernel(self.kernel, evaluation)
        shown = {
            **move.shown,
            "displacement": move.displacement,
            "field_jitter": incidents.jitter,
            "field_evaluations": self.field_evaluations,
            "crossings": crossings(self.setup.x, self.x),
        }
        return Answer(diagnostics=shown)

    def result(self) -> FlowedKernel:
        layers = None
        if self.settings.record_layers:
            self._layer_file().close()
            layers = partial(self.recorded, self.setup.layer_path, self.kernel, self.setup.loss)
        return FlowedKernel(self.kernel, (self.names, torch.cat([self.x, self.along])), layers, self.needs_together)

    def recorded(self, source: Path | bytes, kernel: Kernel, loss: Loss) -> Iterator[Layer]:
        """Yield the layers in a file, or in its content, for a kernel of the kind that made them."""
        return read_layers(source, kernel, Velocity(loss, self.settings.interpolation, self.settings.complete), self)

    def _layer_file(self) -> LayerFile:
        if self.layer_file is None:
            self.layer_file = LayerFile(self.setup.layer_path, self.layer_file_size)
        return self.layer_file

    def _without_merged(self) -> torch.Tensor:
        """The candidates for batches, without points that merged with another point of the same target."""
        points = self.x[self.pool].reshape(len(self.pool), -1)
        targets = torch.unique(self.setup.y[self.pool], dim=0, return_inverse=True)[1]
        # By differences: a matrix product is too inexact for points this close.
        distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        near = (targets[:, None] == targets[None, :]) & (distances < self.settings.remove_merged)
        merged = torch.triu(near, diagonal=1).any(dim=0)
        if not bool(merged.any()):
            return self.pool
        left = self.pool[~merged]
        if len(left) < (self.sampler.batch_size or 2):
            raise NumericalError(Event.COLLAPSED, f"points of one target have merged, and {len(left)} are left")
        return left
