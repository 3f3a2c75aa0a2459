"""Run statuses, events and errors."""

from __future__ import annotations

import errno
from enum import StrEnum
from pathlib import Path
from typing import Any


class Status(StrEnum):
    """`status` in `metrics.json`."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Event(StrEnum):
    """`event` in `trace.csv`, and the reason of a failed run."""

    NOT_POSITIVE_DEFINITE = "not_positive_definite"
    RHO_OUT_OF_RANGE = "rho_out_of_range"
    DIVERGED = "diverged"
    REINITIALIZED = "reinitialized"
    MINIMUM_REJECTED = "minimum_rejected"
    TILE_HALVED = "tile_halved"
    OUT_OF_MEMORY = "out_of_memory"
    STORAGE = "storage_failed"
    FIELD_VANISHED = "field_vanished"
    COLLAPSED = "points_collapsed"
    OVERSHOT = "overshot"
    FLOW_STOPPED = "flow_stopped"
    AT_BOUND = "at_bound"
    REGULARIZATION_AT_BOUND = "regularization_at_bound"
    OBJECTIVE_ROSE = "objective_rose"
    ERROR_ROSE = "error_rose"
    INITIAL_KERNEL_KEPT = "initial_kernel_kept"
    ONE_LENGTH_KEPT = "one_length_kept"
    SMOOTH_KEPT = "smooth_kept"
    TRANSFORMED = "transformed"
    CONSTANT_FEATURES = "constant_features"
    NEARLY_IDENTITY = "nearly_identity"
    MEAN_DOMINATES = "mean_dominates"
    REGULARIZATION_AT_EDGE = "regularization_at_edge"
    NO_BETTER_THAN_CONSTANT = "no_better_than_constant"
    EVALUATION_FAILED = "evaluation_failed"
    DIRECTIONS_LOST = "directions_lost"
    ENVIRONMENT_CHANGED = "environment_changed"
    INTERRUPTED = "interrupted"

    @property
    def help(self) -> str:
        """Its meaning, usual causes and remedies."""
        return _HELP[self]

    @property
    def advice(self) -> str:
        """The remedies: the part of the help after the meaning."""
        return _HELP[self].partition(": ")[2]


_HELP = {
    Event.NOT_POSITIVE_DEFINITE: (
        "the regularized Gram matrix has no Cholesky factor: points repeat, the kernel is nearly "
        "constant on the batch, or the dtype is too short; raise regularization.value or use float64"
    ),
    Event.RHO_OUT_OF_RANGE: "rho left [0, 1]: the arithmetic cannot be trusted at these parameters",
    Event.DIVERGED: (
        "a parameter, the objective or its gradient is not finite: lower optimizer.learning_rate, "
        "use optimizer.space=log, or narrow kernel.bounds"
    ),
    Event.REINITIALIZED: "the parameters were drawn anew within their bounds",
    Event.MINIMUM_REJECTED: "a new minimum did not hold on another batch, and the surrogate was told 1",
    Event.TILE_HALVED: "the device's memory ran out and a kernel went on with smaller tiles",
    Event.OUT_OF_MEMORY: "memory ran out: lower sampler.batch_size or the size of the data set",
    Event.STORAGE: "the run's folder cannot be written: the disk is full, a quota is reached, or it became read-only",
    Event.FIELD_VANISHED: "rho no longer changes with any point of the batch",
    Event.COLLAPSED: "points of one target merged until too few were left for a batch",
    Event.OVERSHOT: "a step left the range of numbers or of the solver: lower flow.step_size or raise regularization",
    Event.FLOW_STOPPED: "the flow ended before its last layer, at the last good positions",
    Event.AT_BOUND: (
        "a parameter stayed at its bound, or ended there: widen kernel.bounds, or optimizer.bounds where a search has "
        "some, or fix the parameter"
    ),
    Event.REGULARIZATION_AT_BOUND: (
        "the trained lambda ended at its bound: the objective takes all variance for signal, or for noise; start from "
        "another length, or use regularization.selection=validation"
    ),
    Event.OBJECTIVE_ROSE: (
        "the objective is worse on held-out batches than before training: raise optimizer.iterations or "
        "sampler.batch_size, or narrow optimizer.bounds of a search; errors say which kernel predicts better"
    ),
    Event.ERROR_ROSE: (
        "predictions are worse than before training: use another objective "
        "(kfx list objective), choose lambda by validation, or keep the initial kernel with optimizer=none"
    ),
    Event.INITIAL_KERNEL_KEPT: (
        "errors at points left out are larger after training: predictions use the initial kernel, and with "
        "optimizer.fall_back=false the trained one"
    ),
    Event.ONE_LENGTH_KEPT: (
        "errors at points left out are larger with a trained length for each feature, for which there are few training "
        "points: predictions use one length for all, and with optimizer.fall_back=false a length for each"
    ),
    Event.SMOOTH_KEPT: (
        "errors at points left out are larger with the rough part of the kernel, for which there are few training "
        "points: predictions use the smooth part alone, and with optimizer.fall_back=false both"
    ),
    Event.TRANSFORMED: (
        "features or targets are transformed, since that predicts folds of the training points better: "
        "dataset.transform=false takes them as they are"
    ),
    Event.CONSTANT_FEATURES: "a feature is the same at all training points: it tells nothing; leave it out",
    Event.NEARLY_IDENTITY: (
        "the kernel relates no point of a batch to another, so rho is 1 - p, as for a large lambda: use objective=loo "
        "or nll, or raise the lower end of kernel.bounds"
    ),
    Event.MEAN_DOMINATES: (
        "the mean of the targets dominates an objective that compares norms: subtract their mean, in a regression by "
        "dataset.targets=standardized, or use objective=interpolation_error, nll or loo"
    ),
    Event.REGULARIZATION_AT_EDGE: "the best lambda is the first or last of regularization.candidates: add candidates",
    Event.NO_BETTER_THAN_CONSTANT: "it predicts no better than the training mean, the largest class, or the last value",
    Event.EVALUATION_FAILED: "an evaluation gave no number",
    Event.DIRECTIONS_LOST: (
        "sums over centres have fewer digits than so small a lambda asks for, so that predictions and deviations are "
        "not those of all points: raise lambda, take fewer centres, or use evaluation.solver=cholesky"
    ),
    Event.ENVIRONMENT_CHANGED: (
        "a package, the machine or the number of threads is another one: the last digits may differ from those of a "
        "run from start to end as things are now; compare by kfx rerun RUN"
    ),
    Event.INTERRUPTED: "stopped from outside; what was computed is on disk",
}


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of the system of a file for which there is no room."""


class KfxError(Exception):
    """An error that a user can correct, shown as one line without a traceback."""

    exit_code = 1


class ConfigError(KfxError):
    """The config cannot be run as it is."""

    exit_code = 2


class DataError(KfxError):
    """A data file is missing, damaged or of another kind than it claims."""

    exit_code = 2


class NumericalError(KfxError):
    """An objective, a Gram matrix or a system could not be computed; `event` tells why."""

    def __init__(self, event: Event, detail: str) -> None:
        super().__init__(f"{event}: {detail}")
        self.event, self.detail = event, detail

    def __reduce__(self) -> tuple[Any, ...]:  # pickled when raised in another process
        return NumericalError, (self.event, self.detail)


class RunError(KfxError):
    """A run failed for the reason in the message and in its record, which is in `directory`."""

    def __init__(self, message: str, directory: Path) -> None:
        super().__init__(message)
        self.directory = directory


class CheckpointError(KfxError):
    """A checkpoint, or a file that it needs, is damaged, was changed, or belongs to another run."""


class StoreError(KfxError):
    """A Gram store is damaged, belongs to another kernel or other points, or lacks the requested tiles."""


class RecordError(KfxError):
    """A file of a record is damaged."""


class ChangedError(RecordError):
    """The data, the config or a file of a record have changed, so that it cannot be repeated or used."""

    exit_code = 3


class CompletedError(ConfigError):
    """The run is completed, so there is nothing to resume."""


class HeldError(KfxError):
    """Another process writes to this run; `identity` is that of its run, if it could be read."""

    def __init__(self, message: str, identity: str | None = None) -> None:
        super().__init__(message)
        self.identity = identity
