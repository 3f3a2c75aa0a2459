"""A Cholesky factor in a file: panels of rows, of which one is in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from kfx.numerics.arrays import in_numpy
from kfx.numerics.linear_algebra import solve_lower

_ROWS = 512
FEWEST, MOST = 4096, 11_264
"""Numbers of points whose factor is kept: that of fewer is computed in a second, that of more takes over 0.5 GB."""


def _panels(n: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _ROWS, n)) for start in range(0, n, _ROWS))


def write(stream: BinaryIO, factor: torch.Tensor) -> bytes:
    """Write L, (n, n), lower, in float64; return the SHA-256 of what was written."""
    written = hashlib.sha256()
    for start, stop in _panels(len(factor)):
        panel = np.ascontiguousarray(in_numpy(factor[start:stop, :stop]))
        written.update(panel.data)
        stream.write(panel.data)
    return written.digest()


def half(path: Path, y: torch.Tensor) -> torch.Tensor:
    """Return L⁻¹ y, (n, m), on y's device; it overwrites y, (n, m), float64. path: of L as `write` leaves it."""
    with path.open("rb") as stream:
        for start, stop in _panels(len(y)):
            panel = np.fromfile(stream, np.float64, (stop - start) * stop).reshape(stop - start, stop)
            rows = torch.from_numpy(panel).to(y.device)
            y[start:stop].addmm_(rows[:, :start], y[:start], alpha=-1)
            y[start:stop] = solve_lower(rows[:, start:], y[start:stop])
    return y
