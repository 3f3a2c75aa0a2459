"""The run directory: written as things happen, read back by `load_run`."""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from kfx.kernels.base import Kernel, flat_parameters
from kfx.outcomes import ConfigError, Event, Status

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
EVALUATION_COLUMNS = ("kernel", "n_interpolation", "repeat", "regularization", "metric", "value")
_MOST_PARAMETER_COLUMNS = 256


def write_json(path: Path, content: Any) -> None:
    """Write whole or not at all: a reader never sees half a file."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")
    os.replace(partial, path)


def _plain(value: Any) -> Any:
    """JSON knows neither NaN nor NumPy: null, lists and plain numbers stand for them."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Record:
    """The record of one run under `directory`; `watch` is called with every trace row, for people to see."""

    def __init__(self, directory: Path, watch: Callable[[dict[str, Any]], None] = lambda row: None) -> None:
        self.directory = Path(directory)
        if (self.directory / "metrics.json").exists():
            raise ConfigError(f"hydra.run.dir={self.directory}: holds a run already; choose another folder")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.watch = watch
        self.metrics: dict[str, Any] = {"status": Status.RUNNING}
        self._started = time.perf_counter()
        self._trace: Any = None
        self._evaluation: Any = None
        self._predictions: dict[str, np.ndarray] = {}
        self._rho: list[float] = []
        self._kernel: Kernel | None = None
        self._write_metrics()

    # ---- what is known at the start

    def config(self, resolved: DictConfig, overrides: Sequence[str]) -> None:
        (self.directory / "config.yaml").write_text(OmegaConf.to_yaml(resolved, resolve=True))
        (self.directory / "overrides.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(list(overrides))))

    def json(self, name: str, content: Any) -> None:
        """`environment.json`, `precision.json`."""
        write_json(self.directory / name, content)

    # ---- while it runs

    def open_trace(self, kernel: Kernel, diagnostics: Sequence[str]) -> None:
        """Start `trace.csv` for this kernel's parameters; from here on `seconds` counts."""
        self._kernel = kernel
        self._diagnostics = tuple(diagnostics)
        names = list(flat_parameters(kernel.parameters))
        self._parameter_names = names if len(names) <= _MOST_PARAMETER_COLUMNS else []
        self._trace = _Rows(
            self.directory / "trace.csv",
            [
                *TRACE_COLUMNS,
                *(f"parameter.{n}" for n in self._parameter_names),
                *(f"diagnostic.{n}" for n in diagnostics),
            ],
        )
        self._started = time.perf_counter()
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
        assert self._kernel is not None
        names = [*evaluation.events, *events]
        row = {
            "iteration": iteration,
            "rho": evaluation.rho,
            "objective": evaluation.objective,
            "told": evaluation.objective if told is None else told,
            "regularization": evaluation.regularization,
            "seconds": round(time.perf_counter() - self._started, 6),
            "kernel_evaluations": kernel_evaluations,
            "jitter": evaluation.jitter,
            "event": ";".join(names),
        }
        values = flat_parameters(self._kernel.with_flat(evaluation.vector).parameters)
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

    def evaluation(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of `evaluation.csv`."""
        if self._evaluation is None:
            self._evaluation = _Rows(self.directory / "evaluation.csv", list(EVALUATION_COLUMNS))
        for row in rows:
            self._evaluation.write([row[c] for c in EVALUATION_COLUMNS])

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """A further CSV file, whole."""
        written = _Rows(self.directory / name, list(columns))
        for row in rows:
            written.write([row[c] for c in columns])
        written.close()

    def predictions(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add arrays to `predictions.npz`."""
        self._predictions |= arrays
        np.savez_compressed(self.directory / "predictions.npz", **self._predictions)  # type: ignore[arg-type]

    # ---- how it ended

    def final_parameters(self, kernel: Kernel) -> None:
        self.metrics["parameters"]["final"] = kernel.parameters
        self._write_metrics()

    def finish(self, status: Status, reason: str | None = None, **entries: Any) -> None:
        """The last word: status, reason, ρ and whatever else `metrics.json` should hold."""
        self.metrics |= {"status": status, **({"reason": reason} if reason else {}), **entries}
        self._write_metrics()
        for rows in (self._trace, self._evaluation):
            if rows is not None:
                rows.close()

    def _write_metrics(self) -> None:
        if self._rho:
            self.metrics["rho"] = {"initial": self._rho[0], "final": self._rho[-1], "best": min(self._rho)}
        write_json(self.directory / "metrics.json", self.metrics)


class _Rows:
    """A CSV file whose rows reach the operating system one by one."""

    def __init__(self, path: Path, header: list[str]) -> None:
        self._stream = path.open("w", newline="")
        self._writer = csv.writer(self._stream, lineterminator="\n")
        self.write(header)

    def write(self, row: Sequence[Any]) -> None:
        self._writer.writerow(row)
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


# ---- reading


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

        parameters = self.metrics["parameters"]
        checked = config.check(self.config)
        built = build.kernel(checked.kernel, build.image_size(checked.dataset))
        return built.with_parameters(**parameters.get("final", parameters["initial"]))


def load_run(path: str | Path) -> Run:
    """Read a run directory: `.config`, `.metrics`, `.trace`, `.evaluation`, `.kernel`.

    A row that a killed run left half-written is dropped. FileNotFoundError where there is no run.
    """
    directory = Path(path)
    if not (directory / "metrics.json").is_file():
        raise FileNotFoundError(f"{directory} holds no run: it has no metrics.json")
    config = OmegaConf.load(directory / "config.yaml") if (directory / "config.yaml").is_file() else OmegaConf.create()
    assert isinstance(config, DictConfig)
    return Run(
        directory,
        config,
        json.loads((directory / "metrics.json").read_text()),
        read_rows(directory / "trace.csv", TRACE_COLUMNS),
        read_rows(directory / "evaluation.csv", EVALUATION_COLUMNS),
    )


def read_rows(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    """A CSV file of a run without a half-written last row; an empty frame of these columns where there is none."""
    import io

    import pandas as pd

    if not path.is_file():
        return pd.DataFrame(columns=list(columns))
    whole = path.read_text().rpartition("\n")[0]
    # Python's own number parser gives back each float as it was written.
    return pd.read_csv(io.StringIO(whole), engine="python", keep_default_na=False, na_values=["nan"])
