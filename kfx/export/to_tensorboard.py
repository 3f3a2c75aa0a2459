"""Finished runs as event files of TensorBoard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from kfx.export.finished import Finished
from kfx.outcomes import ConfigError
from kfx.record.output import require_no_record
from kfx.version import to_install

USUAL = "tensorboard"


def write(runs: Sequence[Finished], place: str | None, project: str) -> Iterator[str]:
    """Write a folder of events, named by the run and its identity, for each new run; yield a message for each.

    place: the folder for TensorBoard, by default `tensorboard`. project: a folder in it. ConfigError if it is missing.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # silence TensorFlow, if it is installed
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(f"kfx export tensorboard: needs TensorBoard; {to_install('tensorboard')}") from error
    import matplotlib.image

    require_no_record("--to", Path(place or USUAL))
    for finished in runs:
        folder = Path(place or USUAL) / project / f"{finished.name}-{finished.identity[:8]}-{finished.status}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_dir() and any(folder.glob("events.*")):
            yield f"{finished.name}: is there already, {folder}"
            continue
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of an interrupted export
        writer = SummaryWriter(str(partial))
        for name, steps, times, values in finished.series():
            for step, when, value in zip(steps, times, values, strict=True):
                writer.add_scalar(name, float(value), int(step), walltime=float(when))
        rows = finished.run.metrics.get("evaluation", [])
        several = len({row["configured_regularization"] for row in rows}) > 1
        for row in rows:
            if row["mean"] is not None:
                of = f"/regularization {row['configured_regularization']:g}" if several else ""
                tag = f"evaluation/{row['kernel']}/{row['metric']}{of}"
                writer.add_scalar(tag, float(row["mean"]), int(row["n_interpolation"]), walltime=finished.started)
        for path in finished.pictures():
            picture = matplotlib.image.imread(path)
            writer.add_image(f"figures/{path.stem}", picture, 0, finished.started, dataformats="HWC")
        settings = "\n".join(f"    {line}" for line in OmegaConf.to_yaml(finished.run.config).splitlines())
        writer.add_text("config", settings, 0, finished.started)
        writer.close()
        os.replace(partial, folder)  # whole or not at all
        yield f"{finished.name}: {folder}"
