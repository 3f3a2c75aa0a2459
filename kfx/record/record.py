"""Write the directory of one run while it runs."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from kfx.files import (
    CsvFile,
    Document,
    GrowingFile,
    TableRow,
    partial_of,
    sync,
    whole_file,
    write_arrays,
    write_json,
    write_whole,
)
from kfx.kernels.base import Kernel
from kfx.lock import Lock
from kfx.numerics.arrays import in_numpy, plain
from kfx.numerics.streams import Streams
from kfx.optimizers.journal import State, TraceRow
from kfx.outcomes import CheckpointError, CompletedError, ConfigError, Event, RecordError, Status
from kfx.record.checkpoint import previous
from kfx.record.checkpoint import read as read_checkpoint
from kfx.record.checkpoint import write as write_checkpoint
from kfx.record.columns import SEAL, TRACE_COLUMNS
from kfx.record.environment import changes
from kfx.record.evaluations import Evaluations
from kfx.record.fitted import parameter_path
from kfx.record.origin import TAKEN, seal
from kfx.record.output import require_place_of_run
from kfx.record.reading import environments, read_metrics, read_table
from kfx.record.trace import Trace

if TYPE_CHECKING:
    from kfx.evaluation.follower import Follower


class Record:
    """The record of one run in `directory`, which has one writer: the lock is taken before anything else is touched.

    A new record refuses a directory that holds a run; with `replace_failed`, the files of a failed run of the same
    identity are moved into `failed-1`, `failed-2`, … in the directory. With `resume` the directory's run continues from
    its last valid checkpoint, or from the start if there is none. `watch` is called with every trace row, to show
    progress.
    """

    def __init__(
        self,
        directory: Path,
        config: tuple[DictConfig, Sequence[str]] | None = None,
        *,
        identity: str | None = None,
        plugins: Sequence[Mapping[str, str]] = (),
        resume: bool = False,
        replace_failed: bool = False,
        checkpoint_seconds: float = 30.0,
        checkpoint_iterations: int = 0,
    ) -> None:
        self.directory = Path(directory)
        self.watch: Callable[[Document], None] = lambda row: None
        self.follow: Follower | None = None
        self.stop: BaseException | None = None
        """An exception that ends the run at its next checkpoint; set from outside."""
        if not resume:
            require_place_of_run(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.directory, identity)
        try:
            if not resume and (self.directory / "metrics.json").exists():
                self._make_room(identity, replace_failed)
            self.metrics: Document = {"status": Status.RUNNING} | ({"identity": identity} if identity else {})
            self.metrics |= {"plugins": list(plugins)} if plugins else {}
            self._interval = (checkpoint_seconds, checkpoint_iterations)
            self._checkpoint = self.directory / "checkpoint"
            self._last_checkpoint = time.perf_counter()
            self._snapshot: State | None = None
            self._growing: dict[str, GrowingFile] = {}
            self.restored: State | None = None
            self.trace: Trace | None = None
            self.evaluations = Evaluations(self.directory)
            # Without metrics a killed start has left nothing that could go on: the history begins again.
            keep = None if resume else 0
            self._history = CsvFile(self.directory / "history.csv", ["time", "event", "host", "detail"], keep=keep)
            if resume:
                self._reopen(identity)
            else:
                self.note("started")
                if config is not None:  # before metrics.json, because a directory with metrics can be resumed
                    self.config(*config)
            self.write_metrics()
        except BaseException:
            self._lock.release()
            raise

    def _make_room(self, identity: str | None, replace_failed: bool) -> None:
        """Move a failed run of the same identity aside; ConfigError for any other run."""
        shown, held = f"hydra.run.dir={self.directory}", read_metrics(self.directory)
        if held.get("identity") != identity:
            raise ConfigError(f"{shown}: {TAKEN}")
        if not replace_failed or held["status"] != Status.FAILED:
            raise ConfigError(f"{shown}: holds a run already; choose another folder")
        number = 1
        while (self.directory / f"failed-{number}").exists():
            number += 1
        aside = self.directory / f"failed-{number}"
        aside.mkdir()
        # metrics.json last: until then the folder holds the failed run, so an interrupted move can be repeated.
        paths = [path for path in self.directory.iterdir() if not path.name.startswith(("failed-", "."))]
        for path in sorted(paths, key=lambda path: path.name == "metrics.json"):
            os.replace(path, aside / path.name)

    # ---- what is known at the start

    def config(self, resolved: DictConfig, overrides: Sequence[str]) -> None:
        write_whole(self.directory / "config.yaml", OmegaConf.to_yaml(resolved))
        write_whole(self.directory / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(list(overrides))))

    def json(self, name: str, content: object) -> None:
        """Write a file such as `precision.json`."""
        write_json(self.directory / name, content)

    def environment(self, here: Document) -> str:
        """Write `environment.json`; if the environment has changed in the course of the run, add and return a note.

        If a run is resumed in another environment, the file also keeps the earlier one.
        """
        before: list[Document] = []
        if self.restored is not None:
            with contextlib.suppress(RecordError):  # damaged, it is written anew
                before = environments(self.directory)
        goes_on = bool(before) and before[-1].get("host") == here["host"] and not changes(before[-1], here)
        earlier = before[:-1] if goes_on else before
        write_json(self.directory / "environment.json", here | ({"earlier": earlier} if before else {}))
        if not (changed := changes(*earlier, here)):
            return ""
        text = f"{changed} in the course of the run: {Event.ENVIRONMENT_CHANGED.advice}"
        self.remark(Event.ENVIRONMENT_CHANGED, text)
        return text

    def remark(self, event: Event, text: str) -> None:
        """Add a note on the result, once, to `metrics.json`, `history.csv` and the closing lines."""
        if text not in self.metrics.setdefault("remarks", []):
            self.metrics["remarks"].append(text)
            self.note(event, text)

    def note(self, event: str, detail: str = "") -> None:
        """Add a line to `history.csv`, which tells when the run started, stopped and so on."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        self._history.write([now, event, socket.gethostname(), " ".join(detail.replace(",", ";").split())])

    # ---- while it runs

    def spent(self) -> tuple[dict[str, float], dict[str, int]]:
        """The seconds of each stage and its peak memory, of all processes of the run so far, but for what a kill lost:
        entries of `metrics.json` to be added to."""
        timing = self.metrics.setdefault("timing", {})
        if self.restored is not None:  # a process that was killed has written no entry
            timing["fit_seconds"] = max(timing.get("fit_seconds", 0.0), self.restored["seconds"])
        return timing, self.metrics.setdefault("memory", {})

    def open_trace(self, kernel: Kernel, diagnostics: Sequence[str]) -> None:
        """Start `trace.csv` for this kernel's parameters, or continue it from the checkpoint."""
        seconds, size = 0.0, 0
        if self.restored is not None:
            seconds, size = self.restored["seconds"], self.restored["bytes"]["trace.csv"]
        self.trace = Trace(self.directory / "trace.csv", kernel, diagnostics, size, seconds, self.remark)
        self.metrics["parameters"] = {"initial": self._kept("initial", kernel)}
        self.write_metrics()

    def row(self, row: TraceRow) -> None:
        """Write the trace row of one evaluation."""
        assert self.trace is not None
        self.watch(self.trace.row(row))

    # ---- checkpoints

    def restore(self, streams: Streams) -> tuple[int, State] | None:
        """The iteration at which to continue and the optimizer's state there; sets the random streams. None for a new
        run."""
        if self.restored is None:
            return None
        streams.restore(self.restored["streams"])
        return self.restored["iteration"], self.restored["optimizer"]

    def checkpoint(
        self, iteration: int, streams: Streams, state: State, files: Mapping[str, int] | None = None
    ) -> None:
        """Take the state from which `iteration` can start; called before each iteration, written to disk when it is
        due.

        state: nested dicts and lists of numbers, text and arrays, which must not change afterwards. files: other files
            that it needs, with their present sizes.
        """
        assert self.trace is not None
        now = time.perf_counter()
        self._snapshot = {
            "identity": self.metrics.get("identity"),
            "iteration": iteration,
            "optimizer": state,
            "streams": streams.state(),
            "seconds": self.trace.seconds(),
            "bytes": {"trace.csv": self.trace.size, **(files or {})},
        }
        if self.stop is not None:
            raise self.stop
        seconds, iterations = self._interval
        if now - self._last_checkpoint >= seconds or (iterations and iteration and iteration % iterations == 0):
            self.save()

    def save(self) -> None:
        """Write the optimizer's last state to disk, after syncing the rows and layers that it needs."""
        if self._snapshot is not None:
            checksums = self._snapshot["sha256"] = {}
            for name, size in self._snapshot["bytes"].items():
                if (path := self.directory / name).is_file():
                    sync(path)
                    checksums[name] = self._growing.setdefault(name, GrowingFile(path)).digest(size)
            write_checkpoint(self._checkpoint, self._snapshot)
            self._last_checkpoint = time.perf_counter()

    def _reopen(self, identity: str | None) -> None:
        self.metrics = read_metrics(self.directory)
        self.before = self.metrics["status"], self.metrics.get("reason")
        if self.metrics["status"] == Status.COMPLETED:
            raise CompletedError(f"{self.directory}: is completed; there is nothing to resume")
        kept = [k for k in ("identity", "plugins", "flow_stopped", "timing", "memory") if k in self.metrics]
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
            self.restored = self._snapshot = state
            break
        if complaints and self.restored is None:
            raise CheckpointError(f"no checkpoint can be read ({'; '.join(complaints)}); start anew with kfx run")
        self.note("resumed", f"at iteration {self.restored['iteration']}" if self.restored else "from the start")

    def _require_whole(self, path: Path, state: State, identity: str | None) -> None:
        """CheckpointError unless all files that a checkpoint needs are there unchanged."""
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
        sizes, grown = state["bytes"], state.get("sha256", {})  # which a checkpoint of an older version does not have
        for name, checksum in {**state["optimizer"].get("files", {}), **grown}.items():
            file = self.directory / name
            if not file.is_file() or GrowingFile(file).digest(sizes.get(name, file.stat().st_size)) != checksum:
                raise CheckpointError(f"{path}: {name} is missing or damaged")

    def table(self, name: str, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
        """Write another CSV file as a whole."""
        written = CsvFile(self.directory / name, list(columns))
        for row in rows:
            written.write([row[c] for c in columns])
        written.close()

    # ---- the end of the run

    def final_parameters(self, starts: Sequence[Kernel], kernels: Sequence[Kernel]) -> None:
        """Write the parameters of the fitted kernels to `metrics.json`.

        With several folds, `initial` is of the first fold, `final` of the last one, and `initial_folds` and `folds`
        hold all.
        """
        self.metrics["parameters"]["final"] = self._kept("final", kernels[-1])
        if len(kernels) > 1:
            self.metrics["parameters"]["initial_folds"] = [self._shown(kernel) for kernel in starts]
            self.metrics["parameters"]["folds"] = [self._shown(kernel) for kernel in kernels]
        self.write_metrics()

    def _kept(self, name: str, kernel: Kernel) -> Document:
        """Parameters for `metrics.json`; if there are many, their norms, and the parameters themselves in
        `parameters-<name>.npz`."""
        if kernel.are_many:
            with whole_file(parameter_path(self.directory, name)) as stream:
                write_arrays(stream, {key: in_numpy(value) for key, value in kernel.parameters.items()})
        return self._shown(kernel)

    @staticmethod
    def _shown(kernel: Kernel) -> Document:
        return kernel.shown if kernel.are_many else {key: plain(value) for key, value in kernel.parameters.items()}

    def finish(self, status: Status, reason: str | None = None, **entries: object) -> None:
        """Write status, reason and the last entries of `metrics.json`, and release the lock.

        A run that can be resumed keeps its checkpoint; a completed one needs none and is not changed any more.
        """
        if self.metrics["status"] == Status.COMPLETED:
            return
        self.metrics |= {"status": status, **({"reason": reason} if reason else {}), **entries}
        try:
            if status != Status.COMPLETED:
                self._save_what_fits()
            self.write_metrics()
            self.note(status, reason or "")
            if status == Status.COMPLETED:  # only now: after a kill before this line they are needed
                self._drop_checkpoints()
        except OSError:
            self._drop_checkpoints()  # on a full disk the reason needs their space
            with contextlib.suppress(OSError):
                self.write_metrics()
        finally:
            for rows in (self.trace, self.evaluations, self._history):
                if rows is not None:
                    rows.close()
            self._lock.release()

    def _save_what_fits(self) -> None:
        with contextlib.suppress(OSError):  # the checkpoint before it stays
            self.save()

    def _drop_checkpoints(self) -> None:
        for path in (self._checkpoint, previous(self._checkpoint), partial_of(self._checkpoint)):
            path.unlink(missing_ok=True)

    def write_metrics(self) -> None:
        if self.trace is not None and (rho := self.trace.rho):
            self.metrics["rho_batch"] = {"first": rho[0], "last": rho[-1], "best": min(rho)}
        if self.metrics["status"] == Status.COMPLETED:
            self.metrics[SEAL] = seal(self.directory, self.metrics)
        write_json(self.directory / "metrics.json", self.metrics)
