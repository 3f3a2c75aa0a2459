"""`kfx export`: copy finished runs into the stores of other tools, or emulators into their file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kfx.commands.arguments import Commands, add_plugins

_TOOLS = {
    "isofit": "the HDF5 file of the runs' emulators (default: emulator.h5)",
    "mlflow": "a tracking URI (default: MLFLOW_TRACKING_URI, or sqlite:///mlflow.db)",
    "tensorboard": "the folder for TensorBoard (default: tensorboard)",
    "wandb": "the folder around wandb/ (default: here), or online",
}


def add(commands: Commands) -> None:
    """Register the command."""
    export = commands.add_parser(
        "export", help="write finished runs for MLflow, TensorBoard, Weights & Biases, or ISOFIT"
    )
    export.add_argument("tool", choices=tuple(_TOOLS))
    export.add_argument("paths", nargs="+", type=Path, metavar="RUN|SWEEP")
    places = "; ".join(f"{name}: {place}" for name, place in _TOOLS.items())
    export.add_argument("--to", metavar="PLACE", help=f"where; {places}")
    export.add_argument("--project", default="kfx", help="experiment, folder or project there (default: kfx)")
    add_plugins(export)
    export.set_defaults(call=_export)


def _export(parsed: argparse.Namespace) -> int:
    import importlib

    from kfx.config.plugins import load_plugins
    from kfx.export.finished import read

    load_plugins(parsed.plugin)
    runs, left_out = read(parsed.paths)
    for line in left_out:
        print(f"kfx: left out: {line}", file=sys.stderr)
    module = "kfx.estimators.isofit" if parsed.tool == "isofit" else f"kfx.export.to_{parsed.tool}"
    for line in importlib.import_module(module).write(runs, parsed.to, parsed.project):
        print(line)
    return 0
