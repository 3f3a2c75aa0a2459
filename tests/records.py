"""A record in memory, for fits without a run directory."""

from __future__ import annotations

import copy

import torch


class MemoryRecord(list):
    """Rows as a list; positions and the last checkpoints beside it. `layer_path` is a file of its folder."""

    def __init__(self, folder=None, restored=None):
        super().__init__()
        self.layer_path = None if folder is None else folder / "layers.bin"
        self.restored, self.positions, self.kept = restored, {}, {}

    def restore(self, streams):
        if self.restored is None:
            return None
        iteration, state, of_streams = self.restored
        streams.restore(of_streams)
        return iteration, state

    def checkpoint(self, iteration, streams, state):
        self.kept[iteration] = iteration, copy.deepcopy(as_on_disk(state)), copy.deepcopy(streams.state())

    def wants(self, iteration, *, final=False):
        return True

    def moved(self, layer, kernel, x, along, *, final=False):
        self.positions[layer] = x, along

    def stopped(self, layer, reason):
        self.reason = layer, reason


def as_on_disk(value):
    """Tensors come back from a checkpoint as arrays."""
    if isinstance(value, dict):
        return {key: as_on_disk(each) for key, each in value.items()}
    return value.numpy() if isinstance(value, torch.Tensor) else value
