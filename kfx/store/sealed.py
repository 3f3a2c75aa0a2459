"""Files of arrays that name what they belong to; another file in their place is not read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from kfx.files import whole_file, write_arrays

_OWNER = "belongs_to"


def write(path: Path, owner: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name, whole or not at all. owner: what they belong to, in words or digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as stream:
        write_arrays(stream, {**arrays, _OWNER: np.array(owner)})


def read(path: Path, owner: str) -> dict[str, np.ndarray] | None:
    """The arrays that `write` wrote for this owner; None if there are none, or if the file is damaged or another's.

    Each array ends in a CRC-32, which `np.load` checks.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, BadZipFile):
        return None
    return arrays if str(arrays.pop(_OWNER, "")) == owner else None
