"""The layers of a flow in a file, one after another, for moving further points."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kfx.flows.layers import EulerLayer, Layer, RungeKuttaLayer
from kfx.flows.vector_field import Field, Velocity
from kfx.kernels.base import Kernel
from kfx.outcomes import CheckpointError
from kfx.sampling.samplers import Batch

HEADER = 128
"""Bytes of the header of each array."""


class LayerFile:
    """A file to which layers are appended, each as a few arrays in NumPy's format. keep: bytes of the present file that
    stay; CheckpointError if it holds fewer."""

    def __init__(self, path: Path, keep: int) -> None:
        if keep > (there := path.stat().st_size if path.is_file() else 0):
            raise CheckpointError(
                f"{path}: holds {there} of the {keep} bytes that it had at the checkpoint; start anew with kfx run"
            )
        self._stream = path.open("r+b" if keep else "wb")
        self._stream.truncate(keep)
        self._stream.seek(keep)

    @property
    def size(self) -> int:
        """Bytes so far, after handing all of them to the operating system."""
        self._stream.flush()
        return self._stream.tell()

    def append(self, layer: Layer) -> None:
        if isinstance(layer, EulerLayer):
            head, kernel = [layer.number, layer.step], layer.field.kernel
            arrays = [layer.field.centres, layer.field.coefficients]
        else:
            orders = layer.batch.orders
            head, kernel = [layer.batch.sample_size, *([len(orders), 0] if orders else [])], layer.kernel
            arrays = [layer.x_f, layer.y_f, torch.as_tensor(layer.times)]
            arrays += [torch.as_tensor(np.stack(orders))] if orders else []
        for array in (np.array(head, dtype=np.float64), kernel.flat, *(a.cpu().numpy() for a in arrays)):
            np.lib.format.write_array(self._stream, np.ascontiguousarray(array), allow_pickle=False)

    def close(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()


def read_layers(source: Path | bytes, kernel: Kernel, velocity: Velocity, flow: Any) -> Iterator[Layer]:
    """Yield the layers of a file, or of its content, in order, one in memory at a time.

    kernel: of the kind that made them. velocity, flow: the settings that made them.
    """
    own = velocity.interpolation.kernel
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        stream.seek(0)

        def array() -> np.ndarray:
            return np.lib.format.read_array(stream, allow_pickle=False)

        while stream.tell() < end:
            head, flat = array(), array()
            if len(head) == 2:
                centres = torch.as_tensor(array())
                field = Field((own or kernel).with_flat(flat), centres, partial(torch.as_tensor, array()))
                yield flow.layer(field, float(head[1]), int(head[0]))
            else:
                x_f, y_f, times = torch.as_tensor(array()), torch.as_tensor(array()), array()
                orders = tuple(array()) if len(head) > 1 else ()
                batch = Batch(np.arange(len(x_f)), int(head[0]), orders=orders)
                yield RungeKuttaLayer(velocity, kernel.with_flat(flat), x_f, y_f, batch, times, flow.method)
