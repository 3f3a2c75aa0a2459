"""The files of a run's evaluation: its rows, held-out predictions, and arrays; one continues those of a killed run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast
from zipfile import BadZipFile

import numpy as np

from kfx.files import CsvFile, Document, TableRow, read_rows, whole_file, write_arrays
from kfx.outcomes import RecordError
from kfx.record.columns import EVALUATION_COLUMNS
from kfx.record.reading import read_table

if TYPE_CHECKING:
    import pandas as pd


class Evaluations:
    """`evaluation.csv`, `predictions.csv` and `predictions.npz` in the directory of a run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows: CsvFile | None = None
        self._predictions: CsvFile | None = None
        self._arrays: dict[str, np.ndarray] = {}

    def begin(self, rows_each: int, resumed: bool) -> list[Document]:
        """Start the files; return the rows that an earlier process of a resumed run wrote, those of kernels and repeats
        with all `rows_each` rows."""
        path, arrays = self._directory / "evaluation.csv", self._directory / "predictions.npz"
        rows: list[Document] = []
        try:
            if path.is_file() and resumed:
                table = read_table(path, EVALUATION_COLUMNS)[list(EVALUATION_COLUMNS)]
                for _, group in table.groupby(["kernel", "repeat"], sort=False):
                    if len(group) == rows_each:
                        whole = group.itertuples(index=False)
                        rows += [dict(zip(EVALUATION_COLUMNS, row, strict=True)) for row in whole]
            done = {(row["kernel"], row["repeat"]) for row in rows}
            found = read_rows(self._directory / "predictions.csv", ["kernel", "repeat"])
            self._predicted_again(found[[key in done for key in zip(found["kernel"], found["repeat"], strict=True)]])
            if arrays.is_file() and rows:
                with np.load(arrays, allow_pickle=False) as stored:
                    self._arrays = {name: stored[name] for name in stored.files}
        except (RecordError, ValueError, OSError, KeyError, EOFError, BadZipFile):  # then everything is evaluated again
            rows, self._arrays = [], {}
        if not rows:  # of a killed run that begins anew
            arrays.unlink(missing_ok=True)
        self._rows = CsvFile(path, list(EVALUATION_COLUMNS))
        self.add(rows)
        return rows

    def add(self, rows: Sequence[TableRow]) -> None:
        """Append rows to `evaluation.csv`."""
        assert self._rows is not None
        self._rows.write(*([row[c] for c in EVALUATION_COLUMNS] for row in rows))

    def predicted(self, kernel: str, repeat: int, columns: Mapping[str, np.ndarray]) -> None:
        """Append the held-out predictions of a kernel in a repeat to `predictions.csv`. columns: by name, (m,) each."""
        if self._predictions is None:
            self._predictions = CsvFile(self._directory / "predictions.csv", ["kernel", "repeat", *columns])
        points = zip(*(column.tolist() for column in columns.values()), strict=True)
        self._predictions.write(*([kernel, repeat, *point] for point in points))

    def predicted_alike(self, kernel: str, other: str, repeats: Collection[int]) -> None:
        """Append the predictions of a kernel in these repeats once more under another name."""
        if own := self.arrays(kernel):
            self.keep({other + key.removeprefix(kernel): array for key, array in own.items()})
        found = read_rows(self._directory / "predictions.csv", ["kernel", "repeat"])
        self._predicted_again(found[(found["kernel"] == kernel) & found["repeat"].isin(repeats)].assign(kernel=other))

    def _predicted_again(self, rows: pd.DataFrame) -> None:
        for key, own in rows.groupby(["kernel", "repeat"], sort=False):
            kernel, repeat = cast(tuple[str, int], key)
            self.predicted(kernel, repeat, {name: own[name].to_numpy() for name in rows.columns[2:]})

    def arrays(self, kernel: str) -> dict[str, np.ndarray]:
        """The arrays of a kernel in `predictions.npz`, by their names."""
        return {key: array for key, array in self._arrays.items() if key.startswith(f"{kernel}/")}

    def keep(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add arrays of any shape to `predictions.npz`."""
        self._arrays |= arrays
        with whole_file(self._directory / "predictions.npz") as stream:
            write_arrays(stream, self._arrays, compressed=True)

    def close(self) -> None:
        """Close the files."""
        for rows in (self._rows, self._predictions):
            if rows is not None:
                rows.close()
