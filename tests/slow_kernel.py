"""A kernel in a plugin that takes its time and writes down each call, so that kills find tiles in flight."""

from __future__ import annotations

from pathlib import Path

PLUGIN = """# slow.py
import os
import time
from pathlib import Path

import torch

from kfx.options import FormulaOption, option, parameter

LOG = Path(__file__).with_name("calls.log")


@option("kernel", "slow", "exp(-|x - x'|^2 / 2), slowly")
class Slow(FormulaOption):
    seconds: float = parameter(0.03, 1e-4, 1.0, "of each call")

    @staticmethod
    def formula(x, y, seconds):
        time.sleep(float(seconds))
        with LOG.open("a") as log:
            log.write(f"{os.getpid()} {len(x)} {len(y)}\\n")
        return torch.exp(-torch.cdist(x.flatten(1), y.flatten(1)) ** 2 / 200)
"""


def write_slow(folder: Path) -> list[str]:
    """The words that name the plugin, which is written to the folder."""
    (folder / "slow.py").write_text(PLUGIN)
    return ["--plugin", str(folder / "slow.py")]


def calls(folder: Path) -> list[str]:
    """One a call so far, `process rows columns`, of tiles; calls for some first points, which tell kernels apart, left
    out."""
    path = folder / "calls.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if not line.endswith(" 8 8")]
