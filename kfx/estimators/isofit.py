"""Emulators as a file of ISOFIT's engine `kernel_flows`, in the layout of KernelFlows.jl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kfx.estimators.recorded import Model
from kfx.evaluation.predictor import Separate
from kfx.export.finished import Finished
from kfx.kernels import ARD, Linear, Matern, Scaled, Sum
from kfx.numerics.arrays import in_numpy
from kfx.outcomes import RecordError
from kfx.record.output import written
from kfx.version import to_install

INPUTS = {
    name: number
    for number, name in enumerate(
        ("AERFRAC_2", "H2OSTR", "surface_elevation_km", "observer_altitude_km", "solar_zenith", "observer_zenith",
         "relative_azimuth", "solar_azimuth", "observer_azimuth"), start=1)
}  # fmt: skip
"""Numbers of ISOFIT's inputs by name; the columns of other data are numbered in their order."""


def write(runs: Sequence[Finished], to: str | None, project: str) -> list[str]:
    """Write the emulators of runs, MVM1, MVM2, … in their order, into one HDF5 file; return what was written.

    ISOFIT reads four: path reflectance, direct and diffuse downward transmittance, and spherical albedo.
    Raises RecordError for a run whose kernel or outputs the file cannot hold, or whose inputs or outputs differ from
    the first's, and for inputs of which only some have ISOFIT's names.
    """
    try:
        import h5py
    except ImportError as error:
        raise RecordError(f"kfx export isofit: needs h5py; {to_install('isofit')}") from error
    models = [(each.run.directory, Model.of_run(each.run)) for each in runs]
    first, model = models[0]
    x, outputs, features = model.data.x_train, model.data.y_train.shape[1], model.data.features
    for directory, other in models[1:]:
        same = other.data.x_train.shape == x.shape and np.array_equal(other.data.x_train, x)
        if not same or other.data.y_train.shape[1] != outputs or other.data.features != features:
            raise RecordError(f"{directory}: has other training inputs, or other outputs, than {first}")
    numbers, notes = _numbers(features, x.shape[1], first)
    wavelengths = _wavelengths(model, outputs)
    if wavelengths is None:
        wavelengths, notes = np.arange(outputs, dtype=float), [*notes, "wls numbers the outputs, which have no lengths"]
    if len(models) != _TAKEN:
        notes.append(f"ISOFIT reads {_TAKEN} emulators: path reflectance, direct and diffuse transmittance, albedo")
    path = Path(to or "emulator.h5")
    with written("--to", path) as partial, h5py.File(partial, "w") as file:
        file["wls"], file["inputdims"] = wavelengths, np.array(numbers)
        file["xmin"], file["xmax"] = np.nanmin(x, axis=0), np.nanmax(x, axis=0)
        file["input_transfs"] = np.ones((len(models), x.shape[1]), dtype=int)  # 1 stands for the identity
        file["output_transfs"] = np.ones(len(models), dtype=int)
        for number, (directory, model) in enumerate(models, start=1):
            _write(file.create_group(f"MVM{number}"), model, directory)
    said = f"{path}: {len(models)} emulator{'s' * (len(models) > 1)} of {x.shape[1]} inputs, N = {len(x)}"
    return [said, *(f"note: {note}" for note in notes)]


_TAKEN = 4


def _numbers(features: Sequence[str], count: int, directory: Path) -> tuple[list[int], list[str]]:
    """ISOFIT's numbers of the inputs, or 1, 2, … with a note where none has one of its names."""
    unknown = [name for name in features if name not in INPUTS]
    if features and not unknown:
        return [INPUTS[name] for name in features], []
    if features and len(unknown) < len(features):
        raise RecordError(f"{directory}: input {unknown[0]}: is none of ISOFIT's, which are {', '.join(INPUTS)}")
    return list(range(1, count + 1)), [f"inputdims numbers the inputs; ISOFIT knows {', '.join(INPUTS)}"]


def _wavelengths(model: Model, outputs: int) -> np.ndarray | None:
    """The outputs' names as numbers; None where they are not."""
    names = model.config.dataset.target_names()
    try:
        found = np.array([float(name) for name in names])
    except ValueError:
        return None
    return found if len(found) == outputs else None


def _write(group: Any, model: Model, directory: Path) -> None:
    """One emulator: how inputs are scaled and outputs recovered in G, and a kernel for each component in M1, M2, …"""
    data = model.config.dataset.preprocessed(model.data, model.preparation)
    steps = list(model.config.dataset.preprocess if model.preparation is None else model.preparation.preprocess)
    parts, units, outputs = model.predictor.parts, model.predictor.units, model.config.outputs
    if units.reduction is None or not isinstance(model.predictor, Separate):
        raise RecordError(
            f"{directory}: outputs.reduce={outputs.reduce}, outputs.kernels={outputs.kernels}: the file holds a kernel "
            "for each component; run it with pca or cca, and separate"
        )
    if steps not in ([], ["normalize"]) or units.warp is not None:
        raise RecordError(
            f"{directory}: dataset.preprocess={steps}, dataset.targets={model.config.dataset.targets}: the file scales "
            "inputs and outputs alone; run it with dataset.preprocess=[normalize] dataset.targets=standardized"
        )
    count = data.x_train.shape[1]
    geometry = group.create_group("G")
    affine: dict[str, np.ndarray] = data.maps[0].keywords if steps else {}  # type: ignore[attr-defined]
    geometry["Xmean"] = affine.get("mean", np.zeros(count)).reshape(count)
    geometry["Xstd"] = affine.get("unit", np.ones(count)).reshape(count)
    geometry["Ymean"] = np.broadcast_to(units.target_mean, data.y_train.shape[1]).astype(float)
    geometry["Ystd"] = 1.0
    geometry["Yproj/vectors"] = units.reduction_in_units()[0]
    geometry["Yproj/values"] = np.ones(len(parts))
    for number, part in enumerate(parts, start=1):
        weight, length, slope, lengths = _parameters(part.kernel, directory)
        points, alpha = in_numpy(part.interpolant.points) / lengths, in_numpy(part.interpolant.alpha)[:, 0]
        apart = _apart(points)
        if 1.5 * weight * (apart / length) ** 2 * np.abs(alpha).sum() > _TOLERANCE:
            raise RecordError(
                f"{directory}: its inputs are too far from 0 for the distances that ISOFIT computes; run it with "
                "dataset.preprocess=[normalize]"
            )
        vectors = np.eye(count + 1, count)  # a coordinate more, which is 0 for new points
        geometry[f"Xproj{number}/vectors"], geometry[f"Xproj{number}/values"] = vectors, np.ones(count + 1)
        own = group.create_group(f"M{number}")
        own["Z"] = np.concatenate([points.T, np.full((1, len(points)), apart)])
        own["lambda"], own["h"] = np.append(1 / lengths, 1.0), alpha
        own["theta"] = np.array([weight, length, slope, part.interpolant.effective])


_TOLERANCE = 1e-3
"""Largest change of a component of unit variance."""


def _apart(points: np.ndarray) -> float:
    """A distance at which |z|² + |z'|² − 2 z·z' with the rounding errors of these points, (n, features), is above 0.

    ISOFIT takes its root, which without a distance has no value at points that the emulator has seen. It changes a
    Matérn 3/2 kernel by at most 1.5 (distance / length)².
    """
    largest = np.square(points).sum(axis=1).max()
    return float(np.sqrt(8 * (points.shape[1] + 4) * np.finfo(np.float64).eps * largest))


def _parameters(kernel: Any, directory: Path) -> tuple[float, float, float, np.ndarray]:
    """The Matérn kernel's weight and length, the linear kernel's weight, and the length of each feature."""
    if isinstance(kernel, ARD) and isinstance(kernel.kernel, Sum):
        parts = kernel.kernel.parts
        if len(parts) == 2 and all(isinstance(part, Scaled) for part in parts):
            (matern,), (linear,) = parts[0].parts, parts[1].parts  # type: ignore[attr-defined]
            if isinstance(matern, Matern) and matern.nu == 1.5 and isinstance(linear, Linear):
                first, second = (float(part.parameters["coefficient"]) ** 2 for part in parts)
                return first, float(matern.parameters["sigma"]), second, np.asarray(kernel.parameters["lengths"])
    raise RecordError(f"{directory}: its kernel is not the file's; run it with kernel=emulator")
