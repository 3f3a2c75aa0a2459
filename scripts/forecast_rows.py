"""The rows of the comparisons of forecasts: each is computed once and kept in runs/forecasts/."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
import torch

FOLDER = Path(__file__).parent.parent / "runs" / "forecasts"
Task = tuple[tuple[str | int, ...], Callable[[], dict[str, object]]]
"""The cells of a row up to its method, and what computes the others; seconds are measured, unless they are among
them."""


def table(name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """All rows of a comparison, from its files."""
    found = [pd.read_csv(path) for path in sorted(FOLDER.glob(f"{name}[.-]*csv")) if path.stat().st_size]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(columns))


def fill(name: str, columns: tuple[str, ...], tasks: Iterable[Task], part: int = 0, parts: int = 1) -> None:
    """Compute the rows that are missing, on one core, and write each at once.

    Seconds are of a processor, which other processes do not lengthen. part, parts: of processes that share the work;
    each of several writes a file of its own.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    path = FOLDER / (f"{name}.csv" if parts == 1 else f"{name}-{part}.csv")
    keys = list(columns[: columns.index("method") + 1])
    there = {*table(name, columns)[keys].itertuples(index=False, name=None)}
    is_new = not path.exists()
    with path.open("a", newline="") as stream:
        rows = csv.DictWriter(stream, columns)
        if is_new:
            rows.writeheader()
            stream.flush()
        for key, run in tasks:
            if key in there:
                continue
            began = time.process_time()
            try:
                cells = run()
            except Exception as error:  # a method that fails must not end the comparison
                print(f"{' '.join(map(str, key))}: {type(error).__name__}: {error}", flush=True)
                continue
            seconds = round(time.process_time() - began, 3)
            rows.writerow(dict(zip(keys, key, strict=True)) | {"seconds": seconds} | cells)
            stream.flush()
