"""Finished runs as runs of Weights & Biases, offline by default."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from kfx.export.finished import Finished
from kfx.outcomes import ConfigError
from kfx.record.output import require_no_record
from kfx.version import to_install

USUAL = "."


def write(runs: Sequence[Finished], place: str | None, project: str) -> Iterator[str]:
    """Write each run that the folder does not have yet, under its identity; yield a message for each.

    place: the folder around `wandb/`; `online` sends the runs to the server of `wandb login`, replacing a run of the
        same identity. `wandb sync` sends offline runs. ConfigError if W&B is missing or cannot begin a run.
    """
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(f"kfx export wandb: needs Weights & Biases; {to_install('wandb')}") from error
    online = place == "online"
    folder = Path("." if online else place or USUAL)
    require_no_record("--to", folder)
    (whole := folder / "wandb").mkdir(parents=True, exist_ok=True)
    partial = whole / "partial"
    os.environ.setdefault("WANDB_SILENT", "true")
    quiet = wandb.Settings(disable_git=True, disable_code=True, console="off", x_disable_stats=True)
    for finished in runs:
        own = f"{finished.identity}-{finished.status}"
        if not online and list(whole.glob(f"offline-run-*-{own}")):
            yield f"{finished.name}: is there already"
            continue
        shutil.rmtree(partial, ignore_errors=True)  # of an interrupted export
        partial.mkdir()
        try:
            run = wandb.init(
                mode="online" if online else "offline",
                dir=str(partial),
                project=project,
                name=finished.name,
                id=own,
                config=finished.settings(),
                settings=quiet,
            )
        except wandb.errors.Error as error:
            raise ConfigError(f"kfx export wandb: {' '.join(str(error).split())}") from error
        rows: dict[int, dict[str, float]] = defaultdict(dict)
        for name, steps, _, values in finished.series():
            for step, value in zip(steps, values, strict=True):
                rows[int(step)][name] = float(value)
        for step in sorted(rows):
            run.log(rows[step], step=step)
        run.log({f"figures/{path.stem}": wandb.Image(str(path)) for path in finished.pictures()})
        run.summary.update({**finished.results(), "status": str(finished.status)})
        run.finish(exit_code=0 if finished.status == "completed" else 1)
        for path in partial.glob(f"wandb/*run-*-{own}"):
            os.replace(path, whole / path.name)  # whole or not at all
        shutil.rmtree(partial, ignore_errors=True)
        yield f"{finished.name}: {own}"
