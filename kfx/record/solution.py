"""The solution of the trained kernel's regression in a record, from which new points are predicted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from kfx.evaluation import kept_factor
from kfx.evaluation.interpolants import Exact, Interpolant, ThroughCentres
from kfx.files import digest, whole_file, write_arrays
from kfx.kernels.base import Kernel
from kfx.outcomes import ChangedError, RecordError
from kfx.record.fitted import stored


def solution_path(directory: Path) -> Path:
    """The file of the trained kernel's solution."""
    return directory / "solution.npz"


def factor_path(directory: Path) -> Path:
    """The file of the factor that belongs to the solution, if there is one."""
    return directory / "factor.bin"


def keep(directory: Path, solution: Interpolant, *, with_deviations: bool) -> None:
    """Write the trained kernel's solution, unless its matrix is on disk; of many points also the factor for deviations,
    in a file of its own, whose checksum the first file holds."""
    if not isinstance(solution, (Exact, ThroughCentres)):
        return
    arrays, path = solution.arrays(), factor_path(directory)
    path.unlink(missing_ok=True)
    is_many = kept_factor.FEWEST <= len(solution.alpha) <= kept_factor.MOST
    if with_deviations and is_many and isinstance(solution, Exact):
        with whole_file(path) as stream:
            arrays["factor_sha256"] = np.frombuffer(kept_factor.write(stream, solution.factor), np.uint8)
    with whole_file(solution_path(directory)) as stream:
        write_arrays(stream, arrays)


def recorded_solution(directory: Path, device: torch.device) -> ThroughCentres:
    """The solution of the trained kernel through centres; RecordError if its file is missing or damaged."""
    path = solution_path(directory)
    try:
        return ThroughCentres.from_arrays(stored(path), device)
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
    found = stored(path)
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
        kept = partial(kept_factor.half, factor)
    elif expected is not None:
        tell(f"kfx: {factor}: is gone; solving again for deviations")
    mapped, compare = kernel.feature_map_and_kernel()
    return Exact(mapped(points), alpha, effective, targets, compare, diagonal=diagonal, kept=kept)
