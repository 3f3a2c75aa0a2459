"""Checkpoints: numbers, text and arrays on disk, written whole, verified when read, never unpickled."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kfx.files import whole_file, write_arrays
from kfx.optimizers.journal import State
from kfx.outcomes import CheckpointError

_FORMAT = b"kfx-checkpoint 1"
_ARRAY = "__array__"


def write(path: Path, state: State) -> None:
    """Write `state`, nested dicts and lists of numbers, text and arrays, to `path`; keep the file before as
    `path.previous`.

    A crash at any moment leaves at least one of the two files whole.
    """
    content = _encode(state)
    header = b" ".join((_FORMAT, hashlib.sha256(content).hexdigest().encode(), str(len(content)).encode())) + b"\n"
    with whole_file(path, keep=previous(path), durable=True) as stream:
        stream.write(header + content)


def previous(path: Path) -> Path:
    """The path of the checkpoint before the last one."""
    return path.with_name(path.name + ".previous")


def read(path: Path) -> State:
    """The state in `path`; CheckpointError, with the reason, if the file is not a whole checkpoint."""
    with path.open("rb") as stream:
        header, content = stream.readline(200), stream.read()
    words = header.split()
    if b" ".join(words[:2]) != _FORMAT or len(words) != 4:
        raise CheckpointError(f"{path}: not a checkpoint of this version of kfx")
    if str(len(content)).encode() != words[3]:
        raise CheckpointError(f"{path}: torn: {len(content)} of {words[3].decode(errors='replace')} bytes")
    if hashlib.sha256(content).hexdigest().encode() != words[2]:
        raise CheckpointError(f"{path}: its checksum does not match its content")
    return _decode(content)


def _encode(state: State) -> bytes:
    arrays: dict[str, np.ndarray] = {}

    def plain(value: object) -> object:
        if isinstance(value, torch.Tensor):
            value = value.cpu().numpy()
        if isinstance(value, np.ndarray):
            name = f"a{len(arrays)}"
            arrays[name] = value
            return {_ARRAY: name}
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return value.item() if isinstance(value, np.generic) else value

    text = json.dumps(plain(state)).encode()
    buffer = io.BytesIO()
    write_arrays(buffer, {"json": np.frombuffer(text, np.uint8), **arrays})
    return buffer.getvalue()


def _decode(content: bytes) -> State:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return arrays[value[_ARRAY]] if _ARRAY in value else {k: whole(v) for k, v in value.items()}
        return [whole(v) for v in value] if isinstance(value, list) else value

    return whole(json.loads(arrays["json"].tobytes()))
