"""The run directory: written as things happen, read back by `load_run`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from kfx.checkpoint import CheckpointError, previous
from kfx.checkpoint import read as read_checkpoint
from kfx.checkpoint import write as write_checkpoint
from kfx.data.files import digest
from kfx.disk import Rows, read_rows, sync, write_json, write_whole
from kfx.kernels.base import Kernel, flat_parameters
from kfx.kernels.flowed import FlowedKernel
from kfx.kernels.regularized import Regularized, as_recorded
from kfx.outcomes import ConfigError, Event, KfxError, Status
from kfx.streams import Streams
from kfx.writer import Writer

if TYPE_CHECKING:
    import pandas as pd

    from kfx.optimizers.loss import Evaluation

TRACE_COLUMNS = (
    "iteration",
    "rho",
    "objective",
    "told",
    "regularization",
    "seconds",
    "kernel_evaluations",
    "jitter",
    "event",
)
EVALUATION_COLUMNS = (
    "kernel",
    "n_interpolation",
    "repeat",
    "regularization",
    "metric",
    "value",
    "configured_regularization",
)
_MOST_PARAMETER_COLUMNS = 256
_DECIDE_BITS = ("threads", "threads_of_fit", "threads_of_evaluation", "cores", "processor", "device", "packages")
_MOST_WATCHED = 16
_ROWS_AT_BOUND = 100


class RecordError(KfxError):
    """A file of a record is damaged."""


class CompletedError(ConfigError):
    """There is nothing to resume: the run is completed."""


class Record:
    """The record of one run under `directory`, by its one writer: the lock comes before anything else is touched.

    A new record refuses a directory that holds a run; with `replace_failed`, a failed run of the same identity makes
    room, its files moved into `failed-1`, `failed-2`, … beneath. With `resume` the directory's run goes on: from its
    last good checkpoint, or from the start where there is none yet. `watch` is called with every trace row, for people
    to see.
    """

    def __init__(
        self,
        directory: Path,
        config: tuple[DictConfig, Sequence[str]] | None = None,
        *,
        identity: str | None = None,
        resume: bool = False,
        replace_failed: bool = False,
        checkpoint_seconds: float = 30.0,
        checkpoint_iterations: int = 0,
    ) -> None:
        self.directory = Path(directory)
        self.watch: Callable[[dict[str, Any]], None] = lambda row: None
        self.follow: Callable[..., int] = lambda *positions: 0
        self.stop: BaseException | None = None
        """Set from outside to end the run at its next checkpoint."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._writer = Writer(self.directory, identity)
        try:
            if not resume and (self.directory / "metrics.json").exists():
                self._make_room(identity, replace_failed)
            self.metrics: dict[str, Any] = {"status": Status.RUNNING} | ({"identity": identity} if identity else {})
            self._interval = (checkpoint_seconds, checkpoint_iterations)
            self._checkpoint = self.directory / "checkpoint"
            self._last_checkpoint = self._started = time.perf_counter()
            self._snapshot: dict[str, Any] | None = None
            self._restored: dict[str, Any] | None = None
            self._trace: Rows | None = None
            self._evaluation: Rows | None = None
            self._evaluated: list[dict[str, Any]] = []
            self._predictions: dict[str, np.ndarray] = {}
            self._rho: list[float] = []
            self._history = Rows(self.directory / "history.csv", ["time", "event", "host", "detail"], keep=None)
            if resume:
                self._reopen(identity)
            else:
                self.note("started")
                if config is not None:  # before metrics.json: what has metrics can be resumed
                    self.config(*config)
            self._write_metrics()
        except BaseException:
            self._writer.release()
            raise

    def _make_room(self, identity: str | None, replace_failed: bool) -> None:
        """Set a failed run of the same identity aside; ConfigError for any other."""
        shown, held = f"hydra.run.dir={self.directory}", read_metrics(self.directory)
        if held.get("identity") != identity:
            raise ConfigError(f"{shown}: holds a run of another config, data or version of kfx; choose another folder")
        if not replace_failed or held["status"] != Status.FAILED:
            raise ConfigError(f"{shown}: holds a run already; choose another folder")
        number = 1
        while (self.directory / f"failed-{number}").exists():
            number += 1
        aside = self.directory / f"failed-{number}"
        aside.mkdir()
        # metrics.json last: until then the folder holds the failed run, and this can be done again.
        paths = [path for path in self.directory.iterdir() if not path.name.startswith(("failed-", "."))]
        for path in sorted(paths, key=lambda path: path.name == "metrics.json"):
            os.replace(path, aside / path.name)

    # ---- what is known at the start

    def config(self, resolved: DictConfig, overrides: Sequence[str]) -> None:
        write_whole(self.directory / "config.yaml", OmegaConf.to_yaml(resolved, resolve=True))
        write_whole(self.directory / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(list(overrides))))

    def json(self, name: str, content: Any) -> None:
        """`environment.json`, `precision.json`."""
        write_json(self.directory / name, content)

    def environment(self, here: dict[str, Any]) -> str:
        """`environment.json`; where a resumed run goes on elsewhere, that of before is kept in it too, and what changed
        of what decides the last bits comes back in words."""
        path = self.directory / "environment.json"
        try:
            before = json.loads(path.read_text()) if self._restored is not None else None
        except (OSError, ValueError):
            before = None
        changed: list[str] = []
        before = before if isinstance(before, dict) else {}
        if before:
            changed = [name for name in (*_DECIDE_BITS, "host") if before.get(name) != here.get(name)]
            earlier = before.pop("earlier", [])
            here = here | {"earlier": [*earlier, before] if changed else earlier}
        write_json(path, here)
        shown = [
            "other packages" if name == "packages" else f"{name} {before.get(name)} before, {here[name]} now"
            for name in _DECIDE_BITS
            if name in changed
        ]
        if shown:
            self.note("environment_changed", "; ".join(shown))
        return ", ".join(shown)

    def remark(self, event: Event, text: str) -> None:
        """What a person should know of the result, in `metrics.json`, `history.csv` and the closing lines; once."""
        if text not in self.metrics.setdefault("remarks", []):
            self.metrics["remarks"].append(text)
            self.note(event, text)

    def note(self, event: str, detail: str = "") -> None:
        """A line of `history.csv`: what happened to the run as a process."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        self._history.write([now, event, socket.gethostname(), " ".join(detail.replace(",", ";").split())])

    # ---- while it runs

    def open_trace(self, kernel: Kernel, diagnostics: Sequence[str]) -> None:
        """Start `trace.csv` for this kernel's parameters, or go on where the checkpoint was taken."""
        self._kernel = kernel
        self._diagnostics = tuple(diagnostics)
        self._values = flat_parameters(kernel.parameters)
        names = list(self._values)
        self._parameter_names = names if len(names) <= _MOST_PARAMETER_COLUMNS else []
        header = [
            *TRACE_COLUMNS,
            *(f"parameter.{n}" for n in self._parameter_names),
            *(f"diagnostic.{n}" for n in diagnostics),
        ]
        path = self.directory / "trace.csv"
        watched = kernel.names if self._parameter_names and len(kernel.names) <= _MOST_WATCHED else []
        self._bounds = {
            n: tuple(map(float, b)) for n, b in zip(kernel.names, kernel.bounds, strict=True) if n in watched
        }
        self._rows_at_bound = dict.fromkeys(self._bounds, 0)
        elapsed = 0.0
        if self._restored is None:
            self._trace = Rows(path, header)
        else:
            elapsed = self._restored["seconds"]
            self._trace = Rows(path, header, keep=self._restored["bytes"]["trace.csv"])
            before = read_rows(path)
            rho = before["rho"].to_numpy(dtype=float)
            self._rho = rho[np.isfinite(rho)].tolist()
            for values in before[[f"parameter.{name}" for name in self._bounds]].to_numpy(dtype=float).tolist():
                self._at_bounds(dict(zip(self._bounds, values, strict=True)))
        self._started = time.perf_counter() - elapsed
        self.metrics["parameters"] = {"initial": kernel.parameters}
        self._write_metrics()

    def row(
        self,
        iteration: int,
        evaluation: Evaluation,
        kernel_evaluations: int,
        *,
        told: float | None = None,
        events: Iterable[Event] = (),
        diagnostics: Mapping[str, float] | None = None,
    ) -> None:
        """One evaluation of the objective. `told` is what a surrogate was told, where that is not ρ."""
        assert self._trace is not None
        values = self._values | dict(zip(self._kernel.names, evaluation.vector.tolist(), strict=True))
        row = {
            "iteration": iteration,
            "rho": evaluation.rho,
            "objective": evaluation.objective,
            "told": evaluation.objective if told is None else told,
            "regularization": evaluation.regularization,
            "seconds": round(time.perf_counter() - self._started, 6),
            "kernel_evaluations": kernel_evaluations,
            "jitter": evaluation.jitter,
            "event": ";".join([*evaluation.events, *events, *self._at_bounds(values)]),
        }
        extra = diagnostics or {}
        self._trace.write(
            [
                *row.values(),
                *(values[n] for n in self._parameter_names),
                *(extra.get(n, math.nan) for n in self._diagnostics),
            ]
        )
        if math.isfinite(evaluation.rho):
            self._rho.append(evaluation.rho)
        self.watch({**row, "parameters": values})

    def _at_bounds(self, values: Mapping[str, float]) -> list[Event]:
        """The event of a parameter that has now been at one of its bounds for so many rows, with a remark."""
        found = []
        for name, (low, high) in self._bounds.items():
            value = values[name]
            at = math.isclose(value, low, rel_tol=1e-9) or math.isclose(value, high, rel_tol=1e-9)
            self._rows_at_bound[name] = self._rows_at_bound[name] + 1 if at else 0
            if self._rows_at_bound[name] == _ROWS_AT_BOUND:
                text = f"{name} stayed at its bound {value:g} for {_ROWS_AT_BOUND} iterations: widen kernel.bounds"
                self.remark(Event.AT_BOUND, text)
                found = [Event.AT_BOUND]
        return found

    # ---- checkpoints

    def restore(self, streams: Streams) -> tuple[int, dict[str, Any]] | None:
        """The iteration to go on with and the optimizer's state there, with the random streams set to match; None
        for a run that starts."""
        if self._restored is None:
            return None
        streams.restore(self._restored["streams"])
        return self._restored["iteration"], self._restored["optimizer"]

    def checkpoint(
        self, iteration: int, streams: Streams, state: dict[str, Any], files: Mapping[str, int] | None = None
    ) -> None:
        """What an optimizer needs to go on with `iteration`; called before each one, written when its time has come.

        `state`: nested dicts and lists of numbers, text and arrays, which must not change afterwards. `files`: others
        that it counts on, by name and how many bytes of them there are now.
        """
        assert self._trace is not None
        now = time.perf_counter()
        self._snapshot = {
            "identity": self.metrics.get("identity"),
            "iteration": iteration,
            "optimizer": state,
            "streams": streams.state(),
            "seconds": now - self._started,
            "bytes": {"trace.csv": self._trace.size, **(files or {})},
        }
        if self.stop is not None:
            raise self.stop
        seconds, iterations = self._interval
        if now - self._last_checkpoint >= seconds or (iterations and iteration and iteration % iterations == 0):
            self.save()

    def save(self) -> None:
        """Write the last state that an optimizer gave to disk, after the rows and layers that it counts on."""
        if self._snapshot is not None:
            for name in self._snapshot["bytes"]:
                if (path := self.directory / name).is_file():
                    sync(path)
            write_checkpoint(self._checkpoint, self._snapshot)
            self._last_checkpoint = time.perf_counter()

    def _reopen(self, identity: str | None) -> None:
        self.metrics = read_metrics(self.directory)
        self.before = self.metrics["status"], self.metrics.get("reason")
        if self.metrics["status"] == Status.COMPLETED:
            raise CompletedError(f"{self.directory}: is completed; there is nothing to resume")
        kept: list[str] = [key for key in ("identity", "flow_stopped") if key in self.metrics]
        self.metrics = {"status": Status.RUNNING} | {key: self.metrics[key] for key in kept}
        if self.metrics.setdefault("identity", identity) != identity:
            raise CheckpointError(
                f"{self.directory}: belongs to another run (identity {self.metrics['identity']}, this one is "
                f"{identity}): the config, the data or kfx has changed; start anew with kfx run"
            )
        complaints = []
        for path in (self._checkpoint, previous(self._checkpoint)):
            if not path.exists():
                continue
            try:
                state = read_checkpoint(path)
                self._require_whole(path, state, identity)
            except CheckpointError as error:
                complaints.append(str(error))
                self.note("checkpoint_damaged", str(error))
                continue
            self._restored = self._snapshot = state
            break
        if complaints and self._restored is None:
            raise CheckpointError(f"no checkpoint can be read ({'; '.join(complaints)}); start anew with kfx run")
        self.note("resumed", f"at iteration {self._restored['iteration']}" if self._restored else "from the start")

    def _require_whole(self, path: Path, state: Mapping[str, Any], identity: str | None) -> None:
        """CheckpointError unless everything that a checkpoint counts on is there as it was."""
        if state["identity"] != identity:
            raise CheckpointError(
                f"{path}: belongs to another run (identity {state['identity']}, this one is {identity}): the config, "
                "the data or kfx has changed"
            )
        for name, size in state["bytes"].items():
            file = self.directory / name
            if size > (there := file.stat().st_size if file.is_file() else 0):
                raise CheckpointError(f"{path}: {name} has {there} of the {size} bytes that it had then")
        try:
            read_table(self.directory / "trace.csv", TRACE_COLUMNS)
        except RecordError as error:
            raise CheckpointError(f"{path}: {error}") from error
        for name, checksum in state["optimizer"].get("files", {}).items():
            if not (self.directory / name).is_file() or digest(self.directory / name, "sha256") != checksum:
                raise CheckpointError(f"{path}: {name} is missing or damaged")

    # ---- several fits in one record

    def parts(self, count: int, iterations: int) -> Parts:
        """What to give `count` fits, of so many iterations each, to write to."""
        return Parts(self, count, iterations)

    # ---- evaluation

    def evaluated(self, rows_each: int) -> list[dict[str, Any]]:
        """Rows of `evaluation.csv` that an earlier process wrote, whole kernels and repeats of `rows_each` alone."""
        path = self.directory / "evaluation.csv"
        rows: list[dict[str, Any]] = []
        arrays = self.directory / "predictions.npz"
        try:
            if path.is_file() and self._restored is not None:
                table = read_table(path, EVALUATION_COLUMNS)[list(EVALUATION_COLUMNS)]
                for _, group in table.groupby(["kernel", "repeat"], sort=False):
                    if len(group) == rows_each:
                        whole = group.itertuples(index=False)
                        rows += [dict(zip(EVALUATION_COLUMNS, row, strict=True)) for row in whole]
            if arrays.is_file() and rows:
                with np.load(arrays, allow_pickle=False) as stored:
                    self._predictions = {name: stored[name] for name in stored.files}
        except (RecordError, ValueError, OSError, KeyError, EOFError, BadZipFile):  # then all of it is done again
            rows, self._predictions = [], {}
        self._evaluation = Rows(path, list(EVALUATION_COLUMNS))
        self.evaluation(rows)
        return rows

    def evaluation(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of `evaluation.csv`."""
        assert self._evaluation is not None
        self._evaluation.write(*([row[c] for c in EVALUATION_COLUMNS] for row in rows))

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """A further CSV file, whole."""
        written = Rows(self.directory / name, list(columns))
        for row in rows:
            written.write([row[c] for c in columns])
        written.close()

    def predictions(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add arrays to `predictions.npz`."""
        self._predictions |= arrays
        partial = self.directory / "predictions.partial.npz"
        np.savez_compressed(partial, **self._predictions)  # type: ignore[arg-type]
        os.replace(partial, self.directory / "predictions.npz")

    # ---- how it ended

    def final_parameters(self, starts: Sequence[Kernel], kernels: Sequence[Kernel]) -> None:
        """Of the fitted kernel; of several folds', `initial` is the first one's, `final` the last one's, and
        `initial_folds` and `folds` are all."""
        self.metrics["parameters"]["final"] = kernels[-1].parameters
        if len(kernels) > 1:
            self.metrics["parameters"]["initial_folds"] = [kernel.parameters for kernel in starts]
            self.metrics["parameters"]["folds"] = [kernel.parameters for kernel in kernels]
        self._write_metrics()

    def finish(self, status: Status, reason: str | None = None, **entries: Any) -> None:
        """The last word: status, reason, ρ and whatever else `metrics.json` should hold; then others may write.

        A run that can go on keeps its checkpoint; a completed one needs none, and has had its last word.
        """
        if self.metrics["status"] == Status.COMPLETED:
            return
        self.metrics |= {"status": status, **({"reason": reason} if reason else {}), **entries}
        try:
            if status != Status.COMPLETED:
                self._save_what_fits()
            self._write_metrics()
            self.note(status, reason or "")
            if status == Status.COMPLETED:  # only now: a kill before this line must find them
                self._drop_checkpoints()
        except OSError:
            self._drop_checkpoints()  # on a full disk the reason needs their place
            with contextlib.suppress(OSError):
                self._write_metrics()
        finally:
            for rows in (self._trace, self._evaluation, self._history):
                if rows is not None:
                    rows.close()
            self._writer.release()

    def _save_what_fits(self) -> None:
        with contextlib.suppress(OSError):  # the checkpoint before this one stays
            self.save()

    def _drop_checkpoints(self) -> None:
        for path in (self._checkpoint, previous(self._checkpoint), self._checkpoint.with_name("checkpoint.partial")):
            path.unlink(missing_ok=True)

    def _write_metrics(self) -> None:
        if self._rho:
            self.metrics["rho"] = {"initial": self._rho[0], "final": self._rho[-1], "best": min(self._rho)}
        write_json(self.directory / "metrics.json", self.metrics)


class Parts:
    """One record for several fits, one after another: their iterations are counted on, and a checkpoint tells which
    of them it belongs to and how those before it ended."""

    def __init__(self, record: Record, count: int, iterations: int) -> None:
        self.record, self.count, self.iterations = record, count, iterations
        self.diagnostics = ("fold",) if count > 1 else ()
        restored = record._restored["optimizer"] if record._restored is not None else {}
        self.fitted: list[dict[str, Any]] = list(restored.get("fitted", []))
        self.files: dict[str, str] = dict(restored.get("files", {}))
        """What ended fits left in files of their own, by name and SHA-256."""
        self.bytes: dict[str, int] = {}
        """How long the files are that fits and their measurements append to."""
        self._evaluations = int(restored.get("evaluations", 0))
        self._resumed = int(restored.get("part", 0)) if restored else -1

    @property
    def resumed_at(self) -> tuple[int, int]:
        """The part and the iteration of it that a resumed run goes on with; (0, 0) for one that starts."""
        restored = self.record._restored
        return (0, 0) if restored is None else (self._resumed, restored["iteration"] - self._resumed * self.iterations)

    def fit(self, kernel: Kernel, optimizer: Any, data: Any, streams: Streams) -> Kernel:
        """`optimizer.fit` of the next part; of one that ended before the checkpoint, its result."""
        part = _Part(self, len(self.fitted), streams)
        fitted = optimizer.fit(kernel, data, streams, part)
        self._evaluations = part.evaluations
        self.fitted.append(fitted.parameters)
        if isinstance(fitted, FlowedKernel):
            path = flow_path(self.record.directory, part.number)
            fitted.save(path)
            self.files[path.name] = digest(path, "sha256")
        return fitted

    def ended(self, starts: Sequence[Kernel]) -> list[Kernel]:
        """The fitted kernels of the parts before the checkpoint's."""
        kernels = [as_recorded(kernel, values) for kernel, values in zip(starts, self.fitted, strict=False)]
        return [flowed(self.record.directory, part, kernel) for part, kernel in enumerate(kernels)]


class _Part:
    """What an optimizer sees of a record while it fits one of several parts."""

    def __init__(self, parts: Parts, number: int, streams: Streams) -> None:
        self.parts, self.number = parts, number
        self.first = number * parts.iterations
        self.before = self.evaluations = parts._evaluations

    @property
    def layer_path(self) -> Path:
        """Where a flow keeps its layers."""
        return layer_path(self.parts.record.directory, self.number)

    def moved(self, layer: int, kernel: Kernel, x: torch.Tensor, along: torch.Tensor, *, final: bool = False) -> None:
        """Where a flow's points are before a layer, or at the end."""
        if size := self.parts.record.follow(self.number, layer, kernel, x, along, final):
            self.parts.bytes["flow.csv"] = size

    def stopped(self, layer: int, reason: str) -> None:
        """A flow ended before its last layer, for this reason."""
        record = self.parts.record
        record.note(Event.FLOW_STOPPED, f"part {self.number}, layer {layer}: {reason}")
        record.metrics.setdefault("flow_stopped", {})[str(self.number)] = {"layer": layer, "reason": reason}
        record._write_metrics()

    def row(self, iteration: int, evaluation: Evaluation, kernel_evaluations: int, **options: Any) -> None:
        self.evaluations = self.before + kernel_evaluations
        if self.parts.count > 1:
            options["diagnostics"] = {**(options.get("diagnostics") or {}), "fold": self.number}
        self.parts.record.row(self.first + iteration, evaluation, self.evaluations, **options)

    def restore(self, streams: Streams) -> tuple[int, dict[str, Any]] | None:
        if self.number != self.parts._resumed:
            return None
        restored = self.parts.record.restore(streams)
        if restored is None:
            return None
        self.evaluations = restored[1]["so_far"]  # a part that had ended writes no row to count on from
        return restored[0] - self.first, restored[1]["own"]

    def checkpoint(self, iteration: int, streams: Streams, state: dict[str, Any]) -> None:
        whole = {
            "own": state,
            "part": self.number,
            "fitted": list(self.parts.fitted),
            "files": dict(self.parts.files),
            "evaluations": self.before,
            "so_far": self.evaluations,
        }
        if state.get("layers"):
            self.parts.bytes[self.layer_path.name] = state["layers"]
        self.parts.record.checkpoint(self.first + iteration, streams, whole, self.parts.bytes)


# ---- flows: their kernels have files of their own


def flow_path(directory: Path, part: int) -> Path:
    return directory / f"flow-{part}.npz"


def layer_path(directory: Path, part: int) -> Path:
    return directory / f"layers-{part}.bin"


def flowed(directory: Path, part: int, kernel: Kernel, layers: Callable[[Path, Kernel], Any] | None = None) -> Kernel:
    """The kernel of a part with the flow that it ended with, if there was one. layers: reads what was recorded."""
    path = flow_path(directory, part)
    if not path.is_file():
        return kernel
    own = layer_path(directory, part)
    reader = partial(layers, own, kernel) if layers is not None and own.is_file() else None
    try:
        return FlowedKernel.load(path, kernel, reader)
    except (ValueError, OSError, KeyError, EOFError, BadZipFile) as error:
        raise RecordError(f"{path}: damaged: {error}") from error


# ---- reading


def read_metrics(directory: Path) -> dict[str, Any]:
    """`metrics.json`, with a status at least; RecordError where it is damaged."""
    path = directory / "metrics.json"
    try:
        metrics = json.loads(path.read_text())
        if isinstance(metrics, dict) and metrics.get("status") in set(Status):
            return metrics
        problem = "it has no status"
    except (OSError, ValueError) as error:
        problem = str(error)
    raise RecordError(f"{path}: damaged: {problem}; take the folder away, or run anew into another")


@dataclass(frozen=True)
class Run:
    """A recorded run. `trace` and `evaluation` are empty frames where the run did not come that far."""

    directory: Path
    config: DictConfig
    metrics: dict[str, Any]
    trace: pd.DataFrame
    evaluation: pd.DataFrame

    @property
    def kernel(self) -> Kernel:
        """The fitted kernel; the initial one where the run ended before it was fitted."""
        from kfx import build, config
        from kfx.schema import FLOWS

        parameters = self.metrics["parameters"]
        checked = config.check(self.config)
        built = build.kernel(checked.kernel, build.image_size(checked.dataset))
        if checked.regularization.selection != "fixed":
            chosen = build.regularization(checked.regularization)
            built = Regularized(built, chosen, checked.regularization.selection == "trained")
        last = as_recorded(built, parameters.get("final", parameters["initial"]))
        part = len(parameters.get("folds", [0])) - 1
        path = flow_path(self.directory, part)
        if isinstance(checked.optimizer, FLOWS) and "final" in parameters and not path.is_file():
            raise RecordError(f"{path}: is missing; the kernel without its flow is another")
        return flowed(self.directory, part, last, partial(build.recorded_layers, checked))


def load_run(path: str | Path) -> Run:
    """Read a run directory: `.config`, `.metrics`, `.trace`, `.evaluation`, `.kernel`.

    A row that a killed run left half-written is dropped. FileNotFoundError where there is no run; RecordError where a
    file of it is damaged.
    """
    directory = Path(path)
    if not (directory / "metrics.json").is_file():
        raise FileNotFoundError(f"{directory} holds no run: it has no metrics.json")
    return Run(
        directory,
        read_config(directory) if (directory / "config.yaml").is_file() else OmegaConf.create(),
        read_metrics(directory),
        read_table(directory / "trace.csv", TRACE_COLUMNS),
        read_table(directory / "evaluation.csv", EVALUATION_COLUMNS),
    )


def read_config(directory: Path) -> DictConfig:
    """`config.yaml`; RecordError where it is damaged."""
    path = directory / "config.yaml"
    try:
        config = OmegaConf.load(path)
    except Exception as error:  # what is in a damaged file is anybody's guess
        raise RecordError(f"{path}: damaged: {' '.join(str(error).split())}") from error
    if not isinstance(config, DictConfig):
        raise RecordError(f"{path}: damaged: expected keys and values")
    return config


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A table of a record with at least these columns, or none; RecordError where it is damaged."""
    import pandas as pd

    try:
        table = read_rows(path, columns)
    except (ValueError, pd.errors.ParserError) as error:  # bytes that are no text, rows of other lengths
        raise RecordError(f"{path}: damaged: {' '.join(str(error).split())}") from error
    texts = {"event", "kernel", "metric"}
    if (
        "configured_regularization" in columns
        and "configured_regularization" not in table
        and "regularization" in table
    ):
        table["configured_regularization"] = table["regularization"]  # of a record before there were two
    missing = [name for name in columns if name not in table]
    wrong = [n for n in columns if n not in missing and n not in texts and not pd.api.types.is_numeric_dtype(table[n])]
    if not table.empty and (missing or wrong):
        raise RecordError(f"{path}: damaged: {'no column' if missing else 'no numbers in'} {(missing or wrong)[0]}")
    return table
