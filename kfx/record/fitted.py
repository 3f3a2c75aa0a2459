"""Read the fitted kernels of a record, with their flows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from zipfile import BadZipFile

import numpy as np
import torch

from kfx.evaluation.interpolants import Exact, ThroughCentres
from kfx.evaluation.kept_factor import KeptFactor
from kfx.files import Document, digest
from kfx.kernels.base import Kernel
from kfx.kernels.parameters import NORM
from kfx.outcomes import ChangedError, RecordError

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


def solution_path(directory: Path) -> Path:
    """The file of the trained kernel's solution."""
    return directory / "solution.npz"


def factor_path(directory: Path) -> Path:
    """The file of the factor that belongs to the solution, if there is one."""
    return directory / "factor.bin"


def recorded_solution(directory: Path, device: torch.device) -> ThroughCentres:
    """The solution of the trained kernel through centres; RecordError if its file is missing or damaged."""
    path = solution_path(directory)
    try:
        return ThroughCentres.from_arrays(_stored(path), device)
    except KeyError as error:
        raise RecordError(f"{path}: damaged: it lacks {error}") from error


def recorded_exact(
    directory: Path, kernel: Kernel, points: torch.Tensor, targets: torch.Tensor, tell: Callable[[str], None]
) -> Exact | None:
    """The solution of the trained kernel from all points, (n, …), with their targets, (n, outputs); None if the record
    has none, as that of an older version. Without its factor, which may be deleted, deviations solve again, and `tell`
    says so.

    RecordError or ChangedError for a file that is damaged or does not belong to these points.
    """
    path, factor = solution_path(directory), factor_path(directory)
    if not path.is_file():
        return None
    found = _stored(path)
    try:
        alpha, diagonal = (torch.from_numpy(found[name]).to(points.device) for name in ("alpha", "inverse_diagonal"))
        effective, expected = found["effective"], found.get("factor_sha256")
    except KeyError as error:
        raise RecordError(f"{path}: damaged: it lacks {error}") from error
    if alpha.shape != targets.shape:
        raise RecordError(f"{path}: damaged: it has {len(alpha)} coefficients for {len(targets)} points")
    kept = None
    if expected is not None and factor.is_file():
        if digest(factor, "sha256") != expected.tobytes().hex():
            raise ChangedError(
                f"{factor}: is damaged, or has changed since the run wrote it; delete it, to solve again"
            )
        kept = KeptFactor(factor)
    elif expected is not None:
        tell(f"kfx: {factor}: is gone; solving again for deviations")
    mapped, compare = kernel.feature_map_and_kernel()
    return Exact(mapped(points), alpha, effective, targets, compare, diagonal=diagonal, kept=kept)


def recorded_parameters(directory: Path, parameters: Document) -> Document:
    """The parameters of a record's kernel, the final ones if there are any. parameters: those in `metrics.json`."""
    name = "final" if "final" in parameters else "initial"
    path = parameter_path(directory, name)
    if not path.is_file() and not any(key.endswith(NORM) for key in parameters[name]):
        return dict(parameters[name])
    return _stored(path)


def _stored(path: Path) -> Document:
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
        folds = [_stored(parameter_path(directory, "initial"))], [_stored(parameter_path(directory, "final"))]
    else:
        return None
    before, after = (np.array([each["lengths"] for each in own]) for own in folds)
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
    return flow.recorded(source, base, config.optimizer.loss(config)(base, nothing, nothing))
