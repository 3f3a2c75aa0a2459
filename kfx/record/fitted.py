"""Read the fitted kernels of a record, with their flows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from zipfile import BadZipFile

import numpy as np
import torch

from kfx.files import Document
from kfx.kernels.base import Kernel
from kfx.kernels.names import NORM, lengths_of
from kfx.outcomes import RecordError

if TYPE_CHECKING:
    from kfx.experiment.config import Config
    from kfx.flows.layers import Layer


@runtime_checkable
class Flowed(Protocol):
    """A kernel composed with its flow, as `kfx.flows.flowed` makes it."""

    def save(self, path: Path) -> None:
        """Write the flow."""

    def with_layers(self, layers: Callable[[], Iterable[Layer]]) -> Kernel:
        """Return the kernel with its layers, read when they are needed."""


def flow_path(directory: Path, part: int) -> Path:
    return directory / f"flow-{part}.npz"


def parameter_path(directory: Path, name: str) -> Path:
    """The file of parameters that are too many for `metrics.json`; name: `initial` or `final`."""
    return directory / f"parameters-{name}.npz"


def recorded_parameters(directory: Path, parameters: Document) -> Document:
    """The parameters of a record's kernel, the final ones if there are any. parameters: those in `metrics.json`."""
    name = "final" if "final" in parameters else "initial"
    path = parameter_path(directory, name)
    if not path.is_file() and not any(key.endswith(NORM) for key in parameters[name]):
        return dict(parameters[name])
    return stored(path)


def stored(path: Path) -> Document:
    """The arrays and numbers of an .npz file by name; RecordError if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] if stored[key].ndim else float(stored[key]) for key in stored.files}
    except (ValueError, OSError, KeyError, EOFError, BadZipFile) as error:
        raise RecordError(f"{path}: missing or damaged: {error}") from error


def lengths_of_features(directory: Path, metrics: Document) -> tuple[list[str], np.ndarray, np.ndarray] | None:
    """The names of the features, and their lengths before and after the fit, (folds, features) each; of one fold where
    the parameters are many. None for a kernel with one length. metrics: the `metrics.json` of the record."""
    parameters = metrics.get("parameters", {})
    final = parameters.get("final", {})
    if isinstance(final.get("lengths"), list):
        folds = parameters.get("initial_folds", [parameters["initial"]]), parameters.get("folds", [final])
    elif "lengths" + NORM in final:
        folds = [stored(parameter_path(directory, "initial"))], [stored(parameter_path(directory, "final"))]
    else:
        return None
    before, after = (np.array([lengths_of(each) for each in own]) for own in folds)
    return metrics.get("features") or [f"feature {i}" for i in range(before.shape[1])], before, after


def layer_path(directory: Path, part: int) -> Path:
    return directory / f"layers-{part}.bin"


def flowed(
    directory: Path, part: int, kernel: Kernel, layers: Callable[[Path, Kernel], Iterable[Layer]] | None = None
) -> Kernel:
    """The kernel of a part, composed with its flow if it has one. layers: reads the recorded layers."""
    path = flow_path(directory, part)
    if not path.is_file():
        return kernel
    from kfx.flows.flowed import FlowedKernel

    own = layer_path(directory, part)
    reader = partial(layers, own, kernel) if layers is not None and own.is_file() else None
    try:
        return FlowedKernel.load(path, kernel, reader)
    except (ValueError, OSError, KeyError, EOFError, BadZipFile) as error:
        raise RecordError(f"{path}: damaged: {error}") from error


def recorded_layers(config: Config, source: Path | bytes, base: Kernel) -> Iterator[Layer]:
    """Yield the layers that a run of this config recorded, in a file or its content, one by one."""
    from kfx.flows.flow import Flow

    flow, nothing = config.optimizer.build(config), torch.zeros(0)
    assert isinstance(flow, Flow)
    return flow.recorded(source, base, config.optimizer.make_loss(config)(base, nothing, nothing))
