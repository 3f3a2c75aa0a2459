"""Studies of cells: functions that return rows, run in processes, each cell's rows on disk as soon as it ends."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pandas as pd
import yaml

from kfx.config.plugins import load_plugins, plugged_in
from kfx.files import Document, read_rows, write_whole
from kfx.outcomes import ConfigError
from kfx.version import __version__
from kfx.yaml_file import read_yaml

Cell = Callable[[], list[dict[str, float | str]]]


@dataclass(frozen=True)
class Cells:
    """The cells of a study by name, and the folder that keeps the rows of those that have ended.

    module: the file of kfx.criteria that makes the cells, their table and their picture.
    """

    module: ModuleType
    cells: Mapping[str, Cell]
    folder: Path

    @classmethod
    def of(cls, name: str, settings: Document, folder: Path) -> Cells:
        """Return the cells for these settings. ConfigError where the folder has cells of others, or of another kfx."""
        module = importlib.import_module(f"kfx.criteria.{name}")
        try:
            made = cls(module, module.cells(**settings), folder)
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(f"study: {name}: {' '.join(str(error).split())}") from error
        plugins = [plugin.sha256 for plugin in plugged_in()]
        about, file = {"kfx": __version__, "plugins": plugins, "settings": settings}, folder / "cells.yaml"
        if file.exists() and read_yaml(file) != about:
            raise ConfigError(
                f"--folder {folder}: has cells of other settings or another kfx; give another, or delete it"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, yaml.safe_dump(about, sort_keys=False))
        return made

    def run(self, at_once: int, tell: Callable[[str], None]) -> list[str]:
        """Compute the cells that are not there, `at_once` at a time in processes of one thread; return the failed."""
        from joblib import Parallel, delayed, parallel_config

        missing = [name for name in self.cells if not self._file(name).exists()]
        plugins, failed = [plugin.path for plugin in plugged_in()], []
        with parallel_config("loky", inner_max_num_threads=1):
            calls = (delayed(_compute)(name, self.cells[name], self._file(name), plugins) for name in missing)
            done = Parallel(n_jobs=at_once, return_as="generator_unordered")(calls)
            for count, (name, error) in enumerate(done, 1):
                tell(f"{count} of {len(missing)}: {name}{f': {error}' if error else ''}")
                failed += [name] if error else []
        return failed

    def rows(self) -> pd.DataFrame:
        """The rows of all cells that are there."""
        found = [read_rows(file) for name in self.cells if (file := self._file(name)).exists()]
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame()

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.csv"


def _compute(name: str, cell: Cell, file: Path, plugins: Sequence[str]) -> tuple[str, str]:
    """Write the rows of a cell; return its name, and in a line why it failed."""
    load_plugins(plugins)
    try:
        rows = cell()
    except Exception as error:
        return name, f"{type(error).__name__}: {' '.join(str(error).split())}"
    write_whole(file, pd.DataFrame(rows).to_csv(index=False, float_format="%.6g", na_rep="nan"))
    return name, ""
