"""`kfx precision`: measure this machine's arithmetic."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Register the command."""
    precision = commands.add_parser("precision", help="measure this machine's arithmetic, in every device and dtype")
    precision.add_argument("--allow-tf32", action="store_true", help="measure with TF32 allowed")
    precision.add_argument("--output", type=Path, default=Path("runs/precision"), help="folder for table and figure")
    precision.set_defaults(call=_precision)


def _precision(parsed: argparse.Namespace) -> int:
    from rich.console import Console

    from kfx.files import write_json
    from kfx.numerics import precision
    from kfx.plots.precision import error_against_size
    from kfx.running import preflight

    output: Path = parsed.output
    preflight.make_folder("--output", output, resume=True)
    switches = precision.set_switches(parsed.allow_tf32)
    verdicts = precision.measure(precision.arithmetics(("torch", "jax")))
    content = precision.report(verdicts, switches)
    Console(width=120 if not sys.stdout.isatty() else None).print(precision.table(content))
    for name, value in switches.items():
        print(f"  {name} = {value}")
    if not content["gpu"]:
        print("  no GPU is visible to torch or JAX: the CPU alone was measured")
    write_json(output / "precision.json", content)
    error_against_size(content).savefig(output / "precision.png")
    print(f"  {output / 'precision.json'}, {output / 'precision.png'}")
    return 0 if all(verdict.keeps_promise for verdict in verdicts) else 1
