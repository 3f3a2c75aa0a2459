"""Fitted kernels of a record: the files of their flows, and how they are put together again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import torch

from kfx.flows.flow import Flow
from kfx.flows.flowed import FlowedKernel
from kfx.kernels.base import Kernel
from kfx.outcomes import RecordError

if TYPE_CHECKING:
    from kfx.config.check import Config


def flow_path(directory: Path, part: int) -> Path:
    return directory / f"flow-{part}.npz"


def layer_path(directory: Path, part: int) -> Path:
    return directory / f"layers-{part}.bin"


def flowed(directory: Path, part: int, kernel: Kernel, layers: Callable[[Path, Kernel], Any] | None = None) -> Kernel:
    """The kernel of a part with the flow that it ended with, if there was one. layers: reads what was recorded."""
    path = flow_path(directory, part)
    if not path.is_file():
        return kernel
    own = layer_path(directory, part)
    reader = partial(layers, own, kernel) if layers is not None and own.is_file() else None
    try:
        return FlowedKernel.load(path, kernel, reader)
    except (ValueError, OSError, KeyError, EOFError, BadZipFile) as error:
        raise RecordError(f"{path}: damaged: {error}") from error


def recorded_layers(config: Config, path: Path, base: Kernel) -> Any:
    """The layers that a run of this config recorded, read one by one."""
    flow, nothing = config.optimizer.build(config), torch.zeros(0)
    assert isinstance(flow, Flow)
    return flow.recorded(path, base, config.optimizer.loss(config)(base, nothing, nothing))
