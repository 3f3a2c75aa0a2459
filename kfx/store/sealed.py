"""Files of arrays that name what they belong to; another file in their place is not read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from kfx.files import whole_file, write_arrays

_OWNER, _SUM = "belongs_to", "checksum"


def write(path: Path, owner: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name, whole or not at all. owner: what they belong to, in words or digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {name: np.asarray(array) for name, array in arrays.items()}
    with whole_file(path) as stream:
        write_arrays(stream, {**held, _OWNER: np.array(owner), _SUM: np.array(_sum(owner, held))})


def read(path: Path, owner: str) -> dict[str, np.ndarray] | None:
    """The arrays that `write` wrote for this owner; None if there are none, or if the file is damaged or another's."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, BadZipFile):
        return None
    named, checksum = (str(arrays.pop(name, "")) for name in (_OWNER, _SUM))
    return arrays if named == owner and checksum == _sum(owner, arrays) else None


def _sum(owner: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the owner and of the arrays with their names, types and shapes."""
    found = hashlib.sha256(owner.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype.str} {arrays[name].shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()
