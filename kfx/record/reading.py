"""Read a recorded run; a damaged file gives an error in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, ListConfig, OmegaConf

from kfx.config.nodes import leaves
from kfx.config.plugins import load_plugins, require_plugins
from kfx.documents import damaged, read_document, require_shape
from kfx.experiment.config import typed
from kfx.files import Document, read_rows
from kfx.kernels.names import NORM, lengths_of
from kfx.outcomes import ChangedError, KfxError, RecordError, Status
from kfx.record.columns import EVALUATION_COLUMNS, SEAL, TRACE_COLUMNS
from kfx.record.origin import require_own_files, require_unchanged
from kfx.record.shapes import CONFIG, ENVIRONMENT, METRICS
from kfx.yaml_file import bounded

if TYPE_CHECKING:
    import pandas as pd

    from kfx.kernels import Kernel


def read_metrics(directory: Path) -> Document:
    """Read `metrics.json`, which has a status at least; RecordError if it is damaged, or of kfx 0.1."""
    path = directory / "metrics.json"
    found = read_document(path, METRICS)
    if found["status"] == Status.COMPLETED and "rho" in found and not found.keys() & {SEAL, "rho_batch"}:
        raise RecordError(f"{path}: is of kfx 0.1, whose rho was that of single batches; run its config anew")
    return found


_TEXTS = ("event", "kernel", "metric", "device", "dtype", "series", "time")
"""Columns of tables that hold texts."""
_INTERPOLATION = re.compile(r"(?<!\\)(\\\\)*\$\{")
"""`${` without a backslash before it."""


@dataclass(frozen=True)
class Run:
    """A recorded run. `trace` and `evaluation` are empty frames if the run ended before writing them."""

    directory: Path
    config: DictConfig
    metrics: Document
    trace: pd.DataFrame
    evaluation: pd.DataFrame

    def require_unchanged(self, files: Sequence[str] | None = None) -> str | None:
        """ChangedError if its config or results are not what the run left; a message if it is of another version.

        files: the files of results that are used; None for all.
        """
        environment = read_environment(self.directory)
        return require_unchanged(self.directory, self.config, self.metrics, environment, files)

    @property
    def kernel(self) -> Kernel:
        """The fitted kernel, of several the last; the initial one if the run ended before it was fitted.

        ChangedError if the config or a file has changed since the run.
        """
        from kfx.record.fitted import flow_path, flowed, recorded_layers, recorded_parameters

        self.require_unchanged()
        parameters, config = self.metrics["parameters"], typed(self.config)
        last = self._with(recorded_parameters(self.directory, parameters))
        part = len(parameters.get("folds", [0])) - 1
        path = flow_path(self.directory, part)
        if config.optimizer.moves_points and "final" in parameters and not path.is_file():
            raise RecordError(f"{path}: is missing; the kernel without its flow is another")
        return flowed(self.directory, part, last, partial(recorded_layers, config))

    @property
    def kernels(self) -> list[Kernel]:
        """The fitted kernels of the last fold: one, or with `outputs.kernels=separate` one for each output.

        RecordError if a kernel has too many parameters for `metrics.json`.
        """
        config = typed(self.config)
        parts = self.metrics["parameters"].get("folds")
        if not config.outputs.is_separate or parts is None:
            return [self.kernel]
        self.require_unchanged()
        if any(name.endswith(NORM) for name in parts[0]):
            raise RecordError(f"{self.directory}: keeps only norms of the parameters of its kernels; it cannot predict")
        return [self._with(values) for values in parts[-(len(parts) // getattr(config.evaluation, "folds", 1)) :]]

    def _with(self, values: Document) -> Kernel:
        """The configured kernel with recorded parameters."""
        import torch

        from kfx.kernels.regularized import Regularized, as_recorded

        require_plugins(self.plugins, str(self.directory))
        config = typed(self.config)
        built = config.kernel.build(config.dataset.image)
        built = built.to(getattr(torch, config.device.dtype), torch.device("cpu"))
        built = config.objective.recorded(built, values)
        if config.regularization.selection != "fixed":
            chosen = config.regularization.build()
            built = Regularized(built, chosen, config.regularization.selection == "trained")
        return as_recorded(built, values)

    @property
    def lengths(self) -> pd.Series:
        """The length of each feature in the fitted kernel, by name, the shortest first; of the last fold, and of the
        part of the kernel where it is shorter.

        RecordError if the kernel has one length for all features.
        """
        import pandas as pd

        from kfx.record.fitted import recorded_parameters

        found = lengths_of(recorded_parameters(self.directory, self.metrics["parameters"]))
        if found is None:
            raise RecordError(
                f"{self.directory}: the kernel has no parameter lengths; set kernel.ard=true, and for the lengths of a "
                "part of a kernel see .kernel.parameters"
            )
        self.require_unchanged()
        names = self.metrics.get("features") or range(len(found))
        return pd.Series(found, index=list(names), name="length").sort_values()

    @property
    def unit(self) -> str:
        """What has a fit of its own where there are several: a fold, or with a kernel for each output a kernel."""
        return "kernel" if OmegaConf.select(self.config, "outputs.kernels") == "separate" else "fold"

    @property
    def plugins(self) -> list[dict[str, str]]:
        """The plugins that the run used: path and SHA-256."""
        return list(self.metrics.get("plugins", []))


def load_run(path: str | Path, plugins: Sequence[str | Path] = ()) -> Run:
    """Read a run directory: `.config`, `.metrics`, `.trace`, `.evaluation`, `.kernel`.

    plugins: files with the options that `.kernel` needs, if the run used some.
    A row that a killed run left half-written is dropped. FileNotFoundError if there is no run; RecordError if a file is
    damaged.
    """
    directory = Path(path)
    load_plugins(plugins)
    if not (directory / "metrics.json").is_file():
        raise FileNotFoundError(f"{directory} holds no run: it has no metrics.json")
    require_own_files(directory)
    return Run(
        directory,
        read_config(directory),
        read_metrics(directory),
        read_table(directory / "trace.csv", TRACE_COLUMNS),
        read_table(directory / "evaluation.csv", EVALUATION_COLUMNS),
    )


def read_environment(directory: Path) -> Document:
    """Read `environment.json`; empty if the run ended before it was written. RecordError if it is damaged."""
    path = directory / "environment.json"
    return read_document(path, ENVIRONMENT) if path.is_file() else {}


def environments(directory: Path) -> list[Document]:
    """The environments of a run in their order, of which a resumed run may have several; errors as of
    `read_environment`."""
    last = read_environment(directory)
    return [*last.pop("earlier", []), last] if last else []


def change_of(directory: Path) -> str | None:
    """What has changed in a record since its run, in one line; None if nothing has, or if it cannot be read."""
    try:
        load_run(directory).require_unchanged()
    except ChangedError as error:
        return str(error)
    except KfxError:  # whoever reads it says more
        return None
    return None


def read_config(directory: Path) -> DictConfig:
    """Read `config.yaml`; RecordError if it is damaged."""
    path = directory / "config.yaml"
    config = _read_yaml(path)
    unresolved = OmegaConf.to_container(config, resolve=False)
    require_shape(path, unresolved, CONFIG)
    assert isinstance(config, DictConfig)
    for key, value in leaves(unresolved):
        if isinstance(value, str) and _INTERPOLATION.search(value):
            raise RecordError(f"{path}: damaged: {key}={value}: a record holds values and no interpolation")
    return config


def _read_yaml(path: Path) -> DictConfig | ListConfig:
    try:
        return OmegaConf.load(bounded(path))
    except Exception as error:  # a damaged file may raise anything
        raise damaged(path, error) from error


def typed_words(directory: Path) -> list[str]:
    """Read `overrides.yaml`, the words of a run as they were typed; none if there is no such file. RecordError if it is
    damaged."""
    path = directory / "overrides.yaml"
    if not path.is_file():
        return []
    words = OmegaConf.to_container(_read_yaml(path), resolve=False)
    require_shape(path, words, ("text",))
    assert isinstance(words, list)
    return words


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read a table of a record, with at least these columns, or an empty one; RecordError if it is damaged.

    All columns but `_TEXTS` hold numbers.
    """
    import pandas as pd

    try:
        table = read_rows(path, columns)
    except (ValueError, pd.errors.ParserError) as error:  # bytes that are not text, rows of different lengths
        raise damaged(path, error) from error
    if (
        "configured_regularization" in columns
        and "configured_regularization" not in table
        and "regularization" in table
    ):
        table["configured_regularization"] = table["regularization"]  # an older record has only one of the two columns
    if table.empty:
        return table
    for name in columns:
        if name not in table:
            raise damaged(path, f"no column {name}")
    for name in map(str, table):
        if name not in _TEXTS and not pd.api.types.is_numeric_dtype(table[name]):
            wrong = table[name][(table[name] != "") & pd.to_numeric(table[name], errors="coerce").isna()]
            if name in columns or len(wrong):
                shown = f"{name}={wrong.iloc[0]}" if len(wrong) else name
                raise damaged(path, f"{shown}: expected numbers")
    return table
