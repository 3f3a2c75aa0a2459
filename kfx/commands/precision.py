"""`kfx precision`: measure the precision of this machine's arithmetic, or compare several machines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kfx.commands.arguments import Commands
from kfx.files import Document
from kfx.screen.terminal import show

if TYPE_CHECKING:
    from kfx.report.table import Table


def add(commands: Commands) -> None:
    """Register the command."""
    precision = commands.add_parser("precision", help="measure this machine's arithmetic, in every device and dtype")
    precision.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="precision.json",
        help="files of several machines: compare them, measure nothing",
    )
    precision.add_argument("--allow-tf32", action="store_true", help="measure with TF32 allowed")
    precision.add_argument("--output", type=Path, default=Path("runs/precision"), help="folder for table and figure")
    precision.set_defaults(call=_precision)


def _precision(parsed: argparse.Namespace) -> int:
    import torch

    from kfx.experiment import preflight
    from kfx.files import write_json
    from kfx.numerics import precision, process
    from kfx.plots.precision import error_against_size
    from kfx.plots.style import save
    from kfx.record.environment import processor
    from kfx.record.output import require_no_record

    output: Path = parsed.output
    require_no_record("--output", output)
    if parsed.files:
        contents = precision.read(parsed.files)
        show(_table(contents), 160)
        preflight.make_folder("--output", output, resume=True)
        save(error_against_size(contents), output / "machines.png")
        print(f"  {output / 'machines.png'}")
        return 0
    preflight.make_folder("--output", output, resume=True)
    with process.exclusively():
        switches = process.set_switches(parsed.allow_tf32)
        verdicts = precision.measure(precision.arithmetics(("torch", "jax")))
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    content = {"machine": ", ".join([processor(), *cards]), **precision.report(verdicts, switches)}
    show(_table({"": content}), 160)
    for name, value in switches.items():
        print(f"  {name} = {value}")
    if not content["gpu"]:
        print("  no GPU is visible to torch or JAX: the CPU alone was measured")
    write_json(output / "precision.json", content)
    save(error_against_size({"": content}), output / "precision.png")
    print(f"  {output / 'precision.json'}, {output / 'precision.png'}")
    return 0 if all(verdict.keeps_promise for verdict in verdicts) else 1


def _table(contents: Mapping[str, Document]) -> Table:
    """The verdicts on each arithmetic. contents: the content of `precision.json` by the machine's name."""
    from kfx.report.table import Table

    rows = []
    for machine, content in contents.items():
        for v in content["verdicts"]:
            products, distances = list(v["products"].values()), list(v["distances"].values())
            errors = [products[0], products[-1], distances[-1], v["conv2d_7x7"]]
            named = [machine, v["framework"], v["device"], v["dtype"]][len(contents) == 1 :]
            mark = "" if v["keeps_promise"] else f"  — less than {v['dtype']}"
            rows.append([*named, *(f"{e:.1e}" for e in errors), v["verdict"] + mark])
    heads = ["machine", "framework", "device", "dtype"][len(contents) == 1 :]
    heads += ["product, N = 100#", "product, N = 1000#", "its norm, N = 1000#", "conv2d 7 × 7#", "delivers"]
    return Table(heads, rows, "Precision of products and convolutions, relative to float64 on the CPU")
