"""kfx for Python and notebooks: run, sweep, compare, and runs that show themselves."""

from __future__ import annotations

from kfx.interactive.runs import Sweep, compare, plug_in, run, sweep
from kfx.interactive.shown import Run, load_run

__all__ = ["Run", "Sweep", "compare", "load_run", "plug_in", "run", "sweep"]
