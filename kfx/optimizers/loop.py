"""The loop of every fit: draw a batch, ask the optimizer where to evaluate, tell it the result, write a row."""

from __future__ import annotations

import abc
import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.kernels.names import lengths_of
from kfx.numerics.arrays import Vector
from kfx.numerics.streams import Streams
from kfx.optimizers.journal import Journal, State, TraceRow
from kfx.optimizers.loss import SECONDS, Evaluation, Loss, weighing
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch, Sampler

Data = Sequence[torch.Tensor]
"""x_train, (n, …), y_train, (n, outputs), and optionally x_test, (m, …), which flows carry along without learning from
them."""


@dataclass(slots=True)
class Question:
    """An optimizer's request to evaluate the objective on the batch of the iteration.

    vector: the parameters, (n,), as the trace shows them. gradient: whether to compute the gradient. kernel: the kernel
    to evaluate; None for the fit's kernel with these parameters. points: positions of the batch's points, (N_f, …),
    where they are not the data's; the gradient with respect to them is then computed too. targets: targets of the
    batch's points, (N_f, outputs), where they are not the data's. points and targets take effect with `kernel` alone.
    """

    vector: Vector
    gradient: bool = True
    kernel: Kernel | None = None
    points: torch.Tensor | None = None
    targets: torch.Tensor | None = None


@dataclass(slots=True)
class Answer:
    """What the trace shows of an iteration in addition to its first evaluation.

    told: the value given to a surrogate, where it is not the objective. events, diagnostics: of this iteration.
    error: ends the fit after this row.
    """

    told: float | None = None
    events: Sequence[Event] = ()
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    error: NumericalError | None = None


@dataclass(frozen=True)
class Restarts:
    """How a fit continues where the objective cannot be evaluated: from newly drawn parameters.

    most: largest number of draws. draw: returns a kernel with new parameters. go_on_from: makes the optimizer continue
    from a vector, (n,), and forget earlier steps.
    """

    most: int
    draw: Callable[[Kernel, np.random.Generator], Kernel]
    go_on_from: Callable[[Vector], None]


@dataclass(frozen=True)
class FitSetup:
    """The arguments of `Optimizer.start`.

    x: training points, (n, …). y: targets, (n, outputs). along: points that flows carry without learning from them,
    (m, …). rng: the optimizer's own random stream. layer_path: file for the layers of a flow.
    """

    kernel: Kernel
    x: torch.Tensor
    y: torch.Tensor
    along: torch.Tensor
    loss: Loss
    rng: np.random.Generator
    layer_path: Path


class Optimizer(abc.ABC):
    """Base of optimizers. `fit` drives `ask` and `tell`, and handles batches, rows, restarts and checkpoints.

    make_loss: makes the `Loss` to minimise from a kernel, x and y. sampler: draws the batches. iterations: largest
    number of rows of the trace.

    A subclass writes `start`, `ask`, `tell`, `result`, and `state` with `restore`: after `restore(state())` it must
    continue with bitwise equal numbers.
    """

    diagnostics: tuple[str, ...] = ()
    """The optimizer's own columns of the trace."""
    stops_where_it_stands: ClassVar[bool] = False
    """Whether a numerical failure ends the fit with its present result, as for a flow, instead of failing the run."""
    restarts: Restarts | None = None
    """How to continue where the objective cannot be evaluated; None: `tell` takes the failed evaluation."""

    def __init__(self, make_loss: Callable[..., Loss], sampler: Sampler, iterations: int) -> None:
        self.make_loss, self.sampler, self.iterations = make_loss, sampler, iterations

    @property
    def columns(self) -> tuple[str, ...]:
        """The optimizer's columns of the trace, the sampler's, and `SECONDS`."""
        return (*self.diagnostics, *self.sampler.diagnostics, *SECONDS)

    # ---- what a subclass writes

    @abc.abstractmethod
    def start(self, setup: FitSetup) -> None:
        """Begin a new fit and forget any earlier one."""

    @abc.abstractmethod
    def ask(self, iteration: int, batch: Batch) -> Question | None:
        """Return where to evaluate next; None ends the fit."""

    @abc.abstractmethod
    def tell(self, evaluation: Evaluation) -> Answer | Question:
        """Take the evaluation of the last question and return the row, or a further question.

        A further question is evaluated on another batch and answered by `tell` again.
        """

    @abc.abstractmethod
    def result(self) -> Kernel:
        """Return the fitted kernel. Raises NumericalError where no evaluation gave one."""

    def state(self) -> State:
        """Return what `restore` needs: nested dicts and lists of numbers, text and arrays that no later step changes.

        The entry `layer_bytes`, where present, is the length of the part of the file at `layer_path` that is needed.
        """
        return {}

    def restore(self, state: State) -> None:  # noqa: B027
        """Continue from a result of `state`; called after `start`."""

    def weighing(self, weights: torch.Tensor | None) -> Self:
        """Return the optimizer for training points with these weights, (n,); itself with None."""
        if weights is None:
            return self
        other = copy.copy(self)
        other.make_loss = weighing(self.make_loss, weights)
        return other

    def keeps_batch(self, iteration: int) -> bool:
        """Return whether this iteration uses the batch of the previous one."""
        return False

    def candidates(self) -> torch.Tensor | None:
        """Return the indices, (m,), of the points to draw batches from, where they have changed, else None."""
        return None

    def positions(self) -> tuple[Kernel, torch.Tensor, torch.Tensor]:
        """Return the kernel that the fit would end with now, the training points, (n, …), and those carried, (m, …)."""
        return self.result(), self.setup.x, self.setup.along

    # ---- the loop

    @torch.no_grad()
    def fit(self, kernel: Kernel, data: Data, streams: Streams, journal: Journal) -> Kernel:
        """Return the kernel fitted to the data: with new parameters, or composed with the learned flow.

        data: (x, y), or (x, y, along); see `Data`. streams: random streams for batches and the optimizer. journal:
        takes rows and checkpoints; the fit resumes from its last checkpoint. Raises NumericalError where the fit cannot
        continue.
        """
        x, y, *along = data  # along: the test points, for flows alone
        loss = self.make_loss(kernel, x, y)
        self.sampler.start(x, y)
        rng, path = streams["optimizer"], journal.layer_path
        self.setup = setup = FitSetup(kernel, x, y, along[0] if along else x[:0], loss, rng, path)
        self.start(setup)
        restored = journal.restore(streams)  # after `start`, which may draw from the streams
        fit = _Fit(setup, batch=None, restarts=0, stopped=False)
        first = 0
        if restored is not None:
            first, state = restored
            self.restore(state["own"])
            self._draw_from(setup, self.candidates())
            self.sampler.restore(state["sampler"])
            loss.kernel_evaluations = state["kernel_evaluations"]
            fit = _Fit(setup, _as_batch(state["batch"]), state["restarts"], state["stopped"])

        def checkpoint(iteration: int) -> None:
            state = {
                "own": self.state(),
                "sampler": self.sampler.state(),
                "kernel_evaluations": loss.kernel_evaluations,
                "batch": _as_state(fit.batch),
                "restarts": fit.restarts,
                "stopped": fit.stopped,
            }
            journal.checkpoint(iteration, streams, state)

        last = first if fit.stopped else self.iterations
        for iteration in range(first, last):
            checkpoint(iteration)
            self._show(iteration, journal)
            try:
                if not self._iterate(iteration, fit, streams, journal):
                    last, fit.stopped = iteration, True
                    break
            except NumericalError as error:
                if not self.stops_where_it_stands:
                    raise
                vector = self.positions()[0].flat
                failed = Evaluation(vector, events=(error.event,), detail=error.detail)
                journal.row(TraceRow(iteration, failed, loss.kernel_evaluations, events=(Event.FLOW_STOPPED,)))
                journal.stopped(iteration, str(error))
                last, fit.stopped = iteration, True
                break
        checkpoint(last)
        self._show(last, journal, final=True)
        return self.result()

    def _show(self, iteration: int, journal: Journal, *, final: bool = False) -> None:
        if journal.wants(iteration, final=final):
            at = self.setup.kernel, self.setup.x, self.setup.along
            with contextlib.suppress(NumericalError):  # a search without a result yet shows its start
                at = self.positions() if iteration else at
            journal.moved(iteration, *at, final=final)

    def _iterate(self, iteration: int, fit: _Fit, streams: Streams, journal: Journal) -> bool:
        """Write one row of the trace; return False where the optimizer has no further question."""
        batches, loss = streams["batches"], fit.setup.loss
        self._draw_from(fit.setup, self.candidates())
        if fit.batch is None or not self.keeps_batch(iteration):
            if self.sampler.compares_points:
                with contextlib.suppress(NumericalError):  # a search without a result yet
                    lengths = lengths_of(self.positions()[0].parameters)
                    self.sampler.follow(1.0 if lengths is None else lengths)
            fit.batch = self.sampler.draw(batches, iteration)
        batch = fit.batch
        question = self.ask(iteration, batch)  # a gradient's optimizer: at the parameters before its step
        if question is None:
            return False
        evaluation = _answered(loss, question, batch)
        if evaluation.failed and self.restarts is not None:
            fit.restarts += 1
            give_up = fit.restarts > self.restarts.most
            events = () if give_up else (Event.REINITIALIZED,)
            shown = self.sampler.shown(batch)
            journal.row(TraceRow(iteration, evaluation, loss.kernel_evaluations, events=events, diagnostics=shown))
            if give_up:
                evaluation.require()
            self.restarts.go_on_from(self.restarts.draw(fit.setup.kernel, streams["optimizer"]).flat)
            return True
        if not evaluation.failed:
            self.sampler.observe(evaluation.rho_half)
        answer = self.tell(evaluation)
        while isinstance(answer, Question):
            answer = self.tell(_answered(loss, answer, self.sampler.draw(batches, iteration)))
        shown = {**evaluation.measured, **answer.diagnostics, **self.sampler.shown(batch), **loss.lap()}
        journal.row(TraceRow(iteration, evaluation, loss.kernel_evaluations, answer.told, answer.events, shown))
        if answer.error is not None:
            raise answer.error
        return True

    def _draw_from(self, setup: FitSetup, candidates: torch.Tensor | None) -> None:
        """Make the sampler draw from these points alone, and keep its state."""
        if candidates is not None:
            memory = self.sampler.state()
            self.sampler.start(setup.x[candidates], setup.y[candidates])
            self.sampler.restore(memory)


@dataclass
class _Fit:
    """The loop's own state between iterations."""

    setup: FitSetup
    batch: Batch | None
    restarts: int
    stopped: bool


def _answered(loss: Loss, question: Question, batch: Batch) -> Evaluation:
    if question.kernel is None:
        return loss(question.vector, batch, question.gradient)
    points = question.points is not None
    index = torch.as_tensor(batch.indices, device=loss.x.device)
    x = question.points if question.points is not None else loss.x[index]
    y = question.targets if question.targets is not None else loss.y[index]
    evaluation = loss.at(question.kernel, x, y, batch, gradient=question.gradient, points=points)
    return replace(evaluation, vector=question.vector)


def _as_state(batch: Batch | None) -> State | None:
    if batch is None:
        return None
    sizes = {"sample_size": batch.sample_size, "half_size": batch.half_size}
    views = {} if batch.views is None else {"views": batch.views}
    return {"indices": batch.indices, **sizes, "orders": list(batch.orders), **views}


def _as_batch(state: State | None) -> Batch | None:
    if state is None:
        return None
    sizes = state["sample_size"], state["half_size"]
    return Batch(state["indices"], *sizes, tuple(state["orders"]), state.get("views"))
