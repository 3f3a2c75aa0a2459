"""kfx: an experiment runner for Kernel Flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["__version__", "load_run"]

if TYPE_CHECKING:
    from kfx.record.reading import load_run


def __getattr__(name: str) -> Any:
    # `kfx --help` must answer at once: pandas and torch wait until a run is read.
    if name == "load_run":
        from kfx.record.reading import load_run

        return load_run
    raise AttributeError(f"module 'kfx' has no attribute {name!r}")
